# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Capture: what differs between an installed distribution and its RECORD, as a bundle. Nothing is written."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import stat
import typing as t
from pathlib import Path

from . import additions, bundles, records, sources
from .bundles import Bundle
from .findings import ERROR, Finding, FindingError

#: Of other distributions only what a person edits is hashed; of larger files the size is compared.
_EDITED = 1 << 20

#: Bytes of the largest file that is taken for source without being named; weights and data sets are none.
_LARGEST = 64 << 20

_ATTEMPTS = 3


@dataclasses.dataclass(frozen=True)
class Captured:
    """What :func:`capture` found.

    :param ignored: what differs and was not captured, each {path, package, reason}.
    :param executable: scripts with the wheel's bytes that may be executed; whether the wheel's may is not known here.
    :param uncommitted: of an overlay over a source's release, what no commit holds.
    """

    bundle: Bundle
    ignored: tuple[t.Mapping[str, str], ...]
    executable: tuple[str, ...] = ()
    uncommitted: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Release:
    """What a distribution that was not installed from a wheel is compared with: the wheel of its release, of which nothing is installed."""

    base: records.Distribution
    source: sources.Source


@dataclasses.dataclass(frozen=True)
class _Scan:
    hashes: t.Mapping[str, t.Optional[str]]
    added: tuple[str, ...]
    stamps: t.Mapping[str, t.Optional[tuple[int, int, int]]]


def capture(
    site_packages: Path,
    package: str,
    binaries: t.Collection[str] = (),
    critical: t.Iterable[str] = (),
    release: t.Optional[Release] = None,
) -> Captured:
    """Take what differs between an installed distribution and its RECORD, or between its source and the wheel of its release.

    Changed files, files no RECORD knows in the distribution's own top-level packages, and deleted files
    are taken. Bytecode, caches, backups and leftovers of version control are not, nor are compiled
    libraries and large files that ``binaries`` does not name, nor what lies in other distributions: all of that is
    listed in :attr:`Captured.ignored`. What the files add to their base is told later, where the base is at hand.

    :param package: name of the distribution.
    :param binaries: paths of compiled libraries and of large files to take nevertheless.
    :param critical: distributions whose versions the manifest notes.
    :param release: for what is not installed from a wheel (see sources.find).

    Raises FindingError when the distribution is not there or not installed from a wheel, or when its files keep changing or cannot be read.
    """
    site_packages = Path(site_packages)
    dists = records.distributions(site_packages)
    installed = _captured_distribution(site_packages, dists, package, release)
    others = [one for one in dists if one is not installed]
    dist, place = (release.base, release.source.place) if release else (installed, site_packages)
    beside = others if place == site_packages else []
    entries, files, ignored, unreadable = _stable(place, dist, [dist, *beside], frozenset(binaries))
    entries = [entry for entry in entries if not (release and _as_released(entry, files, release, ignored))]
    files = {entry["path"]: files[entry["path"]] for entry in entries if entry["path"] in files}
    if unreadable:
        message = "%d file(s) of it cannot be read, so what was changed cannot be told" % len(unreadable)
        fix = "make them readable for root (see the evidence), or install the package anew, then capture again"
        raise FindingError(Finding("overlay.unreadable", ERROR, package, message, evidence=records.listing(unreadable), fix=fix))
    manifest = {
        "base": {"name": dist.name, "version": dist.version},
        "python": python_version(site_packages),
        "files": entries,
        "adds": additions.nothing(),
        "needs": {},
        "reference_versions": {name: found.version for name in critical for found in [records.find(dists, name)] if found},
    }
    taken = {entry["path"] for entry in entries}
    ignored += _mode_only(place, dist, taken)
    ignored += _edits_elsewhere(site_packages, others, dist)
    ignored = [{**one, "path": records.printable(one["path"])} for one in ignored]
    return Captured(
        bundles.seal(manifest, files),
        tuple(sorted(ignored, key=lambda one: (one["package"], one["path"]))),
        tuple(path for path in sorted(_own(dist)) if path not in taken and _is_script(place / path)),
        tuple(entry["path"] for entry in entries if release and not _committed(entry, files, release, installed)),
    )


def _is_script(path: Path) -> bool:
    """Whether a file may be executed and says by what."""
    try:
        if not path.stat().st_mode & 0o111:
            return False
        with path.open("rb") as stream:
            return stream.read(2) == b"#!"
    except OSError:
        return False


