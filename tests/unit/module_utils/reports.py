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

#: What is found before anything is touched: id of the check → reports. The state of each is built in test_checks.py.
BEFORE: dict[str, tuple[str, ...]] = {
    "lock.satisfied": ("sglang#12723",),
    "lock.engine-version": ("vllm#52300",),
    "record.changed": ("incident 3", "NeMo-RL#4155"),
    "record.foreign": ("cpython#75953",),
    "record.doubly-owned": ("sgl-kernel: pyproject",),
    "overlay.applied": ("Hyperloom#1521",),
    "parity.flashinfer": ("vllm#49804", "flashinfer#4781", "Megatron-Bridge#3750", "miles#629"),
    "parity.kernel": ("sgl-kernel: pyproject", "sglang#20953"),
    "parity.torch-labels": ("sglang#29646", "vllm#52300"),
    "parity.cuda-major": ("vllm#36099", "sglang#29425"),
    "api.missing-name": ("incident 1", "club-3090#144"),
    "libraries.missing": ("sglang#13948", "sglang#16052"),
    "abi.undefined-symbol": ("sglang#30562", "sglang#29317", "sglang#5100"),
    "abi.cpu-torch": ("pytorch#168065", "sglang#18491"),
    "abi.cuda-major": ("sglang#29646", "sglang#10951"),
    "unit.secret": ("hasso: SECURITY.md",),
    "unit.start-limit": ("eugr#257", "homelab#4110"),
    "unit.kill-mode": ("vllm#55510", "vllm#43060"),
    "unit.open-files": ("vllm#7920", "arbor#48"),
    "unit.caches": ("vllm#20127", "vllm#10185", "sglang#29170"),
    "unit.path": ("flashinfer#3386", "xinference#5118"),
    "unit.bypass": ("molt#43",),
    "host.port": ("minefield 53", "sglang#31645"),
    "host.shm": ("nccl#290", "llm-d#352"),
    "import.outside": ("sglang#351", "setuptools#3592"),
    "import.engine": ("sglang#27654",),
    "arguments.accepted": ("sglang#36140",),
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

    rows = ["| id | what holds where it is ok | reports of the contrary |", "|---|---|---|"]
    rows += ["| `%s` | %s | %s |" % (one.id, one.text, ", ".join(BEFORE.get(one.id, ()))) for one in checks.CHECKS]
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
