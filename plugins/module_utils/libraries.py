# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which shared libraries of an environment the dynamic loader does not find by itself.

Computed from ELF alone, nothing is loaded: the kernel packages carry no RUNPATH, so what they need is
found only when torch has loaded it before, when the system has it, or when a directory with links to
exactly those libraries is given to the service. The order of search is the loader's (ld.so(8)).
"""

from __future__ import annotations

import collections
import dataclasses
import os
import re
import struct
import typing as t
from pathlib import Path

from . import records
from .findings import ERROR, OK, WARNING, Finding

#: Come with the driver, not with an environment; whether there is one is another check's business.
DRIVER = frozenset(("libcuda.so.1", "libnvidia-ml.so.1"))

#: In the process before any engine code runs, with all they need: what ``import torch`` loads first.
_TORCH_LOADS = ("torch/lib/libtorch_global_deps.so", "torch/lib/libtorch_python.so")

#: Of elf(5): a 64-bit little-endian file's class and order, parts of its headers, and tags of its dynamic section.
_WIDE_LITTLE = b"\x02\x01"
_HEADER = struct.Struct("<Q")
_COUNTS = struct.Struct("<HH")
_PROGRAM = struct.Struct("<I4xQQ8xQ16x")
_ENTRY = struct.Struct("<qQ")
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRTAB, _STRSZ, _RPATH, _RUNPATH = 1, 5, 10, 15, 29
_STRINGS = (_NEEDED, _RPATH, _RUNPATH)

_LIBRARY = re.compile(r"\.so(\.[0-9.]+)?$")
_TAGGED = re.compile(r"\.(cpython-\d+)[^/]*\.so$")


@dataclasses.dataclass(frozen=True)
class Dynamic:
    """What the loader reads of one ELF file. ``search`` is its RUNPATH, or its RPATH where it has none."""

    machine: str
    needed: tuple[str, ...]
    search: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Libraries:
    """What :func:`compute` found. Paths are relative to site-packages.

    :param links: file name the loader asks for → the library in site-packages.
    :param missing: soname that is nowhere → the files that need it.
    :param others: missing soname → other versions of it that are there.
    :param files: how many extension modules and libraries were read.
    """

    links: t.Mapping[str, str]
    missing: t.Mapping[str, tuple[str, ...]]
    others: t.Mapping[str, tuple[str, ...]]
    files: int


def is_library(path: str) -> bool:
    """Whether a row of a RECORD names an extension module or a library inside site-packages."""
    return bool(_LIBRARY.search(path)) and not path.startswith("../")


def dynamic(path: Path) -> t.Optional[Dynamic]:
    """Read one file; None where it is no ELF file, broken, or not linked dynamically. Raises OSError.

    Of a file that is not 64-bit and little-endian, as every host's are, only the machine is read.
    """
    from elftools.elf.enums import ENUM_E_MACHINE

    with open(path, "rb") as stream:
        head = stream.read(64)
        if head[:4] != b"\x7fELF":
            return None
        try:
            number = int.from_bytes(head[18:20], "big" if head[5] == 2 else "little")
            machine = next((name for name, value in ENUM_E_MACHINE.items() if value == number), str(number))
            if head[4:6] != _WIDE_LITTLE:
                return Dynamic(machine, (), ())
            tags = _tags(stream, *_HEADER.unpack_from(head, 32), *_COUNTS.unpack_from(head, 54))
        except (struct.error, IndexError, KeyError, ValueError, StopIteration):
            return None
    if not tags:
        return None
    search = tags.get(_RUNPATH) or tags.get(_RPATH, [])
    return Dynamic(machine, tuple(tags.get(_NEEDED, ())), tuple(part for one in search for part in one.split(":") if part))


def _tags(stream: t.BinaryIO, table: int, size: int, count: int) -> dict[int, list[str]]:
    """Strings of the dynamic section by tag. pyelftools takes ten times as long, and an environment has hundreds of files."""
    stream.seek(table)
    programs = [_PROGRAM.unpack_from(raw) for raw in (stream.read(size) for _number in range(count))]
    found: dict[int, list[str]] = {}
    for kind, offset, _address, length in programs:
        if kind != _DYNAMIC:
            continue
        stream.seek(offset)
        data = stream.read(length)
        entries = list(_ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]))
        values = dict(entries)
        stream.seek(next(where + values[_STRTAB] - at for is_, where, at, n in programs if is_ == _LOAD and 0 <= values[_STRTAB] - at < n))
        strings = stream.read(values[_STRSZ])
        for tag, value in entries:
            if tag == 0:
                break
            name = strings[value : strings.index(b"\0", value)].decode("utf-8", "surrogateescape") if tag in _STRINGS else ""
            found.setdefault(tag, []).append(name)
    return found


def system_libraries(cache: str, machine: str, without: t.Optional[Path] = None) -> dict[str, str]:
    """File names the loader's cache knows for a machine, and where it has them: the first of a name counts.

    :param cache: what ``ldconfig -p`` prints.
    :param machine: of :class:`Dynamic`.
    :param without: entries below this directory do not count: an environment must not lean on another one.
    """
    flag = {"EM_X86_64": "x86-64", "EM_AARCH64": "AArch64"}.get(machine, "")
    places: dict[str, str] = {}
    for line in cache.splitlines():
        match = re.match(r"\s*(\S+) \(([^)]*)\) => (.+)$", line)
        if match and (not flag or flag in match[2]) and not (without and match[3].startswith(str(without) + os.sep)):
            places.setdefault(match[1], match[3])
    return places


def compute(
    site_packages: Path,
    dists: t.Sequence[records.Distribution],
    names: t.Iterable[str],
    cache: str,
    without: t.Optional[Path] = None,
) -> Libraries:
    """Find what the extension modules of some distributions need and the loader would not find.

    :param dists: all distributions of the environment.
    :param names: those whose files are looked at; torch's always are.
    :param cache: what ``ldconfig -p`` prints on the host; ``without``: see :func:`system_libraries`.
    """
    return _Search(Path(site_packages), dists, cache, without).run({records.normalized(name) for name in names} | {"torch"})


class _Search:
    def __init__(self, site_packages: Path, dists: t.Sequence[records.Distribution], cache: str, without: t.Optional[Path]) -> None:
        self.site_packages = site_packages
        self.dists = dists
        self.cache = cache
        self.without = without
        self.read: dict[str, t.Optional[Dynamic]] = {}
        self.system: dict[str, dict[str, str]] = {}
        self.carried: dict[str, list[str]] = {}
        for path in sorted({path for dist in dists for path in dist.rows if is_library(path)}):
            self.carried.setdefault(os.path.basename(path), []).append(path)
        self.loaded = self._loaded_by_torch()

    def run(self, names: t.Collection[str]) -> Libraries:
        """Look at the named distributions' files, then at what is linked for them, until nothing new is needed."""
        tag = "cpython-" + "".join(re.findall(r"\d+", self.site_packages.parent.name))
        links: dict[str, str] = {}
        missing: dict[str, list[str]] = {}
        todo = collections.deque(
            (path, True)
            for dist in self.dists
            if dist.name in names
            for path in sorted(dist.rows)
            # an extension module of another Python cannot be loaded at all
            if is_library(path) and (_TAGGED.search(path) or ["", tag])[1] == tag
        )
        while todo:
            path, in_place = todo.popleft()
            found = self._dynamic(path)
            for soname in found.needed if found else ():
                # a library that is found through a link looks for its neighbours beside the link
                if soname in links or self._resolved(soname, path, found, in_place):
                    continue
                target = self._choose(soname, found)
                if target is None:
                    users = missing.setdefault(soname, [])
                    users += [path] if path not in users else []
                    continue
                for name, beside in self._with_companions(soname, target):
                    if name not in links:
                        links[name] = beside
                        todo.append((beside, False))
        others = {soname: self._other_versions(soname) for soname in missing}
        return Libraries(
            dict(sorted(links.items())), {name: tuple(users) for name, users in sorted(missing.items())}, others, len(self.read)
        )

    def _dynamic(self, path: str) -> t.Optional[Dynamic]:
        if path not in self.read:
            try:
                self.read[path] = dynamic(self.site_packages / path)
            except OSError:
                self.read[path] = None
        return self.read[path]

    def _loaded_by_torch(self) -> frozenset[str]:
        """Sonames in the process once torch is imported: whoever needs one later gets it without a search."""
        loaded: set[str] = set()
        todo = [path for path in _TORCH_LOADS if (self.site_packages / path).exists()]
        while todo:
            path = todo.pop()
            loaded.add(os.path.basename(path))
            found = self._dynamic(path)
            for soname in found.needed if found else ():
                target = self._beside(soname, path, found)
                if target and soname not in loaded:
                    todo.append(target)
        return frozenset(loaded)

    def _beside(self, soname: str, path: str, found: Dynamic) -> t.Optional[str]:
        """Where a file's own search path has a library, relative to site-packages."""
        origin = os.path.dirname(os.path.join(self.site_packages, path))
        for part in found.search:
            directory = part.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)
            candidate = os.path.normpath(os.path.join(directory, soname))
            if os.path.exists(candidate):
                return os.path.relpath(candidate, self.site_packages)
        return None

    def _resolved(self, soname: str, path: str, found: Dynamic, in_place: bool) -> bool:
        # the interpreter is in the process before everything else
        if soname in DRIVER or soname in self.loaded or soname.startswith(("libpython3", "ld-linux")):
            return True
        if in_place and self._beside(soname, path, found):
            return True
        if found.machine not in self.system:
            self.system[found.machine] = system_libraries(self.cache, found.machine, self.without)
        return soname in self.system[found.machine]

    def _choose(self, soname: str, found: Dynamic) -> t.Optional[str]:
        """The environment's own copy; of several the one from a package made to carry libraries."""
        candidates = [path for path in self.carried.get(soname, ()) if getattr(self._dynamic(path), "machine", None) == found.machine]
        return min(candidates, key=lambda path: (not path.startswith("nvidia/"), len(path), path), default=None)

    def _with_companions(self, soname: str, target: str) -> t.Iterator[tuple[str, str]]:
        """A library and those of its family beside it: it opens them by name at run time, where no NEEDED tells."""
        yield soname, target
        directory, family = os.path.dirname(target), soname.split(".so", 1)[0]
        for name, paths in self.carried.items():
            if name != soname and re.match(re.escape(family) + r"[-_]", name):
                for path in paths:
                    if os.path.dirname(path) == directory:
                        yield name, path

    def _other_versions(self, soname: str) -> tuple[str, ...]:
        stem = soname.split(".so", 1)[0] + ".so."
        known = {*self.carried, *(name for names in self.system.values() for name in names)}
        return tuple(sorted(name for name in known if name.startswith(stem) and name != soname))


