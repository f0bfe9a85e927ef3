# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The packages of an environment against those of another one, and what is to be downloaded for them, for a person."""

from __future__ import annotations

import typing as t

_NAMED = 3


def compare(
    old: t.Mapping[str, str], new: t.Mapping[str, str], sizes: t.Mapping[str, int], held: t.Iterable[tuple[str, str]] = ()
) -> list[dict[str, t.Any]]:
    """What differs, by name: ``name``, ``old`` and ``new`` version (None where there is none), ``bytes`` of the download.

    :param sizes: bytes of the file that is taken, by name; a name that is missing is unknown (None in the result).
    :param held: name and version of what needs no download: it is sent, or earlier environments left it in the host's cache.
    """
    kept = set(held)
    changes = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before != after:
            free = after is None or (name, after) in kept
            changes.append({"name": name, "old": before, "new": after, "bytes": 0 if free else sizes.get(name)})
    return changes


def summary(changes: t.Sequence[t.Mapping[str, t.Any]], previous: t.Optional[str], sent: t.Optional[str] = None) -> list[str]:
    """Two lines: how many packages change against the environment ``previous``, and how much is to be downloaded.

    :param sent: how much a wheelhouse sends; then nothing is downloaded.
    """
    lines = []
    if previous:
        counts = (
            ("changed", sum(1 for one in changes if one["old"] and one["new"])),
            ("new", sum(1 for one in changes if not one["old"])),
            ("gone", sum(1 for one in changes if not one["new"])),
        )
        told = ", ".join("%d %s" % (count, what) for what, count in counts if count) or "the same"
        lines.append("packages: %s against environment %s%s" % (told, previous, _examples(changes)))
    if sent is not None:
        return [*lines, "download: nothing; %s of the wheelhouse are sent" % sent]
    known = sorted((one for one in changes if one["bytes"]), key=lambda one: -one["bytes"])
    unknown = [one for one in changes if one["bytes"] is None]
    told = []
    if known:
        biggest = ", ".join("%s %s" % (one["name"], size(one["bytes"])) for one in known[:_NAMED])
        told.append("%s (%s)" % (size(sum(one["bytes"] for one in known)), biggest))
    if unknown:
        told.append("%d package(s) of unknown size" % len(unknown))
    if told:
        lines.append("download: " + " and ".join(told))
    return lines


def _examples(changes: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    """The versions that change, where they are few enough for one line."""
    changed = ["%s %s \u2192 %s" % (one["name"], one["old"], one["new"]) for one in changes if one["old"] and one["new"]]
    return ": " + ", ".join(changed) if 0 < len(changed) <= _NAMED else ""


def listed(changes: t.Iterable[t.Mapping[str, t.Any]]) -> list[str]:
    """One line for each package that differs."""
    return ["%s %s \u2192 %s, %s" % (one["name"], one["old"] or "none", one["new"] or "none", _told(one)) for one in changes]


def _told(one: t.Mapping[str, t.Any]) -> str:
    if one["bytes"] is None:
        return "size unknown"
    return size(one["bytes"]) if one["bytes"] else "nothing to download"


def size(count: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return ("%.0f %s" if unit == "B" or count >= 99.95 else "%.1f %s") % (count, unit)
        count /= 1000
    return "%.1f GB" % count
