# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of a host and what stands between them and CUDA: driver, libraries, device nodes, compilers.

Sources, in order: NVML (asked by gpuprobe.py in a process of its own), ``nvidia-smi``, CUDA, and what the
kernel shows (``/proc/driver/nvidia``, PCI). What a source does not say is null; why, is in
``answers``. What the facts mean is judged in gpufindings.py.
"""

from __future__ import annotations

import dataclasses
import errno
import inspect
import json
import os
import re
import stat
import sys
import typing as t
from pathlib import Path

from . import gpufindings, gpuprobe
from .layout import Layout
from .runners import Completed, Runner

#: Without the driver's persistence mode, each GPU takes seconds to wake.
_PROBE_TIMEOUT = 90.0
_SMI_TIMEOUT = 60.0

_NVIDIA = "0x10de"
_DISPLAY = "0x03"
#: Kernel drivers that keep a GPU for a virtual machine: it is not this host's.
_RESERVED = ("vfio-pci", "pci-stub")

_SMI_GPU = ("index", "uuid", "name", "compute_cap", "memory.total", "driver_version", "pci.bus_id", "mig.mode.current")
_SMI_PROCESS = ("gpu_uuid", "pid", "used_gpu_memory", "process_name")
_SMI_UNSUPPORTED = re.compile(r"\[?(N/A|Not Supported)\]?")
_MEBIBYTE = 1024 * 1024

#: What dpkg wants of a package, what it is, its name, its version.
_PACKAGE = "${db:Status-Want} ${db:Status-Status} ${Package} ${Version}\\n"
_COMPILERS = {"gcc": "-dumpfullversion", "g++": "-dumpfullversion", "clang": "-dumpversion"}
_ENGINE_OF_CONTAINERS = re.compile(r"docker|containerd|libpod|kubepods|crio")


@dataclasses.dataclass(frozen=True)
class Host:
    """Where to read; ``files`` is the root of its file system (``/`` but in tests)."""

    runner: Runner
    files: Path = Path("/")

    def text(self, path: str) -> t.Optional[str]:
        """A small file, None where it cannot be read."""
        try:
            return (self.files / path).read_text(encoding="utf-8", errors="replace").strip("\0\n ")
        except OSError:
            return None


def gather(root: str, runner: Runner, files: Path = Path("/")) -> dict[str, t.Any]:
    """The facts, and in ``findings`` what they mean (as dictionaries). Nothing is raised.

    :param root: ``specdec_root``; its host program brings nvidia-ml-py.

    ``source``: nvml, nvidia-smi, cuda, pci, or none where there is no NVIDIA GPU at all.
    ``driver``: version of the kernel module; ``module``: that and its ``flavour`` (open, proprietary).
    ``cuda``: the newest CUDA that the driver supports. ``devices``: see :func:`_device`; memory is in bytes.
    ``topology``: two matrices over ``devices``, ``paths`` and ``p2p``, and the ``reason`` why one is not NVML's own.
    ``upgrades``: the driver's packages that the host upgrades by itself, None where it does not.
    """
    host = Host(runner, files)
    facts: dict[str, t.Any] = {
        "source": "none",
        "driver": None,
        "cuda": None,
        "module": None,
        "kernel": None,
        "libraries": {},
        "devices": [],
        "topology": None,
        "pci": pci_gpus(host),
        "nodes": [],
        "container": None,
        "answers": {},
        "upgrades": None,
        "compilers": _compilers(host),
        "toolkits": _toolkits(host),
    }
    present = [one for one in facts["pci"] if one["driver"] not in _RESERVED]
    if present or (files / "dev/nvidiactl").exists():
        _read(facts, Layout(root), host)
    facts["findings"] = [one.as_dict() for one in gpufindings.judge(facts)]
    return facts


def _read(facts: dict[str, t.Any], layout: Layout, host: Host) -> None:
    """Fill the facts of a host that has a GPU."""
    facts["source"] = "pci"
    facts["module"] = module = parse_module(host.text("proc/driver/nvidia/version") or "")
    facts["kernel"] = {"release": host.text("proc/sys/kernel/osrelease"), "other": _other_module(host)}
    facts["container"] = _container(host)
    if module is None:
        facts["devices"] = [_device(uuid=None, bus_id=one["bus_id"]) for one in facts["pci"] if one["driver"] not in _RESERVED]
        return
    answers = facts["answers"] = _probe(layout, host)
    nvml, cuda = answers["nvml"], answers["cuda"]
    facts["libraries"] = {name: library_version(one["file"]) for name, one in answers.pop("libraries").items()}
    facts["driver"] = module["version"]
    facts["upgrades"] = _upgrades(host, module["version"])
    facts["cuda"] = cuda_version(cuda.get("version") or nvml.get("cuda"))
    information = told_by_kernel(host)
    if nvml["code"] == 0:
        facts["devices"] = [_from_nvml(one) for one in nvml.pop("devices")]
        facts["source"] = "nvml" if facts["devices"] else "pci"
        facts["topology"] = {"paths": nvml.pop("paths"), "p2p": nvml.pop("p2p"), "reason": None}
    elif not answers["silent"]:
        answers["nvidia-smi"], facts["devices"] = _ask_smi(host)
        facts["source"] = "nvidia-smi" if facts["devices"] else "pci"
    seen = cuda.pop("devices", [])
    if facts["source"] == "pci" and seen:
        facts["source"], facts["devices"] = "cuda", [_from_cuda(one) for one in seen]
    elif facts["source"] == "pci":
        facts["devices"] = [_device(uuid=one["uuid"], name=one["name"], bus_id=bus_id) for bus_id, one in sorted(information.items())]
    known = {device["bus_id"] for device in facts["devices"]}
    unplaced = (
        [] if facts["container"] else [one["bus_id"] for one in facts["pci"] if one["driver"] == "nvidia" and one["bus_id"] not in known]
    )
    for device in facts["devices"]:
        if device["bus_id"] is None and unplaced:
            # One that answers nothing at all; both orders are that of the PCI bus. A container may have been given fewer.
            device["bus_id"] = unplaced.pop(0)
        for key, value in information.get(device["bus_id"], {}).items():
            device[key] = device.get(key) or value
        device["iommu"] = host.text("sys/bus/pci/devices/%s/iommu_group/type" % device["bus_id"])
        for process in device["processes"]:
            process["container"] = bool(_ENGINE_OF_CONTAINERS.search(host.text("proc/%d/cgroup" % process["pid"]) or ""))
    if facts["topology"] is None and facts["devices"]:
        why = "NVML: %s; the paths are those of PCI, links and P2P are not known" % (nvml["message"] or "no answer")
        facts["topology"] = {"paths": pci_paths(host, [device["bus_id"] for device in facts["devices"]]), "p2p": None, "reason": why}
    # After CUDA was initialised, for that makes the nodes where the host allows it.
    facts["nodes"] = _nodes(host, openable=not answers["silent"])


def _device(**known: t.Any) -> dict[str, t.Any]:
    """One GPU: what is known, null for the rest.

    ``memory_reason`` says why ``memory`` is null; ``unified``: it is the host's own memory.
    ``mig``: enabled and devices, null without MIG. ``nvlinks``: how many are active.
    ``processes``: pid, name, bytes (null: the driver does not say), container.
    ``error``: code and message of NVML; ``remapping``: of memory rows, pending and failed.
    ``iommu``: the kernel's type of its group (``DMA`` and ``DMA-FQ`` translate, ``identity`` does not).
    """
    unknown = dict.fromkeys(
        (
            "index",
            "uuid",
            "name",
            "bus_id",
            "compute_capability",
            "memory",
            "memory_reason",
            "mig",
            "pcie",
            "nvlinks",
            "remapping",
            "error",
            "firmware",
            "iommu",
        )
    )
    return {**unknown, "unified": False, "processes": [], **known}


# NVML


def holders(root: str, runner: Runner, files: Path = Path("/")) -> t.Optional[dict[int, t.Optional[int]]]:
    """Processes that hold memory of a GPU: pid → bytes (None: the driver does not say). None where nobody answers.

    :param root: ``specdec_root``; its host program brings nvidia-ml-py.
    """
    host = Host(runner, files)
    if parse_module(host.text("proc/driver/nvidia/version") or "") is None:
        return {}
    answers = _probe(Layout(root), host, cuda=False)
    devices = answers["nvml"].get("devices") if answers["nvml"]["code"] == 0 else None
    if devices is None and not answers["silent"]:
        devices = _ask_smi(host)[1]
    if not devices:
        return None
    held: dict[int, t.Optional[int]] = {}
    for process in (one for device in devices for one in device.get("processes", ())):
        sizes = [size for size in (held.get(process["pid"]), process["bytes"]) if size]
        held[process["pid"]] = sum(sizes) or None
    return held


def _probe(layout: Layout, host: Host, cuda: bool = True) -> dict[str, t.Any]:
    packages = str(layout.specdec) if layout.specdec.exists() else ""
    source = "%s\n\nmain(%r, %r)\n" % (inspect.getsource(gpuprobe), packages, cuda)
    return parse_probe(host.runner([sys.executable, "-I", "-B", "-"], stdin=source, timeout=_PROBE_TIMEOUT))


def parse_probe(completed: Completed) -> dict[str, t.Any]:
    """The answers of gpuprobe.py; ``silent`` says how it ended where it did not end by itself, else it is empty."""
    answers: dict[str, t.Any] = {
        "libraries": {},
        "nvml": {"code": None, "message": "no answer"},
        "cuda": {"code": None, "message": "no answer", "version": None},
        "silent": "",
    }
    for line in completed.stdout.splitlines():
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        answers.update(answer if isinstance(answer, dict) else {})
    if completed.rc == 124:
        answers["silent"] = "no answer within %d s" % _PROBE_TIMEOUT
    elif completed.rc != 0:
        answers["silent"] = "ended with status %d: %s" % (completed.rc, completed.stderr.strip()[-300:])
    return answers


def _from_nvml(answer: dict[str, t.Any]) -> dict[str, t.Any]:
    why = answer.pop("memory_error", None)
    mig = answer.get("mig") or {}
    return _device(
        **{**answer, "bus_id": bus_id(answer.get("bus_id"))},
        memory_reason="the driver says: %s" % why["message"] if why else None,
        unified=bool(why and why["code"] == gpufindings.NOT_SUPPORTED and not mig.get("enabled")),
    )


def _from_cuda(answer: dict[str, t.Any]) -> dict[str, t.Any]:
    """A GPU as CUDA sees it. Of one that is divided it sees a part, of one in the host's memory that memory: neither is the GPU's."""
    why = None
    if answer["unified"] or " MIG " in (answer["name"] or ""):
        why = "CUDA tells the size of %s only" % ("the host's memory" if answer["unified"] else "the part that it uses")
    return _device(**{**answer, "bus_id": bus_id(answer["bus_id"]), "memory": None if why else answer["memory"]}, memory_reason=why)


# nvidia-smi


def _ask_smi(host: Host) -> tuple[dict[str, t.Any], list[dict[str, t.Any]]]:
    def ask(*arguments: str) -> Completed:
        return host.runner(["nvidia-smi", *arguments], env={"LC_ALL": "C"}, timeout=_SMI_TIMEOUT)

    answer = ask("--query-gpu=" + ",".join(_SMI_GPU), "--format=csv,noheader,nounits")
    words = (answer.stderr.strip() or answer.stdout.strip())[-300:]
    devices = parse_smi(answer.stdout)
    if devices:
        apps = ask("--query-compute-apps=" + ",".join(_SMI_PROCESS), "--format=csv,noheader,nounits")
        parse_smi_processes(apps.stdout, devices)
    if any((device["mig"] or {}).get("enabled") for device in devices):
        parse_smi_list(ask("-L").stdout, devices)
    return {"code": answer.rc, "message": words if answer.rc else ""}, devices


def parse_smi(text: str) -> list[dict[str, t.Any]]:
    """The GPUs in the answer to a query of :data:`_SMI_GPU`; lines that are none are left out."""
    devices = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(_SMI_GPU) or not values[0].isdigit():
            continue
        index, uuid, name, capability, memory, _driver, bus, mig = values
        known = memory.isdigit()
        absent = bool(_SMI_UNSUPPORTED.fullmatch(memory))
        devices.append(
            _device(
                index=int(index),
                uuid=uuid,
                name=name,
                bus_id=bus_id(bus),
                compute_capability=capability if re.fullmatch(r"\d+\.\d+", capability) else None,
                memory=int(memory) * _MEBIBYTE if known else None,
                memory_reason=None if known else "the driver says: %s" % memory,
                unified=absent and mig != "Enabled",
                mig={"enabled": mig == "Enabled", "devices": []} if mig in ("Enabled", "Disabled") else None,
                error=None if known or absent else {"code": None, "message": memory.strip("[]")},
            )
        )
    return devices


def parse_smi_processes(text: str, devices: t.Sequence[t.Mapping[str, t.Any]]) -> None:
    """Put the processes in the answer to a query of :data:`_SMI_PROCESS` where they belong."""
    by_uuid = {device["uuid"]: device["processes"] for device in devices}
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",", len(_SMI_PROCESS) - 1)]
        if len(values) == len(_SMI_PROCESS) and values[1].isdigit() and values[0] in by_uuid:
            used = int(values[2]) * _MEBIBYTE if values[2].isdigit() else None
            by_uuid[values[0]].append({"pid": int(values[1]), "name": values[3], "bytes": used})


def parse_smi_list(text: str, devices: t.Sequence[t.Mapping[str, t.Any]]) -> None:
    """Put the MIG devices of ``nvidia-smi -L`` where they belong."""
    by_uuid = {device["uuid"]: device["mig"] for device in devices}
    mig = None
    for line in text.splitlines():
        found = re.search(r"\(UUID: ([^)]+)\)", line)
        if found and line.startswith("GPU "):
            mig = by_uuid.get(found[1])
        elif found and mig:
            name = line.split(" Device ")[0].strip()
            mig["devices"].append({"uuid": found[1], "name": name, "memory": None, "gpu_instance": None, "compute_instance": None})


# What the kernel shows


def pci_gpus(host: Host) -> list[dict[str, t.Optional[str]]]:
    """NVIDIA's display controllers on PCI: ``bus_id``, and the kernel ``driver`` that holds it."""
    found = []
    for device in sorted((host.files / "sys/bus/pci/devices").glob("*")):
        where = "sys/bus/pci/devices/%s/" % device.name
        if host.text(where + "vendor") == _NVIDIA and (host.text(where + "class") or "").startswith(_DISPLAY):
            driver = device / "driver"
            found.append({"bus_id": bus_id(device.name), "driver": os.path.basename(os.readlink(driver)) if driver.is_symlink() else None})
    return found


