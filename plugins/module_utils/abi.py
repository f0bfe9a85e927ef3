# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the compiled packages of an environment fit its torch, its Python and its machine.

Nothing is loaded: of every extension module and library only the dynamic section and the dynamic symbols are read. What a
module takes from torch (names of torch's own namespaces) must be exported by the installed torch, or by the package itself.
"""

from __future__ import annotations

import dataclasses
import re
import struct
import typing as t
from pathlib import Path

from . import fatbins, libraries, mangling, records
from .findings import COULD_NOT_CHECK, ERROR, NOT_APPLICABLE, OK, WARNING, Finding

#: Symbols that torch defines: of its own namespaces, and its stable C interface.
_TORCH = re.compile(r"^_Z(?:T[VTIS]|GV|GR)?(?:N[KVrRO]*)?(?:3c10|2at|5torch|6caffe2)|^aoti_torch_")

#: What torch has only where it is built for CUDA.
CUDA_LIBRARIES = frozenset(("libtorch_cuda.so", "libc10_cuda.so", "libtorch_cuda_linalg.so"))

_TAG = re.compile(r"\.((?:cpython|pypy|graalpy)-?\d+t?)[^/]*\.so$")
#: Functions of the driver, which come with libcuda.
_DRIVER = re.compile(r"^cu[A-Z]")
_LIBCUDA = "libcuda.so.1"

_MAJOR = re.compile(r"^(lib(?:cudart|nvrtc|cublas|cublasLt|cufft|curand|cusolver|cusparse|nvJitLink|cupti))\.so\.(\d+)")
_SYMBOL = struct.Struct("<IBBHQQ")
_GLOBAL, _WEAK, _UNIQUE = 1, 2, 10
_NAMED = 5

_REBUILD = "build the environment anew; nothing inside it is repaired in place"
_MATCHING = "Take the package that was built for the installed torch, from the lane's index, and build again."


@dataclasses.dataclass(frozen=True)
class Symbols:
    """The dynamic symbols of a file: what it must get elsewhere (weak ones left out), and what it gives."""

    wanted: frozenset[str]
    exported: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled file of a distribution. ``path`` is relative to site-packages."""

    path: str
    distribution: str
    dynamic: libraries.Dynamic

    @property
    def tag(self) -> str:
        """The Python that the file's name says it is for, such as ``cpython-311``; empty where it does not say."""
        found = _TAG.search(self.path)
        return found[1] if found else ""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The compiled files of an environment.

    :param modules: all of them.
    :param unreadable: path → its distribution, and why it could not be read.
    """

    site_packages: Path
    modules: t.Sequence[Module]
    unreadable: t.Mapping[str, tuple[str, str]]

    def of(self, names: t.Collection[str]) -> list[Module]:
        """Those of some distributions."""
        return [module for module in self.modules if module.distribution in names]

    def torch(self) -> list[Module]:
        """torch's own libraries."""
        return [module for module in self.modules if module.distribution == "torch" and module.path.startswith("torch/lib/")]


def symbols(path: Path) -> Symbols:
    """Read the dynamic symbols of a 64-bit little-endian file. Raises OSError and ValueError."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    with open(path, "rb") as stream:
        try:
            elf = ELFFile(stream)
            if elf.elfclass != 64 or not elf.little_endian:
                raise ValueError("not a 64-bit little-endian file")
            section = elf.get_section_by_name(".dynsym")
            if section is None:
                return Symbols(frozenset(), frozenset())
            names = elf.get_section(section["sh_link"]).data()
            # pyelftools takes ten times as long for the entries; there are hundreds of thousands.
            entries = section.data()
        except (ELFError, AttributeError) as error:
            raise ValueError("a broken ELF file: %s" % error) from error
    wanted, exported = set(), set()
    for name, info, other, index, _value, _size in _SYMBOL.iter_unpack(entries[: len(entries) // _SYMBOL.size * _SYMBOL.size]):
        binding = info >> 4
        if not name or binding not in (_GLOBAL, _WEAK, _UNIQUE):
            continue
        if index:
            # hidden and internal ones are not for others
            if other & 3 not in (1, 2):
                exported.add(_string(names, name))
        elif binding == _GLOBAL:
            wanted.add(_string(names, name))
    return Symbols(frozenset(wanted), frozenset(exported))


def _string(names: bytes, begin: int) -> str:
    return names[begin : names.index(b"\0", begin)].decode("ascii", "replace")


def read(site_packages: Path, dists: t.Sequence[records.Distribution]) -> Compiled:
    """Find and open every compiled file that a RECORD names."""
    modules: list[Module] = []
    unreadable: dict[str, tuple[str, str]] = {}
    for dist in dists:
        for path in sorted(dist.rows):
            if not libraries.is_library(path):
                continue
            try:
                found = libraries.dynamic(site_packages / path)
            except OSError as error:
                unreadable[path] = (dist.name, error.strerror or str(error))
                continue
            if found is None:
                unreadable[path] = (dist.name, "no ELF file, or a broken one")
            else:
                modules.append(Module(path, dist.name, found))
    return Compiled(site_packages, modules, unreadable)


def findings(compiled: Compiled, critical: t.Collection[str], machine: t.Optional[str], tag: str) -> list[Finding]:
    """``abi.*`` over the compiled files of an environment.

    :param critical: distributions that serving depends on: only theirs forbid going on.
    :param machine: of the environment's interpreter (as in :class:`libraries.Dynamic`); None where it cannot be read.
    :param tag: of the environment's Python, such as ``cpython-311``.
    """
    important = {records.normalized(name) for name in critical}
    cpu = cpu_torch(compiled, important)
    # Modules for CUDA cannot find their symbols beside a torch without: that is one cause, told once.
    told = set() if has_cuda(compiled) else {module.path for module in _for_cuda(compiled)}
    return [
        *unreadable(compiled, important),
        other_machine(compiled, important, machine),
        *other_python(compiled, important, tag),
        cpu,
        *cuda_majors(compiled, important),
        *undefined(compiled, important, told),
    ]


def unreadable(compiled: Compiled, critical: t.Collection[str]) -> list[Finding]:
    """*Could not check* ``abi.unreadable`` for the files of what serving depends on that are no readable ELF files."""
    lines = ["%s: %s" % (path, why) for path, (dist, why) in sorted(compiled.unreadable.items()) if dist in critical]
    if not lines:
        return [_good("abi.unreadable", compiled.modules, "there", "every compiled file can be read")]
    message = "%d compiled file(s) cannot be read" % len(lines)
    cause = "They were cut off or overwritten, or are no compiled files at all."
    evidence, fix = records.listing(lines), _sentence(_REBUILD)
    return [Finding("abi.unreadable", COULD_NOT_CHECK, "ELF files", message, evidence=evidence, cause=cause, fix=fix)]


def other_machine(compiled: Compiled, critical: t.Collection[str], machine: t.Optional[str]) -> Finding:
    """``abi.other-machine``: every compiled file is for the interpreter's machine."""
    name = "abi.other-machine"
    if machine is None:
        return Finding(
            name, COULD_NOT_CHECK, "python", "the environment's interpreter is no ELF file that can be read", fix=_sentence(_REBUILD)
        )
    strange = [module for module in compiled.modules if module.dynamic.machine != machine]
    if not strange:
        return _good(name, compiled.modules, "for this machine", "%d compiled files are for %s" % (len(compiled.modules), machine))
    return Finding(
        name,
        _severity(strange, critical),
        _owners(strange),
        "%d compiled file(s) are for another machine" % len(strange),
        ", ".join(sorted({module.dynamic.machine for module in strange})),
        machine,
        records.listing(module.path for module in strange),
        "The wheel was chosen for another machine, or carries files for several.",
        "Make the lock anew for this host's machine, and build again.",
    )


def other_python(compiled: Compiled, critical: t.Collection[str], tag: str) -> list[Finding]:
    """``abi.other-python``: no distribution has extension modules for other Pythons only; some of them is a warning."""
    name = "abi.other-python"
    found = []
    tagged = [module for module in compiled.modules if module.tag]
    for dist in sorted({module.distribution for module in tagged if module.tag != tag}):
        strange = [module for module in tagged if module.distribution == dist and module.tag != tag]
        # A wheel for several Pythons has the same module for each of them.
        usable = {_stem(module) for module in compiled.of([dist]) if module.tag in ("", tag)}
        lost = [module for module in strange if _stem(module) not in usable]
        if not lost:
            continue
        loadable = [module for module in compiled.of([dist]) if module.tag in ("", tag)]
        found.append(
            Finding(
                name,
                _severity(lost, critical) if not loadable else WARNING,
                dist,
                "%d extension module(s) are for another Python and cannot be imported" % len(lost),
                ", ".join(sorted({module.tag for module in lost})),
                tag,
                records.listing(module.path for module in lost),
                "The wheel was built for another Python, or says `abi3` and is not.",
                "Take the wheel for this Python. Where only a part that is not used is concerned, nothing needs to be done.",
            )
        )
    return found or [_good(name, tagged, "for one Python only", "%d extension modules are for %s" % (len(tagged), tag))]


def cpu_torch(compiled: Compiled, critical: t.Collection[str]) -> Finding:
    """``abi.cpu-torch``: no package that was built for CUDA lies beside a torch that was not."""
    name = "abi.cpu-torch"
    if not compiled.torch():
        return Finding(name, NOT_APPLICABLE, "torch", "the installed torch has no compiled library", evidence="torch/lib")
    if has_cuda(compiled):
        return Finding(name, OK, "torch", "torch is built for CUDA", evidence="torch/lib has one of %s" % ", ".join(sorted(CUDA_LIBRARIES)))
    every = _for_cuda(compiled)
    wanting = [module for module in every if module.distribution in critical]
    if not wanting:
        others = "; %s does, and serving does not depend on it" % _owners(every) if every else ""
        evidence = "nothing else needs one of %s%s" % (", ".join(sorted(CUDA_LIBRARIES)), others)
        return Finding(name, OK, "torch", "torch is built for the CPU only, and so is what it serves with", evidence=evidence)
    return Finding(
        name,
        ERROR,
        _owners(wanting),
        "built for CUDA, beside a torch that is built for the CPU only",
        "torch without %s" % ", ".join(sorted(CUDA_LIBRARIES & {soname for one in wanting for soname in one.dynamic.needed})),
        "torch and its compiled packages from one lane",
        records.listing(module.path for module in wanting),
        "torch came from another index than the packages beside it.",
        "Choose a CUDA lane, or the packages' builds for the CPU, and build again.",
    )


def has_cuda(compiled: Compiled) -> bool:
    """Whether the installed torch was built for CUDA."""
    return bool(CUDA_LIBRARIES.intersection(Path(module.path).name for module in compiled.torch()))


def _for_cuda(compiled: Compiled) -> list[Module]:
    return [one for one in compiled.modules if one.distribution != "torch" and CUDA_LIBRARIES.intersection(one.dynamic.needed)]


def cuda_majors(compiled: Compiled, critical: t.Collection[str]) -> list[Finding]:
    """``abi.cuda-major``: what needs a CUDA library needs it in the major version that torch needs."""
    name = "abi.cuda-major"
    torch = {family: major for one in compiled.torch() for family, major in _majors(one)}
    evidence = ", ".join("%s.so.%s" % item for item in sorted(torch.items()))
    strange: dict[str, list[Module]] = {}
    for one in compiled.of(set(critical) - {"torch"}):
        for family, major in _majors(one):
            if torch.get(family, major) != major:
                strange.setdefault("%s.so.%s" % (family, major), []).append(one)
    if not torch:
        return [Finding(name, NOT_APPLICABLE, "torch", "torch needs no CUDA library", evidence="%d libraries" % len(compiled.torch()))]
    if not strange:
        return [Finding(name, OK, "torch", "the compiled packages need the CUDA libraries that torch needs", evidence=evidence)]
    users = [module for modules in strange.values() for module in modules]
    return [
        Finding(
            name,
            ERROR,
            _owners(users),
            "built for another CUDA major version than torch",
            ", ".join(sorted(strange)),
            evidence,
            records.listing(sorted({module.path for module in users})),
            "Two copies of the CUDA libraries would be loaded into one process, each with a state of its own.",
            "Choose a lane whose torch and kernel packages are built for the same CUDA major version.",
        )
    ]


def _majors(module: Module) -> t.Iterator[tuple[str, str]]:
    for soname in module.dynamic.needed:
        found = _MAJOR.match(soname)
        if found:
            yield found[1], found[2]


def undefined(compiled: Compiled, critical: t.Collection[str], told: t.Collection[str]) -> list[Finding]:
    """``abi.undefined-symbol``: one finding for each distribution that wants of torch what the installed torch does not export.

    :param told: files that another finding explains.
    """
    name = "abi.undefined-symbol"
    torch = compiled.torch()
    own = {Path(module.path).name for module in torch}
    users = [
        module
        for module in compiled.modules
        if module.distribution != "torch"
        and module.path not in told
        and (module.distribution in critical or any(re.match(r"libtorch|libc10", soname) for soname in module.dynamic.needed))
    ]
    if not users:
        evidence = "%d compiled files read" % len(compiled.modules)
        return [Finding(name, NOT_APPLICABLE, "torch", "no compiled package takes anything from torch", evidence=evidence)]
    try:
        wants = {module: symbols(compiled.site_packages / module.path) for module in users}
        from_torch = {module: frozenset(one for one in wants[module].wanted if _TORCH.match(one)) for module in users}
        if not any(from_torch.values()):
            evidence = "%d compiled files of %s" % (len(users), _owners(users))
            return [Finding(name, NOT_APPLICABLE, "torch", "no compiled package takes a symbol from torch", evidence=evidence)]
        exports = frozenset().union(*(symbols(compiled.site_packages / module.path).exported for module in torch))
    except (OSError, ValueError) as error:
        return [Finding(name, COULD_NOT_CHECK, "ELF files", "a symbol table cannot be read", str(error), fix=_sentence(_REBUILD))]
    found = []
    for dist in sorted({module.distribution for module in users}):
        modules = [module for module in users if module.distribution == dist]
        inside = frozenset().union(*(wants[module].exported for module in modules))
        missing: dict[str, list[Module]] = {}
        for module in modules:
            for one in from_torch[module] - exports - inside:
                missing.setdefault(one, []).append(module)
        if missing:
            found.append(_undefined(name, dist, missing, exports, own, critical))
    if not found:
        count = len(frozenset().union(*from_torch.values()))
        message = "the installed torch exports every symbol that is taken from it"
        found.append(Finding(name, OK, "torch", message, evidence="%d symbols in %d files of %s" % (count, len(users), _owners(users))))
    return found


def _undefined(
    name: str,
    dist: str,
    missing: t.Mapping[str, t.Sequence[Module]],
    exports: t.Collection[str],
    own: t.Collection[str],
    critical: t.Collection[str],
) -> Finding:
    near = {symbol: near_miss(symbol, exports) for symbol in missing}
    ordered = sorted(missing, key=lambda symbol: (_distance(symbol, near[symbol]), symbol))
    lines = []
    for symbol in ordered:
        lines.append(mangling.demangle(symbol))
        lines += ["  torch has: %s" % other.text for other in near[symbol]]
    files = sorted({module.path for modules in missing.values() for module in modules})
    return Finding(
        name,
        _severity([module for modules in missing.values() for module in modules], critical),
        dist,
        "%d symbol(s) that it takes from torch are not there, the first: %s" % (len(missing), ordered[0]),
        "\n".join(_difference(mangling.demangle(ordered[0]), near[ordered[0]])),
        "exported by one of %d libraries in torch/lib" % len(own),
        "\n".join(["in " + ", ".join(files[:_NAMED]), records.listing(lines)]),
        "The package was built against another version of torch.",
        _MATCHING,
    )


def _distance(symbol: str, near: t.Sequence[mangling.Name]) -> float:
    """What differs from an export by the type of a parameter says most, what has none of its name says least."""
    parsed = mangling.parse(symbol)
    return abs(_count(near[0]) - _count(parsed)) if near and parsed else float("inf")


def _count(name: mangling.Name) -> int:
    return len(name.parameters or ())


def _difference(wanted: str, near: t.Sequence[mangling.Name]) -> list[str]:
    if not near:
        return ["nothing of the name of " + wanted]
    return ["wanted:    " + wanted, *("torch has: " + other.text for other in near)]


def near_miss(symbol: str, exports: t.Iterable[str]) -> list[mangling.Name]:
    """Exports that have the symbol's name and other parameters, the closest first; at most two."""
    wanted = mangling.parse(symbol)
    if not wanted or wanted.parameters is None:
        return []
    parsed = (mangling.parse(one) for one in sorted(exports) if one.startswith(wanted.stem))
    found = [one for one in parsed if one is not None and one.name == wanted.name]
    return sorted(found, key=lambda one: abs(_count(one) - _count(wanted)))[:2]


def gpu_architectures(compiled: Compiled, critical: t.Collection[str], capabilities: t.Collection[tuple[int, int]]) -> list[Finding]:
    """``abi.gpu-architecture``: what serving depends on carries code for the host's GPUs; one finding for each that does not.

    :param capabilities: compute capabilities of the host's GPUs.
    """
    name = "abi.gpu-architecture"
    if not capabilities:
        fix = "Run this where the GPUs answer; `specdec status` and the plan say what stands between."
        return [Finding(name, COULD_NOT_CHECK, "GPUs", "no GPU of this host says what it is", fix=fix)]
    owned: dict[str, dict[str, Path]] = {}
    for module in compiled.of(critical):
        owned.setdefault(module.distribution, {})[module.path] = compiled.site_packages / module.path
    found = [fatbins.finding(files, dist, capabilities) for dist, files in sorted(owned.items())]
    judged = [one for one in found if one.verdict != NOT_APPLICABLE]
    if not judged:
        return [Finding(name, NOT_APPLICABLE, "device code", "no package carries any", evidence="%d packages" % len(found))]
    return [one for one in judged if one.verdict != OK] or [
        Finding(
            name,
            OK,
            ", ".join(one.subject for one in judged),
            "carry code for this host's GPUs",
            evidence="\n".join("%s: %s" % (one.subject, one.found) for one in judged),
        )
    ]


def driver_symbols(compiled: Compiled, critical: t.Collection[str], libcuda: t.Optional[Path], driver: str) -> list[Finding]:
    """``abi.driver-symbol``: the host's libcuda has every function of the driver that compiled packages take from it.

    :param libcuda: None where the host has none.
    :param driver: its version, for a person.
    """
    name = "abi.driver-symbol"
    users = [module for module in compiled.of(critical) if _LIBCUDA in module.dynamic.needed]
    if not users:
        evidence = "%d compiled files" % len(compiled.of(critical))
        return [Finding(name, NOT_APPLICABLE, _LIBCUDA, "no compiled package takes anything from the driver", evidence=evidence)]
    if libcuda is None:
        fix = "Install the driver's libraries of the version of its kernel module."
        return [Finding(name, COULD_NOT_CHECK, _LIBCUDA, "the loader knows no %s" % _LIBCUDA, evidence="ldconfig -p", fix=fix)]
    try:
        wanted = {module: [one for one in symbols(compiled.site_packages / module.path).wanted if _DRIVER.match(one)] for module in users}
        missing = {one for names in wanted.values() for one in names} - symbols(libcuda.resolve()).exported
        if missing:
            # other libraries of CUDA name their functions alike, cuFile among them
            others = (symbols(compiled.site_packages / one.path).exported for one in compiled.modules)
            missing = missing.difference(*others)
    except (OSError, ValueError) as error:
        return [Finding(name, COULD_NOT_CHECK, _LIBCUDA, "a symbol table cannot be read", str(error), fix=_sentence(_REBUILD))]
    if not missing:
        count = len({one for names in wanted.values() for one in names})
        evidence = "%d functions for %d files of %s in %s" % (count, len(users), _owners(users), libcuda)
        return [Finding(name, OK, _LIBCUDA, "the driver has every function that is taken from it", evidence=evidence)]
    lacking = [module for module in users if missing.intersection(wanted[module])]
    return [
        Finding(
            name,
            _severity(lacking, critical),
            _owners(lacking),
            "takes %d function(s) from the driver that it does not have, the first: %s" % (len(missing), min(missing)),
            "driver %s, %s" % (driver or "of unknown version", libcuda),
            ", ".join(sorted(missing)[:_NAMED]),
            records.listing(module.path for module in lacking),
            "The driver is older than the CUDA that the package was built with.",
            "Update the host's driver, or choose a lane for an older CUDA.",
        )
    ]


def _severity(modules: t.Iterable[Module], critical: t.Collection[str]) -> str:
    return ERROR if any(module.distribution in critical for module in modules) else WARNING


def _owners(modules: t.Iterable[Module]) -> str:
    return ", ".join(sorted({module.distribution for module in modules}))


def _stem(module: Module) -> str:
    return re.sub(r"\.(cpython|pypy|graalpy|abi3)[^/]*\.so$|\.so$", "", module.path)


def _good(name: str, of: t.Sequence[Module], none: str, message: str) -> Finding:
    if not of:
        return Finding(name, NOT_APPLICABLE, "ELF files", "no compiled file is %s" % none, evidence="RECORDs of the environment")
    return Finding(name, OK, "ELF files", message, evidence=_owners(of))


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."
