# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The deployments that worked, as locks: what no public index holds (local labels, jit-cache, nightly builds), by the real uv.

The indexes are doubles with small stand-ins of the same names, versions and requirements; what the real index has is locked in
test_stack_locks.py.
"""

from __future__ import annotations

import dataclasses
import hashlib
import typing as t
from pathlib import Path

import pytest
from index import Index
from index import wheel as stand_in

from ansible_collections.specdec.serving.plugins.module_utils import locks, stacks, wheelsources
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, OK
from ansible_collections.specdec.serving.plugins.plugin_utils import controller, hosttools

TABLES = controller.stacks()[0]
#: A node of eight RTX PRO 6000 Blackwell.
FACTS: dict[str, t.Any] = {
    "os": {"machine": "x86_64", "glibc": "2.36"},
    "gpus": {
        "source": "nvml",
        "driver": "580.95.05",
        "devices": [{"compute_capability": "12.0", "name": "RTX PRO 6000 Blackwell"}],
        "toolkits": [{"path": "/usr/local/cuda-13.0", "names": ["/usr/local/cuda"], "version": "13.0"}],
    },
    "pythons": [{"version": "3.12.3", "implementation": "cpython", "headers": True}],
}
NATIVE = "cp312-cp312-manylinux_2_28_x86_64"


class World:
    """The default index, and one double for each extra index of the stacks, as far as something is in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.default = Index()
        self.extra: dict[str, Index] = {}

    def close(self) -> None:
        for one in (self.default, *self.extra.values()):
            one.close()

    def on(self, url: str) -> Index:
        """The double of an extra index."""
        return self.extra.setdefault(url, Index())

    def labelled(self, *wheels: tuple[str, str, list[str]]) -> None:
        """Wheels on the extra index that the stacks name for them."""
        for name, version, requires in wheels:
            lane = "nightly-" + version.rpartition("+")[2] if ".dev" in version else version.rpartition("+")[2]
            [url] = [one["url"] for one in TABLES["lanes"][lane]["indexes"] if name in one["packages"]]
            self.on(url).add(name, version, requires, tag=NATIVE)

    def lock(
        self,
        engine: dict[str, str],
        pins: t.Optional[dict[str, str]] = None,
        packages: t.Sequence[str] = (),
        wheels: t.Optional[dict[str, wheelsources.Given]] = None,
    ) -> tuple[locks.Lock, dict[str, t.Any]]:
        """What uv makes of it, and what it was made from."""
        given = {name: one.version for name, one in (wheels or {}).items()}
        stack, found = stacks.resolve(TABLES, FACTS, engine, {**(pins or {}), **given}, packages)
        assert stack, [one.text() for one in found]
        stack = wheelsources.applied(stack, {}, wheels or {})
        indexes = tuple(dataclasses.replace(one, url=self.on(one.url).url) for one in stack.indexes)
        for index in indexes:
            double = next(one for one in self.extra.values() if one.url == index.url)
            for name in index.packages:
                double.packages.setdefault(name, [])
        wanted = locks.inputs(dataclasses.replace(stack, indexes=indexes))
        env = {"UV_DEFAULT_INDEX": self.default.url, "UV_CACHE_DIR": str(self.directory / "cache"), "UV_HTTP_RETRIES": "0"}
        places = [one.place.parent for one in (wheels or {}).values()]
        return locks.lock(wanted, controller.run, hosttools.find_uv(), places, env), wanted

    def given(self, name: str, version: str, requires: t.Sequence[str] = (), tag: str = NATIVE) -> wheelsources.Given:
        """A wheel by address or from a commit, at hand."""
        filename, content = stand_in(name, version, requires, tag=tag)
        place = self.directory / name / filename
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        return wheelsources.Given(name, version, filename, hashlib.sha256(content).hexdigest(), place)


@pytest.fixture
def world(tmp_path: Path) -> t.Iterator[World]:
    made = World(tmp_path)
    default = made.default
    default.add(
        "sglang",
        "0.5.9",
        ["torch==2.9.1", "flashinfer_python==0.6.3", "flashinfer_cubin==0.6.3", "sgl-kernel==0.3.21", "quack-kernels==0.2.4"],
    )
    default.add("torch", "2.9.1", ["nvidia-nccl-cu12==2.27.5"], tag=NATIVE)
    default.add("torch", "2.10.0", ["nvidia-nccl-cu12==2.27.5"], tag=NATIVE)
    default.add("nvidia-nccl-cu12", "2.27.5")
    default.add("nvidia-nccl-cu13", "2.28.9")
    default.add("sgl-kernel", "0.3.21", tag=NATIVE)
    for version, needs in (("0.6.3", ">=4.3.4"), ("0.6.4", ">=4.3.5"), ("0.6.5", ">=4.3.5"), ("0.6.8.post1", ">=4.4.2")):
        # as in episode 2: by itself it would pull torch up
        default.add("flashinfer-python", version, ["nvidia-cutlass-dsl" + needs, "torch>=2.9"])
        default.add("flashinfer-cubin", version)
    default.add("quack-kernels", "0.2.4", ["nvidia-cutlass-dsl>=4.3.4,<4.4.0"])
    default.add("quack-kernels", "0.3.2", ["nvidia-cutlass-dsl>=4.4.0"])
    for version in ("4.3.5", "4.4.2"):
        default.add("nvidia-cutlass-dsl", version)
    made.labelled(
        ("torch", "2.9.1+cu130", ["nvidia-nccl-cu13==2.28.9"]),
        ("torch", "2.10.0+cu130", ["nvidia-nccl-cu13==2.28.9"]),
        ("torch", "2.12.0.dev20260301+cu130", ["nvidia-nccl-cu13==2.28.9"]),
        ("sgl-kernel", "0.3.21+cu130", []),
        ("flashinfer-jit-cache", "0.6.4+cu130", []),
        ("flashinfer-jit-cache", "0.6.5+cu130", []),
        ("flashinfer-jit-cache", "0.6.8.post1+cu128", []),
        ("flashinfer-jit-cache", "0.6.8.post1+cu130", []),
    )
    yield made
    made.close()


