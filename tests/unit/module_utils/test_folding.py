# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One root cause is one finding, in the combinations of the incidents; what has another cause stays."""

from __future__ import annotations

import pytest

from ansible_collections.specdec.serving.plugins.module_utils.findings import COULD_NOT_CHECK, ERROR, OK, WARNING, Finding
from ansible_collections.specdec.serving.plugins.module_utils.folding import fold


def one(id_: str, subject: str, found: str = "", evidence: str = "", verdict: str = ERROR, message: str = "it is so") -> Finding:
    return Finding(id_, verdict, subject, message, found, evidence=evidence, fix="do")


def stage(name: str, said: str, where: str = "") -> Finding:
    return one("import." + name, name, said, where)


NAME = one("api.missing-name", "flashinfer.mm_mxfp8", "not defined", "flashinfer.mm_mxfp8  sglang/srt/fp8.py:3")
PARITY = one("parity.flashinfer", "flashinfer", "flashinfer-cubin 0.6.3, flashinfer-python 0.6.4")
SYMBOL = one("abi.undefined-symbol", "sgl-kernel", "c10_cuda_check_implementation(int …)", "in sgl_kernel/ops.so")
LIBRARY = one("libraries.missing", "libnvrtc.so.13", "nvidia/cu13/lib/libnvrtc.so.13")
TORCH = one("lock.unsatisfiable", "torch", "torch 2.10.0")
EDIT = one("record.changed", "sglang", "other bytes", "sglang/srt/server_args.py")
UNREACHED = one("arguments.accepted", "arguments", verdict=COULD_NOT_CHECK, message="not reached")

#: What was found together → the ids that are left.
INCIDENTS = {
    "1: a name": ([NAME, stage("engine", "ImportError: cannot import name 'mm_mxfp8' from 'flashinfer'"), UNREACHED], ["api.missing-name"]),
    "3: parity": (
        [
            one("lock.unsatisfiable", "flashinfer-python", "flashinfer-python 0.6.4"),
            PARITY,
            stage("flashinfer", "RuntimeError: flashinfer-cubin version (0.6.3) does not match flashinfer version (0.6.4)"),
            UNREACHED,
        ],
        ["parity.flashinfer"],
    ),
    "4a: a symbol": ([SYMBOL, TORCH, stage("kernel", "ImportError: ops.so: undefined symbol: _ZN3c10")], ["abi.undefined-symbol"]),
    "4b: a library": (
        [LIBRARY, stage("kernel", "OSError: libnvrtc.so.13: cannot open shared object file: No such file or directory")],
        ["libraries.missing"],
    ),
    "2: a nightly torch": ([TORCH], ["lock.unsatisfiable"]),
    "both kernel packages": (
        [
            one("parity.kernel", "sgl-kernel and sglang-kernel", "sgl-kernel 0.3.21, sglang-kernel 0.4.1"),
            one("record.doubly-owned", "sgl-kernel and sglang-kernel"),
            stage("kernel", "ImportError: ops.so: undefined symbol: _ZN3c10"),
        ],
        ["parity.kernel"],
    ),
    "another CUDA": (
        [
            one("parity.torch-labels", "sgl-kernel", "torch 2.9.1+cu128, sgl-kernel 0.3.21+cu130"),
            one("abi.cuda-major", "sgl-kernel", "libcudart.so.13"),
            one("libraries.missing", "libcudart.so.13"),
            stage("kernel", "ImportError: libcudart.so.13: cannot open shared object file"),
        ],
        ["parity.torch-labels"],
    ),
    "an edit that does not compile": (
        [EDIT, stage("engine", "SyntaxError: invalid syntax", "/venv/lib/python3.11/site-packages/sglang/srt/server_args.py:3"), UNREACHED],
        ["record.changed"],
    ),
    "a file that is gone": (
        [
            one("record.missing", "sglang", evidence="sglang/srt/server_args.py"),
            stage("engine", "ModuleNotFoundError: No module named 'sglang.srt.server_args'"),
        ],
        ["record.missing"],
    ),
    "a package that is gone": (
        [
            one("lock.satisfied", "lock", "orjson 3.11 is not installed\nnumpy 2.0 instead of 2.1"),
            stage("engine", "ModuleNotFoundError: No module named 'orjson'"),
        ],
        ["lock.satisfied"],
    ),
    "a torch that was pulled back": (
        [
            one("lock.pins", "ct200:/opt/venv", "torch 2.10.0, pinned is 2.12.0.dev1"),
            one(
                "parity.torch-labels",
                "sglang-kernel",
                "torch 2.10.0, sglang-kernel 0.4.1+cu130",
                message="built for cu130, torch for cu128",
            ),
            one(
                "parity.flashinfer", "flashinfer-jit-cache", "flashinfer-jit-cache 0.6.5+cu130", message="built for cu130, torch for cu128"
            ),
            one("parity.cuda-major", "CUDA libraries", "CUDA 13: nvidia-nccl-cu13"),
            one("libraries.missing", "libcudart.so.13"),
            SYMBOL,
        ],
        ["lock.pins"],
    ),
    "a part of flashinfer that is pinned": (
        [one("lock.pins", "ct200:/opt/venv", "flashinfer-cubin 0.6.3, pinned is 0.6.4"), PARITY],
        ["parity.flashinfer"],
    ),
    "a pinned package that was replaced": (
        [
            one("lock.pins", "ct200:/opt/venv", "torch 2.10.0, pinned is 2.9.1"),
            one("lock.satisfied", "lock", "torch 2.10.0 instead of 2.9.1"),
            SYMBOL,
        ],
        ["lock.satisfied"],
    ),
    "a crash": ([one("import.died", "torch", "killed by SIGSEGV"), UNREACHED], ["import.died"]),
}


