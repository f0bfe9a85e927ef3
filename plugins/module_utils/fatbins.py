# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""For which GPUs a compiled file carries code.

CUDA's compiler leaves device code in sections of its own: containers one after another, each a header
and entries, each entry a header and a payload. Only the headers are read. The format is what
fatbinary_section.h (CUDA toolkit) declares and what ``cuobjdump --list-elf`` shows of the same files.
"""

from __future__ import annotations

import dataclasses
import mmap
import struct
import typing as t
from pathlib import Path

from .findings import COULD_NOT_CHECK, ERROR, NOT_APPLICABLE, OK, WARNING, Finding

SECTIONS = (".nv_fatbin", "__nv_relfatbin")

#: magic, version, size of this header, size of all that follows
CONTAINER = struct.Struct("<IHHQ")
MAGIC = b"\x50\xed\x55\xba"
#: kind, version, size of this header, size of the payload
ENTRY = struct.Struct("<HHIQ")
#: From an entry's begin: where the architecture stands, and the flags.
ARCHITECTURE = struct.Struct("<28xI8xQ")
PTX, CUBIN = 1, 2
#: The code uses what only this very architecture has: the ``a`` of sm_90a.
_SPECIFIC = 1 << 20


@dataclasses.dataclass(frozen=True, order=True)
class Code:
    """Device code of one kind: machine code (``sm_90``) or PTX (``compute_90``) for a compute capability."""

    capability: tuple[int, int]
    ptx: bool
    specific: bool

    @property
    def name(self) -> str:
        """As the compiler calls it."""
        return "%s_%d%d%s" % ("compute" if self.ptx else "sm", *self.capability, "a" if self.specific else "")

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a GPU runs this: its own code, that of a lower minor version, PTX of any lower one."""
        if self.specific:
            return self.capability == capability
        if self.ptx:
            return self.capability <= capability
        return self.capability[0] == capability[0] and self.capability[1] <= capability[1]


def codes(path: Path) -> frozenset[Code]:
    """What a file carries; nothing where it has no device code. Raises OSError and ValueError."""
    return frozenset(_code(entry) for entry in entries(path))


def entries(path: Path) -> t.Iterator[bytes]:
    """The headers of every piece of device code in a file. Raises OSError and ValueError."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    with open(path, "rb") as stream:
        try:
            elf = ELFFile(stream)
            found = [elf.get_section_by_name(name) for name in SECTIONS]
            parts = [(one["sh_offset"], one["sh_size"]) for one in found if one is not None and one["sh_type"] != "SHT_NOBITS"]
        except (ELFError, AttributeError) as error:
            raise ValueError("a broken ELF file: %s" % error) from error
        if not parts:
            return
        with mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as data:
            for begin, size in parts:
                if begin + size > len(data):
                    raise ValueError("a section ends behind the file")
                yield from _section(data, begin, begin + size)


def _section(data: mmap.mmap, begin: int, end: int) -> t.Iterator[bytes]:
    at = data.find(MAGIC, begin, end)
    while 0 <= at <= end - CONTAINER.size:
        _magic, _version, header, size = CONTAINER.unpack_from(data, at)
        at += header
        last = at + size
        if header < CONTAINER.size or last > end:
            raise ValueError("a container of device code ends behind its section")
        while at < last:
            if last - at < ARCHITECTURE.size:
                raise ValueError("a container of device code is cut off")
            _kind, _version, header, size = ENTRY.unpack_from(data, at)
            if header < ARCHITECTURE.size:
                raise ValueError("a piece of device code has no header")
            yield data[at : at + header]
            at += header + size
        at = data.find(MAGIC, last, end)


def _code(entry: bytes) -> Code:
    architecture, flags = ARCHITECTURE.unpack_from(entry)
    return Code(divmod(architecture, 10), ENTRY.unpack_from(entry)[0] == PTX, bool(flags & _SPECIFIC))


def finding(files: t.Mapping[str, Path], distribution: str, capabilities: t.Collection[tuple[int, int]]) -> Finding:
    """``abi.gpu-architecture`` for one distribution: it carries code that every GPU of the host runs.

    Judged over all its files: a package keeps files for single generations of GPUs beside each other, and chooses when it runs.

    :param files: path for a person → file.
    :param capabilities: of the host's GPUs.
    """
    name = "abi.gpu-architecture"
    try:
        carried = {path: codes(file) for path, file in files.items()}
    except (OSError, ValueError) as error:
        return Finding(name, COULD_NOT_CHECK, distribution, "its device code cannot be read", str(error), fix="Build the environment anew.")
    every = frozenset().union(*carried.values())
    if not every:
        evidence = "%d compiled files" % len(files)
        return Finding(name, NOT_APPLICABLE, distribution, "carries no device code", evidence=evidence)
    evidence = "\n".join("%s: %s" % (path, names(found)) for path, found in sorted(carried.items()) if found)
    lacking = sorted(one for one in capabilities if not any(code.runs_on(one) for code in every))
    if not lacking:
        return Finding(name, OK, distribution, "carries code for this host's GPUs", names(every), _named(capabilities), evidence)
    # What is marked as specific may be for one GPU or for its family: the mark is the same.
    family = all(any(code.specific and code.capability[0] == one[0] and code.capability < one for code in every) for one in lacking)
    return Finding(
        name,
        WARNING if family else ERROR,
        distribution,
        "carries no code that GPUs of compute capability %s %s, and no PTX to compile for them"
        % (_named(lacking), "surely run" if family else "run"),
        names(every),
        "code for %s, or PTX for it or an older one" % ", ".join("sm_%d%d" % one for one in lacking),
        evidence,
        "The package was built without this generation of GPUs; the first kernel would end in `no kernel image is available`.",
        "Choose a lane whose packages carry it (newer CUDA, newer versions), or build the package for it and pin the wheel.",
    )


def names(found: t.Iterable[Code]) -> str:
    """Architectures for a person, in order."""
    return ", ".join(code.name for code in sorted(found))


def _named(capabilities: t.Iterable[tuple[int, int]]) -> str:
    return ", ".join("%d.%d" % one for one in sorted(capabilities))