def with_modes(bundle: Bundle, executable: t.Collection[str], package: records.Distribution, directory: Path) -> Bundle:
    """The bundle with the scripts whose bytes are the wheel's and of which only the executable bit was changed.

    :param executable: what :class:`Captured` says.
    :param directory: where the unmodified ``package`` lies, with its own modes.
    """
    allowed = set(executable)
    taken = {entry["path"] for entry in bundle.manifest["files"]}
    entries, files = list(bundle.manifest["files"]), dict(bundle.files)
    for path, row in _own(package).items():
        source = directory / path
        if path in taken or _is_script(source) == (path in allowed):
            continue
        files[path] = source.read_bytes()
        entries.append(bundles.entry(path, "change", row.digest, files[path], path in allowed))
    if len(files) == len(bundle.files):
        return bundle
    manifest = {key: value for key, value in bundle.manifest.items() if key not in ("schema", "digest", "binaries")}
    return bundles.seal({**manifest, "files": sorted(entries, key=lambda entry: entry["path"])}, files)


def _as_released(entry: t.Mapping[str, t.Any], files: t.Mapping[str, bytes], release: Release, ignored: list[dict[str, str]]) -> bool:
    """Whether a file is as the release's tag has it, for all that is known: then the wheel left it out, or made it while it was built."""
    path, source = entry["path"], release.source
    reason = ""
    if source.released:
        same = source.released.get(path) == sources.content_id(files.get(path))
        reason = "as in the release's source, which is not as its wheel" if same else ""
    elif source.kind == sources.EDITABLE and entry["action"] == "delete":
        reason = "not in the source, of which no repository tells whether it ever was"
    if reason:
        ignored.append({"path": path, "package": release.base.name, "reason": reason})
    return bool(reason)


def _committed(entry: t.Mapping[str, t.Any], files: t.Mapping[str, bytes], release: Release, installed: records.Distribution) -> bool:
    """Whether the commit that is installed has a file as it is now."""
    path = entry["path"]
    if release.source.kind == sources.EDITABLE:
        return release.source.committed.get(path) == sources.content_id(files.get(path))
    row = installed.rows.get(path)
    return (row.digest if row else None) == entry["result"]


def _stable(
    site_packages: Path, dist: records.Distribution, dists: t.Sequence[records.Distribution], binaries: frozenset[str]
) -> tuple[list[dict[str, t.Any]], dict[str, bytes], list[dict[str, str]], list[str]]:
    """The differences as they were at one moment: what was read is what was there before and after."""
    for _attempt in range(_ATTEMPTS):
        scan = _scan(site_packages, dist, dists, binaries)
        found = _differences(site_packages, dist, scan, binaries)
        if scan == _scan(site_packages, dist, dists, binaries) and all(one["result"] == scan.hashes.get(one["path"]) for one in found[0]):
            return found
    raise FindingError(
        Finding(
            "overlay.unstable",
            ERROR,
            dist.name,
            "its files change while they are read",
            evidence="%s, read %d times" % (site_packages, _ATTEMPTS),
            fix="wait until nobody edits or installs on the reference, then capture again",
        )
    )


def python_version(site_packages: Path) -> str:
    """The minor version of Python a site-packages directory belongs to (``3.11``); empty where its path does not say."""
    match = re.search(r"python(\d+\.\d+)", Path(site_packages).parent.name)
    return match[1] if match else ""


def _captured_distribution(
    site_packages: Path, dists: t.Sequence[records.Distribution], package: str, release: t.Optional[Release]
) -> records.Distribution:
    dist = records.find(dists, package)
    if dist is None:
        fix = "name the virtual environment that has it, or the distribution's real name"
        raise FindingError(
            Finding("overlay.absent", ERROR, package, "is not installed on the reference", evidence=str(site_packages), fix=fix)
        )
    if not release and not dist.packages():
        raise FindingError(
            Finding(
                "overlay.editable",
                ERROR,
                package,
                "is not installed from a wheel, so there is nothing to compare its files with",
                found="no RECORD, or one without packages",
                evidence=str(site_packages / dist.directory),
                fix="install the wheel of the same version on the reference and lay the changed files over it",
            )
        )
    return dist


def _scan(site_packages: Path, dist: records.Distribution, dists: t.Iterable[records.Distribution], binaries: frozenset[str]) -> _Scan:
    """Hashes of the distribution's files, and of the files in its packages that no RECORD knows (None: gone, or cannot be read)."""
    known = {path for one in dists for path in one.rows}
    added = tuple(sorted(path for path in records.tree(site_packages, dist.packages()) if path not in known))
    wanted = {path: (str(site_packages / path), row.algorithm) for path, row in _own(dist).items()}
    wanted.update((path, (str(site_packages / path), "sha256")) for path in added if _may_be_source(site_packages / path, path in binaries))
    # an editor that truncates a file before it writes leaves the same nothing there each time: its times tell
    stamps = {path: _stamp(Path(place)) for path, (place, _algorithm) in wanted.items()}
    return _Scan(records.hash_files(wanted), added, stamps)


def _stamp(path: Path) -> t.Optional[tuple[int, int, int]]:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _may_be_source(path: Path, named: bool) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and (named or found.st_size <= _LARGEST)


