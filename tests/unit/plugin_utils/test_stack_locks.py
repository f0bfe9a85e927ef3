# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stacks of the tables, resolved by the real uv from the real package index: metadata only, no host, no download of a package."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import locks, stacks
from ansible_collections.specdec.serving.plugins.module_utils.findings import errors
from ansible_collections.specdec.serving.plugins.plugin_utils import controller, hosttools

TABLES = controller.stacks()[0]


def facts(capability: str, machine: str = "x86_64", toolkit: str = "12.9") -> dict[str, t.Any]:
    """A GPU host under a new driver, with a CUDA toolkit and Python 3.12."""
    kit = {"path": "/usr/local/cuda-" + toolkit, "names": ["/usr/local/cuda"], "version": toolkit}
    gpus = {"source": "nvml", "driver": "580.95.05", "devices": [{"compute_capability": capability, "name": "GPU"}], "toolkits": [kit]}
    python = {"version": "3.12.3", "implementation": "cpython", "headers": True, "path": "/usr/bin/python3.12"}
    return {"os": {"machine": machine, "glibc": "2.39"}, "gpus": gpus, "pythons": [python]}


def locked(host: dict[str, t.Any], engine: dict[str, str], pins: t.Optional[dict[str, str]] = None, *packages: str) -> t.Any:
    """The lock of what resolves for a host, and the errors of its check."""
    stack, found = stacks.resolve(TABLES, host, engine, pins, packages)
    assert stack is not None, [one.text() for one in found]
    wanted = locks.inputs(stack)
    made = locks.lock(wanted, controller.run, hosttools.find_uv())
    return made, errors(locks.check(made, wanted))


def test_what_worked_for_dflash_on_blackwell() -> None:
    """Of the nodes of incident 1: flashinfer moves with all its parts, and quack-kernels with it."""
    engine, pins = {"name": "sglang", "version": "0.5.9", "lane": "cu128"}, {"flashinfer": "0.6.8.post1", "quack-kernels": "0.3.2"}
    made, wrong = locked(facts("12.0"), engine, pins)
    assert wrong == []
    expected = {
        "sglang": "0.5.9",
        "torch": "2.9.1",
        "flashinfer-python": "0.6.8.post1",
        "flashinfer-cubin": "0.6.8.post1",
        "quack-kernels": "0.3.2",
        "sgl-kernel": "0.3.21",
    }
    assert {name: made.versions.get(name) for name in expected} == expected


def test_half_of_it_resolves_and_is_refused() -> None:
    """What uv is content with: flashinfer-python moved without its cubins."""
    engine, pins = {"name": "sglang", "version": "0.5.9", "lane": "cu128"}, {"flashinfer-python": "0.6.8.post1", "quack-kernels": ">=0.3.0"}
    made, wrong = locked(facts("12.0"), engine, pins)
    assert (made.versions["flashinfer-python"], made.versions["flashinfer-cubin"]) == ("0.6.8.post1", "0.6.3")
    (one,) = wrong
    assert (one.id, one.fix) == ("parity.flashinfer", 'Pin all its parts at once: specdec_pins: {flashinfer: "0.6.8.post1"}')


def test_vllm_with_the_parts_of_flashinfer_at_parity() -> None:
    """What ended the restart loop of incident 3."""
    made, wrong = locked(facts("12.0"), {"name": "vllm", "version": "0.16.0"}, {"flashinfer": "0.6.4"}, "flashinfer-cubin")
    assert wrong == []
    assert [made.versions[name] for name in ("vllm", "flashinfer-python", "flashinfer-cubin")] == ["0.16.0", "0.6.4", "0.6.4"]


@pytest.mark.parametrize(("engine", "capability"), [("sglang", "12.1"), ("vllm", "9.0")], ids=["sglang on GB10", "vllm on GH200"])
def test_the_newest_stack_resolves_completely_on_aarch64(engine: str, capability: str) -> None:
    made, wrong = locked(facts(capability, "aarch64", "13.0"), {"name": engine})
    assert wrong == []
    assert made.versions[engine] == stacks.releases(TABLES, engine)[-1]
    assert {"torch", "triton", "flashinfer-python"} <= made.versions.keys()
    assert all(package.hashes for package in made.packages)
