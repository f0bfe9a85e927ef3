# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A snapshot against what it should be: by itself, against pins, against a lock, against another host's.

Pure functions over the data of snapshots.py; nothing is read.
"""

from __future__ import annotations

import typing as t
from pathlib import PurePosixPath

from . import checks, folding, locks, parity, records, references
from .findings import COULD_NOT_CHECK, ERROR, NOT_APPLICABLE, OK, WARNING, Finding, FindingError, from_dict

#: What a snapshot may be held against.
WANTED = ("pins", "lock", "engine", "snapshot")

Snapshot = t.Mapping[str, t.Any]

_SAME = "Deploy the engine to both from the same pins; a version that one host needs goes into `specdec_pins` of both."


def findings(snapshot: Snapshot, wanted: t.Mapping[str, t.Any]) -> list[Finding]:
    """An environment against itself, and every comparison that is asked for (see :func:`compared`)."""
    asked = compared(snapshot, wanted)
    return [*parity.findings(snapshot["packages"], snapshot["kernels"], snapshot["lacks"], snapshot["torch"]), *asked]


def compared(snapshot: Snapshot, wanted: t.Mapping[str, t.Any]) -> list[Finding]:
    """Every comparison that is asked for.

    :param wanted: any of pins (version or range by package), lock (text), engine ({name, version}), snapshot (of another environment).

    Raises FindingError (``parity.wanted``) where ``wanted`` holds something else.
    """
    unknown = sorted(set(wanted) - set(WANTED))
    if unknown:
        fix = "Give a snapshot, or a mapping with any of: %s." % ", ".join(WANTED)
        raise FindingError(Finding("parity.wanted", ERROR, ", ".join(unknown), "nothing that a snapshot is compared with", fix=fix))
    found = []
    if wanted.get("engine"):
        found.append(engine(snapshot, wanted["engine"]))
    if wanted.get("lock"):
        found.append(checks.lock_satisfied(locks.parse(wanted["lock"], "the lock").versions, snapshot["packages"]))
    if wanted.get("pins"):
        found.append(pins(snapshot, wanted["pins"]))
    if wanted.get("snapshot"):
        found += between(snapshot, wanted["snapshot"])
    return found


def environments(seen: t.Mapping[str, t.Any], wanted: t.Mapping[str, t.Any], host: str = "") -> list[Finding]:
    """The same for every environment that holds an engine, of what env_snapshot returned.

    :param wanted: as for :func:`findings`; as ``snapshot`` also what env_snapshot returned elsewhere, of which the environment with the
        same engine is taken.
    :param host: where ``seen`` is from.
    """
    found = []
    for snapshot in _snapshots(seen):
        if snapshot["engine"]:
            asked, nothing = _asked(snapshot, wanted, host)
            found += [*nothing, *findings({**snapshot, "host": host}, asked)]
    return found


def audit(
    seen: t.Mapping[str, t.Any], instances: t.Mapping[str, t.Mapping[str, t.Any]], wanted: t.Mapping[str, t.Any], host: str = ""
) -> list[Finding]:
    """All that is known of a host's environments: what was found where they lie, and the comparisons; each root cause once.

    :param instances: by name what ``specdec verify --json`` tells of the instances there.
    :param wanted: as for :func:`environments`.
    """
    left = dict(instances)
    found = []
    for result in seen.get("environments", ()):
        here = [name for name, one in left.items() if one.get("environment") == PurePosixPath(result["path"]).parent.name]
        together = [result, *(left.pop(name) for name in here)]
        about = [from_dict(finding) for one in together for finding in one["findings"]]
        snapshot = result.get("snapshot")
        if snapshot and snapshot["engine"]:
            asked, nothing = _asked(snapshot, wanted, host)
            about += [*nothing, *compared({**snapshot, "host": host}, asked)]
        found += folding.fold(about)
    return [*found, *(from_dict(finding) for one in left.values() for finding in one["findings"])]


def _asked(snapshot: Snapshot, wanted: t.Mapping[str, t.Any], host: str) -> tuple[dict[str, t.Any], list[Finding]]:
    """What an environment is compared with, where that is the one with the same engine of another host; and that it has none."""
    other = wanted.get("snapshot")
    if other is None or "packages" in other:
        return dict(wanted), []
    name = snapshot["engine"]["name"]
    known = [one for one in _snapshots(other) if one["engine"].get("name") == name]
    if known:
        return {**wanted, "snapshot": {**known[0], "host": other.get("host", "")}}, []
    return {**wanted, "snapshot": None}, [_nothing_there(_name({**snapshot, "host": host}), name, other)]


def _snapshots(seen: t.Mapping[str, t.Any]) -> list[Snapshot]:
    return [one["snapshot"] for one in seen.get("environments", ()) if "snapshot" in one]


def _nothing_there(subject: str, name: str, other: t.Mapping[str, t.Any]) -> Finding:
    why = str(other.get("msg") or "no environment with %s is known there" % name)
    fix = "Start that host, or name its environment (`specdec_reference: {venv: …}`); or compare with another."
    return Finding("parity.hosts", COULD_NOT_CHECK, subject, "there is nothing to compare with", why, fix=fix)


def engine(snapshot: Snapshot, wanted: t.Mapping[str, str]) -> Finding:
    """``lock.engine-version``."""
    name = wanted.get("name", "")
    return checks.engine_version(name, {"engine": name, "version": str(wanted.get("version", ""))}, snapshot["packages"])


def pins(snapshot: Snapshot, wanted: t.Mapping[str, t.Any]) -> Finding:
    """``lock.pins``: every pinned package is installed at its version; that all parts of flashinfer have one is ``parity.flashinfer``."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    packages = snapshot["packages"]
    wrong, held = [], []
    for name, pin in sorted(wanted.items()):
        version = str(pin.get("version", "") if isinstance(pin, dict) else pin)
        part = parity.FLASHINFER[0] if name == "flashinfer" else records.normalized(name)
        if part not in packages:
            wrong.append("%s is not installed, pinned is %s" % (part, version or "a build of its own"))
            continue
        if not version:
            continue  # a pin by address or commit names no version
        try:
            range_ = SpecifierSet(version if version[0] in "<>=!~" else "==%s" % version)
            fits = range_.contains(packages[part], prereleases=True)
        except InvalidSpecifier:
            fits = packages[part] == version
        (held if fits else wrong).append("%s %s" % (part, packages[part]) + ("" if fits else ", pinned is %s" % version))
    if not wrong:
        return Finding("lock.pins", OK, _name(snapshot), "every pinned package has its version", ", ".join(held))
    return Finding(
        "lock.pins",
        ERROR,
        _name(snapshot),
        "what is pinned is not what is installed",
        records.listing(wrong),
        "the versions of specdec_pins",
        records.METADATA,
        "The environment was made before the pin, or something was installed into it.",
        "Deploy again, which builds an environment with the pins; or correct specdec_pins.",
    )