def write_links(directory: Path, libraries: Libraries, site_packages: Path) -> None:
    """Make a new directory with a relative link for each library. Raises OSError."""
    directory.mkdir(mode=0o755)
    for name, path in libraries.links.items():
        (directory / name).symlink_to(os.path.relpath(Path(site_packages) / path, directory))


def findings(libraries: Libraries, depended: t.Optional[t.Container[str]] = None) -> list[Finding]:
    """``libraries.missing`` for each soname that is nowhere, or a single ok.

    :param depended: files that serving depends on; what only others need, such as a library's plugins, is a warning. None: all are.
    """
    found = []
    for soname, users in libraries.missing.items():
        others = libraries.others[soname]
        if others:
            cause = "what needs it was built for another CUDA major or library version than the environment carries"
            fix = "choose a lane whose torch and kernel packages are built for the same CUDA major version"
        else:
            cause = "neither the environment nor the system has it"
            fix = "install the system's package that has %s, or a lane that carries it" % soname
        found.append(
            Finding(
                "libraries.missing",
                ERROR if depended is None or any(user in depended for user in users) else WARNING,
                soname,
                "needed by %d file(s), and nowhere" % len(users),
                found=", ".join(others) or "no version of it",
                expected=soname,
                evidence=records.listing(users),
                cause=cause,
                fix=fix,
            )
        )
    if not found:
        message = "%d libraries are linked for the loader" % len(libraries.links) if libraries.links else "none needed"
        found.append(Finding("libraries.missing", OK, "libraries", message, evidence="%d ELF files read" % libraries.files))
    return found


