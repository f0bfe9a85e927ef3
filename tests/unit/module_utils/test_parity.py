# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages that must move together."""

from __future__ import annotations

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import parity
from ansible_collections.specdec.serving.plugins.module_utils.findings import COULD_NOT_CHECK, ERROR, NOT_APPLICABLE, OK, WARNING

KERNELS = ["sgl-kernel", "sglang-kernel"]

#: What the index gives for sglang 0.5.9 and 0.5.23, as far as parity looks at it (resolved 2026-11-30).
CUDA_12 = {
    "torch": "2.9.1",
    "torchaudio": "2.9.1",
    "torchvision": "0.24.1",
    "flashinfer-python": "0.6.3",
    "flashinfer-cubin": "0.6.3",
    "sgl-kernel": "0.3.21",
    "nvidia-cublas-cu12": "12.8.4.1",
    "nvidia-nccl-cu12": "2.27.5",
    "nvidia-cutlass-dsl": "4.3.5",
    "nvidia-ml-py": "13.615.71",
}
CUDA_13 = {
    "torch": "2.14.1",
    "torchaudio": "2.11.0",
    "flashinfer-python": "0.7.2",
    "sglang-kernel": "0.4.10",
    "nvidia-cublas": "13.1.1.3",
    "nvidia-nccl-cu13": "2.30.7",
    "nvidia-cutlass-dsl-libs-cu12": "4.8.0",
    "nvidia-cutlass-dsl-libs-cu13": "4.8.0",
}
CPU = {"torch": "2.13.0+cpu", "torchvision": "0.28.0+standin"}
LACKS = ("flashinfer", "kernel", "cuda")


def verdicts(installed, lacks=(), torch=None):
    return {one.id: one.verdict for one in parity.findings(installed, KERNELS, lacks, torch)}


@pytest.mark.parametrize(("installed", "torch"), [(CUDA_12, "cu128"), (CUDA_13, "cu130")])
def test_what_an_engine_pins_itself_is_in_parity(installed, torch):
    assert set(verdicts(installed, torch=torch).values()) == {OK}


def test_a_part_that_the_lane_lacks_does_not_apply_only_while_it_is_absent():
    assert verdicts(CPU, LACKS) == {
        "parity.flashinfer": NOT_APPLICABLE,
        "parity.kernel": NOT_APPLICABLE,
        "parity.torch-labels": OK,
        "parity.cuda-major": NOT_APPLICABLE,
    }
    present = {**CPU, "flashinfer-python": "0.6.4", "flashinfer-cubin": "0.6.3", "sglang-kernel": "0.4.10", "sgl-kernel": "0.3.21"}
    assert verdicts(present, LACKS)["parity.flashinfer"] == ERROR
    assert verdicts(present, LACKS)["parity.kernel"] == ERROR


def test_a_part_that_is_absent_unannounced_is_missing():
    assert verdicts({"torch": "2.9.1+cu128"})["parity.flashinfer"] == ERROR
    assert verdicts({"torch": "2.9.1+cu128"})["parity.kernel"] == ERROR


@pytest.mark.parametrize(
    ("other", "version"),
    [
        ("flashinfer-cubin", "0.6.3"),
        ("flashinfer-jit-cache", "0.6.5+cu130"),
        # what upstream's comparison by prefix lets pass
        ("flashinfer-jit-cache", "0.6.40+cu130"),
        ("flashinfer-jit-cache", "0.6.4.post9+cu130"),
        ("flashinfer-jit-cache-sm120", "0.6.5+cu130"),
    ],
)
def test_flashinfer_parts_of_different_versions(other, version):
    finding = parity.flashinfer({"flashinfer-python": "0.6.4", other: version}, "cu130", False)
    assert finding.verdict == ERROR
    assert "%s %s" % (other, version) in finding.found
    assert "flashinfer-python 0.6.4" in finding.found


def test_flashinfer_versions_are_compared_without_label_and_spelling():
    parts = {"flashinfer-python": "0.6.8.post1", "flashinfer-cubin": "0.6.8-1", "flashinfer-jit-cache": "0.6.8.post1+cu130"}
    assert parity.flashinfer(parts, "cu130", False).verdict == OK


@pytest.mark.parametrize(
    ("torch", "verdict"), [("cu128", ERROR), ("cpu", ERROR), ("cu132", WARNING), ("cu130", OK), (None, COULD_NOT_CHECK)]
)
def test_flashinfer_label_against_torch(torch, verdict):
    parts = {"flashinfer-python": "0.6.4", "flashinfer-jit-cache": "0.6.4+cu130"}
    assert parity.flashinfer(parts, torch, False).verdict == verdict


def test_a_part_of_flashinfer_without_the_package_itself():
    assert parity.flashinfer({"flashinfer-cubin": "0.6.4"}, "cu128", False).verdict == ERROR


def test_kernel_under_both_names():
    finding = parity.kernel({"sgl-kernel": "0.3.21", "sglang-kernel": "0.4.1"}, KERNELS, False)
    assert finding.verdict == ERROR
    assert finding.subject == "sgl-kernel and sglang-kernel"


def test_an_engine_without_kernel_package():
    assert parity.kernel({}, [], False).verdict == NOT_APPLICABLE


def test_labels_of_the_torch_family():
    installed = {"torch": "2.9.1+cu130", "torchvision": "0.24.1+cu130", "sgl-kernel": "0.3.21+cu130"}
    assert parity.torch_labels(installed, KERNELS, "cu130").verdict == OK
    finding = parity.torch_labels({**installed, "sgl-kernel": "0.3.21+cu124"}, KERNELS, "cu130")
    assert (finding.verdict, finding.subject) == (ERROR, "sgl-kernel")
    assert parity.torch_labels({"torch": "2.9.1"}, KERNELS, None).verdict == COULD_NOT_CHECK
    assert parity.torch_labels({}, KERNELS, None).verdict == ERROR


@pytest.mark.parametrize(
    ("dists", "torch", "verdict"),
    [
        (["nvidia-nccl-cu12", "nvidia-nccl-cu13"], "cu130", ERROR),
        (["nvidia-nccl-cu12"], "cu130", ERROR),
        (["nvidia-nccl-cu12"], "cpu", WARNING),
        (["nvidia-nccl-cu12"], None, COULD_NOT_CHECK),
        ([], "cu130", COULD_NOT_CHECK),
        ([], "cpu", NOT_APPLICABLE),
    ],
)
def test_cuda_majors(dists, torch, verdict):
    assert parity.cuda_major(dict.fromkeys(dists, "1"), torch, False).verdict == verdict


def test_torch_says_in_its_own_file_what_the_index_leaves_out(tmp_path):
    assert parity.torch_label(tmp_path) is None
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(
        "from typing import Optional\n__version__ = '2.9.1+cu128'\ncuda: Optional[str] = '12.8'\n"
    )
    assert parity.torch_label(tmp_path) == "cu128"


@pytest.mark.parametrize(
    ("version", "label"), [("1+cu130", "cu130"), ("1+CU128.git1", "cu128"), ("1+cpu", "cpu"), ("1+standin", None), ("1", None)]
)
def test_labels(version, label):
    assert parity.cuda_label(version) == label
