# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a site-packages directory holds against what its distributions' RECORDs say.

Source of the format: the packaging specification "Recording installed projects". Bytecode in
``__pycache__`` is nobody's: it is never a difference. Paths are relative to site-packages, with
``/``; a row such as ``../../../bin/x`` is normal and is looked at, one that leaves the virtual
environment is never opened.
"""

from __future__ import annotations

import base64
import concurrent.futures
import csv
import dataclasses
import hashlib
import itertools
import os
import posixpath
import re
import typing as t
from email.parser import HeaderParser
from pathlib import Path

from .findings import COULD_NOT_CHECK, ERROR, OK, WARNING, Finding

#: Written beside the packages by tools that make virtual environments; in no RECORD.
VENV_FILES = frozenset(("_virtualenv.py", "_virtualenv.pth"))

#: RECORD may name other algorithms, but none weaker than these counts as evidence.
ALGORITHMS = frozenset(("sha256", "sha384", "sha512"))

BYTECODE = (".pyc", ".pyo")
_CHUNK = 1 << 20
_NAMED = 20


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a RECORD; ``algorithm`` and ``digest`` (hexadecimal) are empty where it gives none, ``size`` is in bytes or None."""

    path: str
    algorithm: str
    digest: str
    size: t.Optional[int]


@dataclasses.dataclass(frozen=True)
class Distribution:
    """One installed distribution.

    :param name: normalized name.
    :param version: with its local label.
    :param directory: name of its ``.dist-info`` directory.
    :param rows: path → row; empty when there is no RECORD.
    """

    name: str
    version: str
    directory: str
    rows: t.Mapping[str, Row]

    def packages(self) -> frozenset[str]:
        """The top-level directories its files lie in, without metadata."""
        tops = (path.split("/", 1)[0] for path in self.rows if "/" in path)
        return frozenset(top for top in tops if top not in ("..", "") and not top.endswith((".dist-info", ".data")))


@dataclasses.dataclass(frozen=True)
class State:
    """The differences :func:`verify` found, each sorted.

    :param changed: path → owner's name; other bytes than the RECORD (or the overlay) says.
    :param missing: path → owner's name.
    :param foreign: paths that no RECORD and no overlay knows.
    :param conflicts: path → names of the distributions whose RECORDs disagree about its bytes.
    :param outside: path → owner's name; rows that leave the virtual environment, not opened.
    :param unrecorded: names of distributions without a readable RECORD.
    :param files: how many files were hashed.
    """

    changed: t.Mapping[str, str]
    missing: t.Mapping[str, str]
    foreign: tuple[str, ...]
    conflicts: t.Mapping[str, tuple[str, ...]]
    outside: t.Mapping[str, str]
    unrecorded: tuple[str, ...]
    files: int


def normalized(name: str) -> str:
    """A distribution's name in the one form in which names are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_bytecode(path: str) -> bool:
    """Whether the interpreter writes this path by itself."""
    return "__pycache__" in path.split("/")


def _metadata(directory: Path) -> tuple[str, str]:
    stem = directory.name[: -len(".dist-info")]
    try:
        with open(directory / "METADATA", encoding="utf-8", errors="replace") as stream:
            # the description may be long and is not needed
            headers = HeaderParser().parsestr("".join(itertools.takewhile(str.strip, stream)))
    except OSError:
        headers = {}
    name, _dash, version = stem.rpartition("-")
    return normalized(headers.get("Name") or name), (headers.get("Version") or version).strip()


def _row(fields: t.Sequence[str]) -> Row:
    path, hashed, size = [*fields, "", ""][:3]
    algorithm, _equals, value = hashed.partition("=")
    digest = ""
    if algorithm in ALGORITHMS:
        try:
            digest = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
        except ValueError:
            digest = "unreadable"
    return Row(posixpath.normpath(path.replace("\\", "/")), algorithm if digest else "", digest, int(size) if size.isdigit() else None)


def distributions(site_packages: Path) -> list[Distribution]:
    """Every distribution installed in a site-packages directory, sorted by name. Raises OSError when that cannot be listed."""
    found = []
    for entry in sorted(os.listdir(site_packages)):
        directory = Path(site_packages, entry)
        if not entry.endswith(".dist-info") or not directory.is_dir():
            continue
        name, version = _metadata(directory)
        try:
            with open(directory / "RECORD", encoding="utf-8", newline="") as stream:
                # no file's name has a NUL; Python 3.9 and 3.10 read no further than to the first
                lines = (line.replace("\0", "\ufffd") for line in stream)
                rows = [_row(fields) for fields in csv.reader(lines) if fields and fields[0]]
        except (OSError, UnicodeDecodeError, csv.Error):
            rows = []
        found.append(Distribution(name, version, entry, {row.path: row for row in rows}))
    return sorted(found, key=lambda dist: (dist.name, dist.version))


def find(dists: t.Iterable[Distribution], name: str) -> t.Optional[Distribution]:
    """The distribution of that name, however it is spelled."""
    return next((dist for dist in dists if dist.name == normalized(name)), None)


def prefix(site_packages: Path) -> Path:
    """The virtual environment a site-packages directory belongs to: the nearest parent with a ``pyvenv.cfg``, else three up."""
    site_packages = Path(os.path.abspath(site_packages))
    for parent in site_packages.parents:
        if (parent / "pyvenv.cfg").is_file():
            return parent
    return site_packages.parents[min(2, len(site_packages.parents) - 1)]


def hash_file(path: t.Union[str, Path], algorithm: str = "sha256") -> str:
    """The hexadecimal hash of a file's bytes. Raises OSError."""
    hasher = hashlib.new(algorithm)
    with open(path, "rb", buffering=0) as stream:
        while True:
            block = stream.read(_CHUNK)
            hasher.update(block)
            if len(block) < _CHUNK:
                return hasher.hexdigest()


