# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every rule refuses what it is there for, on the real tables; without the rule the same host would get the stack."""

from __future__ import annotations

import dataclasses
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import stackrules, stacks
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, WARNING, Finding

from .test_stacks import TABLES, host

KITS = "/usr/local/cuda"


def kits(facts: dict[str, t.Any], *versions: str) -> dict[str, t.Any]:
    """The host with CUDA toolkits, of which the first is the one that is found without CUDA_HOME."""
    listed = [{"path": "%s-%s" % (KITS, one), "names": ["%s-%s" % (KITS, one)], "version": one} for one in versions]
    listed[0]["names"].append(KITS)
    return {**facts, "gpus": {**facts["gpus"], "toolkits": listed}}


def without(facts: dict[str, t.Any], *, headers: bool, compilers: t.Sequence[str]) -> dict[str, t.Any]:
    """The host with these compilers, and Python's headers or none."""
    found = [{"name": name, "path": "/usr/bin/" + name, "version": "12.2.0"} for name in compilers]
    pythons = [{**one, "headers": headers} for one in facts["pythons"]]
    return {**facts, "gpus": {**facts["gpus"], "compilers": found}, "pythons": pythons}


@dataclasses.dataclass
class Case:
    """A host and a wish that one rule is about; ``verdict`` is what it says."""

    rule: str
    id: str
    facts: dict[str, t.Any]
    engine: dict[str, str]
    words: str
    subject: str = "ct200: engine.lane"
    verdict: str = ERROR
    options: dict[str, t.Any] = dataclasses.field(default_factory=dict)


OLD = {"name": "sglang", "version": "0.5.9"}
NEW = {"name": "sglang", "version": "0.5.23"}
NIGHTLY = {"torch": "2.12.0.dev20260301+cu130", "flashinfer": "0.6.5", "sgl-kernel": "0.3.21+cu130"}


def no(pin: str) -> dict[str, t.Any]:
    """The pins of a nightly stack without one."""
    return {"pins": {name: version for name, version in NIGHTLY.items() if name != pin}}