@pytest.mark.parametrize("name", list(INCIDENTS))
@pytest.mark.parametrize("order", [1, -1])
def test_one_root_cause_is_one_finding(name: str, order: int) -> None:
    found, left = INCIDENTS[name]
    folded = fold(found[::order])
    assert [it.id for it in folded] == left
    for it in found:
        if it.id not in left:
            assert "from which follows: %s: %s" % (it.id, it.subject) in folded[0].evidence


@pytest.mark.parametrize(
    "found",
    [
        [NAME, stage("engine", "ImportError: cannot import name 'other' from 'flashinfer'")],
        [PARITY, stage("torch", "OSError: libcudart.so.13: cannot open shared object file")],
        [SYMBOL, stage("kernel", "ImportError: ops.so: undefined symbol: cuGreenCtxStreamCreate")],
        [LIBRARY, stage("kernel", "OSError: libnuma.so.1: cannot open shared object file")],
        [EDIT, stage("engine", "ZeroDivisionError: division by zero", "/venv/lib/python3.11/site-packages/sglang/srt/other.py:3")],
        [one("record.changed", "torch", evidence="torch/__init__.py"), one("record.changed", "sglang", evidence="sglang/x.py"), NAME],
        [PARITY, one("lock.unsatisfiable", "torch", "torch 2.10.0")],
        [one("lock.pins", "venv", "torch 2.10.0, pinned is 2.9.1"), one("parity.flashinfer", "flashinfer", message="different versions")],
        [one("lock.pins", "venv", "numpy 1, pinned is 2"), SYMBOL],
        [PARITY, one("lock.pins", "venv", "flashinfer-cubin 0.6.3, pinned is 0.6.4\nnumpy 1, pinned is 2")],
        [PARITY, one("lock.satisfied", "lock", "flashinfer-cubin 0.6.3 instead of 0.6.4\nnumpy 1 instead of 2")],
    ],
)
def test_what_has_another_cause_stays(found: list[Finding]) -> None:
    assert fold(found) == found


def test_what_is_folded_again_keeps_what_followed_before() -> None:
    pins = one("lock.pins", "venv", "torch 2.10.0, pinned is 2.9.1")
    before = fold([SYMBOL, stage("kernel", "ImportError: ops.so: undefined symbol: _ZN3c10")])
    (root,) = fold([*before, pins])
    follows = "from which follows: "
    assert [line.removeprefix(follows).partition(":")[0] for line in root.evidence.splitlines()] == [
        "abi.undefined-symbol",
        "import.kernel",
    ]


def test_only_an_error_explains() -> None:
    warning = one("parity.flashinfer", "flashinfer", verdict=WARNING)
    broken = stage("flashinfer", "RuntimeError: flashinfer-cubin version (0.6.3) does not match flashinfer version (0.6.4)")
    assert fold([warning, broken]) == [warning, broken]
    good = one("import.torch", "torch", verdict=OK)
    assert fold([PARITY, good]) == [PARITY, good]
