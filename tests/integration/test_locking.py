# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Locking and fetching wheels as a playbook does it, against doubles of an index: what is said, and that nothing else changes.

No host is asked: both run on the controller.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import typing as t
from pathlib import Path

import pytest
from flow import CHECKOUT
from index import File, Index

from ansible_collections.specdec.serving.plugins.module_utils import locks, stacks

STACK = stacks.Stack(
    engine="sglang",
    version="0.5.9",
    lane="cu128",
    machine="x86_64",
    python="3.12",
    platform="x86_64-manylinux_2_36",
    requirements=("sglang==0.5.9",),
    overrides=(),
    excludes=(),
    builds=(),
    indexes=(),
    torch="2.9.1",
    torch_builds={"2.9.1": "cu128", "2.11.0": "cu130"},
    flashinfer="0.6.3",
    parts=("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache"),
    kernel=("sgl-kernel", "0.3.21"),
    kernels=("sgl-kernel", "sglang-kernel"),
    lacks=(),
    package="sglang",
    label="cu128",
)
LOCK = """
- hosts: all
  gather_facts: false
  tasks:
    - specdec.serving.lock:
        pins_dir: "{{ pins }}"
        inputs: "{{ inputs }}"
        variable: specdec_instances[main].engine
        wheel_directories: "{{ wheels }}"
        replace: "{{ replace }}"
"""
WHEEL = """
- hosts: all
  gather_facts: false
  tasks:
    - specdec.serving.wheel:
        package: tiny-kernel
        source: "{{ source }}"
        pins_dir: "{{ pins }}"
"""

BUILD = """
- hosts: ct200
  gather_facts: false
  tasks:
    - specdec.serving.wheel:
        package: tiny-kernel
        source: {git: "file:///srv/kernels", commit: "1111111111111111111111111111111111111111", build_host: away.invalid}
        python: "3.12"
        machine: x86_64
        pins_dir: "{{ pins }}"
      delegate_to: away.invalid
"""


