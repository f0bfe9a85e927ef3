# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPU probe: what NVML and CUDA say, asked in a process of its own.

A driver in trouble can hang or end whoever asks it. So the source of this file is handed to a Python
on its standard input (see gpus.py); it imports nothing of the collection, and NVML through
nvidia-ml-py, where that is there.

Standard output carries one JSON object a line, written as soon as it is known: ``{"libraries": …}``,
``{"nvml": …}``, ``{"cuda": …}``; a later line of a name replaces an earlier one. Answers hold
``code``, the library's own return code: 0 is good, null means that it could not be asked.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import typing as t

_ML, _CUDA = "libnvidia-ml.so.1", "libcuda.so.1"

#: NVML's codes for "this GPU has none of that": not supported, no permission, function not found.
_NOT_A_FAULT = (3, 4, 13)

#: NVML's levels of the closest common ancestor, by the names that nvidia-smi shows.
_PATHS = {0: "internal", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
#: NVML_P2P_CAPS_INDEX_READ, which nvidia-ml-py defines as a tuple.
_P2P_READ = 0
_P2P = ("ok", "chipset not supported", "GPU not supported", "topology not supported", "disabled", "not supported", "unknown")

#: CUDA's attributes of a device.
_INTEGRATED, _MAJOR, _MINOR = 18, 75, 76

_Error = t.Optional[dict[str, t.Any]]


def main(packages: str, cuda: bool = True) -> None:
    """Report everything (CUDA only if asked: it takes its time); ``packages`` goes first on the search path, where it is not empty."""
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # NVML's
    if packages:
        sys.path.insert(0, packages)
    _report("libraries", _libraries())
    try:
        _report("nvml", _nvml())
    except Exception as error:
        # Whatever a broken package or library does, CUDA is still to be asked.
        _report("nvml", {"code": None, "message": "%s: %s" % (type(error).__name__, error)})
    if cuda:
        _cuda()


def _report(name: str, answer: t.Any) -> None:
    os.write(1, (json.dumps({name: answer}) + "\n").encode())


def _libraries() -> dict[str, t.Any]:
    """Per soname the file that the loader takes, links resolved, or why it takes none."""
    answers: dict[str, t.Any] = {}
    for soname in (_ML, _CUDA):
        try:
            ctypes.CDLL(soname)
        except OSError as error:
            answers[soname] = {"file": None, "error": str(error)}
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        files = {line.split(None, 5)[-1].strip() for line in maps if "/" in line}
    for soname in (_ML, _CUDA):
        loaded = [file for file in files if os.path.basename(file).startswith(soname[:-1])]
        if loaded:
            answers[soname] = {"file": loaded[0], "error": None}
    return answers


def _ask(function: t.Callable[..., t.Any], *arguments: t.Any) -> tuple[t.Any, _Error]:
    """The answer of an NVML function, and its error as data."""
    import pynvml

    try:
        return function(*arguments), None
    except pynvml.NVMLError as error:
        return None, {"code": error.value, "message": str(error)}
    except pynvml.NVMLLibraryMismatchError:
        # An older driver has only an older version of the function.
        return None, {"code": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, "message": "Function Not Found"}


def _nvml() -> dict[str, t.Any]:
    try:
        import pynvml as nvml
    except ImportError as error:
        return {"code": None, "message": str(error)}
    _none, error = _ask(nvml.nvmlInit)
    if error:
        return error
    count, error = _ask(nvml.nvmlDeviceGetCount)
    if error:
        return error
    handles = [_ask(nvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
    return {
        "code": 0,
        "message": "",
        "driver": _ask(nvml.nvmlSystemGetDriverVersion)[0],
        "cuda": _ask(nvml.nvmlSystemGetCudaDriverVersion)[0],
        "devices": [{"index": index, **({"error": lost} if lost else _device(handle))} for index, (handle, lost) in enumerate(handles)],
        "paths": _matrix([handle for handle, _lost in handles], _path),
        "p2p": _matrix([handle for handle, _lost in handles], _peer),
    }


def _matrix(handles: t.Sequence[t.Any], relation: t.Callable[[t.Any, t.Any], t.Optional[str]]) -> list[list[t.Optional[str]]]:
    """How each GPU reaches each other; null on the diagonal and where nobody says."""
    return [[relation(one, other) if one and other and one is not other else None for other in handles] for one in handles]


def _path(one: t.Any, other: t.Any) -> t.Optional[str]:
    import pynvml as nvml

    return _PATHS.get(_ask(nvml.nvmlDeviceGetTopologyCommonAncestor, one, other)[0])


def _peer(one: t.Any, other: t.Any) -> t.Optional[str]:
    import pynvml as nvml

    status = _ask(nvml.nvmlDeviceGetP2PStatus, one, other, _P2P_READ)[0]
    return _P2P[status] if status is not None and status < len(_P2P) else None


def _device(handle: t.Any) -> dict[str, t.Any]:
    import pynvml as nvml

    uuid, no_uuid = _ask(nvml.nvmlDeviceGetUUID, handle)
    name, no_name = _ask(nvml.nvmlDeviceGetName, handle)
    memory, no_memory = _ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    capability = _ask(nvml.nvmlDeviceGetCudaComputeCapability, handle)[0]
    pci = _ask(nvml.nvmlDeviceGetPciInfo, handle)[0]
    faults = [one for one in (no_uuid, no_name, no_memory) if one and one["code"] not in _NOT_A_FAULT]
    rows = _ask(nvml.nvmlDeviceGetRemappedRows, handle)[0]
    return {
        "uuid": uuid,
        "name": name,
        "bus_id": _text(pci.busId) if pci else None,
        "compute_capability": "%d.%d" % tuple(capability) if capability else None,
        "memory": memory.total if memory else None,
        "memory_error": no_memory,
        "mig": _mig(handle),
        "pcie": {
            "generation": _ask(nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle)[0],
            "width": _ask(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle)[0],
            "max_generation": _ask(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)[0],
            "max_width": _ask(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle)[0],
        },
        "nvlinks": sum(_ask(nvml.nvmlDeviceGetNvLinkState, handle, link)[0] or 0 for link in range(nvml.NVML_NVLINK_MAX_LINKS)),
        "processes": _processes(handle),
        "remapping": {"pending": bool(rows[2]), "failed": bool(rows[3])} if rows else None,
        "error": faults[0] if faults else None,
    }


def _mig(handle: t.Any) -> t.Optional[dict[str, t.Any]]:
    """The MIG layout; None for a GPU that has no MIG."""
    import pynvml as nvml

    mode = _ask(nvml.nvmlDeviceGetMigMode, handle)[0]
    if mode is None:
        return None
    parts = []
    for index in range(_ask(nvml.nvmlDeviceGetMaxMigDeviceCount, handle)[0] or 0 if mode[0] else 0):
        part = _ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)[0]
        if part:
            memory = _ask(nvml.nvmlDeviceGetMemoryInfo, part)[0]
            parts.append(
                {
                    "uuid": _ask(nvml.nvmlDeviceGetUUID, part)[0],
                    "name": _ask(nvml.nvmlDeviceGetName, part)[0],
                    "memory": memory.total if memory else None,
                    "gpu_instance": _ask(nvml.nvmlDeviceGetGpuInstanceId, part)[0],
                    "compute_instance": _ask(nvml.nvmlDeviceGetComputeInstanceId, part)[0],
                }
            )
    return {"enabled": bool(mode[0]), "devices": parts}


def _processes(handle: t.Any) -> list[dict[str, t.Any]]:
    import pynvml as nvml

    seen = {}
    for function in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        for one in _ask(function, handle)[0] or ():
            name = _ask(nvml.nvmlSystemGetProcessName, one.pid)[0]
            seen.setdefault(one.pid, {"pid": one.pid, "name": _text(name), "bytes": one.usedGpuMemory})
    return [seen[pid] for pid in sorted(seen)]


def _text(value: t.Any) -> t.Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _cuda() -> None:
    """The driver's CUDA before it is initialised, for that is where trouble begins; then what initialising gives."""
    try:
        library = ctypes.CDLL(_CUDA)
    except OSError as error:
        _report("cuda", {"code": None, "message": str(error), "version": None})
        return
    number = ctypes.c_int()
    version = number.value if library.cuDriverGetVersion(ctypes.byref(number)) == 0 else None
    _report("cuda", {"code": None, "message": "initialising did not end", "version": version})
    code = library.cuInit(0)
    name = ctypes.c_char_p()
    library.cuGetErrorName(code, ctypes.byref(name))
    devices = _cuda_devices(library) if code == 0 else []
    _report("cuda", {"code": code, "message": _text(name.value or b""), "version": version, "devices": devices})


def _cuda_devices(library: ctypes.CDLL) -> list[dict[str, t.Any]]:
    """What CUDA says of its GPUs without a context: for a host where nobody asks NVML yet."""
    count, device, value, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    if library.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    found = []
    for index in range(count.value):
        if library.cuDeviceGet(ctypes.byref(device), index) != 0:
            continue

        def attribute(number: int, of: int = device.value) -> t.Optional[int]:
            return value.value if library.cuDeviceGetAttribute(ctypes.byref(value), number, of) == 0 else None

        words = []
        for function in (library.cuDeviceGetName, library.cuDeviceGetPCIBusId):
            text = ctypes.create_string_buffer(256)
            words.append(_text(text.value) if function(text, len(text), device) == 0 else None)
        major, minor = attribute(_MAJOR), attribute(_MINOR)
        known = library.cuDeviceTotalMem_v2(ctypes.byref(total), device) == 0
        found.append(
            {
                "index": index,
                "name": words[0],
                "bus_id": words[1],
                "compute_capability": None if major is None or minor is None else "%d.%d" % (major, minor),
                "memory": total.value if known else None,
                "unified": attribute(_INTEGRATED) == 1,
            }
        )
    return found
