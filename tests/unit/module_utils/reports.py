# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Public reports of failures that the tests build, and the tables of docs/checks.md made from them.

``python tests/unit/module_utils/reports.py`` writes the tables; a test fails where they are not up to date.
"""

from __future__ import annotations

import typing as t
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "checks.md"

#: What a journal shows: (report, the line, id of the failure). Each is built and diagnosed in test_diagnosis.py.
REPORTS = (
    ("vllm#49804", "RuntimeError: flashinfer-cubin version (0.6.13) does not match flashinfer version (0.6.14).", "flashinfer-parts"),
    (
        "sglang#10891",
        "Exception: flashinfer_python is installed with version 0.4.0, which is less than the minimum required version 0.4.1.",
        "minimum-version",
    ),
    (
        "sglang#27654",
        "ImportError: kernels>=0.12 is required for a normal functioning of this module, but found kernels==0.9.",
        "dependency-version",
    ),
    ("sglang#29317", "ImportError: common_ops.abi3.so: undefined symbol: _ZN3c1013MessageLoggerC1EPKciib", "undefined-symbol"),
    ("sglang#5100", "ImportError: x.so: undefined symbol: _ZN5torch3jit17parseSchemaOrNameERKSsb", "undefined-symbol"),
    ("sglang#8131", "ImportError: /x/common_ops.abi3.so: undefined symbol: cuGreenCtxStreamCreate", "driver-symbol"),
    ("sglang#13948", "ImportError: [sgl_kernel] CRITICAL: Could not load any common_ops library!", "kernel-library"),
    ("sglang#12119", "ImportError: libnuma.so.1: cannot open shared object file: No such file or directory", "library"),
    (
        "sglang#7249",
        "RuntimeError: RMSNorm failed with error code no kernel image is available for execution on the device",
        "no-kernel-image",
    ),
    (
        "sglang#8513",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376.",
        "shared-memory-of-gpu",
    ),
    ("triton#8539", "RuntimeError: ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'", "ptxas-architecture"),
    ("sglang#29646", "OSError: libnvrtc.so.12: cannot open shared object file: No such file or directory", "cuda-library"),
    ("vllm#52300", "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory", "cuda-library"),
    ("pytorch#174320", "ImportError: undefined symbol: cublasLtGetVersion, version libcublasLt.so.13", "cuda-library-shadowed"),
    ("pytorch#88882", "RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx`", "cuda-library-shadowed"),
    ("sglang#4778", "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory", "driver-library"),
    ("pytorch#168065", "AssertionError: Torch not compiled with CUDA enabled", "cpu-torch"),
    ("transformers hides it", "RuntimeError: operator torchvision::nms does not exist", "torchvision-mismatch"),
    ("FunASR#2973", "RuntimeError: The NVIDIA driver on your system is too old (found version 12080).", "driver-too-old"),
    ("vllm#47397", "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.", "ptx-toolchain"),
    ("homelab#4110", "NVMLError: Failed to initialize NVML: Driver/library version mismatch", "driver-mismatch"),
    ("nvidia-container-toolkit#48", "RuntimeError: Failed to initialize NVML: Unknown Error", "nvml-unknown"),
    ("open-gpu-kernel-modules#862", "RuntimeError: No CUDA GPUs are available", "no-gpu"),
    ("turbofit#5", "ValueError: invalid literal for int() with base 10: '[N/A]'", "gpu-memory-unknown"),
    (
        "vllm#56824",
        "ValueError: Free memory on device cuda:0 (36.75/121.63 GiB) on startup is less than desired GPU memory utilization (0.9)",
        "gpu-memory-taken",
    ),
    ("dgx-spark-playbooks#97", "RuntimeError: NV_ERR_NO_MEMORY", "gpu-memory-taken"),
    ("fak#923", "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'", "no-ninja"),
    ("flashinfer#1919", "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist", "no-nvcc"),
    ("flashinfer#4410", "RuntimeError: fatal error: curand_kernel.h: No such file or directory", "cuda-header"),
    ("flashinfer#3634", "RuntimeError: ninja: build stopped: nvcc Killed, exit code 137", "compiler-killed"),
    ("pytorch#91005", "ImportError: /tmp/x/cuda_utils.so: failed to map segment from shared object", "no-exec"),
    ("vllm#27890", "RuntimeError: main.c:5:10: fatal error: Python.h: No such file or directory", "python-header"),
    ("virtualenv#2308", "OSError: /srv/venv/bin/sglang: bad interpreter: No such file or directory", "bad-interpreter"),
    ("sglang#351", "AttributeError: module 'sglang' has no attribute 'function'", "package-shadowed"),
    ("vllm#9255", "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files in the disk cache", "model-offline"),
    ("skypilot#2634", "OSError: 401 Client Error: Cannot access gated repo for url", "model-access"),
    ("vllm#3719", "OSError: /models/x does not appear to have a file named config.json.", "model-file"),
    ("a cut-off file", "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata", "model-file"),
    ("club-3090#144", "ModuleNotFoundError: No module named 'vllm.entrypoints.openai.speech_to_text'", "no-module"),
    ("vllm#20127", "PermissionError: [Errno 13] Permission denied: '/.cache'", "no-home"),
    ("CPython: threading", "RuntimeError: can't start new thread", "threads"),
    (
        "hasso: gb10-memory.md",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory",
        "host-memory",
    ),
    ("vllm#7920", "zmq.error.ZMQError: Too many open files", "open-files"),
    ("nccl#290", "RuntimeError: Error while creating shared memory segment /dev/shm/nccl-x: No space left on device", "shared-memory"),
    ("llm-d#352", "OSError: [Errno 28] No space left on device", "disk-full"),
    ("nccl-tests#206", "RuntimeError: ibv_reg_mr_iova2 failed with error Cannot allocate memory", "locked-memory"),
    ("sglang: registry", "ValueError: Unknown speculative algorithm name: DDTREE", "algorithm"),
    ("vllm#10185", "PermissionError: [Errno 13] Permission denied: '/srv/models/t2/config'", "permission"),
    ("triton", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB", "gpu-memory"),
    ("sglang#31281", "OSError: [Errno 98] Address already in use", "port-in-use"),
    ("flashinfer at the end of a loaded model", "ImportError: cannot import name 'mm_mxfp8' from 'flashinfer'", "overlay-name"),
)


class Proved(t.NamedTuple):
    """What a check says of its bad case, which test_checks.py builds: why it is so, the way out; and who met that."""

    cause: str
    fix: str
    reports: tuple[str, ...] = ()


#: What is found before anything is touched, in the order of the checks.
PROVED: dict[str, Proved] = {
    "environment.complete": Proved(
        "Its build did not come to its end, or something of it was removed since.",
        "Build the environment again; nothing inside it is repaired in place.",
    ),
    "lock.unreadable": Proved(
        "It was edited by hand, cut off, or is a file of another kind.",
        "Make the lock anew.",
    ),
    "lock.edited": Proved(
        "The id in its first line is over its packages; one of them, or the id, was edited.",
        "Restore the file, or say what you want in specdec_pins and make the lock anew.",
    ),
    "lock.satisfied": Proved(
        "Something was installed into the environment, or removed, after it was built.",
        "Build the environment again; nothing inside it is repaired in place.",
        ("sglang#12723",),
    ),
    "lock.engine-version": Proved(
        "The lock was made for another version, or another engine was installed over it.",
        "Make the lock anew for the wanted version (`specdec_pins_update`) and build again.",
        ("vllm#52300",),
    ),
    "record.changed": Proved(
        "an edit by hand, a damaged disk, or an edit in another environment that shares the file",
        "take wanted edits into an overlay (capture), then build the environment anew; nothing inside it is repaired in place",
        ("incident 3", "NeMo-RL#4155"),
    ),
    "record.missing": Proved(
        "they were removed by hand, by another package's removal, or their disk is damaged",
        "build the environment anew; nothing inside it is repaired in place",
    ),
    "record.foreign": Proved(
        "leftovers of an earlier install, or files put there by hand",
        "take wanted files into an overlay (capture), then build the environment anew; nothing inside it is repaired in place",
        ("cpython#75953",),
    ),
    "record.doubly-owned": Proved(
        "the one installed last overwrote the other",
        "keep only one of them in the lock",
        ("sgl-kernel: pyproject",),
    ),
    "record.outside": Proved(
        "a wheel that was made wrongly, or to overwrite what is not its own",
        "do not install this wheel; ask where it comes from",
    ),
    "record.unreadable": Proved(
        "not installed from a wheel, or its metadata was removed",
        "build the environment anew; nothing inside it is repaired in place",
    ),
    "overlay.applied": Proved(
        "they were edited, replaced or removed after the environment was built",
        "build the environment anew; nothing inside it is repaired in place",
        ("Hyperloom#1521",),
    ),
    "parity.flashinfer": Proved(
        "One part was moved alone: by an override, by an upgrade without dependencies, or because an index ends at an older version.",
        "Pin all parts of flashinfer to one version (`specdec_pins: {flashinfer: VERSION}` moves them together) and build again.",
        ("vllm#49804", "flashinfer#4781", "Megatron-Bridge#3750", "miles#629"),
    ),
    "parity.kernel": Proved(
        "Both write the same directory, so the files are those of whichever came last.",
        "Leave the one the engine requires in the lock, exclude the other, and build again.",
        ("sgl-kernel: pyproject", "sglang#20953"),
    ),
    "parity.torch-labels": Proved(
        "They were taken from indexes of different lanes.",
        "Take them from the index of torch's lane, make the lock anew and build again.",
        ("sglang#29646", "vllm#52300"),
    ),
    "parity.cuda-major": Proved(
        "Two packages were taken from lanes of different CUDA versions.",
        "Take torch and the engine from the same lane, make the lock anew and build again.",
        ("vllm#36099", "sglang#29425"),
    ),
    "api.missing-name": Proved(
        "The engine was written for another version of flashinfer.",
        "Install a version of flashinfer that has the name, or an engine and overlay made for the installed one.",
        ("incident 1", "club-3090#144"),
    ),
    "libraries.missing": Proved(
        "neither the environment nor the system has it",
        "install the system's package that has libnuma.so.1, or a lane that carries it",
        ("sglang#13948", "sglang#16052"),
    ),
    "abi.undefined-symbol": Proved(
        "The package was built against another version of torch.",
        "Take the package that was built for the installed torch, from the lane's index, and build again.",
        ("sglang#30562", "sglang#29317", "sglang#5100"),
    ),
    "abi.cpu-torch": Proved(
        "torch came from another index than the packages beside it.",
        "Choose a CUDA lane, or the packages' builds for the CPU, and build again.",
        ("pytorch#168065", "sglang#18491"),
    ),
    "abi.cuda-major": Proved(
        "Two copies of the CUDA libraries would be loaded into one process, each with a state of its own.",
        "Choose a lane whose torch and kernel packages are built for the same CUDA major version.",
        ("sglang#29646", "sglang#10951"),
    ),
    "abi.other-python": Proved(
        "The wheel was built for another Python, or says `abi3` and is not.",
        "Take the wheel for this Python. Where only a part that is not used is concerned, nothing needs to be done.",
    ),
    "abi.other-machine": Proved(
        "The wheel was chosen for another machine, or carries files for several.",
        "Make the lock anew for this host's machine, and build again.",
    ),
    "abi.gpu-architecture": Proved(
        "The package was built without this generation of GPUs; the first kernel would end in `no kernel image is available`.",
        "Choose a lane whose packages carry it (newer CUDA, newer versions), or build the package for it and pin the wheel.",
    ),
    "abi.driver-symbol": Proved(
        "The driver is older than the CUDA that the package was built with.",
        "Update the host's driver, or choose a lane for an older CUDA.",
    ),
    "abi.unreadable": Proved(
        "They were cut off or overwritten, or are no compiled files at all.",
        "Build the environment anew; nothing inside it is repaired in place.",
    ),
    "unit.verify": Proved(
        "The unit says something that this version of systemd does not know, or does not take.",
        "Correct the option of the instance that leads to this line; a directive that this systemd does not know is not in force.",
    ),
    "unit.sandbox": Proved(
        "A lower level was chosen for the instance, or this systemd counts what is not closed otherwise.",
        "Use the strict sandbox (`service: {sandbox: strict}`) where the host allows namespaces.",
    ),
    "unit.secret": Proved(
        "both are readable by every user of the host (ps, systemctl show)",
        "give the secret as api_key of the instance; it then reaches the engine as a credential",
        ("hasso: SECURITY.md",),
    ),
    "unit.start-limit": Proved(
        "every failed start costs memory and hides the first error in the journal",
        "set StartLimitBurst=3 and an interval longer than three starts take",
        ("eugr#257", "homelab#4110"),
    ),
    "unit.kill-mode": Proved(
        "process leaves workers behind that keep GPU memory; control-group cuts requests off in the workers",
        "set KillMode=mixed",
        ("vllm#55510", "vllm#43060"),
    ),
    "unit.stop-timeout": Proved(
        "an engine drains for as long as a request runs",
        "set service.stop_timeout of the instance",
    ),
    "unit.open-files": Proved(
        "workers and connections fail with 'Too many open files' under load",
        "set LimitNOFILE=1048576",
        ("vllm#7920", "arbor#48"),
    ),
    "unit.caches": Proved(
        "compilers and kernels write there at the first request; it ends in 'Permission denied' or 'Read-only file system'",
        "leave HOME and the cache variables out of the instance's environment, or point them below its state directory",
        ("vllm#20127", "vllm#10185", "sglang#29170"),
    ),
    "unit.path": Proved(
        "kernels are compiled with ninja from the environment",
        "leave PATH out of the instance's environment",
        ("flashinfer#3386", "xinference#5118"),
    ),
    "unit.bypass": Proved(
        "parts of different versions then load and fail, or answer wrongly, later",
        "remove the variable and let the versions agree: specdec_pins moves all parts together",
        ("molt#43",),
    ),
    "unit.user": Proved(
        "a model's code runs with the service's rights",
        "set User= to a system user",
    ),
    "host.port": Proved(
        "Another service uses it, or a process of the engine was left behind by a stop.",
        "Stop that process, or give the instance another port.",
        ("minefield 53", "sglang#31645"),
    ),
    "host.disk": Proved(
        "Environments, models or caches fill the file system.",
        "Remove environments and caches that are not used (`specdec status` names them).",
    ),
    "host.shm": Proved(
        "A container's default is small, or processes that were killed left their segments behind.",
        "Give the host or container a larger /dev/shm, or remove what dead processes left there.",
        ("nccl#290", "llm-d#352"),
    ),
    "host.model-readable": Proved(
        "They belong to another user, or lie where the sandbox hides them.",
        "Put the model below the model store, or give files and directories read rights; the sandbox hides /home and /root.",
    ),
    "import.sandbox": Proved(
        "the sandbox cannot be set up here (226/NAMESPACE)",
        "In a container, allow nesting; or choose the documented lower level with `service: {sandbox: container}`.",
    ),
    "import.engine": Proved(
        "A package is not installed in the environment.",
        "Add it (`specdec_extra_packages`) and build again; one of the engine's own is missing where an overlay is older than its base.",
        ("sglang#27654",),
    ),
    "import.torch": Proved(
        "The package was built for another CUDA major version than torch, or the library's directory is not where the loader looks.",
        "Choose a lane whose torch and kernel package are for one CUDA; deploy with the library directories of the "
        "environment. A symbolic link to the other major version only moves the crash.",
    ),
    "import.kernel": Proved(
        "A compiled package was built against another version of torch or CUDA.",
        "Take the package that was built for the installed torch, from the lane's index, and build again.",
    ),
    "import.flashinfer": Proved(
        "The parts of flashinfer have different versions.",
        "Pin flashinfer (`specdec_pins: {flashinfer: VERSION}` moves all its parts) and build again.",
    ),
    "import.plugins": Proved(
        "The code was written for another version of the package it takes the name from.",
        "Pin the package to the version that the engine or the overlay was written for, and build again.",
    ),
    "import.outside": Proved(
        "PYTHONPATH, the working directory or a user's site directory holds another copy.",
        "Remove the copy, or the variable that leads to it, and deploy again.",
        ("sglang#351", "setuptools#3592"),
    ),
    "import.died": Proved(
        "Compiled code crashed.",
        "See the findings on versions and names; change the pins (`specdec_pins`) or the overlay and build again.",
    ),
    "import.hang": Proved(
        "Code waits for something while it is imported that does not come; the sandbox has no network.",
        "Read in the evidence where it waits: a network address, a lock, a compiler; or give it more time.",
    ),
    "import.stray": Proved(
        "Code starts a process of its own while it is imported.",
        "Find out which package starts it; it would stay beside the engine.",
    ),
    "import.cuda-context": Proved(
        "Something initialises CUDA while it is imported or while arguments are checked; it takes memory of a GPU as long as it lasts.",
        "Nothing has to be done where the GPUs have memory to spare; else check (`specdec verify`, a deploy) while nothing serves on them.",
    ),
    "algorithm.recognised": Proved(
        "The engine's source does not know the algorithm.",
        "Correct `speculative.algorithm`, or give the instance the overlay that brings it (`overlays: [{reference: HOST}]`).",
    ),
    "arguments.accepted": Proved(
        "An option is unknown to this version of the engine, or does not go with another one or with the model.",
        "Correct the option of the instance that the message names.",
        ("sglang#36140",),
    ),
    "prove.completed": Proved(
        "It met something that it does not expect.",
        "Report this with the evidence; until then, the checks of this group can be left out by their ids.",
    ),
}

_MARKS = ("<!-- %s: made by tests/unit/module_utils/reports.py -->\n", "<!-- %s: end -->\n")


def failures() -> str:
    """The table of what a journal shows."""
    from ansible_collections.specdec.serving.plugins.module_utils import failures as core

    rows = ["| id | cause | way out | seen in |", "|---|---|---|---|"]
    for row in core.FAILURES:
        seen = dict.fromkeys([row.source, *(report for report, _line, id_ in REPORTS if id_ == row.id)])
        rows.append("| `failure.%s` | %s | %s | %s |" % (row.id, row.cause, row.fix.replace("`", ""), ", ".join(seen)))
    return "\n".join(rows) + "\n"


def prove() -> str:
    """The table of what is found before anything is touched."""
    from ansible_collections.specdec.serving.plugins.module_utils import checks

    rows = ["| id | what holds where it is ok | why it does not | way out | reports of it |", "|---|---|---|---|---|"]
    for one in checks.CHECKS:
        told = PROVED[one.id]
        rows.append("| `%s` | %s | %s | %s | %s |" % (one.id, one.text, told.cause, told.fix.replace("`", ""), ", ".join(told.reports)))
    return "\n".join(rows) + "\n"


TABLES: dict[str, t.Callable[[], str]] = {"failures": failures, "prove": prove}


def written(text: str) -> str:
    """The page with its tables made anew."""
    for name, table in TABLES.items():
        begin, end = (mark % name for mark in _MARKS)
        before, _begin, rest = text.partition(begin)
        text = before + begin + table() + end + rest.partition(end)[2]
    return text


if __name__ == "__main__":
    import runpy

    runpy.run_path(str(Path(__file__).resolve().parents[1] / "conftest.py"))
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
