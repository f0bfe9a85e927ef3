# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the facts of gpus.py mean: findings with cause and way out.

Of what keeps the whole host from its GPUs only the first cause is told, for the rest follows from it.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from .findings import COULD_NOT_CHECK, ERROR, OK, WARNING, Finding

#: NVML's own codes.
NOT_SUPPORTED = 3
NOT_FOUND = 6
LIBRARY_NOT_FOUND = 12
GPU_IS_LOST = 15
RESET_REQUIRED = 16
VERSION_MISMATCH = 18
UNKNOWN = 999

#: What a runner answers for a program that is not there.
_NO_PROGRAM = 127

#: cuInit: code → cause and fix.
_CUDA = {
    100: (
        "CUDA sees no GPU although the driver does.",
        "Check that /dev/nvidia0 and its siblings can be opened, and CUDA_VISIBLE_DEVICES.",
    ),
    802: (
        "The GPUs' fabric is not up: nvidia-fabricmanager does not run, or is of another version than the driver.",
        "Start nvidia-fabricmanager in the driver's own version, then check nvidia-smi -q for the state of the fabric.",
    ),
    803: (
        "libcuda is of another version than the kernel module.",
        "Install libcuda of the module's version, and nothing else on the loader's path.",
    ),
    999: (
        "nvidia-uvm is not usable: its node is missing, stale, or closed to this container; nvidia-smi works without it.",
        "On the machine that holds the module: nvidia-modprobe -u -c=0 before containers start; then restart this one.",
    ),
}
_OTHER = ("", "Look for NVRM and Xid in the kernel's log; reload the driver's modules or reboot.")

_HOST = "the GPUs"
_RELOAD = "Stop what uses the GPUs and reload the driver's modules, or reboot; hold the driver's packages against unattended upgrades."
_SAME_RELEASE = "Install the user-space part of driver %s in this container, without kernel modules (--no-kernel-module)."

#: What a topology holds over all pairs of devices.
_MATRICES = ("paths", "p2p")

Facts = t.Mapping[str, t.Any]


def judge(facts: Facts) -> list[Finding]:
    """Everything the facts give reason to say; nothing for a host without a GPU."""
    if facts["source"] == "none":
        return []
    steps = (_no_driver, _not_passed, _mismatch, _no_library, _nodes, _silent, _nvml, _no_devices, _cuda_init)
    first = next((found for found in (step(facts) for step in steps) if found), None)
    rest = (_missing, _devices, _modes, _compilers, _neighbours, _nesting, _upgrades)
    return [*([first] if first else []), *(found for step_ in rest for found in step_(facts))]


def concerning(findings: t.Iterable[Finding], facts: Facts, used: t.Optional[t.Collection[str]]) -> list[Finding]:
    """The findings for who uses these GPUs: errors about others are warnings.

    :param used: indexes (as text) and uuids; ``all`` for every GPU; None or empty: uses no GPU.
    """
    used = set(used or ())
    others = set() if "all" in used else {_named(one) for one in facts["devices"] if not _names(one) & used}
    return [
        dataclasses.replace(one, verdict=WARNING) if one.verdict == ERROR and (not used or one.subject in others) else one
        for one in findings
    ]


def used(facts: Facts, wanted: t.Union[str, t.Sequence[t.Any]]) -> dict[str, t.Any]:
    """The facts without the GPUs that an instance does not use, also in the matrices of the topology.

    :param wanted: ``all``, ``none``, or indexes and uuids.
    """
    if wanted == "all":
        return dict(facts)
    chosen = {str(one) for one in wanted} if not isinstance(wanted, str) else set()
    kept = [number for number, one in enumerate(facts["devices"]) if _names(one) & chosen]
    topology = facts.get("topology")
    if topology:
        cut = {name: [[topology[name][one][other] for other in kept] for one in kept] if topology[name] else None for name in _MATRICES}
        topology = {**topology, **cut}
    return {**facts, "devices": [facts["devices"][number] for number in kept], "topology": topology}


def chosen(facts: Facts, wanted: t.Union[str, t.Sequence[t.Any]]) -> list[str]:
    """What an instance writes as ``gpus``, as uuids: an index may mean another GPU after a change of the hardware, or to CUDA.

    An index whose GPU tells no uuid, and what is not on the host, stay as they are; all or none are no list.
    """
    if isinstance(wanted, str):
        return []
    uuids = {str(one["index"]): one["uuid"] for one in facts["devices"] if one["uuid"]}
    return [uuids.get(str(one), str(one)) for one in wanted]


