# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Versions that are taken over from a reference, in the lane of the host that is deployed to."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.specdec.serving.plugins.module_utils import lockfrom, locks, stacks

TABLES = yaml.safe_load((Path(stacks.__file__).parent / "data" / "stacks.yml").read_text())
FACTS: dict[str, t.Any] = {
    "os": {"machine": "x86_64", "glibc": "2.36"},
    "gpus": {"source": "nvml", "driver": "580.95.05", "devices": [{"compute_capability": "9.0"}]},
    "pythons": [{"version": "3.12.3", "implementation": "cpython", "headers": True}],
}
#: The reference of the first deployment in docs: its flashinfer is newer than its engine's own pin.
REFERENCE = {
    "sglang": "0.5.9",
    "torch": "2.9.1+cu128",
    "flashinfer-python": "0.6.8.post1",
    "flashinfer-cubin": "0.6.8.post1",
    "quack-kernels": "0.3.2",
    "sgl-kernel": "0.3.21",
    "transformers": "4.57.1",
    "nvidia-cutlass-dsl": "4.4.2",
    "nvidia-nccl-cu12": "2.27.5",
    "nvidia-cublas-cu12": "12.8.4.1",
    "cuda-python": "12.9.0",
}


def stack(lane: str, pins: t.Optional[dict[str, str]] = None, packages: t.Optional[dict[str, str]] = None) -> stacks.Stack:
    reference = lockfrom.versions(TABLES, packages or REFERENCE, "sglang")
    found, wrong = stacks.resolve(TABLES, FACTS, {"name": "sglang", "version": "0.5.9", "lane": lane}, pins, reference=reference)
    assert found, [one.text() for one in wrong]
    return found


def test_versions_are_public_and_what_a_lane_decides_is_left_to_it() -> None:
    found = lockfrom.versions(TABLES, REFERENCE, "sglang")
    assert found["torch"] == "2.9.1"
    assert found["nvidia-cutlass-dsl"] == "4.4.2"
    assert not {"sglang", "nvidia-nccl-cu12", "nvidia-cublas-cu12", "cuda-python"} & set(found)


def test_the_overlays_pins_come_by_themselves() -> None:
    made = stack("cu128")
    assert made.flashinfer == "0.6.8.post1"
    expected = {
        "flashinfer-python==0.6.8.post1",
        "flashinfer-cubin==0.6.8.post1",
        "flashinfer-jit-cache==0.6.8.post1",
        "quack-kernels==0.3.2",
        "transformers==4.57.1",
        "nvidia-cutlass-dsl==4.4.2",
    }
    assert set(made.overrides) == expected


def test_labels_are_those_of_the_targets_lane() -> None:
    made = stack("cu130")
    assert {"torch==2.9.1+cu130", "sgl-kernel==0.3.21+cu130"} <= set(made.overrides)
    assert made.torch == "2.9.1+cu130"
    assert not [line for line in made.overrides if "cu128" in line]
    assert {index.name for index in made.indexes} >= {"torch-cu130", "kernel-cu130"}


def test_a_reference_that_differs_from_the_stacks_torch_and_kernel_decides() -> None:
    packages = {**REFERENCE, "torch": "2.10.0", "sgl-kernel": "0.3.22"}
    made = stack("cu128", packages=packages)
    assert {"torch==2.10.0", "sgl-kernel==0.3.22"} <= set(made.overrides)
    assert (made.torch, made.kernel) == ("2.10.0", ("sgl-kernel", "0.3.22"))


def test_pins_win() -> None:
    made = stack("cu128", {"flashinfer": "0.6.7", "transformers": "5.0"})
    assert made.flashinfer == "0.6.7"
    assert {"flashinfer-cubin==0.6.7", "transformers==5.0", "quack-kernels==0.3.2"} <= set(made.overrides)


def test_another_reference_is_another_lock() -> None:
    one, other = stack("cu128"), stack("cu128", packages={**REFERENCE, "transformers": "4.57.3"})
    assert locks.file_name(locks.inputs(one)) != locks.file_name(locks.inputs(other))
    labels = {**REFERENCE, "torch": "2.9.1+cu130", "nvidia-nccl-cu12": "99"}
    assert locks.file_name(locks.inputs(stack("cu128", packages=labels))) == locks.file_name(locks.inputs(one))


@pytest.mark.parametrize(
    ("captured", "engine", "subject", "message"),
    [
        ({}, {}, "lock_from", "nothing is known of this reference"),
        ({"overlays": {}, "versions": {"torch": "1"}}, {}, "lock_from", "the reference was captured before its packages were recorded"),
        ({"packages": {"vllm": "0.16.0"}}, {}, "lock_from", "the reference has another engine"),
        ({"packages": REFERENCE}, {"version": "0.5.23"}, "version", "engine.version contradicts lock_from"),
    ],
)
def test_what_cannot_be_taken_over(captured: dict[str, t.Any], engine: dict[str, str], subject: str, message: str) -> None:
    one = lockfrom.refusal(TABLES, "ct129", captured, {"name": "sglang", **engine}, lambda option: "ct200: engine." + option)
    assert one
    assert (one.id, one.subject, one.message) == ("lock.from", "ct200: engine." + subject, message)
    assert one.fix


def test_nothing_stands_against_the_same_version() -> None:
    assert lockfrom.refusal(TABLES, "ct129", {"packages": {"sglang": "0.5.9+g12"}}, {"name": "sglang", "version": "0.5.9"}, str) is None