def hash_files(paths: t.Mapping[str, tuple[str, str]]) -> dict[str, t.Optional[str]]:
    """Hash many files on all processors (hashing releases the interpreter lock).

    :param paths: key → (path, algorithm).
    :return: key → hexadecimal hash, or None where the file cannot be read.
    """

    def one(item: tuple[str, tuple[str, str]]) -> tuple[str, t.Optional[str]]:
        try:
            return item[0], hash_file(*item[1])
        except OSError:
            return item[0], None

    def many(items: t.Sequence[tuple[str, tuple[str, str]]]) -> list[tuple[str, t.Optional[str]]]:
        return [one(item) for item in items]

    items = list(paths.items())
    # one future per file would cost as much as hashing a small one; neighbours in a batch would put all big files in one
    workers = min(16, len(os.sched_getaffinity(0)))
    batches = workers * 8
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return dict(pair for batch in pool.map(many, (items[start::batches] for start in range(batches))) for pair in batch)


def tree(directory: Path, below: t.Optional[t.Iterable[str]] = None) -> t.Iterator[str]:
    """Every file under a directory (or only under some of its entries), relative to it.

    A link to a directory is listed like a file; neither it nor any ``__pycache__`` is entered.
    """
    tops = [os.path.join(directory, name) for name in sorted(below)] if below is not None else [str(directory)]
    base = len(os.path.join(directory, ""))
    while tops:
        try:
            entries = list(os.scandir(tops.pop()))
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    tops.append(entry.path)
            else:
                yield entry.path[base:]


def verify(
    site_packages: Path,
    dists: t.Optional[t.Sequence[Distribution]] = None,
    overlay: t.Optional[t.Mapping[str, t.Optional[str]]] = None,
) -> State:
    """Compare every file of every distribution with its RECORD.

    :param dists: what :func:`distributions` gave, where that is at hand.
    :param overlay: path → sha256 an overlay put there, or None where it took the file away; stands above every RECORD.
    """
    site_packages = Path(os.path.abspath(site_packages))
    dists = distributions(site_packages) if dists is None else dists
    overlay = overlay or {}
    top = str(prefix(site_packages))
    expected: dict[str, tuple[Row, str]] = {}
    conflicts: dict[str, set[str]] = {}
    outside: dict[str, str] = {}
    ignored: set[str] = set()
    for dist in dists:
        for path, row in dist.rows.items():
            if is_bytecode(path) or path.endswith(BYTECODE):
                ignored.add(path)
                continue
            target = os.path.normpath(os.path.join(site_packages, path))
            if not target.startswith(top + os.sep):
                outside[path] = dist.name
                continue
            if path in expected:
                other, owner = expected[path]
                # several wheels of one family carry the same empty __init__.py: that is no conflict
                if (other.algorithm, other.digest) != (row.algorithm, row.digest):
                    conflicts.setdefault(path, {owner}).add(dist.name)
            else:
                expected[path] = (row, dist.name)

    wanted: dict[str, tuple[str, str]] = {}
    missing: dict[str, str] = {}
    for path, (row, owner) in expected.items():
        if path in overlay or path in conflicts:
            continue
        if row.digest:
            wanted[path] = (os.path.join(site_packages, path), row.algorithm)
        elif not os.path.isfile(os.path.join(site_packages, path)):
            missing[path] = owner
    for path, result in overlay.items():
        if result is not None:
            wanted[path] = (os.path.join(site_packages, path), "sha256")
    hashes = hash_files(wanted)

    changed: dict[str, str] = {}
    for path, got in hashes.items():
        owner = expected[path][1] if path in expected else "overlay"
        want = overlay[path] if path in overlay else expected[path][0].digest
        if got is None:
            missing[path] = owner
        elif got != want:
            changed[path] = owner
    gone = {path for path, result in overlay.items() if result is None}
    known = (expected.keys() | overlay.keys() | ignored | VENV_FILES) - gone
    # a distribution without RECORD is named once, not file by file
    unrecorded = tuple(dist.name for dist in dists if not dist.rows)
    silent = tuple(dist.directory + "/" for dist in dists if not dist.rows)
    foreign = [path for path in tree(site_packages) if path not in known and not path.startswith(silent)]
    return State(
        changed=dict(sorted(changed.items())),
        missing=dict(sorted(missing.items())),
        foreign=tuple(sorted(foreign)),
        conflicts={path: tuple(sorted(owners)) for path, owners in sorted(conflicts.items())},
        outside=dict(sorted(outside.items())),
        unrecorded=unrecorded,
        files=len(hashes),
    )


