# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts and findings of hosts with GPUs: the real probe and nvidia-ml-py over a double of the driver."""

from __future__ import annotations

import json
import socket
import sys
import typing as t
import zipfile
from pathlib import Path

import pytest
import yaml

from ansible_collections.specdec.serving.plugins.module_utils import gates, gpufindings, gpus, remains, stacks
from ansible_collections.specdec.serving.plugins.module_utils.findings import COULD_NOT_CHECK, ERROR, OK, WARNING, Finding, from_dict
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed

from .gpuhost import HOSTS, GpuHost

TABLES = yaml.safe_load((Path(gpus.__file__).parent / "data" / "stacks.yml").read_text())
MIB = 1024 * 1024
GONE = Completed(127, "", "not there")

Make = t.Callable[[str], GpuHost]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("double")


@pytest.fixture
def host(tmp_path: Path, shared: Path) -> Make:
    return lambda name: GpuHost(name, tmp_path / name, shared)


@pytest.fixture(autouse=True)
def no_toolkit_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)


def ids(facts: t.Mapping[str, t.Any]) -> list[tuple[str, str]]:
    return [(one["id"], one["verdict"]) for one in facts["findings"]]


def only(facts: t.Mapping[str, t.Any]) -> dict[str, str]:
    assert len(facts["findings"]) == 1, ids(facts)
    return facts["findings"][0]


def column(facts: t.Mapping[str, t.Any], name: str) -> list[t.Any]:
    return [device[name] for device in facts["devices"]]


# Each kind of host: what it is, what is said about it, which stack it gets

#: source, driver, CUDA, flavour, number of GPUs, name, compute capability, memory in MiB
FACTS = {
    "rtx-pro-6000": ("nvml", "580.95.05", "13.0", "open", 8, "NVIDIA RTX PRO 6000 Blackwell Server Edition", "12.0", 97887),
    "b200": ("nvml", "580.95.05", "13.0", "open", 8, "NVIDIA B200", "10.0", 183359),
    "h200": ("nvml", "570.124.06", "12.8", "open", 8, "NVIDIA H200", "9.0", 143771),
    "l40s": ("nvml", "550.54.14", "12.4", "proprietary", 1, "NVIDIA L40S", "8.9", 46068),
    "gb10": ("nvml", "580.95.05", "13.0", "open", 1, "NVIDIA GB10", "12.1", None),
    "mig": ("nvml", "570.124.06", "12.8", "open", 2, "NVIDIA H100 80GB HBM3", "9.0", 81559),
    "mismatch": ("pci", "570.124.06", "12.9", "open", 2, "NVIDIA H200", None, None),
    "fault": ("nvml", "580.95.05", "13.0", "open", 4, "NVIDIA L40S", "8.9", 46068),
}

FINDINGS: dict[str, list[tuple[str, str]]] = {
    "gb10": [("gpu.unified-memory", OK)],
    "mismatch": [("gpu.library-mismatch", ERROR)],
    "fault": [("gpu.fault", WARNING), ("gpu.fault", ERROR)],
}

#: The lane that the newest fitting SGLang gets, and its warnings.
LANES = {
    "rtx-pro-6000": ("0.5.23", "cu130", []),
    "b200": ("0.5.23", "cu130", []),
    "h200": ("0.5.10.post1", "cu128", []),
    "l40s": ("0.5.10.post1", "cu128", ["stack.driver-older-than-toolkit"]),
    "gb10": ("0.5.23", "cu130", []),
    "mig": ("0.5.10.post1", "cu128", []),
    "none": ("0.5.23", "cpu", []),
    "mismatch": ("0.5.10.post1", "cu128", []),
    "fault": ("0.5.23", "cu130", []),
}


#: The same for vLLM.
VLLM = {
    "rtx-pro-6000": ("0.33.0", "cu130"),
    "b200": ("0.33.0", "cu130"),
    "h200": ("0.19.1", "cu128"),
    "l40s": ("0.19.1", "cu128"),
    "gb10": ("0.33.0", "cu130"),
    "mig": ("0.19.1", "cu128"),
    "none": ("0.32.0", "cpu"),
    "mismatch": ("0.19.1", "cu128"),
    "fault": ("0.33.0", "cu130"),
}


def test_every_host_of_the_double_is_expected() -> None:
    assert set(HOSTS) == set(LANES) == set(VLLM) == {*FACTS, "none"}


@pytest.mark.parametrize("name", FACTS)
def test_what_a_host_is(host: Make, name: str) -> None:
    source, driver, cuda, flavour, count, called, capability, memory = FACTS[name]
    facts = host(name).gather()
    assert (facts["source"], facts["driver"], facts["cuda"]) == (source, driver, cuda)
    assert facts["module"] == {"version": driver, "flavour": flavour}
    assert column(facts, "name") == [called] * count
    assert [device["uuid"] for device in facts["devices"]] == [device["uuid"] for device in HOSTS[name]["devices"]]
    healthy = [device for device in facts["devices"] if device["error"] is None]
    assert {device["compute_capability"] for device in healthy} == {capability}
    assert {device["memory"] for device in healthy} == {memory * MIB if memory else None}
    assert ids(facts) == FINDINGS.get(name, [])
    json.dumps(facts)


