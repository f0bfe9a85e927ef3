# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an overlay adds to its base for a user, and what it needs beyond it, read from the source's syntax.

It adds speculative algorithms and engine arguments; it needs names of the packages that engines take their kernels from.
"""

from __future__ import annotations

import ast
import hashlib
import typing as t
import warnings

from . import apinames, records
from .bundles import Base, Bundle
from .findings import ERROR, Finding, FindingError

#: Where engines declare what an overlay may add: part of the path, class (None: any).
_ALGORITHMS = ("spec_info.py", "SpeculativeAlgorithm")
_ARGUMENTS = (("server_args.py", "ServerArgs"), ("arg_groups/", None))

#: Import names of the packages with kernels: their interfaces move between versions.
_PROVIDERS = ("flashinfer", "sgl_kernel")


def additions(files: t.Mapping[str, bytes], base: Base) -> dict[str, list[str]]:
    """The speculative algorithms and the engine arguments that files add to the base."""
    algorithms: set[str] = set()
    arguments: set[str] = set()
    for path, data in files.items():
        before = base(path) or b""
        if path.endswith("/" + _ALGORITHMS[0]):
            algorithms |= members(data, _ALGORITHMS[1]) - members(before, _ALGORITHMS[1])
        for part, name in _ARGUMENTS:
            if path.endswith(".py") and "/" + part in path:
                arguments |= _fields(data, name) - _fields(before, name)
    return {"algorithms": sorted(algorithms), "arguments": sorted(arguments)}


def needs(files: t.Mapping[str, bytes], base: Base) -> dict[str, list[str]]:
    """The names that files take from packages with kernels and that the base's files of the same paths do not, by package."""
    found = {}
    for package in _PROVIDERS:
        names: set[str] = set()
        for path, data in files.items():
            if path.endswith(".py"):
                names |= _taken(data, path, package) - _taken(base(path) or b"", path, package)
        if names:
            found[package] = sorted(names)
    return found


def _taken(source: bytes, path: str, package: str) -> set[str]:
    return {use.dotted for use in apinames.uses_in(source, path, package) or ()}


def same_base(bundle: Bundle, base: Base) -> None:
    """Raise FindingError (``overlay.base``) where the base is not the one that the bundle was made over."""
    other = []
    for entry in bundle.manifest["files"]:
        data = base(entry["path"])
        if (hashlib.sha256(data).hexdigest() if data is not None else None) != entry["base"]:
            other.append(entry["path"])
    if other:
        subject = "%(name)s %(version)s" % bundle.manifest["base"]
        message = "the package that could be fetched is another build than the one on the reference"
        fix = "name the directory of the reference's wheel in specdec_wheel_directories"
        raise FindingError(Finding("overlay.base", ERROR, subject, message, evidence=records.listing(other), fix=fix))


def described(bundle: Bundle, base: Base) -> Bundle:
    """The bundle with what it adds and needs noted in its manifest; its digest stays, for a note decides nothing.

    Raises FindingError (``overlay.base``) where the base is not the one that the bundle was made over.
    """
    same_base(bundle, base)
    return Bundle({**bundle.manifest, **notes(bundle.files, base)}, bundle.files)


def notes(files: t.Mapping[str, bytes], base: Base) -> dict[str, t.Any]:
    """What a manifest notes of its files."""
    return {"adds": additions(files, base), "needs": needs(files, base)}


def nothing() -> dict[str, list[str]]:
    """What a manifest says while it is not known what its files add."""
    return {"algorithms": [], "arguments": []}


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


def literals(source: bytes, name: str) -> set[str]:
    """The texts of a ``Literal`` that a source assigns to a name, those of other names within it included."""
    values = {
        target.id: node.value.slice
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def texts(node: t.Optional[ast.expr]) -> set[str]:
        if isinstance(node, ast.Tuple):
            return {text for one in node.elts for text in texts(one)}
        if isinstance(node, ast.Name):
            return texts(values.get(node.id))
        return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()

    return texts(values.get(name))


def members(source: bytes, name: str) -> set[str]:
    """The names that a class of a source assigns, without private ones: the members of an enumeration."""
    targets = [target for node in _classes(source, name) if isinstance(node, ast.Assign) for target in node.targets]
    return {target.id for target in targets if isinstance(target, ast.Name) and not target.id.startswith("_")}


def _fields(source: bytes, name: t.Optional[str]) -> set[str]:
    targets = [node.target for node in _classes(source, name) if isinstance(node, ast.AnnAssign)]
    return {target.id for target in targets if isinstance(target, ast.Name) and not target.id.startswith("_")}
