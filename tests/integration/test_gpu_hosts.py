# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts with GPUs, over SSH: the real module and nvidia-ml-py on a real host, whose driver alone is a double.

The driver's libraries, its files below /proc and /sys, and its device nodes are laid into the host as in
tests/unit/module_utils/gpuhost.py; what the facts are is expected there, too.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import typing as t
from pathlib import Path

import pytest
from flow import CHECKOUT, ROOT, Fleet, variables

from ansible_collections.specdec.serving.plugins.plugin_utils import controller, hosttools
from tests.unit.module_utils.gpuhost import GpuHost
from tests.unit.module_utils.test_gpus import FACTS, FINDINGS

HOST = "ct200"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
MIB = 1024 * 1024

#: Undone in the reverse order of how it is done below.
OFF = (
    f"rm -f /dev/nvidia* /etc/nvml-double.json {LIBRARIES}/libnvidia-ml.so* {LIBRARIES}/libcuda.so*; ldconfig; "
    "umount /proc/driver /sys/bus/pci/devices 2>/dev/null; true"
)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("gpus"), prefix="specdec-gpus", subnet="10.89.81")
    try:
        made.start(HOST)
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("double")


@contextlib.contextmanager
def driver(fleet: Fleet, name: str, directory: Path, shared: Path) -> t.Iterator[None]:
    """The host with a driver and GPUs of one kind."""
    made = GpuHost(name, directory, shared)
    script = ["set -e", "mount -t tmpfs tmpfs /proc/driver", "mount -t tmpfs tmpfs /sys/bus/pci/devices"]
    script.append(_write("/etc/nvml-double.json", json.dumps(made.data).encode()))
    for path in sorted(made.files.rglob("*")):
        place = "/" + str(path.relative_to(made.files))
        if path.is_symlink():
            script.append("ln -s %s %s" % (path.readlink(), place))
        elif path.is_dir():
            script.append("mkdir -p " + place)
        elif place.startswith(("/proc/driver/", "/sys/", "/dev/")):
            script.append(_write(place, path.read_bytes()))
    script.append("chmod 666 /dev/nvidia* || true")
    for path in sorted(made.libraries.iterdir(), key=lambda one: one.is_symlink()):
        place = "%s/%s" % (LIBRARIES, path.name)
        script.append("ln -s %s %s" % (path.readlink(), place) if path.is_symlink() else _write(place, path.read_bytes()))
    script.append("ldconfig")
    try:
        fleet.sh(HOST, "\n".join(script))
        yield
    finally:
        fleet.sh(HOST, OFF)


def _write(path: str, data: bytes) -> str:
    return "echo %s | base64 -d | gzip -d > %s" % (base64.b64encode(gzip.compress(data)).decode(), path)


def facts(fleet: Fleet) -> dict[str, t.Any]:
    """What the module says of the host."""
    argv = ["ansible", HOST, "--become", "-m", "specdec.serving.gpu_facts"]
    said = fleet.must(*argv, env={"ANSIBLE_COLLECTIONS_PATH": str(CHECKOUT / "collections"), "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"})
    return json.loads(said[said.index("{") :])["ansible_facts"]["specdec_host"]["gpus"]


def test_before_the_host_program_is_there_cuda_and_the_kernel_tell_what_they_can(fleet: Fleet, tmp_path: Path, shared: Path) -> None:
    with driver(fleet, "rtx-pro-6000", tmp_path, shared):
        found = facts(fleet)
    assert (found["source"], found["driver"], found["cuda"]) == ("cuda", "580.95.05", "13.0")
    assert len(found["devices"]) == 8 and {one["name"] for one in found["devices"]} == {"NVIDIA RTX PRO 6000 Blackwell Server Edition"}
    assert {one["compute_capability"] for one in found["devices"]} == {"12.0"}
    assert found["topology"]["p2p"] is None and "links and P2P are not known" in found["topology"]["reason"]
    assert [(one["id"], one["verdict"]) for one in found["findings"]] == [("gpu.nvml", "could not check")]


def test_an_old_driver_is_told_what_the_lane_needs_and_what_fits_today(fleet: Fleet, tmp_path: Path, shared: Path) -> None:
    wanted = {
        **variables(engine={"name": "sglang", "version": "0.5.23", "lane": "cu130"}),
        "specdec_pins": {},
        "specdec_extra_packages": [],
    }
    before = fleet.snapshot(HOST)
    with driver(fleet, "h200", tmp_path, shared):
        run = fleet.deploy(limit=HOST, variables=wanted)
    assert run.rc != 0
    for words in ("570.124.06", ">= 580.65.06", "What fits this host as it is: sglang 0.5.10.post1 on lane cu128."):
        assert words in run.text, run.why
    assert fleet.snapshot(HOST) == before


@pytest.fixture(scope="module")
def tools(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The host program in its place, as the role uv would lay it there."""
    program = hosttools.tools(tmp_path_factory.mktemp("cache"), controller.run, "x86_64")["specdec"]["path"]
    fleet.sh(HOST, "mkdir -p %s/bin" % ROOT)
    fleet.must("ansible", HOST, "--become", "-m", "ansible.builtin.copy", "-a", "src=%s dest=%s/bin/specdec mode=0755" % (program, ROOT))


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("name", sorted(FACTS.keys() - {"gb10"}))
def test_what_nvml_says_of_each_kind_of_host(fleet: Fleet, name: str, tmp_path: Path, shared: Path) -> None:
    source, version, cuda, flavour, count, called, capability, memory = FACTS[name]
    with driver(fleet, name, tmp_path, shared):
        found = facts(fleet)
    assert (found["source"], found["driver"], found["cuda"]) == (source, version, cuda)
    assert found["module"] == {"version": version, "flavour": flavour}
    healthy = [one for one in found["devices"] if one["error"] is None]
    # a container may have been given fewer GPUs than there are, so one that is lost has no name there
    assert (len(found["devices"]), {one["name"] for one in healthy}) == (count, {called})
    assert {one["compute_capability"] for one in healthy} == {capability}
    assert {one["memory"] for one in healthy} == {memory * MIB if memory else None}
    assert [(one["id"], one["verdict"]) for one in found["findings"]] == FINDINGS.get(name, [])