def test_a_host_without_a_gpu_has_no_source_and_no_finding(host: Make) -> None:
    bare = host("none")
    facts = bare.gather()
    assert (facts["source"], facts["driver"], facts["devices"], facts["findings"]) == ("none", None, [], [])
    assert bare.started == []


@pytest.mark.parametrize("name", LANES)
def test_the_stack_that_a_host_gets(host: Make, name: str) -> None:
    version, lane, warnings = LANES[name]
    facts = state(host, name)
    stack, found = stacks.resolve(TABLES, facts, {"name": "sglang"})
    assert stack and (stack.version, stack.lane, stack.machine) == (version, lane, HOSTS[name]["machine"])
    assert [one.id for one in found] == warnings
    stack, found = stacks.resolve(TABLES, facts, {"name": "vllm"})
    assert stack and (stack.version, stack.lane) == VLLM[name]


@pytest.mark.parametrize("name", ["h200", "mig", "mismatch", "l40s"])
def test_an_old_driver_is_told_what_the_lane_needs_and_what_fits_today(host: Make, name: str) -> None:
    stack, found = stacks.resolve(TABLES, state(host, name), {"name": "sglang", "version": "0.5.23", "lane": "cu130"}, host="ct200")
    assert stack is None
    (one,) = found
    assert (one.id, one.found, one.expected) == ("stack.driver", HOSTS[name]["driver"], ">= 580.65.06")
    assert one.fix.endswith("What fits this host as it is: sglang 0.5.10.post1 on lane cu128.")


def state(host: Make, name: str, **gpus_: t.Any) -> dict[str, t.Any]:
    data = HOSTS[name]
    return {
        "os": {"machine": data["machine"], "glibc": data["glibc"]},
        "gpus": {**host(name).gather(), **gpus_},
        "pythons": [{"version": data["python"], "implementation": "cpython", "headers": True, "path": "/usr/bin/python3"}],
    }


# Details that NVML gives


def test_links_and_paths_between_gpus(host: Make) -> None:
    pcie, nvlink = host("rtx-pro-6000").gather(), host("b200").gather()
    assert set(column(pcie, "nvlinks")) == {0} and set(column(nvlink, "nvlinks")) == {18}
    assert pcie["devices"][0]["pcie"] == {"generation": 5, "width": 16, "max_generation": 5, "max_width": 16}
    assert pcie["topology"]["paths"][0] == [None, "PXB", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]
    assert pcie["topology"]["paths"][7][6] == "PXB"
    assert pcie["topology"]["p2p"][3] == ["ok"] * 3 + [None] + ["ok"] * 4
    assert host("mig").gather()["topology"] == {
        "paths": [[None, "NODE"], ["NODE", None]],
        "p2p": [[None, "not supported"], ["not supported", None]],
        "reason": None,
    }


def test_who_holds_memory(host: Make) -> None:
    facts = host("rtx-pro-6000").gather()
    assert column(facts, "processes")[0] == [{"pid": 4242, "name": "python3", "bytes": 80 * 1024 * MIB, "container": False}]
    assert column(facts, "processes")[1:] == [[]] * 7


def test_whose_memory_is_asked_of_nvml_alone(host: Make) -> None:
    one = host("rtx-pro-6000")
    assert gpus.holders(str(one.root), one.run, one.files) == {4242: 80 * 1024 * MIB}
    bare = host("none")
    assert gpus.holders("/nowhere", bare.run, bare.files) == {}
    assert gpus.holders(str(one.root), no_answer, one.files) is None


def no_answer(_argv: t.Sequence[str], **_options: t.Any) -> Completed:
    return Completed(124, "", "")


class TestWhatAStoppedReleaseLeaves:
    """A process that has ended by the kernel's word, and by the driver's still holds memory."""

    BEFORE = (gates.Listener(4242, "python3 -m sglang", "/system.slice/specdec-main.service", 500.0),)

    def gone(self, one: GpuHost, run: t.Any = None, uses_gpus: bool = True) -> Finding:
        return remains.gone(self.BEFORE, uses_gpus, str(one.root), run or one.run, one.files / "proc", one.files, patience=0.2)

    def test_its_processes_are_those_of_its_control_group(self, host: Make) -> None:
        one = host("none")
        places = {
            1: "/system.slice/specdec-main.service",
            2: "/system.slice/specdec-main.service/ranks",
            3: "/lxc/101/system.slice/specdec-main.service",
            4: "/system.slice/specdec-main.service.d",
        }
        for pid, place in places.items():
            one.write("proc/%d/cgroup" % pid, "0::%s\n" % place)
        one.answers["systemctl"] = Completed(0, "/system.slice/specdec-main.service\n", "")
        found = remains.processes(["specdec-main.service"], one.run, one.files / "proc")
        assert sorted(process.pid or 0 for process in found) == [1, 2]
        one.answers["systemctl"] = Completed(0, "\n", "")
        assert remains.processes(["specdec-main.service"], one.run, one.files / "proc") == []

    def test_memory_that_is_not_given_back_is_an_error_with_its_holder(self, host: Make) -> None:
        found = self.gone(host("rtx-pro-6000"))
        assert (found.id, found.verdict, found.found) == ("transaction.old-release", ERROR, "process 4242 holds 85.9 GB")

    def test_it_is_waited_for(self, host: Make) -> None:
        one = host("rtx-pro-6000")

        def run(argv: t.Sequence[str], **options: t.Any) -> Completed:
            answer = one.run(argv, **options)
            one.data["devices"][0]["processes"] = []
            return answer

        found = remains.gone(self.BEFORE, True, str(one.root), run, one.files / "proc", one.files)
        assert (found.verdict, found.message) == (OK, "its 1 processes are gone, and hold no memory of a GPU")

    def test_a_process_that_lives_is_an_error(self, host: Make) -> None:
        one = host("none")
        one.write("proc/4242/stat", "4242 (a ) b) S " + " ".join(["0"] * 18) + " 500 0\n")
        found = self.gone(one, uses_gpus=False)
        assert (found.verdict, found.message) == (ERROR, "is stopped, but its processes are not gone")
        one.write("proc/4242/stat", "4242 (other) S " + " ".join(["0"] * 18) + " 900 0\n")
        assert self.gone(one, uses_gpus=False).verdict == OK, "the pid is another process's now"

    def test_without_an_answer_nothing_is_known(self, host: Make) -> None:
        found = self.gone(host("rtx-pro-6000"), no_answer)
        assert found.verdict == COULD_NOT_CHECK