CASES = [
    Case("architecture", "stack.architecture", host("580.95.05", "9.0", machine="riscv64"), NEW, "x86_64 or aarch64", "ct200: engine"),
    Case("glibc", "stack.glibc", host("580.95.05", "9.0", glibc="2.31"), NEW, ">= 2.34", "ct200: engine.version"),
    Case("driver", "stack.driver", host("570.124.06", "9.0"), {**NEW, "lane": "cu130"}, ">= 580.65.06"),
    Case("driver", "stack.driver", host("550.54.14"), {**OLD, "lane": "cu128"}, ">= 570.26"),
    Case("driver", "stack.driver-older-than-toolkit", host("580.65.06", "9.0"), NEW, ">= 580.95.05", verdict=WARNING),
    Case("capability", "stack.capability", host("580.95.05", "7.0"), NEW, ">= 7.5", "ct200: engine"),
    Case("kernel_code", "stack.kernel-code", host("580.95.05", "7.5"), NEW, "compute capability 7.5"),
    Case("kernel_code", "stack.kernel-code", host("580.95.05", "10.3"), {**OLD, "lane": "cu128"}, "10.0a"),
    Case("kernel_code", "stack.kernel-code", host("580.95.05", "12.1"), NEW, "12.0a"),
    Case(
        "flashinfer_cuda",
        "stack.flashinfer-cuda",
        host("580.95.05"),
        {"name": "sglang", "version": "0.5.10.post1", "lane": "cu128"},
        "CUDA >= 12.9",
    ),
    Case(
        "flashinfer_cuda",
        "stack.flashinfer-cuda",
        host("580.95.05"),
        {**OLD, "lane": "cu128"},
        "pin flashinfer below 0.6.7",
        options={"pins": {"flashinfer": "0.6.8.post1"}},
    ),
    Case("flashinfer_cuda", "stack.flashinfer-cuda", kits(host("580.95.05"), "12.4"), NEW, "CUDA 12.4 of /usr/local/cuda-12.4"),
    Case(
        "flashinfer_cuda",
        "stack.flashinfer-cuda",
        kits(host("580.95.05"), "12.4", "13.0"),
        NEW,
        "CUDA_HOME: /usr/local/cuda-13.0",
        verdict=WARNING,
    ),
    Case(
        "exact",
        "stack.nightly",
        host("580.95.05"),
        {**OLD, "lane": "nightly-cu130"},
        "torch",
        "ct200: specdec_pins.torch",
        options=no("torch"),
    ),
    Case(
        "exact",
        "stack.nightly",
        host("580.95.05"),
        {**OLD, "lane": "nightly-cu130"},
        "all its parts",
        "ct200: specdec_pins.flashinfer",
        options=no("flashinfer"),
    ),
    Case(
        "exact",
        "stack.nightly",
        host("580.95.05"),
        {**OLD, "lane": "nightly-cu130"},
        "sgl-kernel",
        "ct200: specdec_pins.sgl-kernel",
        options=no("sgl-kernel"),
    ),
    Case(
        "torch_label",
        "stack.torch-lane",
        host("580.95.05", "9.0"),
        {**OLD, "lane": "cu128"},
        "2.9.1+cu128",
        "ct200: specdec_pins.torch",
        options={"pins": {"torch": "2.9.1+cu130"}},
    ),
    Case(
        "torch_label",
        "stack.torch-lane",
        host("580.95.05", "9.0"),
        NEW,
        "2.13.0+cpu",
        "ct200: specdec_pins.torch",
        options={"pins": {"torch": "2.13.0+cpu"}},
    ),
    Case(
        "kernel_torch",
        "stack.kernel-torch",
        host("580.95.05", "9.0"),
        OLD,
        "declares no torch",
        "ct200: specdec_pins.torch",
        WARNING,
        {"pins": {"torch": "2.10.0"}},
    ),
    Case(
        "kernel_name",
        "stack.kernel-name",
        host("580.95.05", "9.0"),
        NEW,
        "Write sglang-kernel.",
        "ct200: specdec_pins",
        options={"pins": {"sgl_kernel": "0.3.21"}},
    ),
    Case(
        "kernel_name",
        "stack.kernel-name",
        host("580.95.05", "9.0"),
        OLD,
        "Write sgl-kernel.",
        "ct200: specdec_extra_packages",
        options={"packages": ["sglang-kernel==0.4.1"]},
    ),
    Case(
        "one_engine",
        "stack.two-engines",
        host("580.95.05", "9.0"),
        NEW,
        "an instance of its own",
        "ct200: specdec_extra_packages",
        options={"packages": ["vllm==0.33.0"]},
    ),
    Case(
        "one_engine",
        "stack.two-engines",
        host("580.95.05", "9.0"),
        {"name": "vllm", "version": "0.33.0"},
        "nothing but vllm",
        "ct200: specdec_pins",
        options={"pins": {"sglang": "0.5.23"}},
    ),
    Case(
        "cubin",
        "stack.cubin",
        host("580.95.05", "9.0"),
        OLD,
        "flashinfer.ai",
        "ct200: specdec_pins.flashinfer",
        WARNING,
        {"pins": {"flashinfer": "0.6.14"}},
    ),
    Case(
        "jit_cache",
        "stack.jit-cache",
        host("580.95.05", "10.3"),
        {**OLD, "lane": "cu128"},
        "compiled at the first start",
        "ct200: specdec_extra_packages",
        WARNING,
        {"packages": ["flashinfer-jit-cache"], "pins": {"sgl-kernel": "0.3.21"}},
    ),
    Case(
        "building",
        "stack.compiler",
        without(host("580.95.05", "9.0", "aarch64"), headers=False, compilers=["gcc", "g++"]),
        OLD,
        "Python.h",
        "ct200: engine",
    ),
    Case(
        "building",
        "stack.compiler",
        without(host("580.95.05", "9.0", "aarch64"), headers=True, compilers=["gcc"]),
        OLD,
        "no a C++ compiler",
        "ct200: engine",
    ),
    Case(
        "building",
        "stack.compiler",
        without(host("580.95.05", "9.0"), headers=True, compilers=[]),
        NEW,
        "Triton compiles",
        "ct200: engine",
        WARNING,
    ),
]


