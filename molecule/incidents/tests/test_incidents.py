# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Four deployments that once broke a service: each is refused with its one cause while the service answers its client."""

from __future__ import annotations

import re
import typing as t
from pathlib import Path


def proven_wrong(scene: t.Any, run: t.Any) -> dict[str, str]:
    """The one finding for which the proof on the host refused."""
    assert run.rc != 0, run.text[-3000:]
    (wrong,) = [one for one in scene.proof() if one["verdict"] == "error"]
    assert wrong["cause"] and wrong["fix"], wrong
    assert "%s: %s" % (wrong["subject"], wrong["message"]) in run.text
    return wrong


def refused(run: t.Any) -> dict[str, str]:
    """The one finding for which nothing was begun."""
    assert run.rc != 0, run.text[-3000:]
    failed = run.text[run.text.index("[ERROR]: Task failed") :]
    assert "nothing was changed" in failed
    (wrong,) = re.findall(r"^ERROR: (.*)\n((?:  .*\n)+)", failed.partition("Origin:")[0], re.MULTILINE)
    (name,) = set(re.findall(r"^ +id: (\S+)$", failed, re.MULTILINE))
    said = {"id": name, "message": wrong[0]}
    for line in wrong[1].splitlines():
        key, _colon, value = line.partition(":")
        said[key.strip()] = value.strip()
    return said


def test_1_an_overlay_that_needs_a_newer_flashinfer(scene: t.Any, tmp_path: Path) -> None:
    overlay = tmp_path / "sglang" / "srt" / "speculative" / "ddtree_utils.py"
    overlay.parent.mkdir(parents=True)
    overlay.write_text("import flashinfer\n\nif is_blackwell:\n    multiply = flashinfer.mm_mxfp8\n")
    with scene.untouched():
        wrong = proven_wrong(scene, scene.deploy(overlays=[{"directory": str(tmp_path)}]))
    assert (wrong["id"], wrong["subject"]) == ("api.missing-name", "flashinfer.mm_mxfp8")
    assert "flashinfer.mm_mxfp8  sglang/srt/speculative/ddtree_utils.py:4" in wrong["evidence"]
    assert wrong["cause"] == "The overlay was written for another version of flashinfer."


def test_2_a_nightly_whose_torch_is_pulled_back(scene: t.Any) -> None:
    engine = {"name": "sglang", "version": "0.5.10.dev20260228", "lane": "nightly-cu130"}
    pins = {"torch": "2.12.0.dev20260228+cu130", "flashinfer": "0.6.5", "sglang-kernel": "0.4.1+cu130"}
    scene.lock_that_pulls_torch_back(engine, pins)
    with scene.untouched():
        wrong = refused(scene.deploy(engine=engine, specdec_pins=pins))
    assert wrong["id"] == "lock.pins"
    assert (wrong["found"], wrong["expected"]) == ("torch 2.10.0", "torch 2.12.0.dev20260228+cu130")
    assert "what another package requires" in wrong["cause"] and wrong["fix"]


def test_3_half_of_flashinfer_is_moved(scene: t.Any) -> None:
    pins = {"flashinfer-python": "0.6.4", "flashinfer-cubin": "0.6.3"}
    engine = {"name": "vllm", "version": "0.16.0"}
    with scene.untouched():
        wrong = refused(scene.deploy(engine=engine, specdec_pins=pins, specdec_extra_packages=["flashinfer-cubin==0.6.3"]))
    assert wrong["id"] == "parity.flashinfer"
    assert "flashinfer-cubin 0.6.3, flashinfer-python 0.6.4" in wrong["found"]
    assert "moved alone" in wrong["cause"] and "Pin all its parts at once" in wrong["fix"]


def test_4_a_kernel_that_was_built_against_another_torch(scene: t.Any) -> None:
    with scene.untouched():
        wrong = proven_wrong(scene, scene.deploy(specdec_pins={"torch": "2.10.0"}))
    assert (wrong["id"], wrong["subject"]) == ("abi.undefined-symbol", "sgl-kernel")
    assert "c10_cuda_check_implementation" in wrong["message"]
    wanted, there = wrong["found"].splitlines()
    assert wanted.endswith("(int, char const*, char const*, int, bool)")
    assert there.endswith("(int, char const*, char const*, unsigned int, bool)")
    assert wrong["cause"] == "The package was built against another version of torch."


def test_4_a_library_that_is_not_registered(scene: t.Any) -> None:
    engine = {"name": "sglang", "version": "0.5.11"}
    with scene.untouched():
        wrong = proven_wrong(scene, scene.deploy(engine=engine, environment={"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}))
        given = scene.deploy("--tags", "prove", engine=engine)
    assert wrong["id"] == "libraries.missing"
    assert "libnvrtc.so.13" in wrong["evidence"] and wrong["found"] == "LD_LIBRARY_PATH=/usr/local/cuda/lib64"
    assert given.rc == 0, given.text[-3000:]


def test_4_flashinfer_is_pulled_back(scene: t.Any) -> None:
    pins = {"flashinfer-python": "0.6.3", "flashinfer-cubin": "0.6.3", "flashinfer-jit-cache": "0.6.4+cu128"}
    with scene.untouched():
        wrong = refused(scene.deploy(specdec_pins=pins, specdec_extra_packages=["flashinfer-jit-cache"]))
    assert wrong["id"] == "parity.flashinfer"
    assert "flashinfer-jit-cache 0.6.4+cu128, flashinfer-python 0.6.3" in wrong["found"]