def pci_paths(host: Host, addresses: t.Sequence[t.Optional[str]]) -> list[list[t.Optional[str]]]:
    """How each GPU reaches each other through PCI, in the words of ``nvidia-smi topo``; null on the diagonal and where unknown."""
    places = [_place(host, address) if address else None for address in addresses]
    return [[_path(one, other) if one and other and one is not other else None for other in places] for one in places]


def _place(host: Host, address: str) -> t.Optional[tuple[list[str], t.Optional[str]]]:
    """The host bridge, the bridges and the device itself; and the NUMA node, None where the machine has none."""
    device = host.files / "sys/bus/pci/devices" / address
    parts = os.path.realpath(device).split(os.sep)
    root = next((number for number, part in enumerate(parts) if re.fullmatch(r"pci[0-9a-f]{4,}:[0-9a-f]{2}", part)), None)
    node = host.text("sys/bus/pci/devices/%s/numa_node" % address)
    return (parts[root:], None if node == "-1" else node) if root is not None else None


def _path(one: tuple[list[str], t.Optional[str]], other: tuple[list[str], t.Optional[str]]) -> str:
    (way, node), (other_way, other_node) = one, other
    # two devices differ at the latest in their own addresses
    shared = [part == other_part for part, other_part in zip(way, other_way)].index(False)
    if shared == 0:
        return "NODE" if node == other_node else "SYS"
    if shared == 1:
        return "PHB"
    # Below the bridge that both are behind, a switch has one port a device.
    return "PIX" if max(len(way), len(other_way)) - shared <= 2 else "PXB"


