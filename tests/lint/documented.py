# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pages in docs/ name every finding's id and every variable, and none that is not there.

An id is a constant ``area.check`` in the sources, or put together of two (``"gate." + ...``) where a finding is made.
"""

from __future__ import annotations

import ast
import re
import sys
import typing as t
from pathlib import Path

import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
#: Where findings are made: the collection's Python, and the program of the hosts.
SOURCES = (CHECKOUT / "plugins", CHECKOUT / "roles" / "uv" / "files")
ID = re.compile(r"[a-z]+\.(?!(?:json|txt|py|yml|yaml|tar)$)[a-z][a-z-]+")


class Made(t.NamedTuple):
    """The ids that the sources can give.

    :param whole: those that stand there as a constant, or are put together of two.
    :param prefixes: areas of which ids are put together.
    :param open: areas of which an id is put together with what a table or a variable holds.
    """

    whole: set[str]
    prefixes: set[str]
    open: set[str]


def written_ids() -> set[str]:
    """The ids that docs/checks.md names."""
    return set(re.findall(r"`([a-z]+\.[a-z][a-z-]+)`", (CHECKOUT / "docs" / "checks.md").read_text()))


def finding_ids() -> Made:
    """What the sources can give."""
    # an id that is a constant may reach its finding on any way: what the page knows of an area is enough
    areas = {one.partition(".")[0] for one in written_ids()}
    constants, made = set(), Made(set(), set(), set())
    for path in (one for top in SOURCES for one in sorted(top.rglob("*.py"))):
        tree = ast.parse(path.read_text())
        strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        constants.update(one for one in strings if ID.fullmatch(one))
        for prefix, id_ in _calls(tree):
            made.prefixes.update({prefix} - {""})
            if isinstance(id_, ast.Constant):
                whole = "%s%s%s" % (prefix, "." if prefix else "", id_.value)
                areas.add(whole.partition(".")[0])
                made.whole.add(whole)
            elif prefix:
                made.open.add(prefix)
    # where ids are put together, a constant of the area's name may be something else
    made.whole.update(one for one in constants if one.partition(".")[0] in areas - made.prefixes)
    return made


def _calls(tree: ast.AST) -> list[tuple[str, ast.expr]]:
    """Of every call that makes a finding: the area that is put before what it hands over as id, and that.

    A function that hands one of its parameters on as the id makes findings, too; what counts are then its calls.
    """
    makers: dict[str, tuple[int, str, str]] = {"Finding": (0, "id", "")}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    nested = {inner for one in functions for inner in ast.walk(one) if isinstance(inner, ast.FunctionDef) and inner is not one}
    while True:
        found, before = [], dict(makers)
        for function in functions:
            parameters = [one.arg for one in function.args.args if one.arg != "self"]
            own = {node for inner in ast.walk(function) if inner in nested and inner is not function for node in ast.walk(inner)}
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call) and node not in own):
                name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
                if name not in before:
                    continue
                place, word, prefix = before[name]
                given = next((one.value for one in call.keywords if one.arg == word), None) or (call.args[place : place + 1] or [None])[0]
                if isinstance(given, ast.BinOp) and isinstance(given.left, ast.Constant):
                    prefix, given = str(given.left.value).rstrip("."), given.right
                if isinstance(given, ast.Name) and given.id in parameters:
                    makers[function.name] = (parameters.index(given.id), given.id, prefix)
                elif given is not None:
                    found.append((prefix, given))
        if makers == before:
            return found


def check_ids() -> t.Iterator[str]:
    """What docs/checks.md and the sources disagree about; what tables hold is the unit tests' to compare."""
    written, made = written_ids(), finding_ids()
    for one in sorted(made.whole - written):
        yield "docs/checks.md does not name the finding %s" % one
    for one in sorted(written - made.whole):
        if one.partition(".")[0] not in made.open:
            yield "docs/checks.md names %s, nothing makes it" % one


def check_variables() -> t.Iterator[str]:
    """What docs/variables.md leaves out, of role defaults, playbooks and the options of an instance."""
    text = (CHECKOUT / "docs" / "variables.md").read_text()
    written = set(re.findall(r"`([a-z_]+)`", text))
    sources = [*CHECKOUT.glob("roles/*/defaults/main.yml"), *CHECKOUT.glob("playbooks/*.yml")]
    used = {name for path in sources for name in re.findall(r"\b(specdec_[a-z_]+)\b", path.read_text())}
    for name in sorted(used - written):
        yield "docs/variables.md does not name %s" % name
    for name in sorted({one for one in written if one.startswith("specdec_")} - used):
        yield "docs/variables.md names %s, nothing reads it" % name


def check_roles() -> t.Iterator[str]:
    """Collection-wide variables are read in role defaults and playbooks, nowhere else in a role."""
    for path in sorted(CHECKOUT.glob("roles/*/*/*.yml")):
        if path.parent.name in ("tasks", "handlers", "vars"):
            tree = str(yaml.safe_load(path.read_text()))
            for name in sorted(set(re.findall(r"(?<![\w.])(specdec_[a-z_]+)\b", tree))):
                yield "%s reads %s: read it in defaults/main.yml" % (path.relative_to(CHECKOUT), name)


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    faults = [*check_ids(), *check_variables(), *check_roles()]
    print("\n".join(faults) or "documented")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