def absent(facts: Facts, wanted: t.Union[str, t.Sequence[t.Any]]) -> list[str]:
    """Those of ``gpus`` that no GPU of the host answers to."""
    known = set().union(*(_names(one) for one in facts["devices"]))
    return [] if isinstance(wanted, str) else [str(one) for one in wanted if str(one) not in known]


def shares(facts: Facts, wanted: t.Union[str, t.Sequence[t.Any]]) -> set[str]:
    """The uuids (or what else tells them apart) of all that an instance may use; a whole GPU is also each of its MIG devices."""
    names = set(chosen(facts, wanted))
    taken = set()
    for device in facts["devices"]:
        parts = {part["uuid"] for part in (device["mig"] or {}).get("devices", ())}
        whole = str(device["uuid"] or device["index"])
        if wanted == "all" or whole in names:
            taken |= {whole, *parts}
        elif names & parts:
            taken |= names & parts
    return taken


def _names(device: Facts) -> set[str]:
    """All that a device can be chosen by."""
    return {str(device["index"]), device["uuid"], *(part["uuid"] for part in (device["mig"] or {}).get("devices", ()))}


# The whole host


def _no_driver(facts: Facts) -> t.Optional[Finding]:
    if facts["module"]:
        return None
    kernel = facts["kernel"]
    cause = "No NVIDIA driver is installed, or its module was not built for this kernel."
    if kernel["other"]:
        cause = "The GPUs are held by the module %s." % kernel["other"]
    fix = "Install the driver with headers for kernel %s, or boot the kernel it was built for; then modprobe nvidia." % kernel["release"]
    if facts["container"]:
        fix = "Load the driver on the machine that runs this container, then restart the container."
    return Finding(
        "gpu.no-driver",
        ERROR,
        _HOST,
        "the machine has NVIDIA GPUs, but no NVIDIA kernel module is loaded",
        "%d on PCI, held by %s"
        % (len(facts["pci"]), ", ".join(sorted({one["driver"] or "no driver" for one in facts["pci"]})) or "nothing"),
        "/proc/driver/nvidia/version",
        "kernel %s" % kernel["release"],
        cause,
        fix,
    )


def _not_passed(facts: Facts) -> t.Optional[Finding]:
    if facts["nodes"] or not facts["container"] or any(one["index"] is not None for one in facts["devices"]):
        return None
    return Finding(
        "gpu.not-passed",
        ERROR,
        _HOST,
        "the driver runs on the machine, but no GPU is passed into this %s container" % facts["container"]["kind"],
        "no /dev/nvidia*",
        "/dev/nvidia0 and so on, /dev/nvidiactl, /dev/nvidia-uvm",
        fix="Pass the device nodes into the container and allow them in its device cgroup; or use the lane cpu.",
    )


def _mismatch(facts: Facts) -> t.Optional[Finding]:
    module, answers = facts["module"]["version"], facts["answers"]
    library = facts["libraries"].get("libnvidia-ml.so.1")
    told = [name for name in ("nvml", "nvidia-smi") if answers.get(name, {}).get("code") == VERSION_MISMATCH]
    if not told and library in (None, module):
        return None
    container = facts["container"]
    return Finding(
        "gpu.library-mismatch",
        ERROR,
        _HOST,
        "the NVIDIA libraries are not of the kernel module's version",
        "module %s, libnvidia-ml %s" % (module, library or "of another version"),
        "the same version",
        "; ".join("%s: %s" % (name, answers[name]["message"]) for name in told),
        "The driver was upgraded on the machine, not in the container."
        if container
        else "The driver's packages were upgraded while the old module stayed loaded.",
        _SAME_RELEASE % module if container else _RELOAD,
    )


def _no_library(facts: Facts) -> t.Optional[Finding]:
    answers = facts["answers"]
    cuda = answers["cuda"]
    if answers["silent"] or cuda["code"] is not None or cuda["version"] is not None:
        return None
    return Finding(
        "gpu.library-absent",
        ERROR,
        _HOST,
        "the driver's CUDA library cannot be loaded",
        cuda["message"],
        "libcuda.so.1 of driver %s" % facts["module"]["version"],
        "; ".join("%s: %s" % (name, answers[name]["message"]) for name in ("nvml", "nvidia-smi") if answers.get(name, {}).get("message")),
        "Only the kernel module is here, or the loader does not know where the libraries are.",
        _SAME_RELEASE % facts["module"]["version"]
        if facts["container"]
        else "Install the driver's compute libraries in version %s, then run ldconfig." % facts["module"]["version"],
    )