def test_memory_that_the_driver_does_not_tell_is_null_with_a_reason(host: Make) -> None:
    (device,) = host("gb10").gather()["devices"]
    assert (device["memory"], device["memory_reason"], device["unified"]) == (None, "the driver says: Not Supported", True)
    assert device["processes"] == [{"pid": 4242, "name": "Xorg", "bytes": None, "container": False}]


GB = 10**9


@pytest.mark.parametrize(
    ("fraction", "available", "serving", "verdicts"),
    [
        (0.7, 100 * GB, False, []),
        (0.9, 37 * GB, False, [ERROR]),
        (0.9, 37 * GB, True, []),
        (None, 100 * GB, False, [WARNING]),
        (0.7, None, False, [COULD_NOT_CHECK]),
    ],
)
def test_the_share_of_a_memory_that_gpu_and_host_have_in_common(
    host: Make, fraction: t.Optional[float], available: t.Optional[int], serving: bool, verdicts: list[str]
) -> None:
    memory = {"total": 121 * GB, "available": available}
    found = gpufindings.unified_memory(host("gb10").gather(), memory, fraction, "ct200: main", "mem-fraction-static", serving)
    assert [one.verdict for one in found] == verdicts
    assert gpufindings.unified_memory(host("l40s").gather(), memory, fraction, "ct200: main", "mem-fraction-static", serving) == []
    if verdicts == [ERROR]:
        assert (found[0].found, found[0].expected) == ("37.0 of 121.0 GB available", ">= 108.9 GB (mem-fraction-static 0.9)")


def test_the_layout_of_mig(host: Make) -> None:
    divided, whole = column(host("mig").gather(), "mig")
    assert [(part["name"].split()[-1], part["memory"], part["gpu_instance"]) for part in divided["devices"]] == [
        ("3g.40gb", 40448 * MIB, 1),
        ("1g.10gb", 9984 * MIB, 9),
    ]
    assert whole == {"enabled": False, "devices": []}
    assert column(host("l40s").gather(), "mig") == [None]


def test_memory_of_a_divided_gpu_that_nobody_may_ask_is_not_unified(host: Make) -> None:
    divided = host("mig")
    divided.data["devices"][0]["memory"] = {"error": gpufindings.NOT_SUPPORTED}
    facts = divided.gather()
    assert column(facts, "unified") == [False, False]
    assert facts["devices"][0]["memory"] is None and facts["findings"] == []


def test_one_gpu_in_error_leaves_the_others_readable(host: Make) -> None:
    facts = host("fault").gather()
    pending, lost = facts["findings"]
    assert (pending["subject"], pending["found"]) == ("GPU 1", "remapping pending")
    assert (lost["subject"], lost["found"], lost["evidence"]) == ("GPU 2", "GPU is lost", "NVIDIA L40S (0000:41:00.0)")
    assert [bool(device["memory"]) for device in facts["devices"]] == [True, True, False, True]
    assert column(facts, "bus_id") == ["0000:%s:00.0" % bus for bus in ("01", "21", "41", "61")]
    assert facts["topology"]["paths"][0] == [None, "SYS", None, "SYS"]


def test_a_gpu_that_no_longer_answers_a_question_is_in_error(host: Make) -> None:
    one = host("l40s")
    one.data["devices"][0]["memory"] = {"error": gpufindings.RESET_REQUIRED}
    facts = one.gather()
    assert only(facts)["found"] == "GPU requires restart"
    assert facts["devices"][0]["unified"] is False


def test_broken_memory_that_cannot_be_remapped(host: Make) -> None:
    one = host("l40s")
    one.data["devices"][0]["remapping"] = [0, 1]
    assert only(one.gather())["fix"] == "Replace this GPU."