class Controller:
    """A pins directory, a cache and an index; runs plays for ct200, which is not there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pins = directory / "pins"
        self.index = Index()

    def run(self, play: str, *arguments: str, **extra: t.Any) -> subprocess.CompletedProcess[str]:
        (self.directory / "play.yml").write_text(play)
        environment = {
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": str(CHECKOUT / "collections"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml",
            "XDG_CACHE_HOME": str(self.directory / "cache"),
            "UV_CACHE_DIR": str(self.directory / "uv"),
            "UV_DEFAULT_INDEX": self.index.url,
            "UV_HTTP_RETRIES": "0",
        }
        words = ["ansible-playbook", "-i", "ct200,", str(self.directory / "play.yml"), "-e", json.dumps({"pins": str(self.pins), **extra})]
        return subprocess.run([*words, *arguments], env=environment, cwd=self.directory, capture_output=True, text=True, check=False)

    def lock(self, *arguments: str, wheels: t.Sequence[str] = (), replace: bool = False, **changes: t.Any) -> t.Any:
        inputs = locks.inputs(dataclasses.replace(STACK, **changes))
        return self.run(LOCK, *arguments, inputs=inputs, wheels=list(wheels), replace=replace)

    def refused(self, *said: str, **changes: t.Any) -> str:
        """It fails, names host and variable, says these words, and leaves the pins as they are."""
        before = self.kept()
        done = self.lock(replace=True, **changes)
        assert done.returncode != 0
        text = " ".join(done.stdout.split())
        for words in ("ct200: specdec_instances[main].engine: ", "nothing was changed", *said):
            assert words in text, done.stdout
        assert self.kept() == before
        return text

    def kept(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.pins.rglob("*") if path.is_file()}


@pytest.fixture
def controller(tmp_path: Path) -> t.Iterator[Controller]:
    made = Controller(tmp_path)
    index = made.index
    index.add(
        "sglang",
        "0.5.9",
        ["torch==2.9.1", "flashinfer_python==0.6.3", "flashinfer_cubin==0.6.3", "sgl-kernel==0.3.21", "quack-kernels==0.2.4"],
    )
    index.add("torch", "2.9.1", ["nvidia-nccl-cu12"])
    index.add("torch", "2.11.0", ["nvidia-nccl-cu13"])
    for name in ("nvidia-nccl-cu12", "nvidia-nccl-cu13"):
        index.add(name, "2.27.5")
    index.add("sgl-kernel", "0.3.21")
    for version, least in (("0.6.3", "4.3.4"), ("0.6.8.post1", "4.4.2")):
        index.add("flashinfer-python", version, ["nvidia-cutlass-dsl>=" + least])
        index.add("flashinfer-cubin", version)
    index.add("quack-kernels", "0.2.4", ["nvidia-cutlass-dsl>=4.3.4,<4.4.0"])
    index.add("quack-kernels", "0.3.2", ["nvidia-cutlass-dsl>=4.4.0"])
    for version in ("4.3.5", "4.4.2"):
        index.add("nvidia-cutlass-dsl", version)
    yield made
    index.close()


def test_a_lock_is_made_once_and_its_packages_are_shown_when_it_is_made_anew(controller: Controller) -> None:
    first = controller.lock("--diff")
    assert first.returncode == 0, first.stdout
    assert "+torch==2.9.1" in first.stdout
    [path] = (controller.pins / "locks").iterdir()
    controller.index.add("nvidia-nccl-cu12", "2.28.0")
    asked = len(controller.index.seen)
    again = controller.lock("--diff")
    assert "changed=0" in again.stdout
    assert len(controller.index.seen) == asked, "what is there is used as it is"
    anew = controller.lock("--diff", replace=True)
    assert "changed=1" in anew.stdout
    shown = re.findall(r"^[-+][^-+].*$", anew.stdout, re.MULTILINE)
    assert shown == ["-nvidia-nccl-cu12==2.27.5", "+nvidia-nccl-cu12==2.28.0"]
    assert "nvidia-nccl-cu12==2.28.0" in path.read_text()


def test_check_mode_locks_nothing(controller: Controller) -> None:
    done = controller.lock("--check")
    assert (done.returncode, controller.kept(), controller.index.seen) == (0, {}, [])
    assert "changed=1" in done.stdout


def test_pins_that_contradict_each_other(controller: Controller) -> None:
    assert controller.lock().returncode == 0
    text = controller.refused(
        "two requirements on nvidia-cutlass-dsl contradict each other",
        "=0.6.8.post1 requires nvidia-cutlass-dsl>=4.4.2",
        "=0.2.4 requires nvidia-cutlass-dsl>=4.3.4,<4.4.0",
        " against ",
        "Pin quack-kernels or nvidia-cutlass-dsl to a version that fits the other in specdec_pins.",
        overrides=("flashinfer-cubin==0.6.8.post1", "flashinfer-python==0.6.8.post1"),
        flashinfer="0.6.8.post1",
    )
    assert "we can conclude" not in text


def test_half_of_flashinfer(controller: Controller) -> None:
    controller.refused(
        "the parts of flashinfer have different versions",
        'specdec_pins: {flashinfer: "0.6.8.post1"}',
        overrides=("flashinfer-python==0.6.8.post1", "quack-kernels==0.3.2"),
        flashinfer="0.6.8.post1",
    )


def test_a_torch_of_another_lane(controller: Controller) -> None:
    controller.refused("torch was built for another lane", "built for cu130", overrides=("torch==2.11.0",), torch="2.11.0")


def test_a_cpu_torch_in_a_lane_of_gpus(controller: Controller) -> None:
    controller.index.add("torch", "2.9.1+cpu")
    controller.refused("torch is the CPU build in a lane of GPUs", overrides=("torch==2.9.1+cpu",), torch="2.9.1+cpu")


def test_another_version_than_the_stacks(controller: Controller) -> None:
    controller.refused("the lock does not hold the versions of the stack", "sgl-kernel 0.3.21", kernel=("sgl-kernel", "0.3.22"))


def test_a_version_that_does_not_exist(controller: Controller) -> None:
    controller.refused("a version that is required does not exist on the index", "torch==2.9.7", overrides=("torch==2.9.7",))


def test_a_wheel_for_another_platform(controller: Controller) -> None:
    controller.index.add("sgl-kernel", "0.4", tag="cp312-cp312-manylinux_2_28_aarch64")
    controller.refused("a package has no wheel for Python 3.12 on x86_64-manylinux_2_36", "sgl-kernel==0.4", overrides=("sgl-kernel==0.4",))


def test_an_index_that_is_down(controller: Controller) -> None:
    controller.index.close()
    controller.refused("the package index does not answer", controller.index.url)


def test_an_index_that_answers_garbage(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller.index, "answer", lambda _path, _accept: (200, "application/pdf", b"%PDF"))
    controller.refused("what answers is no package index that works", controller.index.url)


class TestWheelsByAddress:
    """``wheel`` with url and sha256."""

    def source(self, controller: Controller, **changes: str) -> dict[str, str]:
        file: File = controller.index.add("tiny-kernel", "1.0+cu130")
        return {"url": controller.index.link(file), "sha256": file.sha256, **changes}

    def cached(self, controller: Controller) -> list[str]:
        return sorted(path.name for path in (controller.directory / "cache").rglob("*") if path.is_file())

    def test_is_fetched_once_and_kept_under_its_name(self, controller: Controller) -> None:
        source = self.source(controller)
        done = controller.run(WHEEL, source=source)
        assert (done.returncode, self.cached(controller)) == (0, ["tiny_kernel-1.0+cu130-py3-none-any.whl"]), done.stdout
        assert "changed=1" in done.stdout
        asked = len(controller.index.seen)
        assert "changed=0" in controller.run(WHEEL, source=source).stdout
        assert len(controller.index.seen) == asked

    def test_that_is_another_file_than_the_pins(self, controller: Controller) -> None:
        done = controller.run(WHEEL, source=self.source(controller, sha256="0" * 64))
        assert done.returncode != 0
        for words in ("ct200: specdec_pins.tiny-kernel", "the file is not the one of the pin", "sha256 " + "0" * 64):
            assert words in done.stdout
        assert self.cached(controller) == []

    def test_that_is_not_there(self, controller: Controller) -> None:
        source = self.source(controller)
        done = controller.run(WHEEL, source={**source, "url": source["url"].replace("1.0", "2.0")})
        assert done.returncode != 0
        for words in ("ct200: specdec_pins.tiny-kernel", "the wheel cannot be fetched", "404"):
            assert words in done.stdout, done.stdout
        assert self.cached(controller) == []

    def test_that_nobody_serves(self, controller: Controller) -> None:
        source = self.source(controller)
        controller.index.close()
        done = controller.run(WHEEL, source=source)
        assert done.returncode != 0
        assert "the wheel cannot be fetched" in done.stdout
        assert self.cached(controller) == []

    def test_check_mode_fetches_nothing(self, controller: Controller) -> None:
        done = controller.run(WHEEL, "--check", source=self.source(controller))
        assert (done.returncode, self.cached(controller), controller.index.seen) == (0, [], [])


def test_a_build_host_that_cannot_be_reached(controller: Controller) -> None:
    done = controller.run(BUILD)
    assert done.returncode != 0
    for words in ("ct200: specdec_pins.tiny-kernel.build_host", "the build host cannot be reached", "name another build_host"):
        assert words in done.stdout, done.stdout
    assert controller.kept() == {}