def said(case: Case) -> list[Finding]:
    stack, found = stacks.resolve(TABLES, case.facts, case.engine, host="ct200", **case.options)
    assert (stack is None) == any(one.verdict == ERROR for one in found), [one.text() for one in found]
    return [one for one in found if one.id == case.id]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "%s-%s" % (case.rule, case.id))
def test_a_rule_says_why_and_what_to_do(case: Case) -> None:
    (one,) = said(case)
    assert (one.subject, one.verdict) == (case.subject, case.verdict)
    assert case.words in one.text()
    assert one.fix


@pytest.mark.parametrize("case", CASES, ids=lambda case: "%s-%s" % (case.rule, case.id))
def test_without_its_rule_nothing_is_said(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stackrules, "RULES", tuple(rule for rule in stackrules.RULES if rule.__name__ != case.rule))
    if case.rule == "building":
        monkeypatch.setattr(stackrules, "building", lambda one, interpreter: [])
    assert said(case) == []


def test_every_rule_has_a_case() -> None:
    assert {rule.__name__ for rule in stackrules.RULES} | {"building"} == {case.rule for case in CASES}


def test_a_refusal_names_every_rule_of_every_lane_and_the_nearest_stack() -> None:
    """A Blackwell card under a driver for CUDA 12: no lane of this release is left."""
    facts = host("570.124.06")
    stack, found = stacks.resolve(TABLES, facts, {"name": "sglang", "version": "0.5.9"}, {"flashinfer": "0.6.8.post1"}, host="ct200")
    assert stack is None
    assert [(one.id, one.verdict) for one in found] == [("stack.flashinfer-cuda", ERROR), ("stack.driver", ERROR)]
    stack, found = stacks.resolve(TABLES, facts, {"name": "sglang", "version": "0.5.23", "lane": "cu130"}, host="ct200")
    (one,) = found
    assert one.fix.endswith("What fits this host as it is: sglang 0.5.9 on lane cu128.")


def test_a_toolkit_that_is_new_enough_is_what_flashinfer_finds() -> None:
    facts = kits(host("580.95.05"), "12.9")
    stack, found = stacks.resolve(TABLES, facts, {**OLD, "lane": "cu128"}, {"flashinfer": "0.6.8.post1"})
    assert stack is not None and found == []


@pytest.mark.parametrize(
    ("holds", "capability", "runs"),
    [
        (["9.0"], "9.0", True),
        (["8.0"], "8.6", True),
        (["8.9"], "8.6", False),
        (["12.0a"], "12.0", True),
        (["12.0a"], "12.1", False),
        (["12.0f"], "12.1", True),
        (["8.0", "9.0"], "10.0", False),
        ([], "9.0", False),
    ],
)
def test_which_code_runs_on_which_gpu(holds: list[str], capability: str, runs: bool) -> None:
    assert stackrules.runs(holds, capability) is runs


# The nightly lane


def test_a_nightly_lane_takes_the_versions_that_are_pinned_and_brings_the_indexes() -> None:
    facts = host("580.95.05")
    stack, found = stacks.resolve(TABLES, facts, {**OLD, "lane": "nightly-cu130"}, NIGHTLY, ["flashinfer-jit-cache"])
    assert stack is not None and found == []
    assert (stack.lane, stack.label, stack.torch, stack.kernel) == (
        "nightly-cu130",
        "cu130",
        "2.12.0.dev20260301+cu130",
        ("sgl-kernel", "0.3.21+cu130"),
    )
    assert {"flashinfer-cubin==0.6.5", "flashinfer-jit-cache==0.6.5", "flashinfer-python==0.6.5"} < set(stack.overrides)
    assert [index.name for index in stack.indexes] == ["torch-nightly-cu130", "kernel-cu130", "flashinfer-cu130"]