def test_a_gpu_that_the_driver_holds_and_does_not_count(host: Make) -> None:
    eight = host("h200")
    lost = eight.data["devices"].pop()
    facts = eight.gather()
    assert (only(facts)["id"], only(facts)["subject"]) == ("gpu.fault", "GPU " + lost["bus_id"][-12:].lower())
    eight.container("lxc")
    assert eight.gather()["findings"] == [], "a container may have been given fewer"


@pytest.mark.parametrize(
    ("used", "verdicts"),
    [(["all"], [WARNING, ERROR]), (["2"], [WARNING, ERROR]), (["0", "3"], [WARNING, WARNING]), (None, [WARNING, WARNING])],
)
def test_errors_of_gpus_that_are_not_used_forbid_nothing(host: Make, used: t.Any, verdicts: list[str]) -> None:
    facts = host("fault").gather()
    found = gpufindings.concerning([from_dict(one) for one in facts["findings"]], facts, used)
    assert [one.verdict for one in found] == verdicts


def test_a_part_of_a_divided_gpu_is_a_use_of_it(host: Make) -> None:
    divided = host("mig")
    divided.data["devices"][0]["remapping"] = [0, 1]
    facts = divided.gather()
    found = [from_dict(one) for one in facts["findings"]]
    assert [one.verdict for one in gpufindings.concerning(found, facts, ["MIG-00000002"])] == [ERROR]
    assert [one.verdict for one in gpufindings.concerning(found, facts, ["1"])] == [WARNING]


# What keeps a host from its GPUs


def test_a_module_that_is_not_loaded(host: Make) -> None:
    one = host("l40s")
    for path in ("proc/driver", "dev"):
        one.remove(path)
    one.pci("0000:01:00.0", "nouveau")
    one.write("sys/module/nouveau/refcnt", "1")
    facts = one.gather()
    found = only(facts)
    assert (facts["source"], facts["driver"], facts["answers"]) == ("pci", None, {})
    assert (found["id"], found["found"], found["cause"]) == (
        "gpu.no-driver",
        "1 on PCI, held by nouveau",
        "The GPUs are held by the module nouveau.",
    )
    assert "6.8.0-85-generic" in found["fix"]
    one.container("lxc")
    assert "on the machine that runs this container" in only(one.gather())["fix"]
    stack, refused = stacks.resolve(TABLES, {**state(host, "none"), "gpus": facts}, {"name": "sglang"})
    assert stack is None and "no driver" in refused[0].found


@pytest.mark.parametrize("flavour", ["open", "proprietary"])
def test_a_driver_that_starts_no_gpu(host: Make, flavour: str) -> None:
    one = host("rtx-pro-6000")
    one.data["flavour"] = flavour
    one.data["devices"] = []
    one.data["cuda_init"] = 100
    if flavour == "proprietary":
        one.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 2025\n")
    found = only(one.gather())
    assert (found["id"], found["evidence"]) == ("gpu.no-devices", "kernel module 580.95.05, " + flavour)
    assert ("open kernel modules" in found["fix"]) == (flavour == "proprietary")


def test_nvidia_smi_that_finds_no_gpu(host: Make) -> None:
    one = without_nvml(host, "l40s", Completed(gpufindings.NOT_FOUND, "No devices were found\n", ""))
    absent(one)
    one.data["cuda_init"] = 100
    assert only(one.gather())["id"] == "gpu.no-devices"


def test_libraries_of_another_version_in_a_container(host: Make) -> None:
    one = host("mismatch")
    one.container("lxc")
    found = only(one.gather())
    assert found["found"] == "module 570.124.06, libnvidia-ml 575.57.08"
    assert "570.124.06" in found["fix"] and "--no-kernel-module" in found["fix"]


def test_a_mismatch_that_only_nvidia_smi_tells(host: Make) -> None:
    one = host("l40s")
    one.remove("../lib/libnvidia-ml.so.1")
    words = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 575.57"
    one.answers["nvidia-smi"] = Completed(gpufindings.VERSION_MISMATCH, words, "")
    found = only(one.gather())
    assert found["id"] == "gpu.library-mismatch" and words in found["evidence"]


def test_a_newer_libcuda_that_works_is_no_mismatch(host: Make) -> None:
    """Forward compatibility."""
    one = host("l40s")
    (one.libraries / "libcuda.so.550.54.14").rename(one.libraries / "libcuda.so.580.95.05")
    (one.libraries / "libcuda.so.1").unlink()
    (one.libraries / "libcuda.so.1").symlink_to("libcuda.so.580.95.05")
    facts = one.gather()
    assert facts["libraries"] == {"libnvidia-ml.so.1": "550.54.14", "libcuda.so.1": "580.95.05"}
    assert facts["findings"] == []


def test_a_kernel_module_without_its_libraries(host: Make) -> None:
    one = host("l40s")
    for path in one.libraries.iterdir():
        path.unlink()
    found = only(one.gather())
    assert (found["id"], found["expected"]) == ("gpu.library-absent", "libcuda.so.1 of driver 550.54.14")
    assert "libcuda.so.1" in found["found"] and "ldconfig" in found["fix"]


def test_a_container_without_device_nodes(host: Make) -> None:
    one = host("l40s")
    one.remove("dev")
    one.data.update(init=9, cuda_init=100)
    one.container("lxc")
    assert only(one.gather())["id"] == "gpu.not-passed"