def between(snapshot: Snapshot, other: Snapshot) -> list[Finding]:
    """``parity.hosts``, ``parity.packages``, ``parity.source``: two environments, on two hosts or on one."""
    return [hosts(snapshot, other), packages(snapshot, other), source(snapshot, other)]


def hosts(one: Snapshot, other: Snapshot) -> Finding:
    """``parity.hosts``: what serving depends on has equal public versions. Other GPUs may need another lane, never another version."""
    mine, theirs = _critical(one), _critical(other)
    lines, lanes = [], []
    for name in sorted(mine.keys() | theirs.keys()):
        if name not in mine or name not in theirs:
            part = "flashinfer" if name.startswith("flashinfer") else name
            without = one if name not in mine else other
            if part not in without["lacks"]:
                lines.append("%s: %s here, %s there" % (name, mine.get(name, "not installed"), theirs.get(name, "not installed")))
        elif parity.public(mine[name]) != parity.public(theirs[name]):
            lines.append("%s: %s here, %s there" % (name, mine[name], theirs[name]))
        elif parity.cuda_label(mine[name]) != parity.cuda_label(theirs[name]):
            lanes.append("%s: %s here, %s there" % (name, mine[name], theirs[name]))
    subject = _subject(one, other)
    if lines:
        return Finding(
            "parity.hosts",
            ERROR,
            subject,
            "what serving depends on has other versions",
            records.listing(lines),
            "equal versions",
            records.METADATA,
            "One of the two was upgraded, or built from other pins.",
            _SAME,
        )
    if lanes and one["gpus"] == other["gpus"]:
        message = "the same GPUs are served with other lanes"
        return Finding("parity.hosts", WARNING, subject, message, records.listing(lanes), "one lane for one kind of GPU", fix=_SAME)
    return Finding(
        "parity.hosts", OK, subject, "what serving depends on has equal versions", ", ".join("%s %s" % it for it in mine.items())
    )


