# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files and trees that the controller sends: packed into one archive, verified, put in place whole.

An artifact is known by its content. On the host it appears by a rename, so that it is there completely
or not at all; one that is there already is not touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
import tarfile
import tempfile
import typing as t
from pathlib import Path

from .layout import MARKER

_BLOCK = 1024 * 1024


class Refused(ValueError):
    """An artifact is not what it was announced to be; nothing of it was put in place."""


@dataclasses.dataclass(frozen=True)
class Artifact:
    """One thing to send.

    :param source: file or directory on the controller.
    :param dest: absolute path on the host; it lies below the root.
    :param digest: :func:`file_digest` of a file or :func:`tree_digest` of a directory.
    :param mode: permissions of a file, as text (``0755``).
    :param held: files of a directory that the host has elsewhere and that do not travel: path in it → absolute path there, below a
        neighbour of ``dest``.
    """

    source: str
    dest: str
    digest: str
    mode: str = "0644"
    held: t.Mapping[str, str] = dataclasses.field(default_factory=dict)

    def as_dict(self) -> dict[str, t.Any]:
        """The artifact as plain data."""
        return dataclasses.asdict(self)


def file_digest(path: t.Union[str, Path]) -> str:
    """sha256 of a file's content, hexadecimal."""
    value = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(_BLOCK), b""):
            value.update(block)
    return value.hexdigest()


def tree_digest(directory: t.Union[str, Path]) -> str:
    """sha256 over the sorted relative paths and contents of all files but the marker, hexadecimal.

    Raises Refused on symbolic links: what they point to is not part of the tree.
    """
    return _tree_digest({path: file_digest(os.path.join(directory, path)) for path in _files(str(directory))})


def _tree_digest(digests: t.Mapping[str, str]) -> str:
    value = hashlib.sha256()
    # in the order of their parts; compared as texts, "a-b" would come before "a/b"
    for path in sorted(digests, key=lambda path: path.split("/")):
        value.update(("%s\0%s\n" % (path, digests[path])).encode())
    return value.hexdigest()


def _files(top: str) -> t.Iterator[str]:
    """Every file below a directory but markers, relative to it; raises Refused on a link."""
    pending = [top]
    base = len(os.path.join(top, ""))
    while pending:
        for entry in os.scandir(pending.pop()):
            if entry.is_symlink():
                raise Refused("%s is a symbolic link" % entry.path)
            if entry.is_dir():
                pending.append(entry.path)
            elif entry.is_file() and entry.name != MARKER:
                yield entry.path[base:]


def batches(artifacts: t.Sequence[t.Mapping[str, t.Any]], limit: int) -> list[list[t.Mapping[str, t.Any]]]:
    """The artifacts in parts of at most ``limit`` bytes, or of one artifact: what has arrived whole need not be sent again."""
    if len(artifacts) < 2:
        return [list(artifacts)] if artifacts else []
    parts: list[list[t.Mapping[str, t.Any]]] = []
    filled = limit
    for artifact in artifacts:
        size = _size(Path(artifact["source"]))
        if filled + size > limit:
            parts.append([])
            filled = 0
        parts[-1].append(artifact)
        filled += size
    return parts


def _size(path: Path) -> int:
    return sum(one.stat().st_size for one in path.rglob("*") if one.is_file()) if path.is_dir() else path.stat().st_size


def pack(artifacts: t.Sequence[t.Mapping[str, t.Any]], archive: t.Union[str, Path]) -> int:
    """Write all artifacts into one tar, each under its number, but for what the host holds; return its size in bytes."""
    # one header for a file; the default format spends another on fractions of its time
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
        for number, artifact in enumerate(artifacts):
            source, held = artifact["source"], artifact.get("held") or ()
            if not os.path.isdir(source):
                _add(tar, source, str(number))
                continue
            top = tarfile.TarInfo(str(number))
            top.type = tarfile.DIRTYPE
            tar.addfile(top)
            for path in sorted(_files(source)):
                if path not in held:
                    _add(tar, os.path.join(source, path), "%d/%s" % (number, path))
    return os.path.getsize(archive)


def _add(tar: tarfile.TarFile, path: str, name: str) -> None:
    """Without what nobody asks for: tarfile's own way looks up the names of owner and group of each file."""
    with open(path, "rb") as stream:
        status = os.fstat(stream.fileno())
        member = tarfile.TarInfo(name)
        member.size, member.mode = status.st_size, status.st_mode & 0o777
        tar.addfile(member, stream)