def verdicts(lock: locks.Lock, wanted: t.Mapping[str, t.Any]) -> dict[str, str]:
    return {one.id: one.verdict for one in locks.check(lock, wanted)}


@pytest.mark.parametrize("lane", ["cu128", "cu130"])
def test_1_dflash_with_the_jit_cache(world: World, lane: str) -> None:
    pins = {"flashinfer": "0.6.8.post1", "quack-kernels": "0.3.2"}
    lock, wanted = world.lock({"name": "sglang", "version": "0.5.9", "lane": lane}, pins, ["flashinfer-jit-cache"])
    parts = {name: version for name, version in lock.versions.items() if name.startswith("flashinfer")}
    assert parts == {
        "flashinfer-python": "0.6.8.post1",
        "flashinfer-cubin": "0.6.8.post1",
        "flashinfer-jit-cache": "0.6.8.post1+" + lane,
    }
    assert set(verdicts(lock, wanted).values()) == {OK}


def test_1_the_half_override_is_refused_with_one_line(world: World) -> None:
    pins = {"flashinfer-python": "0.6.8.post1", "quack-kernels": "0.3.2"}
    lock, wanted = world.lock({"name": "sglang", "version": "0.5.9", "lane": "cu128"}, pins)
    [one] = [one for one in locks.check(lock, wanted) if one.verdict == ERROR]
    assert (one.id, one.fix) == ("parity.flashinfer", 'Pin all its parts at once: specdec_pins: {flashinfer: "0.6.8.post1"}')


def test_2_nightly_builds_with_exact_versions_and_a_kernel_from_source(world: World) -> None:
    engine = {"name": "sglang", "version": "0.5.10.dev20260301", "lane": "nightly-cu130"}
    requires = ["torch==2.9.1", "flashinfer_python==0.6.4", "flashinfer_cubin==0.6.4", "sglang-kernel==0.4.1"]
    wheels = {
        "sglang": world.given("sglang", engine["version"], requires, "py3-none-any"),
        "flashinfer-jit-cache": world.given("flashinfer-jit-cache", "0.6.5+cu130", tag="cp39-abi3-manylinux_2_28_x86_64"),
        # built on a host, so its platform is that host's
        "sglang-kernel": world.given("sglang-kernel", "0.4.1.post1", tag="cp312-cp312-linux_x86_64"),
    }
    pins = {"torch": "2.12.0.dev20260301+cu130", "flashinfer-python": "0.6.5", "flashinfer-cubin": "0.6.5"}
    lock, wanted = world.lock(engine, pins, ["flashinfer-jit-cache"], wheels)
    expected = {
        "sglang": "0.5.10.dev20260301",
        "torch": "2.12.0.dev20260301+cu130",
        "flashinfer-python": "0.6.5",
        "flashinfer-cubin": "0.6.5",
        "flashinfer-jit-cache": "0.6.5+cu130",
        "sglang-kernel": "0.4.1.post1",
        "nvidia-nccl-cu13": "2.28.9",
    }
    assert {name: lock.versions.get(name) for name in expected} == expected
    assert "nvidia-nccl-cu12" not in lock.versions
    assert {one["name"]: one["sha256"] for one in lock.wheels} == {name: one.sha256 for name, one in wheels.items()}
    assert ERROR not in verdicts(lock, wanted).values(), [one.text() for one in locks.check(lock, wanted)]


@pytest.mark.parametrize(("cubin", "name"), [("0.6.4", None), ("0.6.3", "parity.flashinfer")])
def test_3_vllm_at_parity_and_the_pair_that_was_not(world: World, cubin: str, name: t.Optional[str]) -> None:
    world.default.add("vllm", "0.16.0", ["torch==2.9.1", "flashinfer-python==0.6.3"], tag="cp38-abi3-manylinux_2_31_x86_64")
    pins = {"flashinfer-python": "0.6.4", "flashinfer-cubin": cubin}
    lock, wanted = world.lock({"name": "vllm", "version": "0.16.0"}, pins, ["flashinfer-cubin"])
    assert (lock.versions["flashinfer-python"], lock.versions["flashinfer-cubin"]) == ("0.6.4", cubin)
    assert [one.id for one in locks.check(lock, wanted) if one.verdict == ERROR] == ([name] if name else [])


def test_4_eagle3_on_cuda_13(world: World) -> None:
    engine = {"name": "sglang", "version": "0.5.9", "lane": "cu130"}
    lock, wanted = world.lock(engine, {"flashinfer": "0.6.4"}, ["flashinfer-jit-cache"])
    expected = {
        "torch": "2.9.1+cu130",
        "sgl-kernel": "0.3.21+cu130",
        "flashinfer-python": "0.6.4",
        "flashinfer-cubin": "0.6.4",
        "flashinfer-jit-cache": "0.6.4+cu130",
        "nvidia-nccl-cu13": "2.28.9",
    }
    assert {name: lock.versions.get(name) for name in expected} == expected
    assert set(verdicts(lock, wanted).values()) == {OK}
    # the extra indexes were asked for their packages alone
    for url, double in world.extra.items():
        own = {name for row in TABLES["lanes"].values() for one in row["indexes"] if one["url"] == url for name in one["packages"]}
        assert double.asked() <= own
