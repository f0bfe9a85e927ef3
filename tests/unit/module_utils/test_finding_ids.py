# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every id that a finding can have is named by a test.

The ids are collected from the sources (tests/lint/documented.py); the names are the constants of the tests: the whole id, or its
two parts where a test puts them together (``"model.%s" % name``).
"""

from __future__ import annotations

import ast
import runpy
import typing as t
from pathlib import Path

import yaml

from ansible_collections.specdec.serving.plugins.module_utils import environments, failures, models, networks, pythons, wheelbuilds

from . import reports

TESTS = Path(__file__).resolve().parents[2]
DOCUMENTED = runpy.run_path(str(TESTS / "lint" / "documented.py"), run_name="documented")
DATA = Path(environments.__file__).parent / "data"
COLLECTED = DOCUMENTED["finding_ids"]()

#: The checks of areas whose ids are put together with what a table holds.
TABLES: dict[str, t.Iterable[str]] = {
    "architecture": {row["check"] for row in yaml.safe_load((DATA / "architectures.yml").read_text())["rules"]},
    "environment": [row[1] for row in environments._UV_FAILURES],
    "failure": [*(row.id for row in failures.FAILURES), "exception", "signal"],
    "gate": ["draft-does-nothing"],
    "model": models._MESSAGES,
    "network": [row[1] for row in networks._FAILURES],
    "python": [row[1] for row in pythons._FAILURES],
    "speculative": {row["check"] for row in yaml.safe_load((DATA / "speculation.yml").read_text())["rules"]},
    "wheel": [row[1] for row in (*wheelbuilds._GIT_FAILURES, *wheelbuilds._BUILD_FAILURES)],
}


def constants(path: Path) -> set[str]:
    """The text constants of one test file."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def ids() -> set[str]:
    """Every id."""
    return COLLECTED.whole | {"%s.%s" % (area, check) for area, checks in TABLES.items() for check in checks}


def unnamed(wanted: t.Iterable[str], named: t.Sequence[set[str]]) -> list[str]:
    """The ids that none of these sets of constants names."""
    left = set(wanted)
    for held in named:
        prefixes = {one.rstrip("%s").rstrip(".") for one in held if one.endswith((".", ".%s"))}
        left -= held
        left -= {one for one in left if one.partition(".")[0] in prefixes and one.partition(".")[2] in held}
    return sorted(left)


def test_every_area_whose_ids_are_put_together_has_its_table() -> None:
    assert COLLECTED.open == set(TABLES)
    assert all(TABLES.values())


def test_the_page_names_every_id_and_no_other() -> None:
    assert sorted(ids() ^ DOCUMENTED["written_ids"]()) == []


def test_every_id_of_a_finding_is_named_by_a_test() -> None:
    files = [path for kind in ("unit", "integration") for path in sorted((TESTS / kind).rglob("*.py"))]
    named = [constants(path) for path in files if path != Path(__file__)]
    # test_diagnosis.py tries them all
    named.append({"failure." + id_ for _report, _line, id_ in reports.REPORTS})
    assert unnamed(ids(), named) == []


def test_an_id_that_no_test_names_is_told() -> None:
    named = [{"a.one", "b.%s", "two"}, {"three"}, {"c.", "four"}]
    assert unnamed(["a.one", "a.two", "b.two", "b.three", "c.four"], named) == ["a.two", "b.three"]
