# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pages in docs/ name every finding's id and every variable, and none that is not there.

An id is a constant ``area.check`` in the core whose area a finding or the page uses. Ids that are put together
(``"gate." + ...``) are documented by their area: ``gate.…``.
"""

from __future__ import annotations

import ast
import re
import sys
import typing as t
from pathlib import Path

import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
CORE = CHECKOUT / "plugins" / "module_utils"
ID = re.compile(r"[a-z]+\.(?!(?:json|txt|py|yml|yaml)$)[a-z][a-z-]+")


def finding_ids(known: t.Collection[str]) -> tuple[set[str], set[str]]:
    """Whole ids, also of the areas that are known already, and the areas of those that are put together, from the core."""
    constants, areas, composed = set(), set(known), set()
    for path in CORE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and ID.fullmatch(node.value):
                constants.add(node.value)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
                name = ([word.value for word in node.keywords if word.arg == "id"] or node.args or [None])[0]
                if isinstance(name, ast.Constant):
                    areas.add(str(name.value).partition(".")[0])
                elif isinstance(name, ast.BinOp) and isinstance(name.left, ast.Constant):
                    composed.add(str(name.left.value).rstrip("."))
    return {one for one in constants if one.partition(".")[0] in areas}, composed


def check_ids() -> t.Iterator[str]:
    """What docs/checks.md and the core disagree about."""
    written = set(re.findall(r"`([a-z]+\.(?:[a-z][a-z-]+|…))`", (CHECKOUT / "docs" / "checks.md").read_text()))
    whole, composed = finding_ids({one.partition(".")[0] for one in written})
    by_area = {one.partition(".")[0] for one in written if one.endswith("…")}
    for one in sorted(whole - written):
        if one.partition(".")[0] not in by_area:
            yield "docs/checks.md does not name the finding %s" % one
    for area in sorted(composed - by_area):
        if not any(one.startswith(area + ".") for one in written):
            yield "docs/checks.md does not name the findings %s.…" % area
    for one in sorted(written):
        area = one.partition(".")[0]
        if one.endswith("…"):
            if area not in composed:
                yield "docs/checks.md names %s, nothing makes it" % one
        elif one not in whole and area not in composed:
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
