# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Does a package define every name that the engine's source takes from it?

Both sides are read as files, nothing is imported: an import needs the GPU's own code paths to show
what is missing there. A use counts as guarded, and is left out, when its failure is provided for: in
a ``try`` that catches ImportError, AttributeError or everything, or under an ``if`` that asks the
package itself (``hasattr``, ``find_spec``, its version). What is only for hardware without CUDA (by
the ``if``, the function or the file it stands in) is left out, too: no lane with these packages runs
there. An ``if`` on anything else, such as the generation of the GPU, is no guard: the import fails
exactly where it is true.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import re
import typing as t
import warnings
from pathlib import Path

from . import records
from .findings import COULD_NOT_CHECK, ERROR, NOT_APPLICABLE, OK, WARNING, Finding

MISSING = "api.missing-name"

_CATCHES = frozenset(("ImportError", "ModuleNotFoundError", "AttributeError", "Exception", "BaseException"))
_ASKS = frozenset(("hasattr", "find_spec", "__version__", "Version", "version"))
_ELSEWHERE = re.compile(r"(^|[^a-z])(cpu|amx|hip|rocm|amd|aiter|gfx[0-9a-z]*|npu|xpu|musa|hpu|mps)([^a-z]|$)")
_CUDA = re.compile(r"(^|[^a-z])(cuda|nvidia|sm\d+|hopper|blackwell)([^a-z]|$)")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SHOWN = 20


@dataclasses.dataclass(frozen=True)
class Use:
    """One place that takes ``module.name``.

    :param file: path of the source file, relative to its root.
    :param late: inside a function, so that it fails when called and not at import.
    """

    module: str
    name: str
    file: str
    line: int
    late: bool

    @property
    def dotted(self) -> str:
        return "%s.%s" % (self.module, self.name)


class Package:
    """The names that an installed package defines, module by module, read when first asked for."""

    def __init__(self, site_packages: Path, name: str) -> None:
        self.site_packages = site_packages
        self.name = name
        self._names: dict[str, t.Optional[set[str]]] = {}

    def has(self, module: str, name: str) -> bool:
        """Whether ``module`` gives ``name``; True where it cannot be known: a compiled or a dynamic module."""
        if name.startswith("__") and name.endswith("__"):
            return True
        known = self._defined(module)
        if known is None:
            return False
        return name in known or "*" in known or self._defined("%s.%s" % (module, name)) is not None

    def installed(self) -> bool:
        """Whether there is anything under the package's name."""
        return self._defined(self.name) is not None

    def _path(self, module: str) -> t.Optional[Path]:
        base = self.site_packages.joinpath(*module.split("."))
        for path in (base / "__init__.py", base.with_name(base.name + ".py")):
            if path.is_file():
                return path
        return next(base.parent.glob(base.name + ".*so"), base if base.is_dir() else None)

    def _defined(self, module: str) -> t.Optional[set[str]]:
        """Names at the top of a module, ``*`` when it may have any; None when there is no such module."""
        if module not in self._names:
            self._names[module] = set()  # ends a circle of star imports
            self._names[module] = self._read(module)
        return self._names[module]

    def _read(self, module: str) -> t.Optional[set[str]]:
        path = self._path(module)
        if path is None:
            return None
        if path.is_dir():
            return set()
        tree = parse(path) if path.suffix == ".py" else None
        if tree is None:
            return {"*"}
        names: set[str] = set()
        for node in _top_level(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add("*" if node.name == "__getattr__" else node.name)
            elif isinstance(node, ast.Import):
                names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    names |= self._star(module, path, node) if alias.name == "*" else {alias.asname or alias.name}
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Call) and "globals" in ast.dump(node.func):
                names.add("*")
        return names

    def _star(self, module: str, path: Path, node: ast.ImportFrom) -> set[str]:
        target = node.module or ""
        if node.level:
            parents = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
            kept = parents[: len(parents) - node.level + 1]
            target = ".".join((*kept, target) if target else kept)
        if target.partition(".")[0] != self.name:
            return {"*"}
        return self._defined(target) or set()


def check(
    source: Path,
    site_packages: Path,
    package: str,
    lacking: bool = False,
    reference: t.Optional[tuple[str, str]] = None,
    overlaid: t.Collection[str] = (),
) -> list[Finding]:
    """``api.missing-name`` for one package: an error for names needed at import, a warning for later ones.

    :param source: directory of the engine's package.
    :param package: import name, ``flashinfer``.
    :param lacking: the stack says this lane has no such package, and no distribution of it is installed.
    :param reference: distribution and version of the package on the reference host, where there is one.
    :param overlaid: files of the overlay, relative to ``site_packages``.
    """
    if lacking:
        return [
            Finding(MISSING, NOT_APPLICABLE, package, "this lane has no %s, and none is installed" % package, evidence=records.METADATA)
        ]
    provider = Package(site_packages, package)
    if not provider.installed():
        fix = "Install %s (see the findings on parity) and check again." % package
        return [Finding(MISSING, COULD_NOT_CHECK, package, "%s is not installed" % package, fix=fix)]
    if not source.is_dir():
        fix = "Build the environment again: the engine's package has no directory %s." % source
        return [Finding(MISSING, COULD_NOT_CHECK, package, "the engine's source is not there", fix=fix)]
    found, unread = uses(source, package)
    missing = [use for use in found if not provider.has(use.module, use.name)]
    findings = [
        _missing(package, level, late, reference, overlaid)
        for late, level in ((False, [use for use in missing if not use.late]), (True, [use for use in missing if use.late]))
        if level
    ]
    if findings:
        return findings
    if unread:
        return [
            Finding(
                MISSING,
                COULD_NOT_CHECK,
                package,
                "%d source file(s) that name it cannot be read" % len(unread),
                evidence="\n".join(unread[:_SHOWN]),
                cause="They are damaged, or written for a newer Python than the one that checks.",
                fix="Give the host a python3 as new as the environment's, and see the findings on RECORD.",
            )
        ]
    names = len({use.dotted for use in found})
    return [
        Finding(
            MISSING, OK, package, "all names that the engine's source takes from it are there", "%d names" % names, evidence=str(source)
        )
    ]


