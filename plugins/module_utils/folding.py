# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One root cause is one finding: what follows from another finding is told in that one's evidence.

A table says which finding can explain which other, and what the two must have in common. What has no explanation stays as it is, and so
does everything whose cause was left out by its id.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from .findings import COULD_NOT_CHECK, ERROR, WARNING, Finding

#: What ends an import or the dry run.
_IMPORTS = ("import.engine", "import.torch", "import.kernel", "import.flashinfer", "import.plugins", "import.died")
_STAGES = (*_IMPORTS, "import.hang", "algorithm.recognised", "arguments.accepted")

#: Held against what is locked or pinned, package by package.
_BY_PACKAGE = ("lock.satisfied", "lock.pins")

#: Held against torch.
_OF_TORCH = (
    "parity.torch-labels",
    "parity.cuda-major",
    "parity.flashinfer",
    "abi.cpu-torch",
    "abi.cuda-major",
    "abi.undefined-symbol",
    "lock.unsatisfiable",
)

_SHOWN = 160
_FOLLOWS = "from which follows: "


@dataclasses.dataclass(frozen=True)
class Rule:
    """A finding with one of the ids ``cause`` explains one of ``consequence`` where ``common`` holds for the two."""

    cause: tuple[str, ...]
    consequence: tuple[str, ...]
    common: t.Callable[[Finding, Finding], bool]


def _names_of(finding: Finding) -> set[str]:
    """Distributions that a finding is about."""
    return set(re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)*", finding.subject.lower()))


def _said(pattern: str) -> t.Callable[[Finding, Finding], bool]:
    """The consequence says something of this kind."""
    return lambda _cause, after: bool(re.search(pattern, after.found))


def _name_is_missing(cause: Finding, after: Finding) -> bool:
    """The exception is about a name that the cause says is not there."""
    names = {one.rpartition(".")[2] for one in re.findall(r"^([\w.]+)  ", cause.evidence, re.MULTILINE)}
    said = re.search(r"cannot import name '(\w+)'|has no attribute '(\w+)'|No module named '([\w.]+)'", after.found)
    return bool(said) and next(word for word in said.groups() if word).rpartition(".")[2] in names


def _library_is_missing(cause: Finding, after: Finding) -> bool:
    said = re.search(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object", after.found)
    return bool(said) and said[1] in "\n".join((cause.subject, cause.found, cause.evidence))


def _file_is_another(cause: Finding, after: Finding) -> bool:
    """The exception comes from a file that is not what was installed, or for want of one that is gone."""
    text = "\n".join((after.found, after.evidence))
    paths = [line.partition(": ")[0].strip() for line in cause.evidence.splitlines()]
    for path in paths:
        module = re.sub(r"(/__init__)?\.py$", "", path).replace("/", ".")
        if path and ("/" + path in text or re.search(r"No module named '%s'" % re.escape(module), text)):
            return True
        if path and re.search(r"cannot import name '%s'" % re.escape(module.rpartition(".")[2]), text):
            return True
    return False


def _package_is_another(cause: Finding, after: Finding) -> bool:
    """The exception is about a package that is not installed as the lock says."""
    wrong = {one.replace("-", "_") for one in re.findall(r"^(\S+) \S+ (?:is not|instead)", cause.found, re.MULTILINE)}
    said = re.search(r"No module named '([\w.]+)'|requires ([\w-]+)|PackageNotFoundError: .*?([\w-]+)$", after.found)
    return bool(said) and next(word for word in said.groups() if word).partition(".")[0].replace("-", "_") in wrong


def _same_packages(cause: Finding, after: Finding) -> bool:
    """All that the consequence is about is what the cause is about, too."""
    about = {
        word for text in (cause.subject, cause.found) for word in re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)+|torch\b|triton\b", text.lower())
    }
    lines = re.findall(r"^(\S+) ", after.found, re.MULTILINE) if after.id in _BY_PACKAGE else sorted(_names_of(after) - {"and"})
    return bool(lines) and set(lines) <= about


def _other_version_of_torch(_cause: Finding, after: Finding) -> bool:
    return after.subject == "torch"


def _torch_is_not_as_pinned(cause: Finding, after: Finding) -> bool:
    """What does not fit torch does not because torch is another; that parts of flashinfer differ has a cause of its own."""
    return bool(re.search(r"^torch ", cause.found, re.MULTILINE)) and "different versions" not in after.message