def _nodes(facts: Facts) -> t.Optional[Finding]:
    closed = {one["path"]: one["error"] for one in facts["nodes"] if one["error"]}
    closed_words = ", ".join("%s: %s" % pair for pair in closed.items())
    if closed and set(closed) != {"/dev/nvidia-uvm"}:
        return Finding(
            "gpu.device-node",
            ERROR,
            _HOST,
            "device nodes cannot be opened",
            closed_words,
            "nodes that open for reading and writing",
            cause="EPERM: the device cgroup forbids it, also after a systemd reload under a container; ENXIO, ENODEV: the node's numbers"
            " are stale or the GPU is gone; EACCES: mode and owner, or the ids of an unprivileged container; EIO: the GPU does not start.",
            fix="In a container: allow the devices' major numbers in its configuration, then restart it."
            " Else: nvidia-modprobe -c=0, and look into the kernel's log.",
        )
    if closed or (facts["nodes"] and "/dev/nvidia-uvm" not in {one["path"] for one in facts["nodes"]}):
        return Finding(
            "gpu.uvm",
            ERROR,
            _HOST,
            "/dev/nvidia-uvm is not usable; nvidia-smi works without it, CUDA does not",
            closed_words or "no /dev/nvidia-uvm",
            "a node that opens",
            "cuInit: %s" % (facts["answers"]["cuda"]["message"] or "not asked"),
            "The module nvidia-uvm was not loaded, or its major number changed, when the container started.",
            "Load it at boot before containers start (a unit that runs nvidia-modprobe -u -c=0), pass the node, restart the container.",
        )
    return None


def _silent(facts: Facts) -> t.Optional[Finding]:
    how = facts["answers"]["silent"]
    if not how:
        return None
    return Finding(
        "gpu.silent",
        ERROR,
        _HOST,
        "the driver does not answer",
        how,
        "an answer of NVML and of cuInit",
        "NVML: %s; CUDA: %s" % tuple(facts["answers"][name]["message"] or "answered" for name in ("nvml", "cuda")),
        "A GPU that hangs, or a driver that lost one, holds whoever asks.",
        "Look for NVRM and Xid in the kernel's log; reset the GPU or reboot.",
    )


def _nvml(facts: Facts) -> t.Optional[Finding]:
    if facts["source"] not in ("cuda", "pci") or facts["answers"]["nvml"]["code"] == 0:
        return None
    asked = {name: facts["answers"].get(name, {"code": None, "message": ""}) for name in ("nvml", "nvidia-smi")}
    refused = [one["code"] for one in asked.values() if one["code"] not in (0, None, NOT_FOUND, _NO_PROGRAM)]
    answers = "; ".join("%s: %s" % (name, one["message"] or "no GPU") for name, one in asked.items())
    if not refused and facts["answers"]["cuda"]["code"] == 0:
        message = "links, processes and faults of the GPUs could not be read: nvidia-ml-py and nvidia-smi are not there yet"
        fix = "The host program brings nvidia-ml-py; where that is there, the driver's libnvidia-ml.so.1 has to be installed."
        return Finding("gpu.nvml", COULD_NOT_CHECK, _HOST, message, answers, "an answer", fix=fix)
    if not refused:
        return None
    cause, fix = _OTHER
    if LIBRARY_NOT_FOUND in refused:
        cause = "The loader does not find libnvidia-ml.so.1."
        fix = "Install the driver's own libraries and tools in version %s, then run ldconfig." % facts["module"]["version"]
    elif UNKNOWN in refused and facts["container"]:
        cause = "The container lost its right to the devices; a systemd reload on the machine does that."
        fix = "Restart the container; create the links under /dev/char on the machine (nvidia-ctk system create-dev-char-symlinks)."
    return Finding("gpu.nvml", ERROR, _HOST, "neither NVML nor nvidia-smi can read the GPUs", answers, "an answer", cause=cause, fix=fix)


