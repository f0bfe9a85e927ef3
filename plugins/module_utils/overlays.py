# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Overlay bundles: what was changed by hand in an installed package, as data that can be applied elsewhere.

A bundle is a manifest and the bytes of its files. The manifest names, for each file, the hash it must
have before and has after; its digest is over all that decides the result. On disk a bundle is a directory
``{manifest.json, files/<path>}``. Paths are relative to site-packages.

Installed files may be hard links into a cache that other environments share: nothing here ever writes
into an existing file.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import fnmatch
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import stat
import sys
import tarfile
import typing as t
import warnings
from pathlib import Path

from . import records
from .findings import ERROR, Finding, FindingError
from .layout import MARKER, SCHEMA, digest

MANIFEST = "manifest.json"
FILES = "files"
ACTIONS = ("add", "change", "delete")
MODES = ("0644", "0755")

#: What lies in a source tree without being source: reason → patterns over one component of a path.
LEFTOVERS: t.Mapping[str, tuple[str, ...]] = {
    "cache": ("__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".cache"),
    "bytecode outside __pycache__": ("*.pyc", "*.pyo"),
    "backup": ("*~", "*.bak", "*.swp", "*.swo", "*.orig", "*.rej", "*.save", "*.old", "#*#", ".#*"),
    "version control": (".git", ".hg", ".svn", ".gitignore", ".gitattributes", ".gitmodules"),
}

#: Bytes a compiled library, object or archive begins with.
_COMPILED = (b"\x7fELF", b"!<arch>\n", b"\xcf\xfa\xed\xfe", b"MZ")

#: Of other distributions only what a person edits is hashed; of larger files the size is compared.
_EDITED = 1 << 20

#: Bytes of the largest file that may be source; weights and data sets are none.
_LARGEST = 64 << 20

_ATTEMPTS = 3

#: Where engines declare what an overlay may add: part of the path, class (None: any).
_ALGORITHMS = ("spec_info.py", "SpeculativeAlgorithm")
_ARGUMENTS = (("server_args.py", "ServerArgs"), ("arg_groups/", None))

Syntax = t.Callable[[t.Mapping[str, bytes]], t.Mapping[str, str]]


@dataclasses.dataclass(frozen=True)
class Bundle:
    """A manifest and the content of each file it adds or changes, by path."""

    manifest: t.Mapping[str, t.Any]
    files: t.Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """The name of the bundle."""
        return self.manifest["digest"]


@dataclasses.dataclass(frozen=True)
class Captured:
    """What :func:`capture` found.

    :param ignored: what differs and was not captured, each {path, package, reason}.
    """

    bundle: Bundle
    ignored: tuple[t.Mapping[str, str], ...]


@dataclasses.dataclass(frozen=True)
class _Scan:
    hashes: t.Mapping[str, t.Optional[str]]
    added: tuple[str, ...]


def manifest_digest(manifest: t.Mapping[str, t.Any]) -> str:
    """The digest of a manifest: over everything but the digest itself and the reference's versions, which decide nothing."""
    return digest({key: value for key, value in manifest.items() if key not in ("digest", "reference_versions")})


def expected(manifests: t.Iterable[t.Mapping[str, t.Any]]) -> dict[str, t.Optional[str]]:
    """What applied overlays, in order, left behind: path → sha256, or None for a file they took away."""
    return {entry["path"]: entry["result"] for manifest in manifests for entry in manifest["files"]}


# Capture


def capture(
    site_packages: Path,
    package: str,
    binaries: t.Collection[str] = (),
    critical: t.Iterable[str] = (),
    base: t.Optional[t.Callable[[str], t.Optional[bytes]]] = None,
) -> Captured:
    """Take what differs between an installed distribution and its RECORD.

    Changed files, files no RECORD knows in the distribution's own top-level packages, and deleted files
    are taken. Bytecode, caches, backups and leftovers of version control are not, nor are compiled
    libraries that ``binaries`` does not name, nor what lies in other distributions: all of that is
    listed in :attr:`Captured.ignored`. Nothing is written.

    :param package: name of the distribution.
    :param binaries: paths of compiled libraries to take nevertheless.
    :param critical: distributions whose versions the manifest notes.
    :param base: gives the bytes a path has in the unmodified wheel (see :func:`wheel_reader`), to tell which
        algorithms and arguments the overlay adds; without it the manifest names none.

    Raises FindingError when the distribution is not there or not installed from a wheel, or when its files keep changing.
    """
    site_packages = Path(site_packages)
    dists = records.distributions(site_packages)
    dist = _captured_distribution(site_packages, dists, package)
    for _attempt in range(_ATTEMPTS):
        scan = _scan(site_packages, dist, dists)
        entries, files, ignored = _differences(site_packages, dist, scan, frozenset(binaries))
        if scan == _scan(site_packages, dist, dists) and all(
            hashlib.sha256(files[entry["path"]]).hexdigest() == entry["result"] for entry in entries if entry["result"]
        ):
            break
    else:
        raise FindingError(
            Finding(
                "overlay.unstable",
                ERROR,
                package,
                "its files change while they are read",
                evidence="%s, read %d times" % (site_packages, _ATTEMPTS),
                fix="wait until nobody edits or installs on the reference, then capture again",
            )
        )
    manifest: dict[str, t.Any] = {
        "schema": SCHEMA,
        "base": {"name": dist.name, "version": dist.version},
        "python": python_version(site_packages),
        "files": entries,
        "adds": additions(files, base),
        "reference_versions": {name: found.version for name in critical for found in [records.find(dists, name)] if found},
    }
    taken = sorted(path for path, data in files.items() if is_compiled(data))
    if taken:
        manifest["binaries"] = taken
    manifest["digest"] = manifest_digest(manifest)
    ignored += _mode_only(site_packages, dist, {entry["path"] for entry in entries})
    ignored += _edits_elsewhere(site_packages, dists, dist)
    return Captured(Bundle(manifest, files), tuple(sorted(ignored, key=lambda one: (one["package"], one["path"]))))


def python_version(site_packages: Path) -> str:
    """The minor version of Python a site-packages directory belongs to (``3.11``); empty where its path does not say."""
    match = re.search(r"python(\d+\.\d+)", Path(site_packages).parent.name)
    return match[1] if match else ""


def _captured_distribution(site_packages: Path, dists: t.Sequence[records.Distribution], package: str) -> records.Distribution:
    dist = records.find(dists, package)
    if dist is None:
        fix = "name the virtual environment that has it, or the distribution's real name"
        raise FindingError(
            Finding("overlay.absent", ERROR, package, "is not installed on the reference", evidence=str(site_packages), fix=fix)
        )
    origin = ""
    with contextlib.suppress(OSError, ValueError):
        direct = json.loads((site_packages / dist.directory / "direct_url.json").read_text(encoding="utf-8"))
        if direct.get("dir_info", {}).get("editable"):
            origin = direct["url"]
    if origin or not dist.packages():
        raise FindingError(
            Finding(
                "overlay.editable",
                ERROR,
                package,
                "is not installed from a wheel, so there is nothing to compare its files with",
                found="an editable install of %s" % origin if origin else "no RECORD, or one without packages",
                evidence=str(site_packages / dist.directory),
                fix="install the wheel of the same version on the reference and lay the changed files over it",
            )
        )
    return dist


def _scan(site_packages: Path, dist: records.Distribution, dists: t.Iterable[records.Distribution]) -> _Scan:
    """Hashes of the distribution's files (None: gone), and the files in its packages that no RECORD knows."""
    own = _own(dist)
    hashes = records.hash_files({path: (str(site_packages / path), row.algorithm) for path, row in own.items()})
    known = {path for one in dists for path in one.rows}
    return _Scan(hashes, tuple(sorted(path for path in records.tree(site_packages, dist.packages()) if path not in known)))


def _own(dist: records.Distribution) -> dict[str, records.Row]:
    """The files an overlay may concern: those with a hash, in the distribution's packages."""
    packages = dist.packages()
    return {path: row for path, row in dist.rows.items() if row.digest and path.split("/", 1)[0] in packages and "/" in path}


def _differences(
    site_packages: Path, dist: records.Distribution, scan: _Scan, binaries: frozenset[str]
) -> tuple[list[dict[str, t.Any]], dict[str, bytes], list[dict[str, str]]]:
    entries: list[dict[str, t.Any]] = []
    files: dict[str, bytes] = {}
    ignored: list[dict[str, str]] = []
    changed = [path for path, row in _own(dist).items() if scan.hashes[path] != row.digest]
    for path in sorted([*changed, *scan.added]):
        row = dist.rows.get(path)
        reason = _leftover(path)
        if reason:
            ignored.append({"path": path, "package": dist.name, "reason": reason})
            continue
        source = site_packages / path
        if not os.path.lexists(source):
            entries.append(_entry(path, "delete", _base_hash(row), None, 0o644))
            continue
        data, reason = _read(source)
        if data is None or (is_compiled(data) and path not in binaries):
            ignored.append({"path": path, "package": dist.name, "reason": reason or "compiled, and not named"})
            continue
        executable = bool(source.stat().st_mode & 0o111)
        mode = 0o755 if executable and data.startswith(b"#!") else 0o644
        entries.append(_entry(path, "change" if row else "add", _base_hash(row), hashlib.sha256(data).hexdigest(), mode))
        files[path] = data
    return entries, files, ignored


def _read(source: Path) -> tuple[t.Optional[bytes], str]:
    """The bytes of what may be source, or why they are not taken."""
    if not source.is_file():
        return None, "a link to a directory" if source.is_dir() else "not a plain file"
    try:
        if source.stat().st_size > _LARGEST:
            return None, "larger than %d MiB" % (_LARGEST >> 20)
        return source.read_bytes(), ""
    except OSError as error:
        return None, "cannot be read: %s" % error.strerror


def _base_hash(row: t.Optional[records.Row]) -> t.Optional[str]:
    if row is None:
        return None
    if row.algorithm != "sha256":
        fix = "build the wheel anew with a current tool"
        raise FindingError(
            Finding("overlay.base-hash", ERROR, row.path, "RECORD has no sha256 for this file", found=row.algorithm, fix=fix)
        )
    return row.digest


def _entry(path: str, action: str, base: t.Optional[str], result: t.Optional[str], mode: int) -> dict[str, t.Any]:
    return {"path": path, "action": action, "base": base, "result": result, "mode": "%04o" % mode}


def _leftover(path: str) -> t.Optional[str]:
    for part in path.split("/"):
        for reason, patterns in LEFTOVERS.items():
            if any(fnmatch.fnmatchcase(part, pattern) for pattern in patterns):
                return reason
    return None


def is_compiled(data: bytes) -> bool:
    """Whether these bytes are a compiled library, object or archive."""
    return data.startswith(_COMPILED)


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


def _edits_elsewhere(site_packages: Path, dists: t.Iterable[records.Distribution], captured: records.Distribution) -> list[dict[str, str]]:
    """Hand edits in other distributions: other sizes, and other bytes in files up to a size a person edits."""
    wanted: dict[str, tuple[str, str]] = {}
    owners: dict[str, records.Distribution] = {}
    found = []
    for dist in dists:
        for path, row in dist.rows.items() if dist is not captured else ():
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


def wheel_reader(wheel: Path) -> t.Callable[[str], t.Optional[bytes]]:
    """Gives the bytes of a path in a wheel, None where the wheel has no such file. Raises OSError and zipfile.BadZipFile."""
    import zipfile

    with zipfile.ZipFile(wheel) as archive:
        names = frozenset(archive.namelist())

    def read(path: str) -> t.Optional[bytes]:
        if path not in names:
            return None
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(path)

    return read


def additions(files: t.Mapping[str, bytes], base: t.Optional[t.Callable[[str], t.Optional[bytes]]]) -> dict[str, list[str]]:
    """The speculative algorithms and the engine arguments that files add to the base, read from their syntax.

    :param base: the base's bytes of a path, None where it has no such file; without it nothing can be told.
    """
    algorithms: set[str] = set()
    arguments: set[str] = set()
    if base is not None:
        for path, data in files.items():
            before = base(path) or b""
            if path.endswith("/" + _ALGORITHMS[0]):
                algorithms |= _members(data, _ALGORITHMS[1]) - _members(before, _ALGORITHMS[1])
            for part, name in _ARGUMENTS:
                if path.endswith(".py") and "/" + part in path:
                    arguments |= _fields(data, name) - _fields(before, name)
    return {"algorithms": sorted(algorithms), "arguments": sorted(arguments)}


def _classes(source: bytes, name: t.Optional[str]) -> t.Iterator[ast.stmt]:
    """The statements of the classes of that name, or of all."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and name in (None, node.name):
            yield from node.body


def _members(source: bytes, name: str) -> set[str]:
    targets = [target for node in _classes(source, name) if isinstance(node, ast.Assign) for target in node.targets]
    return {target.id for target in targets if isinstance(target, ast.Name) and not target.id.startswith("_")}


def _fields(source: bytes, name: t.Optional[str]) -> set[str]:
    targets = [node.target for node in _classes(source, name) if isinstance(node, ast.AnnAssign)]
    return {target.id for target in targets if isinstance(target, ast.Name) and not target.id.startswith("_")}


# A bundle on disk and under way


def write_bundle(directory: Path, bundle: Bundle) -> bool:
    """Keep a bundle as a directory, whole or not at all; False when it is there already.

    Raises FindingError when the bundle, or the one that is there, is damaged.
    """
    directory = Path(directory)
    if directory.exists():
        read_bundle(directory)
        return False
    verify_bundle(bundle, str(directory))
    directory.parent.mkdir(parents=True, exist_ok=True)
    scratch = directory.with_name(".%s-%s" % (directory.name, secrets.token_hex(4)))
    try:
        for path, data in bundle.files.items():
            target = scratch / FILES / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        scratch.mkdir(exist_ok=True)
        (scratch / MANIFEST).write_bytes(_manifest_text(bundle))
        os.rename(scratch, directory)
    except OSError:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return True


def read_bundle(directory: Path) -> Bundle:
    """Read a bundle and verify it. Raises FindingError (``overlay.digest``, ``overlay.path``, ``overlay.binary``)."""
    directory = Path(directory)
    held: dict[str, bytes] = {}
    for path in records.tree(directory):
        if (directory / path).is_symlink() or any(
            parent.is_symlink() for parent in (directory / path).parents if directory in parent.parents
        ):
            raise FindingError(_damaged("overlay.path", str(directory), "a bundle holds no links", path))
        if path != MARKER:
            held[path] = (directory / path).read_bytes()
    return _assemble(held, str(directory))


def pack(bundle: Bundle) -> bytes:
    """A bundle as a tar, the same bytes for the same bundle."""
    held = {MANIFEST: _manifest_text(bundle), **{"%s/%s" % (FILES, path): data for path, data in bundle.files.items()}}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in sorted(held.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def unpack(archive: bytes) -> Bundle:
    """The reverse of :func:`pack`, verified like :func:`read_bundle`. Nothing is written."""
    held: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar:
                stream = tar.extractfile(member) if member.isreg() else None
                if stream is None:
                    raise FindingError(_damaged("overlay.path", "archive", "a bundle holds plain files only", member.name))
                held[member.name] = stream.read()
    except tarfile.TarError as error:
        raise FindingError(_damaged("overlay.digest", "archive", "the archive cannot be read", str(error))) from error
    return _assemble(held, "archive")


def _manifest_text(bundle: Bundle) -> bytes:
    return (json.dumps(bundle.manifest, indent=1, sort_keys=True) + "\n").encode()


def _assemble(held: t.Mapping[str, bytes], subject: str) -> Bundle:
    try:
        manifest = json.loads(held[MANIFEST])
        bundle = Bundle(manifest, {path[len(FILES) + 1 :]: data for path, data in held.items() if path != MANIFEST})
        stray = [path for path in held if path != MANIFEST and not path.startswith(FILES + "/")]
        verify_bundle(bundle, subject)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FindingError(_damaged("overlay.digest", subject, "the manifest is missing or not one", repr(error))) from error
    if stray:
        raise FindingError(_damaged("overlay.digest", subject, "the bundle holds more than its manifest lists", records.listing(stray)))
    return bundle


def verify_bundle(bundle: Bundle, subject: str) -> None:
    """Raise FindingError unless digest, paths and every file's hash are what the manifest says."""
    manifest = bundle.manifest
    if manifest.get("schema") != SCHEMA or manifest["digest"] != manifest_digest(manifest):
        message = "the manifest was changed after it was made"
        raise FindingError(_damaged("overlay.digest", subject, message, manifest["digest"], manifest_digest(manifest)))
    paths = [entry["path"] for entry in manifest["files"]]
    escaping = [path for path in paths if not _plain(path)]
    if any(entry["mode"] not in MODES or entry["action"] not in ACTIONS for entry in manifest["files"]):
        message = "modes are %s, actions are %s" % (" or ".join(MODES), ", ".join(ACTIONS))
        raise FindingError(_damaged("overlay.digest", subject, message, ""))
    if escaping or len(set(paths)) != len(paths):
        raise FindingError(
            _damaged("overlay.path", subject, "paths must be plain, relative and named once", records.listing(escaping or paths))
        )
    results = {entry["path"]: entry["result"] for entry in manifest["files"] if entry["action"] != "delete"}
    wrong = sorted(results.keys() ^ bundle.files.keys())
    wrong += [path for path, data in bundle.files.items() if path in results and hashlib.sha256(data).hexdigest() != results[path]]
    if wrong:
        message = "%d file(s) are not as the manifest lists them" % len(wrong)
        raise FindingError(_damaged("overlay.digest", subject, message, records.listing(wrong)))
    unnamed = sorted(path for path, data in bundle.files.items() if is_compiled(data) and path not in manifest.get("binaries", ()))
    if unnamed:
        message = "compiled libraries are inside that the capture did not name"
        raise FindingError(_damaged("overlay.binary", subject, message, records.listing(unnamed)))


def _plain(path: t.Any) -> bool:
    return (
        isinstance(path, str)
        and path.isprintable()
        and "\\" not in path
        and "/" in path
        and all(part not in ("", ".", "..", "__pycache__") for part in path.split("/"))
    )


def _damaged(check: str, subject: str, message: str, evidence: str, wanted: str = "") -> Finding:
    fix = "restore the bundle from version control, or capture it anew"
    return Finding(check, ERROR, subject, message, expected=wanted, evidence=evidence, fix=fix)


# Apply


def syntax_errors(files: t.Mapping[str, bytes]) -> dict[str, str]:
    """What this interpreter says about Python files it cannot compile: path → its message."""
    found = {}
    for path, data in files.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(data, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            found[path] = str(error)
    return found


def check(
    bundle: Bundle, site_packages: Path, dists: t.Optional[t.Sequence[records.Distribution]] = None, syntax: t.Optional[Syntax] = None
) -> list[Finding]:
    """What forbids applying a bundle to a site-packages directory; empty when nothing does.

    A bundle that is there already, wholly or in part, is no hindrance.

    :param syntax: tells which Python files do not compile, by the interpreter that will run them. Without it this one judges,
        unless it is older than the bundle's and would refuse what is right.
    """
    site_packages = Path(site_packages)
    try:
        verify_bundle(bundle, bundle.manifest.get("digest", "overlay"))
    except FindingError as error:
        return [error.finding]
    manifest = bundle.manifest
    base = manifest["base"]
    subject = "overlay %s on %s" % (bundle.digest, base["name"])
    dist = records.find(records.distributions(site_packages) if dists is None else dists, base["name"])
    if dist is None or dist.version != base["version"]:
        return [
            Finding(
                "overlay.base-version",
                ERROR,
                subject,
                "the overlay was made for another version of its base",
                found="%s %s" % (base["name"], dist.version if dist else "not installed"),
                expected="%s %s" % (base["name"], base["version"]),
                evidence=str(site_packages),
                fix="deploy engine version %s, or capture an overlay from a reference that has the installed one" % base["version"],
            )
        ]
    leaving = [entry["path"] for entry in manifest["files"] if not _inside(site_packages, dist, entry["path"])]
    if leaving:
        message = "%d file(s) would leave the package" % len(leaving)
        fix = "capture the overlay anew; one overlay changes one package"
        expected_tops = ", ".join(sorted(dist.packages()))
        return [
            Finding("overlay.path", ERROR, subject, message, expected="below " + expected_tops, evidence=records.listing(leaving), fix=fix)
        ]
    return [*_base_findings(manifest, site_packages, subject), *_syntax_findings(bundle, subject, syntax)]


def _inside(site_packages: Path, dist: records.Distribution, path: str) -> bool:
    top = os.path.realpath(site_packages)
    parent = os.path.dirname(os.path.join(top, path))
    return path.split("/", 1)[0] in dist.packages() and os.path.realpath(parent) == parent


def _current(site_packages: Path, manifest: t.Mapping[str, t.Any]) -> dict[str, t.Optional[str]]:
    return records.hash_files({entry["path"]: (str(site_packages / entry["path"]), "sha256") for entry in manifest["files"]})


def _base_findings(manifest: t.Mapping[str, t.Any], site_packages: Path, subject: str) -> list[Finding]:
    now = _current(site_packages, manifest)
    wrong = [
        entry["path"]
        for entry in manifest["files"]
        if now[entry["path"]] not in (entry["base"], entry["result"]) or (site_packages / entry["path"]).is_dir()
    ]
    if not wrong:
        return []
    return [
        Finding(
            "overlay.base-hash",
            ERROR,
            subject,
            "%d file(s) are not the ones the overlay was made for" % len(wrong),
            found=records.listing("%s %s" % (path, now[path] or "missing") for path in wrong),
            expected=records.listing(
                "%s %s" % (entry["path"], entry["base"] or "no file") for entry in manifest["files"] if entry["path"] in wrong
            ),
            evidence=str(site_packages),
            cause="another overlay or a hand edit changed them, or the base was built anew under the same version",
            fix="apply the overlay to the untouched base, or capture it anew",
        )
    ]


def _syntax_findings(bundle: Bundle, subject: str, syntax: t.Optional[Syntax]) -> list[Finding]:
    sources = {path: data for path, data in bundle.files.items() if path.endswith(".py")}
    if syntax is None:
        wanted = tuple(int(part) for part in bundle.manifest["python"].split(".") if part)
        syntax = syntax_errors if sys.version_info[:2] >= wanted else lambda sources: {}
    wrong = syntax(sources)
    if not wrong:
        return []
    return [
        Finding(
            "overlay.not-python",
            ERROR,
            subject,
            "%d file(s) cannot be compiled" % len(wrong),
            evidence=records.listing("%s: %s" % pair for pair in sorted(wrong.items())),
            fix="correct them on the reference, then capture again",
        )
    ]


def apply(
    bundle: Bundle, site_packages: Path, dists: t.Optional[t.Sequence[records.Distribution]] = None, syntax: t.Optional[Syntax] = None
) -> list[str]:
    """Put a bundle's files in place and take away those it deletes; return the paths that changed.

    Raises FindingError with the first of :func:`check`'s findings before anything is written. Files are written
    new and renamed, and their bytecode is removed.
    """
    site_packages = Path(site_packages)
    for finding in check(bundle, site_packages, dists, syntax):
        raise FindingError(finding)
    now = _current(site_packages, bundle.manifest)
    changed = []
    for entry in bundle.manifest["files"]:
        path = entry["path"]
        if now[path] == entry["result"]:
            continue
        target = site_packages / path
        if entry["action"] == "delete":
            target.unlink()
        else:
            replace(target, bundle.files[path], int(entry["mode"], 8))
        remove_bytecode(target)
        if entry["action"] == "delete":
            _remove_empty(target.parent, site_packages / path.split("/", 1)[0])
        changed.append(path)
    return changed


def replace(target: Path, data: bytes, mode: int) -> None:
    """Give a path new content in a file of its own: whoever shares the old one keeps it. Raises OSError."""
    missing = [parent for parent in target.parents if not parent.exists()]
    for parent in reversed(missing):
        parent.mkdir()
        parent.chmod(0o755)
    new = target.with_name(".%s-%s.new" % (target.name[:100], secrets.token_hex(4)))
    try:
        new.write_bytes(data)
        new.chmod(mode)
        os.rename(new, target)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def remove_bytecode(source: Path) -> None:
    """Remove what interpreters compiled from a file: two versions of the same size and second look the same to them."""
    for cached in (source.parent / "__pycache__").glob(_glob_escape(source.stem) + ".*.py[co]"):
        cached.unlink()


def _glob_escape(text: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", text)


def _remove_empty(directory: Path, top: Path) -> None:
    """An empty directory is an importable namespace package, which the reference does not have."""
    while directory != top and not [entry for entry in os.listdir(directory) if entry != "__pycache__"]:
        shutil.rmtree(directory)
        directory = directory.parent


def audit(bundle: Bundle, site_packages: Path) -> list[Finding]:
    """Whether every file is as the manifest says; empty when it is."""
    site_packages = Path(site_packages)
    now = _current(site_packages, bundle.manifest)
    wrong = []
    for entry in bundle.manifest["files"]:
        target = site_packages / entry["path"]
        if now[entry["path"]] != entry["result"] or (entry["result"] is None and os.path.lexists(target)):
            wrong.append("%s: %s" % (entry["path"], "other bytes" if now[entry["path"]] else "missing"))
        elif entry["result"] and stat.S_IMODE(target.stat().st_mode) != int(entry["mode"], 8):
            wrong.append("%s: mode %04o instead of %s" % (entry["path"], stat.S_IMODE(target.stat().st_mode), entry["mode"]))
    if not wrong:
        return []
    return [
        Finding(
            "overlay.applied",
            ERROR,
            "overlay %s on %s" % (bundle.digest, bundle.manifest["base"]["name"]),
            "%d file(s) are not as the overlay left them" % len(wrong),
            evidence=records.listing(wrong),
            fix="build the environment anew; nothing inside it is repaired in place",
        )
    ]