def _own(dist: records.Distribution) -> dict[str, records.Row]:
    """The files an overlay may concern: those with a hash, in the distribution's packages."""
    packages = dist.packages()
    return {path: row for path, row in dist.rows.items() if row.digest and path.split("/", 1)[0] in packages and "/" in path}


def _differences(
    site_packages: Path, dist: records.Distribution, scan: _Scan, binaries: frozenset[str]
) -> tuple[list[dict[str, t.Any]], dict[str, bytes], list[dict[str, str]], list[str]]:
    """Entries, files, what is ignored, and what cannot be read."""
    entries: list[dict[str, t.Any]] = []
    files: dict[str, bytes] = {}
    ignored: list[dict[str, str]] = []
    unreadable: list[str] = []
    changed = [path for path, row in _own(dist).items() if scan.hashes[path] != row.digest]
    for path in sorted([*changed, *scan.added]):
        row = dist.rows.get(path)
        source = site_packages / path
        data: t.Optional[bytes] = None
        executable = False
        reason = bundles.leftover(path) or ("" if bundles.is_plain(path) else "its name holds characters that no bundle holds")
        # a directory where the package has a file: what is in it is added, the file is gone
        if not reason and (source.is_symlink() or (os.path.lexists(source) and not source.is_dir())):
            try:
                data, reason = _read(source, path in binaries)
                executable = bool(source.stat().st_mode & 0o111) if data is not None else False
            except OSError as error:
                unreadable.append("%s: %s" % (path, error.strerror))
                continue
            if data is not None and bundles.is_compiled(data) and path not in binaries:
                reason = "compiled, and not named"
        if reason:
            ignored.append({"path": path, "package": dist.name, "reason": reason})
            continue
        action = "delete" if data is None else "change" if row else "add"
        entries.append(bundles.entry(path, action, _base_hash(row), data, executable))
        if data is not None:
            files[path] = data
    return entries, files, ignored, unreadable


def _read(source: Path, named: bool) -> tuple[t.Optional[bytes], str]:
    """The bytes of what may be source, or why they are not taken. Raises OSError."""
    if not source.is_file():
        return None, "a link to a directory" if source.is_dir() else "not a plain file"
    if source.stat().st_size > _LARGEST and not named:
        return None, "larger than %d MiB, and not named" % (_LARGEST >> 20)
    return source.read_bytes(), ""


def _base_hash(row: t.Optional[records.Row]) -> t.Optional[str]:
    if row is None:
        return None
    if row.algorithm != "sha256":
        fix = "build the wheel anew with a current tool"
        raise FindingError(
            Finding("overlay.base-hash", ERROR, row.path, "RECORD has no sha256 for this file", found=row.algorithm, fix=fix)
        )
    return row.digest


def _mode_only(site_packages: Path, dist: records.Distribution, taken: t.Collection[str]) -> list[dict[str, str]]:
    """Files with the wheel's bytes and a mode no installer gives.

    RECORD holds no modes: the one most of the distribution's files have is the norm, and wheels make some files executable.
    """
    modes: dict[str, int] = {}
    for path in _own(dist):
        if path not in taken:
            with contextlib.suppress(OSError):
                modes[path] = stat.S_IMODE((site_packages / path).lstat().st_mode)
    common = list(modes.values())
    norm = max(sorted(set(common)), key=common.count) if common else 0
    usual = (norm, norm | (norm >> 2 & 0o111), norm & ~0o111)
    return [{"path": path, "package": dist.name, "reason": "mode only"} for path, mode in modes.items() if mode not in usual]


def _edits_elsewhere(site_packages: Path, others: t.Iterable[records.Distribution], captured: records.Distribution) -> list[dict[str, str]]:
    """Hand edits in other distributions: other sizes, and other bytes in files up to a size a person edits."""
    wanted: dict[str, tuple[str, str]] = {}
    owners: dict[str, records.Distribution] = {}
    found = []
    for dist in others:
        for path, row in dist.rows.items():
            if not row.digest or path.startswith("../") or os.path.isabs(path) or path.endswith(records.BYTECODE) or path in captured.rows:
                continue
            try:
                size = (site_packages / path).stat().st_size
            except OSError:
                found.append({"path": path, "package": dist.name, "reason": "missing in another distribution"})
                continue
            if row.size not in (None, size):
                found.append({"path": path, "package": dist.name, "reason": "hand edit in another distribution"})
            elif size <= _EDITED:
                wanted[path] = (str(site_packages / path), row.algorithm)
                owners[path] = dist
    for path, got in records.hash_files(wanted).items():
        if got != owners[path].rows[path].digest:
            found.append({"path": path, "package": owners[path].name, "reason": "hand edit in another distribution"})
    return found