def unreachable(libraries: Libraries, directory: Path, search_path: str) -> list[Finding]:
    """``libraries.missing`` where the service would not find what was linked for it.

    :param directory: of the links, made by :func:`write_links`.
    :param search_path: LD_LIBRARY_PATH of the service.
    """
    absent = [name for name in libraries.links if not (directory / name).exists()]
    if absent:
        message = "%d of the environment's links to libraries are not there" % len(absent)
        cause, fix = "somebody changed the environment after it was built", "build the environment anew"
    elif libraries.links and str(directory) not in search_path.split(":"):
        absent = list(libraries.links)
        message = "the service is not given the directory that has %d libraries" % len(absent)
        cause = "the instance sets LD_LIBRARY_PATH itself, and no package that needs the libraries names their directory"
        fix = "let LD_LIBRARY_PATH of the service begin with %s: leave the variable out of the instance's own" % directory
    else:
        return []
    found = "LD_LIBRARY_PATH=%s" % search_path
    return [Finding("libraries.missing", ERROR, str(directory), message, found, str(directory), records.listing(absent), cause, fix)]


def unregistered(libraries: Libraries, search_path: str) -> list[Finding]:
    """``libraries.missing`` where an environment of somebody else's holds libraries that its service would not find.

    :param search_path: LD_LIBRARY_PATH of the service.
    """
    directories = [Path(one) for one in search_path.split(":") if one]
    hidden = {name: path for name, path in libraries.links.items() if not any((place / name).exists() for place in directories)}
    return [
        Finding(
            "libraries.missing",
            ERROR,
            name,
            "is in the environment, where the loader does not look",
            found=path,
            expected="a directory that ldconfig or LD_LIBRARY_PATH of the service knows",
            evidence="LD_LIBRARY_PATH=%s" % search_path,
            cause="no package that needs it names its directory, and torch does not load it before",
            fix="deploy the engine with this collection, which gives the service exactly these libraries; or register the directory "
            "(a file in /etc/ld.so.conf.d, then ldconfig)",
        )
        for name, path in hidden.items()
    ]
