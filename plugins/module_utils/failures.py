# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What engines say when they fail, what it means, and the way out: a table, for the host has no YAML.

A row's source is the public report (project#number) where the line was seen.
"""

from __future__ import annotations

import re
import typing as t


class Failure(t.NamedTuple):
    """One known failure.

    :param id: names it: the finding of a diagnosis is ``failure.<id>``.
    :param pattern: regular expression over the text of an exception, ``type: message``.
    :param alone: the line is evidence also outside of a traceback; the others are too common in warnings.
    """

    id: str
    pattern: str
    cause: str
    fix: str
    source: str
    alone: bool = False


#: The first row that fits is taken: the special before the general.
FAILURES = (
    # Versions that do not belong together
    Failure(
        "flashinfer-parts",
        r"flashinfer-[a-z-]+ version \(.*does not match flashinfer version",
        "The parts of flashinfer have different versions.",
        "Pin flashinfer (`specdec_pins: {flashinfer: VERSION}` moves all its parts) and build again.",
        "vllm#49804",
        True,
    ),
    Failure(
        "minimum-version",
        r"is installed with version \S+, which is less than the minimum required version",
        "The engine's source asks for a newer package than the lock holds: source and pins are of different versions.",
        "Pin what this engine version itself pins (`specdec_pins`), or take the overlay from a reference of the same version.",
        "sglang#10891",
        True,
    ),
    Failure(
        "dependency-version",
        r"is required for a normal functioning of this module, but found",
        "A package refuses the version of one that it depends on.",
        "Pin the named package to a version that it accepts (`specdec_pins`) and build again.",
        "sglang#27654",
    ),
    # Compiled code and what it was built for
    Failure(
        "driver-symbol",
        r"undefined symbol: cu[A-Z]",
        "The driver's libcuda is older than the CUDA that the package was built with.",
        "Update the host's driver, or choose a lane with an older CUDA.",
        "sglang#8131",
        True,
    ),
    Failure(
        "cuda-library-shadowed",
        r"undefined symbol: (cublas|cudnn|cufft|curand|cusolver|cusparse|nvrtc|nvJitLink|nccl)|version `?lib(cublas|cudnn)\S* not found"
        r"|CUBLAS_STATUS_INVALID_VALUE",
        "Another copy of a CUDA library, from LD_LIBRARY_PATH or the system's ld.so.conf.d, wins over the environment's own.",
        "Take the other directory out of LD_LIBRARY_PATH or /etc/ld.so.conf.d, run ldconfig, and start again.",
        "pytorch#174320",
        True,
    ),
    Failure(
        "undefined-symbol",
        r"undefined symbol",
        "A compiled package was built against another version of torch or CUDA.",
        "Take the package that was built for the installed torch, from the lane's index, and build again.",
        "sglang#29317",
        True,
    ),
    Failure(
        "driver-library",
        r"lib(cuda|nvidia-ml)\.so\.1: cannot open shared object file",
        "The driver's own libraries are not there: no driver, or not handed into the container.",
        "Install the driver's user space in the version of the host's kernel module; stubs are no way out.",
        "sglang#4778",
        True,
    ),
    Failure(
        "cuda-library",
        r"lib(nvrtc|cudart|cublas|cudnn|cufft|curand|cusolver|cusparse|cupti|nvJitLink|nvshmem|nccl)\w*\.so[\w.]*: cannot open shared",
        "The package was built for another CUDA major version than torch, or the library's directory is not where the loader looks.",
        "Choose a lane whose torch and kernel package are for one CUDA; deploy with the library directories of the environment. "
        "A symbolic link to the other major version only moves the crash.",
        "sglang#29646",
        True,
    ),
    Failure(
        "library",
        r"(?<![\w.+-])[\w.+-]+\.so[\w.]*: cannot open shared object file",
        "A library is missing, or its directory is not where the loader looks.",
        "Install the system's package that has it, or deploy with the library directories of the environment.",
        "sglang#13948",
        True,
    ),
    Failure(
        "no-exec",
        r"failed to map segment from shared object",
        "A compiled file lies on a file system that forbids execution (noexec).",
        "Point TMPDIR and the caches to a directory below the instance's state.",
        "pytorch#91005",
        True,
    ),
    Failure(
        "kernel-library",
        r"Could not load any common_ops library",
        "The kernel package has no library for this GPU that can be loaded; the message hides which part is missing.",
        "Run `specdec verify`: its findings on libraries and symbols name the missing part.",
        "sglang#13948",
        True,
    ),
    Failure(
        "torchvision-mismatch",
        r"operator torchvision::nms does not exist",
        "torchvision was built for another torch, or for CUDA beside a CPU-only torch.",
        "Take torch and torchvision from one lane and build again.",
        "facts: wheels, section 4",
    ),
    Failure(
        "cpu-torch",
        r"Torch not compiled with CUDA enabled",
        "The CPU-only build of torch is installed.",
        "Choose a CUDA lane, so that torch comes from that lane's index, and build again.",
        "pytorch#168065",
        True,
    ),
    # The GPU and its driver
    Failure(
        "no-kernel-image",
        r"no kernel image is available for execution",
        "A compiled package holds no code for this GPU's architecture.",
        "Choose a lane whose packages are built for the GPU's compute capability.",
        "sglang#7249",
        True,
    ),
    Failure(
        "shared-memory-of-gpu",
        r"OutOfResources: (out of resource: )?shared memory",
        "The attention kernel wants more shared memory than this GPU has.",
        "Choose another attention backend for this architecture (`extra_args`).",
        "sglang#8513",
        True,
    ),
    Failure(
        "ptxas-architecture",
        r"is not defined for option 'gpu-name'",
        "The ptxas that Triton uses does not know this GPU yet.",
        "Set TRITON_PTXAS_PATH to the ptxas of a newer CUDA, or choose a newer lane.",
        "triton#8539",
        True,
    ),
    Failure(
        "driver-too-old",
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient",
        "The driver supports only an older CUDA than torch was built with.",
        "Update the host's driver, or choose a lane with an older CUDA.",
        "FunASR#2973",
        True,
    ),
    Failure(
        "ptx-toolchain",
        r"PTX was compiled with an unsupported toolchain",
        "ptxas or nvcc is newer than the driver: what is compiled at run time cannot be loaded.",
        "Update the driver, or give the service a CUDA toolkit that is not newer than the driver.",
        "vllm#47397",
        True,
    ),
    Failure(
        "driver-mismatch",
        r"Driver/library version mismatch",
        "The driver was updated while its kernel module of before is still loaded.",
        "Reboot the host, or reload the module; hold the driver's packages back from unattended upgrades.",
        "homelab#4110",
        True,
    ),
    Failure(
        "nvml-unknown",
        r"Failed to initialize NVML: Unknown Error",
        "The container lost its access to the GPU devices, most often by a systemd reload on the host.",
        "Restart the container; give it the devices by /dev/char links, or use the cgroupfs driver.",
        "nvidia-container-toolkit#48",
        True,
    ),
    Failure(
        "no-gpu",
        r"No devices were found|No CUDA GPUs are available|no CUDA-capable device is detected",
        "The driver sees no GPU: a module without firmware for it (new GPUs need the open modules), or none handed in.",
        "Look at `nvidia-smi` and `dmesg`; install the open kernel modules, or hand the GPU into the container.",
        "open-gpu-kernel-modules#862",
        True,
    ),
    Failure(
        "gpu-memory-unknown",
        r"invalid literal for int\(\) with base 10: '\[(N/A|Not Supported)\]'",
        "The GPU shares the host's memory and reports none of its own; the reader takes its answer for a number.",
        "Use an engine version that knows this GPU, and set its memory fraction by hand.",
        "turbofit#5",
    ),
    Failure(
        "gpu-memory-taken",
        r"Free memory on device .* is less than desired GPU memory utilization|NV_ERR_NO_MEMORY",
        "Something else holds the GPU's memory: an orphaned worker, another instance, or on unified memory the page cache.",
        "End what `nvidia-smi` shows on the GPU, or lower the memory fraction; after a leak only a reboot helps.",
        "vllm#56824",
        True,
    ),
    Failure(
        "gpu-memory",
        r"CUDA out of memory|torch\.OutOfMemoryError",
        "Weights, KV cache and graphs together do not fit on the GPU.",
        "Lower the memory fraction or the context length, or spread the model over more GPUs.",
        "sglang#21782",
        True,
    ),
    # What is compiled at run time
    Failure(
        "no-ninja",
        r"No such file or directory: 'ninja'|Ninja is required to load C\+\+ extensions",
        "ninja is not on the service's PATH, although it may be in the environment.",
        "Put the environment's bin directory first on the unit's PATH; without ninja, add it (`specdec_extra_packages`).",
        "fak#923",
        True,
    ),
    Failure(
        "no-nvcc",
        r"Could not find nvcc|nvcc: not found|No such file or directory: '\S*nvcc'",
        "A kernel is to be compiled at run time, and there is no CUDA compiler.",
        "Install the CUDA toolkit of torch's CUDA version and set CUDA_HOME, or install the full set of compiled kernels.",
        "flashinfer#1919",
        True,
    ),
    Failure(
        "python-header",
        r"Python\.h: No such file",
        "The environment's Python is the distribution's, without its headers.",
        "Install the distribution's -dev package of that Python, or use a managed Python, which has them.",
        "vllm#27890",
        True,
    ),
    Failure(
        "cuda-header",
        r"(curand\w*|cuda\w*|cublas\w*|nv\w*)\.h: No such file",
        "The CUDA toolkit is there only in part: its headers are missing.",
        "Install the toolkit's development packages in torch's CUDA version.",
        "flashinfer#4410",
        True,
    ),
    Failure(
        "compiler-killed",
        r"(nvcc|ninja|cicc|cc1plus).*(Killed|returned 137|exit (code|status) 137)",
        "Compiling kernels took all memory: every nvcc needs some 8 GiB.",
        "Set MAX_JOBS to what the memory allows, or install the compiled kernels.",
        "flashinfer#3634",
        True,
    ),
    # Python and its environment
    Failure(
        "bad-interpreter",
        r"bad interpreter",
        "The environment was moved after it was built: its programs name an interpreter that is no longer there.",
        "Build the environment again at its final path.",
        "uv#2744",
        True,
    ),
    Failure(
        "package-shadowed",
        r"module '(sglang|vllm|torch|flashinfer|sgl_kernel)' has no attribute|\(unknown location\)",
        "The working directory or PYTHONPATH holds a directory of the package's name, which hides the real one.",
        "Set a working directory without such a directory, and no PYTHONPATH.",
        "sglang#351",
    ),
    Failure(
        "overlay-name",
        r"cannot import name|has no attribute",
        "The code was written for another version of the package it takes the name from.",
        "Pin the package to the version that the engine or the overlay was written for, and build again.",
        "club-3090#144",
    ),
    Failure(
        "no-module",
        r"No module named",
        "A package is not installed in the environment.",
        "Add it (`specdec_extra_packages`) and build again; one of the engine's own is missing where an overlay is older than its base.",
        "club-3090#144",
    ),
    # The model
    Failure(
        "model-offline",
        r"LocalEntryNotFoundError|OfflineModeIsEnabled|outgoing traffic has been disabled|couldn't connect to '?https?://\S*hugging",
        "A file of the model is not on the host, and the service may not fetch it.",
        "Deploy again: the model store fetches every file of the pinned revision, of the model and of its draft.",
        "vllm#9255",
    ),
    Failure(
        "model-access",
        r"gated repo|GatedRepoError|RepositoryNotFoundError|401 Client Error",
        "The model's repository is closed to this token, or does not exist.",
        "Accept its terms and give the model store a token, or correct the repository's name.",
        "skypilot#2634",
    ),
    Failure(
        "model-file",
        r"does not appear to have a file named|is not a local folder and is not a valid model identifier|Incorrect path_or_model_id"
        r"|Cannot find any model weights|[Nn]o such file or directory: \S*(\.safetensors|config\.json|tokenizer\S*)\b"
        r"|No such file or directory: \S*\.safetensors|Error while deserializing header"
        r"|Repo id must be in the form .*: '/|Unrecognized model in /",
        "A file of the model or of its draft is missing, cut off, or closed to the service's user.",
        "Deploy again: the model store compares every file with the pinned revision and fetches what differs.",
        "vllm#3719",
    ),
    # Arguments
    Failure(
        "algorithm",
        r"Unknown speculative algorithm",
        "The engine's source does not know the algorithm.",
        "Correct `speculative.algorithm`, or give the instance the overlay that brings it (`overlays: [{reference: HOST}]`).",
        "sglang#36140",
    ),
    Failure(
        "arguments",
        r"error: (unrecognized arguments|argument \S+: |the following arguments are required)",
        "The engine refuses its command line.",
        "Correct the option of the instance that the message names (`extra_args`); options differ between engine versions.",
        "sglang: argparse",
        True,
    ),
    # The host
    Failure(
        "port-in-use",
        r"[Aa]ddress already in use|EADDRINUSE|port \d+ is not available",
        "Another process listens on the port, often the one of before that was not ended.",
        "Find it with `ss -ltnp`, stop it or give the instance another port, and start again.",
        "sglang#31281",
        True,
    ),
    Failure(
        "no-home",
        r"Permission denied: '/\.(cache|triton|config|local)",
        "The service has no HOME, so that its caches would lie in /.",
        "Set HOME, XDG_CACHE_HOME, HF_HOME and FLASHINFER_WORKSPACE_BASE below the instance's state directory.",
        "vllm#20127",
    ),
    Failure(
        "shared-memory",
        r"creating shared memory segment|/dev/shm\S*.*No space left|No space left on device.*/dev/shm",
        "Shared memory is too small, or full of what killed processes left there.",
        "Give the host or container a larger /dev/shm; remove leftovers of processes that are gone.",
        "nccl#290",
        True,
    ),
    Failure(
        "disk-full",
        r"No space left on device",
        "The file system is full.",
        "Make room: `specdec status` names what serves, other environments can be removed.",
        "llm-d#352",
        True,
    ),
    Failure(
        "threads",
        r"can't start new thread|pthread_create failed|Error: (\[Errno 11\] )?Resource temporarily unavailable",
        "No further thread or process may be started: the unit's TasksMax, or its address space, is used up.",
        "Leave TasksMax and LimitAS of the unit at the product's own values, and set OMP_NUM_THREADS for the instance (`environment`).",
        "recorded: an engine under a limit of its address space",
    ),
    Failure(
        "host-memory",
        r"DefaultCPUAllocator: (can't allocate|not enough) memory|^MemoryError|Error: \[Errno 12\] Cannot allocate memory",
        "The host's memory, or the unit's limit of it, is used up.",
        "Give host or container more memory, lower the engine's memory fraction, or raise the unit's MemoryMax.",
        "torch: alloc_cpu.cpp",
    ),
    Failure(
        "open-files",
        r"Too many open files",
        "The limit on open files is too low.",
        "Raise LimitNOFILE of the unit (`service`), or leave it at the product's own value.",
        "vllm#7920",
        True,
    ),
    Failure(
        "locked-memory",
        r"ibv_reg_mr\w* failed with error Cannot allocate memory",
        "The limit on locked memory is too low; systemd does not read limits.conf.",
        "Set LimitMEMLOCK=infinity in the unit.",
        "nccl-tests#206",
        True,
    ),
    Failure(
        "permission",
        r"Permission denied|Read-only file system",
        "The service user may not read or write there in the unit's sandbox.",
        "Point the variable or option that names this path below the instance's state directory, or make it readable.",
        "vllm#10185",
    ),
    Failure(
        "segfault",
        r"Fatal Python error: Segmentation fault|[Ss]ignal 11\b|SIGSEGV|exit ?code:? -11\b",
        "Compiled code crashed: most often a package built for another torch, CUDA or GPU, or a broken driver.",
        "Run `specdec verify`: its findings on symbols and versions come first; then try without the compiled part the frame names.",
        "glibc: signal(7)",
        True,
    ),
)

#: Errors that only say that another process has failed: the cause is to be looked for elsewhere.
CONSEQUENCES = re.compile(
    r"[Ss]ee (root cause|stack ?trace)"
    r"|WorkerProc initialization failed|Engine (core|process) (initialization )?failed|EngineDeadError|EngineCore encountered an issue"
    r"|Received sigquit|Rank \d+ scheduler (is dead|died)|scheduler is dead"
    r"|^(EOFError|BrokenPipeError|ConnectionResetError|KeyboardInterrupt|SystemExit|(asyncio\.\S*)?CancelledError|GeneratorExit)\b"
    r"|(Connection (reset|closed) by (remote )?peer|Broken pipe)\b"
    r"|NCCL communicator was aborted|ProcessGroupNCCL.*(timed out|timeout)|Failed to recv, got 0 bytes"
)

#: What engines that serve well say, too.
HARMLESS = re.compile(
    r"/freeze_gc\b|Ignore import error when loading|SymmMemCommunicator|UserWarning:|FutureWarning:|DeprecationWarning:|warnings\.warn\("
    r"|Triton is not (supported|installed)|triton.*not (found|available|installed)|Failed to import Triton"
    r"|Fail to set RLIMIT_NOFILE|hostname of the client socket cannot be retrieved|Cannot detect CUDA architecture"
    r"|Only CUDA, \w+ and \w+ support|resource_tracker: There appear to be"
)


def known(text: str, alone: bool = False) -> t.Optional[Failure]:
    """The row that explains a text, or None; with ``alone`` only one that needs no traceback around it."""
    return next((row for row in FAILURES if (row.alone or not alone) and re.search(row.pattern, text)), None)