def parse_module(text: str) -> t.Optional[dict[str, str]]:
    """Version and flavour of the kernel module, from ``/proc/driver/nvidia/version``."""
    line = re.search(r"^NVRM version:(.*)$", text, re.MULTILINE)
    version = re.search(r"\s(\d+\.\d+(?:\.\d+)*)\s", line[1] + " ") if line else None
    if not line or not version:
        return None
    return {"version": version[1], "flavour": "open" if "Open Kernel Module" in line[1] else "proprietary"}


def told_by_kernel(host: Host) -> dict[str, dict[str, t.Optional[str]]]:
    """Per PCI address what the kernel module tells of a GPU; nobody is asked."""
    found = {}
    for directory in (host.files / "proc/driver/nvidia/gpus").glob("*"):
        text = host.text("proc/driver/nvidia/gpus/%s/information" % directory.name) or ""
        values = {key.strip(): value.strip() for key, _sep, value in (line.partition(":") for line in text.splitlines())}
        found[bus_id(directory.name) or ""] = {
            "name": values.get("Model"),
            "uuid": values.get("GPU UUID"),
            "firmware": values.get("GPU Firmware"),
        }
    return found


def _other_module(host: Host) -> t.Optional[str]:
    return next((name for name in ("nouveau", "nova_core") if (host.files / "sys/module" / name).exists()), None)