def test_uvm_that_came_too_late(host: Make) -> None:
    one = host("l40s")
    one.remove("dev/nvidia-uvm")
    one.data["cuda_init"] = 999
    found = only(one.gather())
    assert (found["id"], found["found"], found["evidence"]) == ("gpu.uvm", "no /dev/nvidia-uvm", "cuInit: CUDA_ERROR")


@pytest.mark.parametrize(
    ("node", "expected"), [("nvidia-uvm", "gpu.uvm"), ("nvidia0", "gpu.device-node"), ("nvidiactl", "gpu.device-node")]
)
def test_a_node_that_cannot_be_opened(host: Make, node: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = host("l40s")
    one.remove("dev/" + node)
    # A socket's file cannot be opened, whoever tries: ENXIO, as a node with a stale number.
    monkeypatch.chdir(one.files / "dev")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(node)
    (one.files / "dev" / node).chmod(0o666)
    found = only(one.gather())
    assert (found["id"], found["found"]) == (expected, "/dev/%s: ENXIO" % node)


def test_nodes_that_the_services_user_may_not_open(host: Make) -> None:
    one = host("l40s")
    (one.files / "dev/nvidia0").chmod(0o660)
    found = only(one.gather())
    assert (found["id"], found["verdict"], found["found"]) == ("gpu.device-mode", WARNING, "/dev/nvidia0 0660")


@pytest.mark.parametrize(
    ("code", "word"), [(100, "CUDA_VISIBLE_DEVICES"), (802, "fabricmanager"), (803, "libcuda"), (999, "nvidia-modprobe"), (46, "Xid")]
)
def test_cuda_that_does_not_start_although_nvml_answers(host: Make, code: int, word: str) -> None:
    one = host("h200")
    one.data["cuda_init"] = code
    facts = one.gather()
    assert facts["source"] == "nvml"
    assert (only(facts)["id"], only(facts)["found"]) == ("gpu.cuda-init", "cuInit: CUDA_ERROR (%d)" % code)
    assert word in only(facts)["fix"]


def test_nvml_lost_in_a_container_after_a_reload(host: Make) -> None:
    one = host("l40s")
    one.container("docker")
    one.data.update(init=999, cuda_init=999)
    one.answers["nvidia-smi"] = Completed(255, "Failed to initialize NVML: Unknown Error\n", "")
    facts = one.gather()
    assert (facts["source"], only(facts)["id"], only(facts)["verdict"]) == ("pci", "gpu.nvml", ERROR)
    assert "reload" in only(facts)["cause"] and "/dev/char" in only(facts)["fix"]


def test_a_driver_that_hangs_is_left_alone_and_what_it_said_is_kept(host: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_PROBE_TIMEOUT", 3.0)
    one = host("l40s")
    one.data["hang"] = 1
    facts = one.gather()
    assert (only(facts)["id"], only(facts)["found"]) == ("gpu.silent", "no answer within 3 s")
    assert only(facts)["evidence"] == "NVML: answered; CUDA: initialising did not end"
    assert (facts["source"], facts["cuda"], column(facts, "compute_capability")) == ("nvml", "12.4", ["8.9"])
    assert "nvidia-smi" not in [argv[0] for argv in one.started]


def test_a_driver_that_kills_who_asks(host: Make) -> None:
    one = host("l40s")
    one.data["crash"] = 1
    facts = one.gather()
    assert (facts["source"], column(facts, "name")) == ("pci", ["NVIDIA L40S"])
    assert only(facts)["id"] == "gpu.silent" and "status -6" in only(facts)["found"]


def test_a_gpu_kept_for_a_virtual_machine_is_none(host: Make) -> None:
    one = host("none")
    one.pci("0000:01:00.0", "vfio-pci")
    facts = one.gather()
    assert (facts["source"], facts["pci"]) == ("none", [{"bus_id": "0000:01:00.0", "driver": "vfio-pci"}])


# What is around the GPUs


def test_containers(host: Make) -> None:
    one = host("l40s")
    assert one.gather()["container"] is None
    one.container("lxc", nesting=False)
    one.write("proc/self/uid_map", "         0     100000      65536\n")
    facts = one.gather()
    assert facts["container"] == {"kind": "lxc", "unprivileged": True, "nesting": False}
    assert (only(facts)["id"], only(facts)["verdict"]) == ("gpu.nesting", WARNING)
    assert "nesting=1" in only(facts)["fix"] and "sandbox: container" in only(facts)["fix"]
    one.container("lxc")
    one.write("proc/self/uid_map", "         0          0 4294967295\n")
    assert one.gather()["container"] == {"kind": "lxc", "unprivileged": False, "nesting": True}
    one.container("docker")
    assert one.gather()["container"] == {"kind": "docker", "unprivileged": False, "nesting": None}


def test_a_driver_that_an_unattended_upgrade_would_replace(host: Make) -> None:
    one = host("l40s")
    driver = one.data["driver"]
    rows = [
        "install installed nvidia-utils-1 %s-0ubuntu1" % driver,
        "hold installed nvidia-driver-1 %s-0ubuntu1" % driver,
        "deinstall config-files nvidia-old %s-0ubuntu1" % driver,
        "install installed nvidia-modprobe 1.2-1",
        "install installed libnvidia-compute-1 1:%s-1" % driver,
    ]
    one.answers["dpkg-query"] = Completed(0, "\n".join(rows) + "\n", "")
    assert one.gather()["upgrades"] is None
    one.answers["apt-config"] = Completed(0, 'APT::Periodic::Unattended-Upgrade "0";\n', "")
    assert one.gather()["upgrades"] is None
    one.answers["apt-config"] = Completed(0, 'APT::Periodic::Unattended-Upgrade "1";\n', "")
    facts = one.gather()
    assert facts["upgrades"] == ["libnvidia-compute-1", "nvidia-utils-1"]
    assert (only(facts)["id"], only(facts)["verdict"]) == ("gpu.unattended-upgrade", WARNING)
    assert only(facts)["fix"] == "apt-mark hold libnvidia-compute-1 nvidia-utils-1"
    one.answers["dpkg-query"] = Completed(0, rows[1] + "\n", "")
    assert one.gather()["findings"] == []


def test_neighbours_that_a_reload_can_hurt(host: Make) -> None:
    one = host("rtx-pro-6000")
    one.write("proc/4242/cgroup", "0::/system.slice/docker-0123456789abcdef.scope\n")
    facts = one.gather()
    assert (only(facts)["id"], only(facts)["found"]) == ("gpu.neighbours", "python3 (4242)")
    assert facts["devices"][0]["processes"][0]["container"] is True


@pytest.mark.parametrize(("release", "newer"), [("12.4", False), ("12.8", True), ("13.0", True)])
def test_a_toolkit_newer_than_the_driver(host: Make, release: str, newer: bool) -> None:
    one = host("l40s")
    home = "usr/local/cuda-" + release
    one.write(home + "/bin/nvcc", "#!/bin/sh\necho 'Cuda compilation tools, release %s, V%s.93'\n" % (release, release), 0o755)
    one.write(home + "/include/cuda.h")
    (one.files / "usr/local/cuda").symlink_to("cuda-" + release)
    facts = one.gather()
    assert facts["toolkits"] == [{"path": "/" + home, "names": ["/usr/local/cuda", "/" + home], "version": release}]
    assert ids(facts) == ([("gpu.toolkit-newer", WARNING)] if newer else [])


def test_the_toolkit_that_cuda_home_names(host: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = host("none")
    bare.write("srv/cuda/bin/nvcc", "#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.93'\n", 0o755)
    bare.write("srv/cuda/include/cuda.h")
    assert bare.gather()["toolkits"] == []
    monkeypatch.setenv("CUDA_HOME", str(bare.files / "srv/cuda"))
    assert bare.gather()["toolkits"] == [{"path": "/srv/cuda", "names": ["/srv/cuda"], "version": "12.8"}]


def test_compilers_and_what_is_no_toolkit(host: Make) -> None:
    bare = host("none")
    bare.write("usr/bin/gcc", "#!/bin/sh\necho 12.2.0\n", 0o755)
    bare.write("usr/bin/g++", "not executable")
    bare.write("usr/local/bin/nvcc", "#!/bin/sh\nexit 1\n", 0o755)
    facts = bare.gather()
    assert facts["compilers"] == [{"name": "gcc", "path": "/usr/bin/gcc", "version": "12.2.0"}]
    assert facts["toolkits"] == [], "a compiler without headers compiles nothing"


# Without NVML


class Smi:
    """An nvidia-smi that answers from a table, and remembers how it was asked."""

    def __init__(self, gpus_: str, apps: str = "", listing: str = "", rc: int = 0) -> None:
        self.texts = {"--query-gpu": gpus_, "--query-compute-apps": apps, "-L": listing}
        self.rc = rc

    def __call__(self, argv: t.Sequence[str]) -> Completed:
        return Completed(self.rc, self.texts[argv[1].partition("=")[0]], "")


def without_nvml(host: Make, name: str, smi: t.Union[Smi, Completed] = GONE) -> GpuHost:
    one = host(name)
    one.remove("../lib/libnvidia-ml.so.1")
    one.answers["nvidia-smi"] = smi
    return one


def test_nvidia_smi_instead(host: Make) -> None:
    row = "%d, GPU-%d, NVIDIA H200, 9.0, 143771, 570.124.06, 00000000:%02X:00.0, Disabled\n"
    smi = Smi("".join(row % (index, index, 1 + 32 * index) for index in range(8)), "GPU-3, 77, 2048, /usr/bin/a, b\nGPU-3, 78, [N/A], c\n")
    facts = without_nvml(host, "h200", smi).gather()
    assert (facts["source"], facts["driver"], facts["cuda"]) == ("nvidia-smi", "570.124.06", "12.8")
    assert column(facts, "memory") == [143771 * MIB] * 8 and column(facts, "compute_capability") == ["9.0"] * 8
    assert facts["devices"][7]["bus_id"] == "0000:e1:00.0"
    assert facts["devices"][3]["processes"] == [
        {"pid": 77, "name": "/usr/bin/a, b", "bytes": 2048 * MIB, "container": False},
        {"pid": 78, "name": "c", "bytes": None, "container": False},
    ]
    assert facts["findings"] == []


def test_nvidia_smi_is_asked_in_no_language(host: Make) -> None:
    one = without_nvml(host, "l40s", Smi(""))
    asked = []

    def run(argv: t.Sequence[str], **options: t.Any) -> Completed:
        asked.append((argv[0], (options.get("env") or {}).get("LC_ALL")))
        return one.run(argv, **options)

    gpus.gather(str(one.root), run, one.files)
    assert ("nvidia-smi", "C") in asked and ("nvidia-smi", None) not in asked


@pytest.mark.parametrize("word", ["[N/A]", "N/A", "[Not Supported]"])
def test_nvidia_smi_that_knows_no_memory(host: Make, word: str) -> None:
    row = "0, GPU-1, NVIDIA GB10, 12.1, %s, 580.95.05, 00000000:01:00.0, [N/A]\n" % word
    facts = without_nvml(host, "gb10", Smi(row)).gather()
    (device,) = facts["devices"]
    assert (device["memory"], device["memory_reason"], device["unified"]) == (None, "the driver says: " + word, True)
    assert device["error"] is None and ("gpu.fault", ERROR) not in ids(
        {**facts, "findings": [one for one in facts["findings"] if one["subject"] == "GPU 0"]}
    )


def test_nvidia_smi_that_sees_a_fault(host: Make) -> None:
    row = "0, GPU-1, NVIDIA L40S, [GPU requires reset], [GPU requires reset], 550.54.14, 00000000:01:00.0, [GPU requires reset]\n"
    facts = without_nvml(host, "l40s", Smi(row)).gather()
    assert (only(facts)["id"], only(facts)["found"]) == ("gpu.fault", "GPU requires reset")
    assert column(facts, "compute_capability") == [None]


def test_nvidia_smi_lists_the_parts_of_a_divided_gpu(host: Make) -> None:
    rows = "0, GPU-1, NVIDIA H100, 9.0, 81559, 570.124.06, 00000000:01:00.0, Enabled\n"
    rows += "1, GPU-2, NVIDIA H100, 9.0, 81559, 570.124.06, 00000000:21:00.0, Disabled\n"
    listing = "GPU 0: NVIDIA H100 (UUID: GPU-1)\n  MIG 3g.40gb     Device  0: (UUID: MIG-1)\n  MIG 1g.10gb     Device  1: (UUID: MIG-2)\n"
    facts = without_nvml(host, "mig", Smi(rows, "", listing + "GPU 1: NVIDIA H100 (UUID: GPU-2)\n")).gather()
    assert [(part["uuid"], part["name"]) for part in facts["devices"][0]["mig"]["devices"]] == [
        ("MIG-1", "MIG 3g.40gb"),
        ("MIG-2", "MIG 1g.10gb"),
    ]
    assert facts["devices"][1]["mig"] == {"enabled": False, "devices": []}


def test_without_nvml_the_paths_are_those_of_pci_and_it_says_so(host: Make) -> None:
    rows = "".join(
        "%d, GPU-%d, NVIDIA H200, 9.0, 143771, 570.124.06, 00000000:%02X:00.0, Disabled\n" % (i, i, 1 + 32 * i) for i in range(8)
    )
    one = without_nvml(host, "h200", Smi(rows))
    switch, other = "pci0000:00/0000:00:01.0/0000:a0:00.0", "pci0000:40/0000:40:01.0"
    for number, (bridges, numa) in enumerate(
        [
            (switch + "/0000:a1:00.0", "0"),
            (switch + "/0000:a1:01.0", "0"),
            (switch + "/0000:a1:02.0/0000:b0:00.0/0000:b1:00.0", "0"),
            ("pci0000:00/0000:00:03.0", "0"),
            (other, "0"),
            ("pci0000:80/0000:80:01.0", "1"),
        ]
    ):
        one.behind("0000:%02x:00.0" % (1 + 32 * number), bridges, numa)
    topology = one.gather()["topology"]
    assert topology["paths"][0] == [None, "PIX", "PXB", "PHB", "NODE", "SYS", None, None]
    assert topology["paths"][5][:6] == ["SYS"] * 5 + [None]
    assert topology["p2p"] is None
    assert topology["reason"].startswith("NVML: ") and "links and P2P are not known" in topology["reason"]


def test_gpus_of_a_machine_with_one_node_are_on_it(host: Make) -> None:
    one = without_nvml(host, "fault")
    one.behind("0000:01:00.0", "pci0000:00/0000:00:01.0", "-1")
    one.behind("0000:21:00.0", "pci0000:20/0000:20:01.0", "-1")
    facts = one.gather()
    assert facts["source"] == "cuda" and facts["topology"]["paths"][0][:2] == [None, "NODE"]


def test_neither_library_nor_tool(host: Make) -> None:
    facts = without_nvml(host, "l40s").gather()
    assert (facts["source"], column(facts, "name"), facts["driver"]) == ("cuda", ["NVIDIA L40S"], "550.54.14")
    assert (only(facts)["id"], only(facts)["verdict"]) == ("gpu.nvml", ERROR)
    assert "libnvidia-ml.so.1" in only(facts)["cause"]


def test_before_the_host_program_is_there_missing_tools_forbid_nothing(host: Make) -> None:
    one = host("l40s")
    absent(one)
    found = only(one.gather())
    assert (found["id"], found["verdict"]) == ("gpu.nvml", COULD_NOT_CHECK)
    assert "no nvidia-ml-py here" in found["found"]


def test_before_the_host_program_is_there_cuda_says_what_a_stack_is_chosen_by(host: Make) -> None:
    one = host("rtx-pro-6000")
    absent(one)
    facts = one.gather()
    assert facts["source"] == "cuda"
    assert column(facts, "compute_capability") == ["12.0"] * 8 and column(facts, "memory") == [97887 * MIB] * 8
    assert column(facts, "index") == list(range(8)) and facts["devices"][0]["uuid"].startswith("GPU-")
    engine = {"name": "sglang", "version": "0.5.10.post1", "lane": "cu128"}
    _stack, found = stacks.resolve(TABLES, {**state(host, "l40s"), "gpus": facts}, engine)
    assert [one.id for one in found] == ["stack.flashinfer-cuda"]


@pytest.mark.parametrize(("name", "why"), [("gb10", "the host's memory"), ("mig", None)])
def test_the_memory_that_cuda_tells_is_taken_where_it_is_the_gpus(host: Make, name: str, why: t.Optional[str]) -> None:
    one = host(name)
    absent(one)
    device = one.gather()["devices"][0]
    assert device["unified"] is (name == "gb10")
    assert (device["memory"] is None) is bool(why) and (why or "") in (device["memory_reason"] or "")


def test_a_gpu_of_which_cuda_sees_a_part_tells_no_size(host: Make) -> None:
    one = host("l40s")
    absent(one)
    one.data["devices"][0]["name"] = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    device = one.gather()["devices"][0]
    assert (device["memory"], device["memory_reason"]) == (None, "CUDA tells the size of the part that it uses only")


def absent(one: GpuHost) -> None:
    """A host program whose nvidia-ml-py cannot be imported."""
    program = one.root / "bin" / "specdec"
    program.parent.mkdir(parents=True)
    with zipfile.ZipFile(program, "w") as archive:
        archive.writestr("pynvml.py", "raise ImportError('no nvidia-ml-py here')")


@pytest.mark.parametrize("text", ["", "5\n[1]\nnull\n", "words of the driver\n", '{"nvml": \n'])
def test_answers_that_are_none(text: str) -> None:
    answers = gpus.parse_probe(Completed(0, text, ""))
    assert (answers["nvml"]["code"], answers["cuda"]["code"], answers["silent"]) == (None, None, "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("NVRM version: garbage\n", None),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2\n", ("470.256.02", "proprietary")),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build\nGCC version: 13.2.0\n",
            ("580.95.05", "open"),
        ),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  610.05  Mon\n", ("610.05", "proprietary")),
    ],
)
def test_the_words_of_the_kernel_module(text: str, expected: t.Optional[tuple[str, str]]) -> None:
    assert gpus.parse_module(text) == (dict(zip(("version", "flavour"), expected)) if expected else None)