def printable(path: str) -> str:
    """A path as one line that every terminal and every JSON file takes: other bytes than UTF-8 and line ends are escaped."""
    return path.encode("utf-8", "backslashreplace").decode("utf-8").replace("\n", "\\n").replace("\r", "\\r")


def listing(paths: t.Iterable[str], limit: int = _NAMED) -> str:
    """Paths as evidence: one a line, the first ``limit`` of them and how many more there are."""
    names = [printable(path) for path in paths]
    more = ["and %d more" % (len(names) - limit)] if len(names) > limit else []
    return "\n".join(names[:limit] + more)


def _by_owner(owned: t.Mapping[str, str]) -> dict[str, list[str]]:
    owners: dict[str, list[str]] = {}
    for path, owner in owned.items():
        owners.setdefault(owner, []).append(path)
    return dict(sorted(owners.items()))


#: Where versions are read, as evidence.
METADATA = "metadata of the installed distributions"

#: What holds where nothing is found.
_GOOD = {
    "record.changed": "all files are as installed",
    "record.missing": "every file that was installed is there",
    "record.foreign": "no file lies there that nobody installed",
    "record.doubly-owned": "no two packages disagree about a file",
    "record.outside": "no file was installed out of the environment",
    "record.unreadable": "every package says which files are its own",
}


def findings(state: State, critical: t.Optional[t.Collection[str]] = None) -> list[Finding]:
    """The verdict over a state: one finding per check and distribution, ok where there is none.

    :param critical: names of the distributions that serving depends on. Two distributions that disagree about a file forbid
        going on only where one of them is critical (a stray top-level ``tests/`` does not) and the file is in a directory
        (flashinfer-python 0.6.3 and torch-c-dlpack-ext both bring a ``build_backend.py`` that nobody imports); None: all are.
    """
    names = None if critical is None else {normalized(name) for name in critical}
    rebuild = "build the environment anew; nothing inside it is repaired in place"
    found = []
    for owner, paths in _by_owner(state.changed).items():
        found.append(
            Finding(
                "record.changed",
                ERROR,
                owner,
                "%d installed file(s) differ from what was installed" % len(paths),
                found="other bytes",
                expected="the bytes of RECORD" if owner != "overlay" else "the bytes of the overlay",
                evidence=listing(paths),
                cause="an edit by hand, a damaged disk, or an edit in another environment that shares the file",
                fix="take wanted edits into an overlay (capture), then %s" % rebuild,
            )
        )
    for owner, paths in _by_owner(state.missing).items():
        found.append(
            Finding(
                "record.missing",
                ERROR,
                owner,
                "%d installed file(s) are missing or cannot be read" % len(paths),
                evidence=listing(paths),
                cause="they were removed by hand, by another package's removal, or their disk is damaged",
                fix=rebuild,
            )
        )
    if state.foreign:
        found.append(
            Finding(
                "record.foreign",
                ERROR,
                "site-packages",
                "%d file(s) belong to no distribution and no overlay" % len(state.foreign),
                evidence=listing(state.foreign),
                cause="leftovers of an earlier install, or files put there by hand",
                fix="take wanted files into an overlay (capture), then %s" % rebuild,
            )
        )
    groups: dict[tuple[str, ...], list[str]] = {}
    for path, owners in state.conflicts.items():
        groups.setdefault(owners, []).append(path)
    for owners, paths in sorted(groups.items()):
        inside = any("/" in path for path in paths)
        fatal = names is None or (inside and bool(names.intersection(owners)))
        found.append(
            Finding(
                "record.doubly-owned",
                ERROR if fatal else WARNING,
                " and ".join(owners),
                "%d file(s) are installed by both, with different bytes" % len(paths),
                evidence=listing(paths),
                cause="the one installed last overwrote the other",
                fix="keep only one of them in the lock",
            )
        )
    for owner, paths in _by_owner(state.outside).items():
        found.append(
            Finding(
                "record.outside",
                ERROR,
                owner,
                "%d row(s) of RECORD point out of the environment" % len(paths),
                evidence=listing(paths),
                cause="a wheel that was made wrongly, or to overwrite what is not its own",
                fix="do not install this wheel; ask where it comes from",
            )
        )
    for owner in state.unrecorded:
        found.append(
            Finding(
                "record.unreadable",
                ERROR,
                owner,
                "there is no readable RECORD, so nothing about its files is known",
                cause="not installed from a wheel, or its metadata was removed",
                fix=rebuild,
            )
        )
    if not state.files:
        message = "no installed file has a hash to be held against"
        return [*found, Finding("record.changed", COULD_NOT_CHECK, "site-packages", message, "0 files", fix=rebuild)]
    told = {one.id for one in found}
    seen = "%d files against RECORD" % state.files
    return [*found, *(Finding(id_, OK, "site-packages", message, seen) for id_, message in _GOOD.items() if id_ not in told)]