def _no_devices(facts: Facts) -> t.Optional[Finding]:
    if any(one["index"] is not None for one in facts["devices"]):
        return None
    module = facts["module"]
    firmware = sorted({one["firmware"] or "unknown" for one in facts["devices"]})
    cause, fix = "No GPU could be started.", _OTHER[1]
    if module["flavour"] == "proprietary":
        cause += " The loaded module is the proprietary one; GPUs since Blackwell start only with the open one."
        fix = "Install the open kernel modules of the driver (packages named open), then reboot."
    return Finding(
        "gpu.no-devices",
        ERROR,
        _HOST,
        "the driver is loaded but drives no GPU",
        "no device; %d on PCI; GPU firmware %s" % (len(facts["pci"]), ", ".join(firmware) or "unknown"),
        "a device for each",
        "kernel module %s, %s" % (module["version"], module["flavour"]),
        cause,
        fix,
    )


def _cuda_init(facts: Facts) -> t.Optional[Finding]:
    cuda = facts["answers"]["cuda"]
    if cuda["code"] in (0, None):
        return None
    cause, fix = _CUDA.get(cuda["code"], _OTHER)
    return Finding(
        "gpu.cuda-init",
        ERROR,
        _HOST,
        "CUDA cannot be initialised, although the GPUs are seen",
        "cuInit: %s (%d)" % (cuda["message"], cuda["code"]),
        "0",
        "libraries: %s" % ", ".join("%s %s" % pair for pair in sorted(facts["libraries"].items())),
        cause,
        fix,
    )


# Single GPUs and what is around them


def _named(device: Facts) -> str:
    return "GPU %s" % (device["bus_id"] if device["index"] is None else device["index"])


def _missing(facts: Facts) -> list[Finding]:
    """GPUs that the kernel module holds and no source answers for; a container may have been given fewer."""
    if facts["source"] not in ("nvml", "nvidia-smi") or facts["container"]:
        return []
    known = {one["bus_id"] for one in facts["devices"]}
    lost = [one["bus_id"] for one in facts["pci"] if one["driver"] == "nvidia" and one["bus_id"] not in known]
    return [
        _fault("GPU %s" % one, "the driver holds it, but does not answer for it", "no answer", facts["source"], *_OTHER) for one in lost
    ]


def _fault(subject: str, message: str, found: str, evidence: str, cause: str, fix: str, verdict: str = ERROR) -> Finding:
    return Finding("gpu.fault", verdict, subject, message, found, "a GPU without errors", evidence, cause, fix)


def _devices(facts: Facts) -> list[Finding]:
    found = []
    for one in facts["devices"]:
        error, rows = one["error"], one["remapping"] or {}
        where = "%s (%s)" % (one["name"] or "name unknown", one["bus_id"] or "address unknown")
        if error:
            reset = "Stop what uses it, then nvidia-smi --gpu-reset, or power-cycle the machine; look for Xid in the kernel's log."
            cause = "The GPU fell off the bus or wants a reset." if error["code"] in (GPU_IS_LOST, RESET_REQUIRED) else ""
            found.append(_fault(_named(one), "the GPU is in error", error["message"], where, cause, reset))
        if rows.get("failed"):
            message = "remapping of broken memory failed"
            found.append(_fault(_named(one), message, "row remapper failure", where, "Its spare rows are used up.", "Replace this GPU."))
        elif rows.get("pending"):
            message = "broken memory waits for its remapping"
            found.append(_fault(_named(one), message, "remapping pending", where, "", "Reset this GPU when it is idle.", WARNING))
        if one["unified"]:
            found.append(
                Finding(
                    "gpu.unified-memory",
                    OK,
                    _named(one),
                    "it works in the host's own memory",
                    one["memory_reason"] or "",
                    evidence=where,
                    cause="CPU and GPU share it; page cache and every process take from it, and cgroups do not count what CUDA takes.",
                    fix="Keep the engine's memory fraction well below what a GPU with memory of its own allows.",
                )
            )
    return found


def _modes(facts: Facts) -> list[Finding]:
    closed = ["%s %s" % (one["path"], one["mode"]) for one in facts["nodes"] if int(one["mode"], 8) & 0o006 != 0o006]
    if not closed:
        return []
    return [
        Finding(
            "gpu.device-mode",
            WARNING,
            _HOST,
            "the service's own user may not open the device nodes",
            ", ".join(closed),
            "mode 0666",
            cause="The module's option NVreg_DeviceFileMode or a udev rule says so, or the container's configuration does.",
            fix="Set NVreg_DeviceFileMode=0666 for the module nvidia, or the mode in the container's configuration.",
        )
    ]


