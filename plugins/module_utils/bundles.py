# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Overlay bundles: what was changed by hand in an installed package, as data that can be applied elsewhere.

A bundle is a manifest and the bytes of its files. The manifest names, for each file, the hash it must
have before and has after; its digest is over all that decides the result. On disk a bundle is a directory
``{manifest.json, files/<path>}``. Paths are relative to site-packages.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import io
import json
import os
import secrets
import shutil
import tarfile
import typing as t
from pathlib import Path

from . import records
from .findings import ERROR, Finding, FindingError
from .layout import MARKER, SCHEMA, digest

MANIFEST = "manifest.json"
FILES = "files"
ACTIONS = ("add", "change", "delete")
MODES = ("0644", "0755")

#: What a manifest notes without deciding the result: not part of the digest.
NOTES = ("adds", "digest", "needs", "reference_versions")

#: What lies in a source tree without being source: reason → patterns over one component of a path.
LEFTOVERS: t.Mapping[str, tuple[str, ...]] = {
    "cache": ("__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".cache"),
    "bytecode outside __pycache__": ("*.pyc", "*.pyo"),
    "backup": ("*~", "*.bak", "*.swp", "*.swo", "*.orig", "*.rej", "*.save", "*.old", "#*#", ".#*"),
    "made by a run": (
        *("*.log", "*.pid", "*.lock", "nohup.out", "core.[0-9]*", ".nfs*", ".ninja_*"),
        *(".triton", "torchinductor_*", "torch_compile_cache"),
    ),
    "version control": (".git", ".hg", ".svn", ".gitignore", ".gitattributes", ".gitmodules"),
}

#: Bytes a compiled library, object or archive begins with.
_COMPILED = (b"\x7fELF", b"!<arch>\n", b"\xcf\xfa\xed\xfe", b"MZ")

#: Gives the bytes that a path has in the unmodified package, None where it has no such file.
Base = t.Callable[[str], t.Optional[bytes]]


@dataclasses.dataclass(frozen=True)
class Bundle:
    """A manifest and the content of each file it adds or changes, by path."""

    manifest: t.Mapping[str, t.Any]
    files: t.Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """The name of the bundle."""
        return self.manifest["digest"]


def manifest_digest(manifest: t.Mapping[str, t.Any]) -> str:
    """The digest of a manifest: over everything but its notes, which decide nothing."""
    return digest({key: value for key, value in manifest.items() if key not in NOTES})


def seal(manifest: t.Mapping[str, t.Any], files: t.Mapping[str, bytes]) -> Bundle:
    """The bundle of a manifest without schema and digest, which are added, and of its files."""
    whole = {"schema": SCHEMA, **manifest}
    compiled = sorted(path for path, data in files.items() if is_compiled(data))
    if compiled:
        whole["binaries"] = compiled
    return Bundle({**whole, "digest": manifest_digest(whole)}, files)


def entry(path: str, action: str, base: t.Optional[str], data: t.Optional[bytes], executable: bool = False) -> dict[str, t.Any]:
    """One file of a manifest; ``data`` is what it holds afterwards, None for a deletion. Only scripts keep an executable mode."""
    script = executable and data is not None and data.startswith(b"#!")
    result = None if data is None else hashlib.sha256(data).hexdigest()
    return {"path": path, "action": action, "base": base, "result": result, "mode": MODES[script]}


def leftover(path: str) -> t.Optional[str]:
    """Why a path is no source (see :data:`LEFTOVERS`); None where it may be."""
    for part in path.split("/"):
        for reason, patterns in LEFTOVERS.items():
            if any(fnmatch.fnmatchcase(part, pattern) for pattern in patterns):
                return reason
    return None


def is_compiled(data: bytes) -> bool:
    """Whether these bytes are a compiled library, object or archive."""
    return data.startswith(_COMPILED)


# A bundle on disk and under way


def write_bundle(directory: Path, bundle: Bundle) -> bool:
    """Keep a bundle as a directory, whole or not at all; False when it is there already.

    Of one that is there only the notes of what it adds and needs are filled in, where it has none.

    Raises FindingError when the bundle, or the one that is there, is damaged.
    """
    directory = Path(directory)
    if directory.exists():
        there = read_bundle(directory)
        known = {name: bundle.manifest.get(name) or {} for name in ("adds", "needs")}
        lacking = {name: note for name, note in known.items() if any(note.values()) and not any(there.manifest.get(name, {}).values())}
        if lacking:
            new = directory / (MANIFEST + ".new")
            new.write_bytes(_manifest_text(Bundle({**there.manifest, **lacking}, there.files)))
            os.rename(new, directory / MANIFEST)
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
        if not (directory / MANIFEST).exists():
            raise
        # another process was first; the same digest is the same bundle
        read_bundle(directory)
        return False
    return True


def read_bundle(directory: Path) -> Bundle:
    """Read a bundle and verify it. Raises FindingError (``overlay.digest``, ``overlay.path``, ``overlay.binary``)."""
    directory = Path(directory)
    held: dict[str, bytes] = {}
    for path in records.tree(directory):
        place = os.path.join(directory, path)
        # no directory that is a link is entered: it is listed itself
        if os.path.islink(place):
            raise FindingError(_damaged("overlay.path", str(directory), "a bundle holds no links", path))
        if path != MARKER:
            with open(place, "rb") as stream:
                held[path] = stream.read()
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
    escaping = [path for path in paths if not is_plain(path)]
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


def is_plain(path: t.Any) -> bool:
    """Whether a bundle may hold this path: relative, below a directory, of printable characters."""
    return (
        isinstance(path, str)
        and path.isprintable()
        and "\\" not in path
        and "/" in path
        and all(part not in ("", ".", "..", "__pycache__") for part in path.split("/"))
    )


def _damaged(check: str, subject: str, message: str, evidence: str, wanted: str = "") -> Finding:
    fix = "restore the bundle from version control, or remove it and capture it anew with playbooks/capture.yml"
    return Finding(check, ERROR, subject, message, expected=wanted, evidence=evidence, fix=fix)
