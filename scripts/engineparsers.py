# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The arguments that an engine's configuration file may hold, read from the source of its parser without running it.

A parser is made of ``add_argument`` calls, of fields of classes that carry a help text (``A[int, "help"]``), and of the
fields of classes that are handed over whole; which those are says data/engines.yml (``parser``).

A configuration file may hold less than the command line: SGLang reads only plain values and flags from it. Until it looked at
names it looked at where a value is kept, so that an argument was refused, too, where a deprecated one is kept in the same place.
"""

from __future__ import annotations

import ast
import dataclasses
import typing as t

#: Names of typing.Annotated where fields become arguments.
_ANNOTATED = ("A", "Annotated")
#: What a configuration file may always hold; an action of the engine's own, not these, is refused there.
_PLAIN = (None, "store", "store_true")
#: What the function is called that makes SGLang's reader look at names.
_BY_NAME = b"def _config_keys("


@dataclasses.dataclass(frozen=True)
class Argument:
    """One argument.

    :param names: without the leading hyphens; :param place: where its value is kept.
    :param action: of argparse or the engine's own; :param values: ``none``, ``one`` or ``many``.
    """

    names: frozenset[str]
    place: str
    action: t.Optional[str]
    values: str

    @property
    def keys(self) -> set[str]:
        """What a configuration file may call it."""
        return {self.place, *(name.replace("-", "_") for name in self.names)}


def parser(sources: t.Iterable[bytes], whole: t.Collection[str] = ()) -> list[Argument]:
    """Every argument of a parser.

    :param sources: the files that make it; :param whole: classes each of whose fields is an argument.
    """
    found: list[Argument] = []
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
                found += _called(node)
            elif isinstance(node, ast.ClassDef):
                found += _fields(node, node.name in whole)
    return found


def accepted(arguments: t.Sequence[Argument], reader: bytes) -> set[str]:
    """Names that a configuration file may hold; :param reader: the source of what reads it."""
    by_name = _BY_NAME in reader
    if b"unsupported_actions" not in reader:
        return {name for one in arguments for name in one.names}
    plain = [one for one in arguments if one.action in _PLAIN or (by_name and one.values == "one")]
    others = [one for one in arguments if one not in plain]
    refused = {key for one in others for key in (one.keys if by_name else {one.place})}
    refused -= {key for one in plain for key in one.keys} if by_name else set()
    known = arguments if not by_name else plain
    # a deprecated flag that stands for a value takes none, and a file gives it one
    flags = {name for one in others if one.values == "none" for name in one.names}
    return {name for one in known for name in one.names if name.replace("-", "_") not in refused} - flags


def _called(call: ast.Call) -> list[Argument]:
    keywords = {one.arg: one.value for one in call.keywords}
    return _argument(_texts(call.args), _text(keywords.get("dest")), _action(keywords.get("action")), keywords)


def _argument(names: set[str], place: str, action: t.Optional[str], keywords: t.Mapping[t.Optional[str], ast.expr]) -> list[Argument]:
    known = frozenset(name.lstrip("-") for name in names if name.startswith("--"))
    if not known:
        return []
    flag = action is not None and any(word in action for word in ("StoreTrue", "StoreConst", "BooleanOptional", "store_true"))
    values = "none" if flag or action == "DeprecatedAction" else "many" if "nargs" in keywords else "one"
    return [Argument(known, place or sorted(known, key=len)[-1].replace("-", "_"), action, values)]


def _fields(node: ast.ClassDef, whole: bool) -> list[Argument]:
    found: list[Argument] = []
    for field in node.body:
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        said = _metadata(field.annotation)
        if said is None and not whole:
            continue
        keywords = {one.arg: one.value for one in said.keywords} if isinstance(said, ast.Call) else {}
        if "no_cli" in keywords and getattr(keywords["no_cli"], "value", False):
            continue
        name, aliases = field.target.id, keywords.get("aliases")
        names = {_text(keywords.get("cli_name")) or "--" + name.replace("_", "-")}
        names |= _texts(aliases.elts) if isinstance(aliases, ast.List) else set()
        found += _argument(names, name, _action(keywords.get("action")), keywords)
    return found


def _metadata(annotation: ast.expr) -> t.Optional[ast.expr]:
    """What an annotation says besides the type, None where it says nothing."""
    if not isinstance(annotation, ast.Subscript) or not isinstance(annotation.value, ast.Name) or annotation.value.id not in _ANNOTATED:
        return None
    for part in annotation.slice.elts[1:] if isinstance(annotation.slice, ast.Tuple) else ():
        named = isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "Arg"
        if named or isinstance(part, (ast.JoinedStr, ast.BinOp)) or _text(part):
            return part
    return None


def _action(node: t.Optional[ast.expr]) -> t.Optional[str]:
    """The name of an action, or what stands there."""
    return None if node is None else _text(node) or ast.unparse(node).rpartition(".")[2]


def _texts(nodes: t.Iterable[ast.expr]) -> set[str]:
    return {text for text in map(_text, nodes) if text}


def _text(node: t.Optional[ast.expr]) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
