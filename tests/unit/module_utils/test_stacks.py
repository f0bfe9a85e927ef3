# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which stack fits which host, on the real tables."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path

import pytest
import yaml

from ansible_collections.specdec.serving.plugins.module_utils import stacks
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, WARNING

TABLES = yaml.safe_load(
    (Path(__file__).resolve().parents[3] / "plugins" / "module_utils" / "data" / "stacks.yml").read_text(encoding="utf-8")
)
RELEASES = [(engine, version) for engine in TABLES["engines"] for version in stacks.releases(TABLES, engine)]


def host(driver=None, capability="12.0", machine="x86_64", glibc="2.36", pythons=("3.12.3",)):
    """The gathered state of a host; without a driver it has no GPU."""
    gpus = {"source": "nvidia-smi", "driver": driver, "devices": [{"compute_capability": capability}]}
    return {
        "os": {"machine": machine, "glibc": glibc},
        "gpus": gpus if driver else {"source": "none", "driver": None, "devices": []},
        "pythons": [{"version": version, "implementation": "cpython", "headers": True, "path": "/usr/bin/python"} for version in pythons],
    }


BLACKWELL = host("580.95.05")
HOPPER = host("580.95.05", "9.0")


def only(found):
    assert len(found) == 1, [one.text() for one in found]
    return found[0]


def refused(facts, engine, **options):
    stack, found = stacks.resolve(TABLES, facts, engine, **options)
    assert stack is None
    one = only(found)
    assert one.verdict == ERROR
    return one


def resolved(facts, engine, **options):
    stack, found = stacks.resolve(TABLES, facts, engine, **options)
    assert stack is not None, [one.text() for one in found]
    return stack


@pytest.mark.parametrize(("engine", "version"), RELEASES)
def test_every_release_resolves_on_each_of_its_lanes(engine, version):
    for lane, machine in itertools.product(stacks.release(TABLES, engine, version)["lanes"], TABLES["machines"]):
        facts = host("580.95.05", "9.0", machine)
        stack = resolved(facts, {"name": engine, "version": version, "lane": lane})
        assert "%s==%s" % (stack.package, version) in stack.requirements
        assert (stack.lane, stack.machine, stack.platform) == (lane, machine, machine + "-manylinux_2_36")
        assert stack.torch_builds.get(stack.torch, lane) == lane, "torch of another lane would be taken"
        assert ("flashinfer" in stack.lacks) == (stack.flashinfer is None) == (lane == "cpu")


@pytest.mark.parametrize(("engine", "version"), RELEASES)
def test_every_row_says_where_it_is_from(engine, version):
    row = TABLES["engines"][engine]["releases"][version]
    assert row["source"]
    assert len(row["read"].split("-")) == 3
    assert stacks.release(TABLES, engine, version)["torch"] in TABLES["torch"]


def test_a_release_takes_what_holds_since_an_older_one():
    assert stacks.release(TABLES, "sglang", "0.5.9")["kernel_name"] == "sgl-kernel"
    assert stacks.release(TABLES, "sglang", "0.5.10.post1")["kernel_name"] == "sglang-kernel"
    assert stacks.release(TABLES, "sglang", "0.5.21")["python"] == ">=3.10"
    assert stacks.release(TABLES, "sglang", "0.5.22")["python"] == ">=3.11"


def test_releases_are_in_the_order_of_versions_not_of_letters():
    known = stacks.releases(TABLES, "sglang")
    assert known.index("0.5.9") < known.index("0.5.10") < known.index("0.5.10.post1") < known.index("0.5.11")


def test_without_a_gpu_the_lane_is_cpu_and_the_upstream_kernel_is_left_out():
    stack = resolved(
        host(pythons=("3.11.2",)),
        {"name": "sglang", "version": "0.5.23"},
        pins={"torch": "2.13.0+cpu", "triton": "3.8.0+standin"},
        packages=["sgl-kernel-cpu-standin==0.5.23"],
    )
    assert (stack.lane, stack.python, stack.torch, stack.kernel, stack.flashinfer) == ("cpu", "3.11", "2.13.0+cpu", None, None)
    assert stack.requirements == ("dill", "sgl-kernel-cpu-standin==0.5.23", "sglang==0.5.23", "triton")
    assert stack.overrides == ("torch==2.13.0+cpu", "triton==3.8.0+standin")
    assert {"sglang-kernel", "flashinfer-python", "torchaudio"} <= set(stack.excludes)
    assert stack.lacks == ("flashinfer", "kernel", "cuda")
    assert [index.name for index in stack.indexes] == ["torch-cpu"]