def bus_id(name: t.Optional[str]) -> t.Optional[str]:
    """A PCI address in the kernel's own form; NVML's has a longer domain."""
    return name[-12:].lower() if name else None


def cuda_version(number: t.Optional[int]) -> t.Optional[str]:
    """12080 is 12.8."""
    return "%d.%d" % (number // 1000, number % 1000 // 10) if number else None


def library_version(file: t.Optional[str]) -> t.Optional[str]:
    """The driver release in the name of one of its libraries; None where the name has none."""
    found = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)*)$", file or "")
    return found[1] if found else None


def _nodes(host: Host, openable: bool) -> list[dict[str, t.Any]]:
    """The device nodes that CUDA opens: path, mode, and the error that opening gives (null: none, or not tried)."""
    found = []
    for path in sorted((host.files / "dev").glob("nvidia*")):
        if not re.fullmatch(r"nvidia(\d+|ctl|-uvm)", path.name):
            continue
        error = None
        if openable:
            try:
                os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
            except OSError as refused:
                error = errno.errorcode.get(refused.errno or 0, str(refused))
        found.append({"path": "/dev/" + path.name, "mode": "%04o" % stat.S_IMODE(path.stat().st_mode), "error": error})
    return found


def _container(host: Host) -> t.Optional[dict[str, t.Any]]:
    """None on a host of its own. LXC with nesting has a second procfs for the systems inside."""
    kind = host.runner(["systemd-detect-virt", "--container"], timeout=10).stdout.strip()
    if kind in ("", "none"):
        return None
    ids = (host.text("proc/self/uid_map") or "0 0 0").split()
    return {"kind": kind, "unprivileged": ids[1] != "0", "nesting": (host.files / "dev/.lxc/proc").exists() if kind == "lxc" else None}