def test_it_works_from_a_zip_as_modules_and_the_host_program_do(host: Make, tmp_path: Path) -> None:
    package = "ansible_collections.specdec.serving.plugins.module_utils"
    archive = tmp_path / "program.zip"
    with zipfile.ZipFile(archive, "w") as target:
        for depth in range(1, package.count(".") + 2):
            target.writestr("/".join([*package.split(".")[:depth], "__init__.py"]), "")
        for name in ("gpus", "gpuprobe", "gpufindings", "findings", "layout", "runners"):
            target.write(Path(gpus.__file__).with_name(name + ".py"), "%s/%s.py" % (package.replace(".", "/"), name))
    one = host("l40s")
    program = "import sys; sys.path.insert(0, %r); from %s import gpuprobe, gpus; import inspect; print(inspect.getsource(gpuprobe))"
    said = one.run([sys.executable, "-I", "-c", program % (str(archive), package)])
    assert said.rc == 0, said.stderr
    assert said.stdout.strip() == Path(gpus.__file__).with_name("gpuprobe.py").read_text().strip()


def test_the_facts_of_some_gpus_keep_what_they_are_to_each_other(host: Make) -> None:
    facts = host("rtx-pro-6000").gather()
    chosen = gpufindings.used(facts, [0, facts["devices"][4]["uuid"]])
    assert [one["index"] for one in chosen["devices"]] == [0, 4]
    assert chosen["topology"]["paths"] == [[None, "SYS"], ["SYS", None]] and chosen["topology"]["p2p"] == [[None, "ok"], ["ok", None]]
    assert gpufindings.used(facts, "none")["devices"] == gpufindings.used(facts, "none")["topology"]["paths"] == []


def test_whether_an_iommu_translates_is_the_kernels_own_word(host: Make) -> None:
    one = host("rtx-pro-6000")
    one.write("sys/bus/pci/devices/0000:01:00.0/iommu_group/type", "DMA-FQ\n")
    assert column(one.gather(), "iommu") == ["DMA-FQ", *[None] * 7]