def test_a_package_that_is_asked_for_is_not_left_out():
    stack = resolved(host(), {"name": "sglang", "version": "0.5.23"}, packages=["torchaudio==2.11.0"])
    assert "torchaudio" not in stack.excludes


def test_a_pin_on_flashinfer_moves_all_its_parts():
    stack = resolved(HOPPER, {"name": "sglang", "version": "0.5.9"}, pins={"flashinfer": "0.6.8.post1", "quack_kernels": ">=0.3"})
    assert stack.lane == "cu128"
    assert stack.flashinfer == "0.6.8.post1"
    assert stack.overrides == (
        "flashinfer-cubin==0.6.8.post1",
        "flashinfer-jit-cache==0.6.8.post1",
        "flashinfer-python==0.6.8.post1",
        "quack-kernels>=0.3",
    )
    assert stack.indexes == ()


def test_an_override_keeps_the_extra_that_the_engine_asks_for():
    stack = resolved(BLACKWELL, {"name": "sglang", "version": "0.5.14"}, pins={"flashinfer": "0.6.14"})
    assert "flashinfer-python[cu13]==0.6.14" in stack.overrides


def test_a_part_of_flashinfer_that_is_asked_for_gets_the_version_of_the_others_and_its_index():
    stack = resolved(BLACKWELL, {"name": "sglang", "version": "0.5.23"}, packages=["flashinfer-jit-cache"])
    assert "flashinfer-jit-cache==0.7.2" in stack.overrides
    assert [index.name for index in stack.indexes] == ["flashinfer-cu130"]


def test_the_lane_that_is_not_the_default_indexs_is_taken_by_label_from_its_own_indexes():
    stack = resolved(BLACKWELL, {"name": "sglang", "version": "0.5.9", "lane": "cu130"})
    assert stack.overrides == ("sgl-kernel==0.3.21+cu130", "torch==2.9.1+cu130")
    assert stack.kernel == ("sgl-kernel", "0.3.21+cu130")
    assert [index.name for index in stack.indexes] == ["torch-cu130", "kernel-cu130"]


def test_where_the_default_index_has_only_a_cpu_torch_for_a_machine_the_lanes_is_taken():
    stack = resolved(host("580.95.05", machine="aarch64"), {"name": "sglang", "version": "0.5.9"})
    assert stack.torch == "2.9.1+cu128"
    assert stack.builds == ("torch-memory-saver",)


def test_without_a_version_the_newest_that_fits_is_taken():
    assert resolved(BLACKWELL, {"name": "sglang"}).version == "0.5.23"
    assert resolved(host("570.124.06", "9.0"), {"name": "sglang"}).version == "0.5.10.post1"
    assert resolved(host("580.95.05", "9.0", glibc="2.31"), {"name": "sglang", "lane": "auto"}).version == "0.5.10.post1"


def test_the_python_with_headers_wins_then_the_newest_that_fits():
    facts = host("580.95.05", pythons=("3.14.1", "3.12.3", "3.13.0", "3.9.2"))
    facts["pythons"][2]["headers"] = False
    stack = resolved(facts, {"name": "sglang", "version": "0.5.23"})
    assert (stack.python, stack.interpreter["version"]) == ("3.12", "3.12.3")


def test_a_python_that_is_named_is_taken_even_where_the_host_has_none_yet():
    stack = resolved(host("580.95.05", pythons=()), {"name": "sglang", "version": "0.5.23"}, python="3.13")
    assert (stack.python, stack.interpreter) == ("3.13", None)


@pytest.mark.parametrize(
    ("glibc", "platform"), [("2.36", "x86_64-manylinux_2_36"), ("2.43", "x86_64-manylinux_2_40"), ("2.30", "x86_64-manylinux_2_28")]
)
def test_the_platform_is_the_newest_known_that_is_not_newer_than_the_host(glibc, platform):
    assert stacks.platform_tag(TABLES, "x86_64", glibc) == platform