def _upgrades(host: Host, driver: str) -> t.Optional[list[str]]:
    """Debian's and Ubuntu's packages of this driver that are not held, where upgrades run unattended."""
    setting = host.runner(["apt-config", "dump", "APT::Periodic::Unattended-Upgrade"], timeout=10).stdout
    if not re.search(r'"[1-9]', setting):
        return None
    listed = host.runner(["dpkg-query", "--show", "--showformat", _PACKAGE, "*nvidia*"], env={"LC_ALL": "C"}, timeout=10).stdout
    rows = [line.split() for line in listed.splitlines()]
    return sorted(row[2] for row in rows if row[:2] == ["install", "installed"] and re.search(r"(^|[:-])" + re.escape(driver), row[3]))


# Compilers


def _compilers(host: Host) -> list[dict[str, t.Optional[str]]]:
    found = []
    for name, option in _COMPILERS.items():
        path = next((one for one in _on_path(host, name) if os.access(one, os.X_OK)), None)
        if path:
            found.append(
                {"name": name, "path": _named(host, path), "version": host.runner([str(path), option], timeout=10).stdout.strip() or None}
            )
    return found


def _toolkits(host: Host) -> list[dict[str, t.Any]]:
    """CUDA toolkits: the real path, the names that CUDA_HOME could have, nvcc's version."""
    homes = [
        *(host.files / "usr/local").glob("cuda*"),
        *(host.files / "opt").glob("cuda*"),
        *(path.parents[1] for path in _on_path(host, "nvcc")),
    ]
    homes += [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    names: dict[Path, set[str]] = {}
    for home in homes:
        if os.access(home / "bin/nvcc", os.X_OK) and (home / "include/cuda.h").exists():
            names.setdefault((home / "bin/nvcc").resolve().parents[1], set()).add(_named(host, home))
    found = []
    for path in sorted(names):
        said = host.runner([str(path / "bin/nvcc"), "--version"], env={"LC_ALL": "C"}, timeout=10).stdout
        version = re.search(r"release (\d+\.\d+)", said)
        found.append({"path": _named(host, path), "names": sorted(names[path]), "version": version[1] if version else None})
    return found


def _on_path(host: Host, name: str) -> list[Path]:
    return [path for path in (host.files / "usr/local/bin" / name, host.files / "usr/bin" / name) if path.exists()]


def _named(host: Host, path: Path) -> str:
    """A path as the host itself calls it."""
    return "/" + str(path.relative_to(host.files)) if path.is_relative_to(host.files) else str(path)