def _cuda_library(_cause: Finding, after: Finding) -> bool:
    return bool(re.match(r"lib(cu|nv)\w*\.so\.\d+", after.subject))


#: In the order in which they are asked: what says most comes first.
RULES = (
    Rule(("parity.flashinfer",), _STAGES, _said(r"flashinfer[\w-]* version .*(does not match|mismatch)|is installed with version")),
    Rule(("parity.flashinfer", "parity.kernel"), ("lock.unsatisfiable", *_BY_PACKAGE, "record.doubly-owned"), _same_packages),
    Rule(("lock.satisfied",), ("lock.pins",), _same_packages),
    Rule(("lock.pins",), _OF_TORCH, _torch_is_not_as_pinned),
    Rule(("parity.kernel",), ("record.changed", "record.doubly-owned"), _same_packages),
    Rule(("parity.torch-labels", "parity.flashinfer"), ("abi.cuda-major", "abi.undefined-symbol"), _same_packages),
    Rule(("parity.torch-labels", "parity.cuda-major"), ("lock.unsatisfiable",), _other_version_of_torch),
    Rule(("abi.cuda-major", "parity.torch-labels", "abi.cpu-torch"), ("libraries.missing",), _cuda_library),
    Rule(("abi.undefined-symbol", "abi.cpu-torch", "abi.cuda-major"), ("lock.unsatisfiable",), _other_version_of_torch),
    Rule(("api.missing-name",), _STAGES, _name_is_missing),
    Rule(
        ("abi.undefined-symbol", "abi.cpu-torch", "abi.cuda-major", "abi.other-python", "parity.torch-labels", "parity.kernel"),
        _STAGES,
        _said(r"undefined symbol(?!: cu[A-Z])|Could not load any common_ops|does not exist.*torchvision|operator torchvision"),
    ),
    Rule(("libraries.missing", "abi.cpu-torch", "abi.cuda-major"), _STAGES, _library_is_missing),
    Rule(("abi.other-machine", "abi.unreadable"), _STAGES, _said(r"invalid ELF header|wrong ELF class|file too short|cannot open shared")),
    Rule(("abi.other-python",), _STAGES, _said(r"No module named|undefined symbol: _?Py")),
    Rule(("record.changed", "record.missing", "overlay.applied", "record.doubly-owned"), _STAGES, _file_is_another),
    Rule(("record.missing", "record.changed"), ("abi.unreadable", "libraries.missing", "abi.undefined-symbol"), _file_is_another),
    Rule(("lock.satisfied", "record.unreadable"), _STAGES, _package_is_another),
)


def fold(findings: t.Iterable[Finding]) -> list[Finding]:
    """Those that are not explained by another one; what each explains stands in its evidence."""
    everything = list(findings)
    causes = {}
    for place in range(len(everything)):
        cause = _cause(place, everything)
        if cause is not None:
            causes[place] = cause
    told: dict[int, list[str]] = {}
    for place, root in causes.items():
        while root in causes:
            root = causes[root]
        own = [line for line in everything[place].evidence.splitlines() if line.startswith(_FOLLOWS)]
        told.setdefault(root, []).extend([_FOLLOWS + _line(everything[place]), *own])
    return [
        dataclasses.replace(one, evidence="\n".join([line for line in (one.evidence, *told.get(place, ())) if line]))
        for place, one in enumerate(everything)
        if place not in causes
    ]


def _cause(place: int, everything: t.Sequence[Finding]) -> t.Optional[int]:
    after = everything[place]
    if after.verdict == COULD_NOT_CHECK and after.message == "not reached":
        return next(
            (number for number, one in enumerate(everything) if one.verdict == ERROR and one.id in (*_STAGES, "import.sandbox")), None
        )
    if after.verdict not in (ERROR, WARNING, COULD_NOT_CHECK):
        return None
    for rule in RULES:
        if after.id in rule.consequence:
            for number, one in enumerate(everything):
                if number != place and one.verdict == ERROR and one.id in rule.cause and rule.common(one, after):
                    return number
    return None


def _line(finding: Finding) -> str:
    first = (finding.found or finding.message).partition("\n")[0]
    return ("%s: %s: %s" % (finding.id, finding.subject, first))[:_SHOWN]