@pytest.mark.parametrize(
    ("name", "facts", "engine", "options", "subject", "words"),
    [
        ("stack.unknown-engine", BLACKWELL, {"name": "sglnag"}, {}, "ct200: engine.name", "Did you mean sglang?"),
        ("stack.unknown-version", BLACKWELL, {"name": "sglang", "version": "0.5.99"}, {}, "ct200: engine.version", "0.5.9"),
        ("stack.unknown-lane", BLACKWELL, {"name": "sglang", "lane": "cu131"}, {}, "ct200: engine.lane", "cu130"),
        ("stack.lane", HOPPER, {"name": "sglang", "version": "0.5.23", "lane": "cu128"}, {}, "ct200: engine.lane", "0.5.10.post1"),
        ("stack.lane", host(), {"name": "vllm", "version": "0.33.0"}, {}, "ct200: engine.lane", "a host with a GPU"),
        ("stack.driver", host("570.124.06"), {"name": "sglang", "version": "0.5.23"}, {}, "ct200: engine.lane", "580.65.06"),
        ("stack.driver", host("550.54.14"), {"name": "sglang", "version": "0.5.9", "lane": "cu128"}, {}, "ct200: engine.lane", "570.26"),
        ("stack.driver", host(), {"name": "sglang", "version": "0.5.9", "lane": "cu128"}, {}, "ct200: engine.lane", "525.60.13"),
        ("stack.architecture", host("580.95.05", machine="ppc64le"), {"name": "sglang", "version": "0.5.9"}, {}, "ct200: engine", "x86_64"),
        (
            "stack.glibc",
            host("580.95.05", "9.0", glibc="2.31"),
            {"name": "sglang", "version": "0.5.23"},
            {},
            "ct200: engine.version",
            "0.5.10.post1",
        ),
        ("stack.python", host("580.95.05", pythons=("3.10.4",)), {"name": "sglang", "version": "0.5.23"}, {}, "ct200: engine", "0.5.21"),
        ("stack.python", host("580.95.05", pythons=("3.14.0",)), {"name": "sglang", "version": "0.5.23"}, {}, "ct200: engine", "3.13"),
        ("stack.python", BLACKWELL, {"name": "vllm", "version": "0.33.0"}, {"python": "3.10"}, "ct200: engine", "0.31.0"),
        ("stack.pin", BLACKWELL, {"name": "sglang"}, {"pins": {"torch": "two"}}, "ct200: specdec_pins.torch", "1.2.3"),
        ("stack.package", BLACKWELL, {"name": "sglang"}, {"packages": ["a b"]}, "ct200: specdec_extra_packages", "name==1.2.3"),
        ("stack.package", BLACKWELL, {"name": "sglang"}, {"packages": ["a @ file:///a"]}, "ct200: specdec_extra_packages", "name==1.2.3"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_way_out(name, facts, engine, options, subject, words):
    one = refused(facts, engine, host="ct200", **options)
    assert (one.id, one.subject) == (name, subject)
    assert words in one.text()


def test_the_nearest_release_that_fits_is_named_with_its_lane():
    one = refused(host("570.124.06", "9.0"), {"name": "sglang", "version": "0.5.20"})
    assert "What fits this host as it is: sglang 0.5.10.post1 on lane cu128." in one.fix


def test_an_older_gpu_is_served_by_an_older_driver():
    stack = resolved(host("550.54.14", "9.0"), {"name": "sglang", "version": "0.5.9"})
    assert stack.lane == "cu128"


def test_a_driver_older_than_the_lanes_toolkit_is_a_warning():
    stack, found = stacks.resolve(TABLES, host("580.65.06"), {"name": "sglang", "version": "0.5.23"})
    assert stack is not None
    assert (only(found).id, only(found).verdict) == ("stack.driver-older-than-toolkit", WARNING)


def test_resolving_changes_no_table():
    before = copy.deepcopy(TABLES)
    resolved(BLACKWELL, {"name": "sglang", "version": "0.5.9", "lane": "cu130"}, pins={"flashinfer": "0.6.4"})
    assert before == TABLES
