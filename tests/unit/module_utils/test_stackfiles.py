# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A typing error in the table of stacks is named by file and line, with what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ansible_collections.specdec.serving.plugins.module_utils import stackfiles
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, Finding

TEXT = (Path(stackfiles.__file__).parent / "data" / "stacks.yml").read_text(encoding="utf-8")


def only(text: str) -> Finding:
    _tables, found = stackfiles.load(text, "stacks.yml")
    assert len(found) == 1, [one.text() for one in found]
    return found[0]


def test_the_table_that_is_shipped_is_good_and_read_as_yaml_reads_it() -> None:
    assert stackfiles.load(TEXT, "stacks.yml") == (yaml.safe_load(TEXT), [])


@pytest.mark.parametrize(
    ("old", "new", "found", "expected", "fix"),
    [
        ('flashinfer: "0.6.3", kernel', 'flashinfr: "0.6.3", kernel', "flashinfr", "flashinfer", "Write flashinfer."),
        ("lanes: [cu128, cu130, cpu]", "lanes: [cu128, cu31, cpu]", "cu31", "nightly-cu130", "Write cu130."),
        ('torch: "2.14.1", flashinfer: "0.7.2"', 'torch: 2.14, flashinfer: "0.7.2"', "2.14", "2.14.1", ""),
        ('toolkit_driver: "580.95.05"', 'toolkit_driver: "580,95"', "580,95", "a version in quotes", ""),
        ("exact: [torch,", "exact: [torhc,", "torhc", "torch, flashinfer, kernel", "Write torch."),
        ("kernel_name: sglang-kernel", "kernel_name: sglang-kernels", "sglang-kernels", "sgl-kernel", "Write sglang-kernel."),
        ("cubin: true", "cubin: yeah", "yeah", "true, false", ""),
        ("since:\n", "sinze:\n", "sinze", "since", "Write since."),
        ("machines: [x86_64, aarch64]", "machines: [x86_64, arm64]", "arm64", "aarch64", ""),
        ('  "2.10.0": {x86_64: cu128', '  "2.10.0": {x86_64: cu129', "cu129", "cu128", ""),
        ("    disk: 4\n", "    disk: four\n", "four", "a number", ""),
        ("lacks: [flashinfer, kernel, cuda]", "lacks: flashinfer", "flashinfer", "a list", ""),
    ],
)
def test_a_typing_error(old: str, new: str, found: str, expected: str, fix: str) -> None:
    assert old in TEXT
    one = next(each for each in stackfiles.load(TEXT.replace(old, new, 1), "stacks.yml")[1] if each.found == found)
    line = TEXT.count("\n", 0, TEXT.index(old)) + 1
    assert (one.id, one.verdict, one.subject) == ("stack.table", ERROR, "stacks.yml:%d" % line)
    assert expected in one.expected and fix in one.fix


def test_a_key_that_is_there_twice_is_named_with_both_lines() -> None:
    line = next(row for row in TEXT.splitlines() if row.startswith('      "0.5.9": {torch'))
    one = only(TEXT.replace(line, line + "\n" + line))
    assert "first in line %d" % (TEXT.splitlines().index(line) + 1) in one.message


def test_a_missing_key() -> None:
    assert only(TEXT.replace(', source: metadata, read: "2026-11-30"}', "}", 1)).message == "a key is missing: read, source"


@pytest.mark.parametrize("text", ["engines: [\n", "a: b: c\n", "\t- x"])
def test_what_is_no_yaml(text: str) -> None:
    tables, found = stackfiles.load(text, "stacks.yml")
    assert tables is None
    assert found[0].message == "this is no YAML" and found[0].subject.startswith("stacks.yml:")


@pytest.mark.parametrize("text", ["", "- a\n", "word\n", "engines:\n", "engines: {sglang: }\nlanes: 5\n"])
def test_what_is_no_table(text: str) -> None:
    assert stackfiles.load(text, "stacks.yml")[1] != []