def uses(source: Path, package: str) -> tuple[list[Use], list[str]]:
    """Every unguarded use of a name of ``package`` in the Python files under ``source``, and the files that cannot be read."""
    found: list[Use] = []
    unread: list[str] = []
    for path in sorted(source.rglob("*.py")):
        file = path.relative_to(source.parent).as_posix()
        taken = None
        with contextlib.suppress(OSError):
            taken = uses_in(path.read_bytes(), file, package)
        if taken is None:
            unread.append(file)
        else:
            found.extend(taken)
    return found, unread


def uses_in(source: bytes, file: str, package: str) -> t.Optional[list[Use]]:
    """Every unguarded use of a name of ``package`` in one source; None for what this Python cannot read."""
    tree = _tree(source if package.encode() in source else b"")
    if tree is None:
        return None
    reader = _Reader(package, file)
    reader.visit(tree)
    return reader.found


def parse(path: Path) -> t.Optional[ast.Module]:
    """The syntax tree of a file; None for what this Python cannot read."""
    try:
        return _tree(path.read_bytes())
    except OSError:
        return None


def _tree(source: bytes) -> t.Optional[ast.Module]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


class _Reader(ast.NodeVisitor):
    """Collects uses, knowing what stands around each."""

    def __init__(self, package: str, file: str) -> None:
        self.package = package
        self.file = file
        self.found: list[Use] = []
        self.modules = {package: package}  # local name -> module
        self.guarded = int(_elsewhere(file))
        self.late = 0

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.asname and self._ours(alias.name):
                self.modules[alias.asname] = alias.name
            head, _dot, tail = alias.name.rpartition(".")
            if head and self._ours(alias.name):
                self._use(head, tail, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level == 0 and node.module and self._ours(node.module):
            for alias in node.names:
                if alias.name != "*":
                    self._use(node.module, alias.name, node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id in self.modules and isinstance(node.ctx, ast.Load):
            self._use(self.modules[node.value.id], node.attr, node)
        self.generic_visit(node)

    def visit_Try(self, node: ast.Try) -> None:
        caught = any(_catches(handler.type) for handler in node.handlers)
        self._visit_all(node.body, guarded=caught)
        # What stands in the handler is the way out; it is the other side that failed.
        self._visit_all([*node.handlers, *node.orelse, *node.finalbody])

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        names = [name for name in map(_name, ast.walk(node.test)) if name]
        asks = bool(_ASKS.intersection(names)) or names == ["TYPE_CHECKING"]
        elsewhere = _elsewhere(" ".join(names))
        negated = any(isinstance(part, ast.Not) for part in ast.walk(node.test))
        self._visit_all(node.body, guarded=asks or (elsewhere and not negated))
        self._visit_all(node.orelse, guarded=asks or (elsewhere and negated))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node)

    def _function(self, node: t.Union[ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda]) -> None:
        self.late += 1
        self._visit_all(ast.iter_child_nodes(node), guarded=_elsewhere(getattr(node, "name", "")))
        self.late -= 1

    def _visit_all(self, nodes: t.Iterable[ast.AST], guarded: bool = False) -> None:
        self.guarded += guarded
        for node in nodes:
            self.visit(node)
        self.guarded -= guarded

    def _ours(self, module: str) -> bool:
        return module.partition(".")[0] == self.package

    def _use(self, module: str, name: str, node: t.Union[ast.stmt, ast.expr]) -> None:
        if not self.guarded:
            self.found.append(Use(module, name, self.file, node.lineno, bool(self.late)))


def _top_level(tree: ast.Module) -> t.Iterator[ast.AST]:
    """All nodes that run at import: through ``if``, ``try`` and ``with``, not into functions and classes."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            pending.extend(ast.iter_child_nodes(node))


def _catches(node: t.Optional[ast.expr]) -> bool:
    return node is None or any(_name(part) in _CATCHES for part in ast.walk(node))


def _elsewhere(words: str) -> bool:
    """Whether names or a path speak of hardware without CUDA alone."""
    return bool(_ELSEWHERE.search(words.lower())) and not _CUDA.search(words.lower())


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _missing(
    package: str, missing: t.Sequence[Use], late: bool, reference: t.Optional[tuple[str, str]], overlaid: t.Collection[str]
) -> Finding:
    names = sorted({use.dotted for use in missing})
    lines = ["%s  %s:%d" % (use.dotted, use.file, use.line) for use in missing]
    if len(lines) > _SHOWN:
        lines[_SHOWN:] = ["and %d more" % (len(lines) - _SHOWN)]
    from_overlay = any(use.file in overlaid for use in missing)
    fix = "Install a version of %s that has the name, or an engine and overlay made for the installed one." % package
    if reference:
        fix = "Pin %s to %s, the reference host's version, in `specdec_pins` and build again." % reference
    return Finding(
        MISSING,
        WARNING if late else ERROR,
        names[0] if len(names) == 1 else "%s and %d more" % (names[0], len(names) - 1),
        "%s does not define what %s" % (package, "code of the engine takes from it when called" if late else "the engine imports from it"),
        "not defined",
        "%s %s" % reference if reference else "a version of %s that defines it" % package,
        "\n".join(lines),
        "The %s was written for another version of %s." % ("overlay" if from_overlay else "engine", package),
        fix,
    )
