# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which file a host takes of each package: its address, hash and size.

uv knows all that from the index; it says so in the form of a pylock.toml (PEP 751), which no host ever sees. Read on the
controller alone, for the standard library of an older Python reads no TOML.
"""

from __future__ import annotations

import dataclasses
import typing as t
import urllib.parse

#: The oldest manylinux that wheels are still built for, and the older names of some.
_OLDEST = 5
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclasses.dataclass(frozen=True)
class File:
    """A file of an index; ``sha256`` is empty and ``size`` (bytes) None where the index does not say."""

    name: str
    version: str
    filename: str
    url: str
    sha256: str
    size: t.Optional[int]


def tags(python: str, platform: str) -> list[t.Any]:
    """The tags of a host, best first.

    :param python: minor version (``3.12``); :param platform: as uv names it (``x86_64-manylinux_2_36``).
    """
    from packaging.tags import compatible_tags, cpython_tags

    machine, _dash, glibc = platform.partition("-")
    newest = int(glibc.rpartition("_")[2])
    platforms = []
    for minor in range(newest, _OLDEST - 1, -1):
        platforms += ["manylinux_2_%d_%s" % (minor, machine)] + (["%s_%s" % (_LEGACY[minor], machine)] if minor in _LEGACY else [])
    platforms.append("linux_" + machine)
    version = tuple(int(part) for part in python.split("."))
    interpreter = "cp" + "".join(str(part) for part in version)
    return [*cpython_tags(version, [interpreter], platforms), *compatible_tags(version, interpreter, platforms)]


def read(text: str) -> dict[str, list[File]]:
    """The files by package of a pylock.toml. Raises tomllib.TOMLDecodeError."""
    import tomllib

    found: dict[str, list[File]] = {}
    for package in tomllib.loads(text).get("packages", ()):
        sources = [*package.get("wheels", ()), *(package[kind] for kind in ("sdist", "archive") if kind in package)]
        found[package["name"]] = [_file(package, source) for source in sources]
    return found


def _file(package: t.Mapping[str, t.Any], source: t.Mapping[str, t.Any]) -> File:
    place = source.get("url") or source.get("path") or ""
    filename = source.get("name") or urllib.parse.unquote(urllib.parse.urlsplit(place).path.rpartition("/")[2])
    return File(package["name"], package["version"], filename, place, source.get("hashes", {}).get("sha256", ""), source.get("size"))


def taken(files: t.Iterable[File], hashes: t.Optional[t.Collection[str]], ranked: t.Sequence[t.Any]) -> t.Optional[File]:
    """Of a package's files the one that an installer takes: of the best tag; a source where there is no wheel.

    :param hashes: those that are accepted; any when None.
    """
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    order = {tag: number for number, tag in enumerate(ranked)}
    best: t.Optional[tuple[t.Any, File]] = None
    for one in files:
        if hashes is not None and one.sha256 and one.sha256 not in hashes:
            continue
        build: tuple[t.Any, ...] = ()
        try:
            _name, _version, build, tagged = parse_wheel_filename(one.filename)
            ranks = [order[tag] for tag in tagged if tag in order]
        except InvalidWheelFilename:
            ranks = [len(order)]
        # of two builds of one tag the later, as every installer does
        key = (min(ranks), -build[0] if build else 0, one.filename) if ranks else None
        if key and (best is None or key < best[0]):
            best = (key, one)
    return best[1] if best else None