def _compilers(facts: Facts) -> list[Finding]:
    return [
        Finding(
            "gpu.toolkit-newer",
            WARNING,
            one["path"],
            "this CUDA toolkit is newer than the driver's CUDA",
            one["version"],
            "<= %s" % facts["cuda"],
            cause="Code that is compiled here at run time may not load (unsupported toolchain), while imports look healthy.",
            fix="Let CUDA_HOME name a toolkit that the driver supports, or install a newer driver.",
        )
        for one in facts["toolkits"]
        if one["version"] and facts["cuda"] and _ordered(one["version"]) > _ordered(facts["cuda"])
    ]


def _neighbours(facts: Facts) -> list[Finding]:
    seen = {
        "%s (%d)" % (process["name"], process["pid"]) for one in facts["devices"] for process in one["processes"] if process["container"]
    }
    if not seen:
        return []
    return [
        Finding(
            "gpu.neighbours",
            WARNING,
            _HOST,
            "containers use the GPUs; a reload of systemd can take the devices from them",
            ", ".join(sorted(seen)),
            "no container whose devices depend on systemd's cgroups",
            cause="A deploy reloads systemd, which rewrites the device rules of running containers.",
            fix="Create the links under /dev/char (nvidia-ctk system create-dev-char-symlinks), or deploy when they are stopped.",
        )
    ]


def _nesting(facts: Facts) -> list[Finding]:
    container = facts["container"]
    if not container or container["nesting"] is not False:
        return []
    return [
        Finding(
            "gpu.nesting",
            WARNING,
            _HOST,
            "this LXC container has no nesting: the kernel may refuse parts of the service's sandbox",
            "no second procfs, %s container" % ("unprivileged" if container["unprivileged"] else "privileged"),
            "nesting, or a sandbox that does without",
            "/dev/.lxc/proc",
            "systemd needs a procfs of its own for what it hides from a service.",
            "Switch nesting on for the container (Proxmox: pct set <id> --features nesting=1, then restart it), or write"
            " service: {sandbox: container}.",
        )
    ]


def _upgrades(facts: Facts) -> list[Finding]:
    if not facts["upgrades"]:
        return []
    return [
        Finding(
            "gpu.unattended-upgrade",
            WARNING,
            _HOST,
            "an unattended upgrade may replace the driver under a running server",
            "not held: " + ", ".join(facts["upgrades"]),
            "packages of the driver that are held",
            "APT::Periodic::Unattended-Upgrade is on",
            "After one, the libraries are newer than the loaded module, and whatever starts finds no GPU until a reload.",
            "apt-mark hold " + " ".join(facts["upgrades"]),
        )
    ]


def unified_memory(facts: Facts, memory: Facts, fraction: t.Optional[float], subject: str, option: str, serving: bool) -> list[Finding]:
    """What an instance's share of memory means where GPU and host have one memory; nothing elsewhere.

    :param facts: of the GPUs that the instance uses.
    :param memory: of the host, bytes ``total`` and ``available``.
    :param fraction: what the instance asks of it, None for the engine's default.
    :param option: the engine's argument for it.
    :param serving: whether the instance serves now: what it holds it gives back.
    """
    if not any(one["unified"] for one in facts["devices"]):
        return []
    total, available = memory.get("total"), memory.get("available")
    fix = "Set extra_args: {%s: …} so that page cache, system and everything else keep the rest; stop what else holds memory." % option
    if fraction is None:
        message = "the engine's default share of memory is made for a GPU with memory of its own"
        return [Finding("gpu.unified-share", WARNING, subject, message, "no %s" % option, "a share of the host's memory", fix=fix)]
    if not total or available is None:
        message = "whether the memory that is free is enough is not known"
        return [Finding("gpu.unified-share", COULD_NOT_CHECK, subject, message, "no figures in /proc/meminfo", "MemAvailable", fix=fix)]
    wanted = fraction * total
    if serving or wanted <= available:
        return []
    return [
        Finding(
            "gpu.unified-share",
            ERROR,
            subject,
            "less memory is free than the instance asks for, and GPU and host have one memory",
            "%.1f of %.1f GB available" % (available / 1e9, total / 1e9),
            ">= %.1f GB (%s %s)" % (wanted / 1e9, option, fraction),
            "/proc/meminfo",
            "The page cache, an orphaned process or what a crashed server leaked holds it; no cgroup counts what CUDA takes.",
            fix,
        )
    ]


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
