# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks of compiled code and of names against packages as the index has them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import realwheels

from ansible_collections.specdec.serving.plugins.module_utils import apinames, fatbins
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, OK, WARNING

INT = "c10::cuda::c10_cuda_check_implementation(int, char const*, char const*, int, bool)"
UNSIGNED = INT.replace("char const*, int", "char const*, unsigned int")

#: Of the kernel packages' hundreds of megabytes: what does and what does not break with torch.
KERNEL = ("flashmla_ops.abi3.so", "spatial_ops.abi3.so")


@pytest.mark.parametrize(
    ("kernel", "version", "torch", "missing"),
    [
        ("sgl-kernel", "0.3.21", "2.9.1", 0),
        ("sgl-kernel", "0.3.21", "2.10.0", 2),
        ("sglang-kernel", "0.4.2", "2.11.0", 0),
        ("sglang-kernel", "0.4.2", "2.10.0", 3),
    ],
)
def test_kernel_and_torch(tmp_path: Path, kernel: str, version: str, torch: str, missing: int) -> None:
    realwheels.install(tmp_path, kernel, version, ["sgl_kernel/" + name for name in KERNEL])
    found = realwheels.judge(realwheels.install(tmp_path, "torch", torch, ["torch/lib/" + name for name in realwheels.TORCH]))
    finding = found["abi.undefined-symbol"]
    assert finding.verdict == (ERROR if missing else OK), finding
    if not missing:
        assert "2 files of %s" % kernel in finding.evidence
        return
    assert finding.subject == kernel
    assert finding.message.startswith("%d symbol(s) that it takes from torch are not there" % missing)
    assert "flashmla_ops" in finding.evidence and "spatial_ops" not in finding.evidence


def test_symbol_of_the_fourth_incident_is_told_with_what_torch_has_instead(tmp_path: Path) -> None:
    realwheels.install(tmp_path, "sgl-kernel", "0.3.21", ["sgl_kernel/" + name for name in KERNEL])
    found = realwheels.judge(realwheels.install(tmp_path, "torch", "2.10.0", ["torch/lib/" + name for name in realwheels.TORCH]))
    finding = found["abi.undefined-symbol"]
    assert finding.message.endswith("the first: _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib")
    assert finding.found == "wanted:    %s\ntorch has: %s" % (INT, UNSIGNED)
    assert "built against another version of torch" in finding.cause and finding.fix
    assert [one.id for one in found.values() if one.verdict == ERROR] == ["abi.undefined-symbol"]


def test_cuda_major_of_a_kernel_against_torch_s(tmp_path: Path) -> None:
    realwheels.install(tmp_path, "sglang-kernel", "0.4.2", ["sgl_kernel/spatial_ops.abi3.so"])
    found = realwheels.judge(realwheels.install(tmp_path, "torch", "2.10.0", ["torch/lib/libc10.so", "torch/lib/libc10_cuda.so"]))
    finding = found["abi.cuda-major"]
    assert (finding.verdict, finding.subject, finding.found) == (ERROR, "sglang-kernel", "libcudart.so.13")
    assert "libcudart.so.12" in finding.expected


@pytest.mark.parametrize(
    ("version", "capability", "verdict"),
    [("0.3.21", (12, 0), OK), ("0.3.21", (10, 3), WARNING), ("0.3.21", (7, 5), ERROR), ("0.4.2", (10, 3), OK)],
)
def test_architectures_of_a_kernel(tmp_path: Path, version: str, capability: tuple[int, int], verdict: str) -> None:
    kernel = "sgl-kernel" if version == "0.3.21" else "sglang-kernel"
    site_packages = realwheels.install(tmp_path, kernel, version, ["sgl_kernel/" + name for name in KERNEL])
    files = {name: site_packages / "sgl_kernel" / name for name in KERNEL}
    finding = fatbins.finding(files, kernel, [capability])
    assert finding.verdict == verdict, finding
    assert "sm_90a" in finding.found and "sm_120a" in finding.found
    if verdict != OK:
        assert "%d.%d" % capability in finding.message and "sm_%d%d" % capability in finding.expected


# Names

USE = """
import flashinfer
from flashinfer import bmm_mxfp8

if is_blackwell:
    multiply = flashinfer.mm_mxfp8
if hasattr(flashinfer, "not_there"):
    flashinfer.not_there()
"""


@pytest.mark.parametrize(("version", "verdict"), [("0.6.3", ERROR), ("0.6.8.post1", OK)])
def test_names_that_an_overlay_takes_from_flashinfer(tmp_path: Path, version: str, verdict: str) -> None:
    files = realwheels.Wheel("flashinfer-python", version).whole()
    with zipfile.ZipFile(realwheels.write(tmp_path, "flashinfer-python", version, files, b"")) as archive:
        archive.extractall(tmp_path / "site-packages")
    source = tmp_path / "site-packages" / "sglang"
    source.mkdir()
    (source / "ddtree_utils.py").write_text(USE)
    reference = ("flashinfer-python", "0.6.8.post1")
    (finding,) = apinames.check(source, source.parent, "flashinfer", False, reference, ["sglang/ddtree_utils.py"])
    assert finding.verdict == verdict, finding
    if verdict == ERROR:
        assert finding.subject == "flashinfer.mm_mxfp8"
        assert finding.evidence == "flashinfer.mm_mxfp8  sglang/ddtree_utils.py:6"
        assert "overlay was written for another version of flashinfer" in finding.cause
        assert "flashinfer-python to 0.6.8.post1" in finding.fix