def packages(one: Snapshot, other: Snapshot) -> Finding:
    """``parity.packages``: all other packages, reported."""
    told = set(_critical(one)) | set(_critical(other)) | {*one["kernels"], *other["kernels"]}
    mine, theirs = ({name: version for name, version in it["packages"].items() if name not in told} for it in (one, other))
    lines = [
        "%s: %s here, %s there" % (name, mine.get(name, "not installed"), theirs.get(name, "not installed"))
        for name in sorted(mine.keys() | theirs.keys())
        if mine.get(name) != theirs.get(name)
    ]
    pythons = [str(it["python"].get("version", "unknown")) for it in (one, other)]
    if pythons[0] != pythons[1]:
        lines.insert(0, "Python: %s here, %s there" % (pythons[0], pythons[1]))
    subject = _subject(one, other)
    if not lines:
        return Finding("parity.packages", OK, subject, "all other packages are equal, too", "%d packages" % len(mine))
    return Finding("parity.packages", WARNING, subject, "%d other package(s) differ" % len(lines), records.listing(lines), fix=_SAME)


def source(one: Snapshot, other: Snapshot) -> Finding:
    """``parity.source``: the engine's source differs from its wheel in the same way."""
    subject = _subject(one, other)
    mine, theirs = one["edits"], other["edits"]
    if mine is None or theirs is None:
        where = " and ".join(it["path"] for it in (one, other) if it["edits"] is None)
        return Finding("parity.source", NOT_APPLICABLE, subject, "no wheel's source to compare in %s" % where)
    lines = [
        "%s: %s here, %s there" % (records.printable(path), _kind(mine, path), _kind(theirs, path))
        for path in sorted(mine.keys() | theirs.keys())
        if (path in mine, mine.get(path)) != (path in theirs, theirs.get(path))
    ]
    if not lines:
        return Finding("parity.source", OK, subject, "the engine's source is the same", "%d file(s) besides the wheel's" % len(mine))
    return Finding(
        "parity.source",
        ERROR,
        subject,
        "the engine's source differs in %d file(s)" % len(lines),
        records.listing(lines),
        "the same overlays, or none",
        "RECORD of the engine, and the overlays' manifests",
        "A reference was edited after its overlay was captured, or one of the two was edited by hand; two references each have edits of "
        "their own.",
        "Capture the overlay again (playbooks/capture.yml) from the one that is right, and deploy it; or take the edit back.",
    )


def _kind(edits: t.Mapping[str, t.Optional[str]], path: str) -> str:
    if path not in edits:
        return "as in the wheel"
    return "removed" if edits[path] is None else "edited (%s)" % str(edits[path])[:8]


def _critical(snapshot: Snapshot) -> dict[str, str]:
    """Version by name of what serving depends on; the kernel package under one name."""
    found = {}
    for name, version in snapshot["packages"].items():
        if name in snapshot["kernels"]:
            found["kernel"] = version
        elif name in references.CRITICAL or name in parity.TORCH_FAMILY or name == snapshot["engine"].get("name"):
            found[name] = version
    return found


def _subject(one: Snapshot, other: Snapshot) -> str:
    return "%s against %s" % (_name(one), _name(other))


def _name(snapshot: Snapshot) -> str:
    return ":".join(word for word in (snapshot.get("host"), snapshot["path"]) if word)