def place(archive: t.Union[str, Path], artifacts: t.Sequence[t.Mapping[str, t.Any]], root: t.Union[str, Path]) -> list[str]:
    """Put what :func:`pack` wrote in place; return the destinations that are new.

    Raises Refused for a destination outside ``root`` or content of another digest.
    """
    top = Path(root)
    for artifact in artifacts:
        for path in (artifact["dest"], *(artifact.get("held") or {}).values()):
            if ".." in Path(path).parts or top not in Path(path).parents:
                raise Refused("%s lies outside %s" % (path, top))
    top.mkdir(mode=0o755, parents=True, exist_ok=True)
    placed = []
    # On the root's own file system, so that a rename is all that is left to do.
    with tempfile.TemporaryDirectory(prefix=".incoming-", dir=top) as scratch:
        made = {scratch}
        digests = _unpack(archive, scratch, made)
        for number, artifact in enumerate(artifacts):
            digests.update(_take_held(scratch, str(number), artifact.get("held") or {}, made))
            if _place_one(Path(scratch), str(number), artifact, digests):
                placed.append(artifact["dest"])
    return placed


def _unpack(archive: t.Union[str, Path], directory: str, made: set[str]) -> dict[str, str]:
    """Write every file of the archive below a directory; their digests by name, taken on the way."""
    digests: dict[str, str] = {}
    with open(archive, "rb") as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
        for member in tar:
            if not (member.isreg() or member.isdir()) or ".." in member.name.split("/") or member.name.startswith("/"):
                raise Refused("the archive holds %s, which is no plain file below it" % member.name)
            target = os.path.join(directory, member.name)
            _make_directory(target if member.isdir() else os.path.dirname(target), made)
            if member.isreg():
                stream.seek(member.offset_data)
                digests[member.name] = _write(stream, member.size, target, 0o755 if member.mode & 0o100 else 0o644)
    return digests


def _make_directory(path: str, made: set[str]) -> None:
    """With the parents that are not made yet, for everybody to read."""
    if path in made:
        return
    _make_directory(os.path.dirname(path), made)
    os.mkdir(path)
    os.chmod(path, 0o755)
    made.add(path)


def _write(source: t.IO[bytes], size: int, target: str, mode: int) -> str:
    """Copy so many bytes; the digest of what was there."""
    value = hashlib.sha256()
    with open(target, "wb") as stream:
        while size > 0:
            block = source.read(min(size, _BLOCK))
            if not block:
                break
            size -= len(block)
            value.update(block)
            stream.write(block)
        os.fchmod(stream.fileno(), mode)
    return value.hexdigest()


def _take_held(scratch: str, number: str, held: t.Mapping[str, str], made: set[str]) -> dict[str, str]:
    """Copy what the host holds of a tree into it; the digests by name. What cannot be had is missing in the tree's digest."""
    digests = {}
    for path, source in held.items():
        name = "%s/%s" % (number, path)
        target = os.path.join(scratch, name)
        _make_directory(os.path.dirname(target), made)
        with contextlib.suppress(OSError), open(source, "rb") as stream:
            digests[name] = _write(stream, os.fstat(stream.fileno()).st_size, target, 0o644)
    return digests


def _place_one(scratch: Path, number: str, artifact: t.Mapping[str, t.Any], digests: t.Mapping[str, str]) -> bool:
    source, dest = scratch / number, Path(artifact["dest"])
    tree = source.is_dir()
    start = len(number) + 1
    inside = {name[start:]: value for name, value in digests.items() if name.startswith(number + "/") and not name.endswith("/" + MARKER)}
    found = _tree_digest(inside) if tree else digests.get(number)
    if found != artifact["digest"] and artifact.get("held"):
        for neighbour in {Path(path).relative_to(dest.parent).parts[0] for path in artifact["held"].values()}:
            shutil.rmtree(dest.parent / neighbour, ignore_errors=True)
        raise Refused("what the host held of %s is damaged, and was taken away so that it is sent" % artifact["source"])
    if found is None or found != artifact["digest"]:
        raise Refused("%s arrived with digest %s, announced was %s" % (artifact["source"], found, artifact["digest"]))
    dest.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if tree:
        if (dest / MARKER).exists():
            return False
        shutil.rmtree(dest, ignore_errors=True)
        (source / MARKER).write_text(found, encoding="ascii")
        os.rename(source, dest)
        return True
    if dest.exists() and file_digest(dest) == found:
        return False
    os.chmod(source, int(artifact["mode"], 8))
    os.rename(source, dest)
    _write_digest(dest, found)
    return True


def _write_digest(dest: Path, digest: str) -> None:
    """Keep the digest beside a file, so that nobody reads 60 MB to know which one it is."""
    beside = dest.with_name(dest.name + ".sha256")
    new = beside.with_name(beside.name + ".new")
    new.write_text(digest, encoding="ascii")
    os.rename(new, beside)


def placed_digest(dest: Path) -> t.Optional[str]:
    """The digest kept beside a file that was put in place; None where the file is not there."""
    try:
        return dest.with_name(dest.name + ".sha256").read_text(encoding="ascii") if dest.exists() else None
    except OSError:
        return None