def test_an_engine_before_its_release_is_for_a_nightly_lane_only() -> None:
    facts, engine = host("580.95.05"), {"name": "sglang", "version": "0.5.10.dev20260301"}
    stack, found = stacks.resolve(TABLES, facts, {**engine, "lane": "nightly-cu130"}, {**NIGHTLY, "sglang-kernel": "0.4.1"})
    assert stack is None and [one.id for one in found] == ["stack.kernel-name"]
    pins = {**{name: version for name, version in NIGHTLY.items() if name != "sgl-kernel"}, "sglang-kernel": "0.4.1+cu130"}
    stack, found = stacks.resolve(TABLES, facts, {**engine, "lane": "nightly-cu130"}, pins)
    assert stack is not None and "sglang==0.5.10.dev20260301" in stack.requirements
    stack, found = stacks.resolve(TABLES, facts, engine, pins)
    assert stack is None and [one.id for one in found] == ["stack.unknown-version"]


def test_no_lane_of_nightly_builds_is_chosen_by_itself() -> None:
    stack, _found = stacks.resolve(TABLES, host("580.95.05"), OLD, NIGHTLY)
    assert stack is not None and stack.lane != "nightly-cu130"


# Overlays


def test_the_base_of_an_overlay_is_the_version_where_none_is_wanted() -> None:
    facts = host("580.95.05", "9.0")
    stack, _found = stacks.resolve(TABLES, facts, {"name": "sglang"}, base="0.5.12")
    assert stack is not None and stack.version == "0.5.12"
    stack, _found = stacks.resolve(TABLES, facts, {"name": "sglang", "version": "0.5.13"}, base="0.5.12")
    assert stack is not None and stack.version == "0.5.13", "the check of the overlay itself names the files that moved"


def test_the_base_of_an_overlay_is_not_replaced_by_a_release_that_fits_better() -> None:
    stack, found = stacks.resolve(TABLES, host("570.124.06", "9.0"), {"name": "sglang"}, base="0.5.12")
    assert stack is None and [one.id for one in found] == ["stack.driver"] and "What fits" not in found[0].fix
    stack, found = stacks.resolve(TABLES, host("580.95.05", "9.0"), {"name": "sglang"}, base="0.4.1", host="ct200")
    assert stack is None and (found[0].id, found[0].found) == ("stack.unknown-version", "0.4.1") and "overlay" in found[0].message


@pytest.mark.parametrize(
    ("engine", "version", "algorithm", "adds", "fits"),
    [
        ("sglang", "0.5.11", "DFLASH", [], True),
        ("sglang", "0.5.11", "dflash", [], True),
        ("sglang", "0.5.10.post1", "DFLASH", [], False),
        ("sglang", "0.5.9", "DFLASH", ["DFLASH", "DDTREE"], True),
        ("sglang", "0.5.23", "DDTREE", [], False),
        ("sglang", "0.5.23", "DDTREE", ["DDTREE"], True),
        ("sglang", "0.5.23", "EAGLE3", [], True),
        ("vllm", "0.33.0", "dflash", [], True),
    ],
)
def test_the_algorithm_is_judged_over_base_and_overlay(engine: str, version: str, algorithm: str, adds: list[str], fits: bool) -> None:
    manifests = [{"adds": {"algorithms": adds, "arguments": []}}, {}]
    one = stackrules.algorithm(TABLES, engine, version, algorithm, manifests, "main: speculative.algorithm")
    assert (one is None) is fits
    if one:
        assert (one.id, one.verdict, one.found) == ("stack.algorithm", ERROR, algorithm)
        assert ("sglang 0.5.11 or newer" in one.fix) == (algorithm == "DFLASH")


def test_what_worked_for_eagle3_on_cuda_13() -> None:
    """Of the node of incident 4: torch and kernel of CUDA 13 by label, the three parts of flashinfer at one version."""
    engine = {"name": "sglang", "version": "0.5.9", "lane": "cu130"}
    stack, found = stacks.resolve(TABLES, host("580.95.05"), engine, {"flashinfer": "0.6.4"}, ["flashinfer-jit-cache"])
    assert stack is not None and found == []
    assert stack.overrides == (
        "flashinfer-cubin==0.6.4",
        "flashinfer-jit-cache==0.6.4",
        "flashinfer-python==0.6.4",
        "sgl-kernel==0.3.21+cu130",
        "torch==2.9.1+cu130",
    )
    assert [index.name for index in stack.indexes] == ["torch-cu130", "kernel-cu130", "flashinfer-cu130"]
