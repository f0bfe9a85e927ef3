# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every pair of a kernel package and a torch, with every file of the kernel package: hundreds of megabytes are read for each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import realwheels

from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, OK

#: The kernel package → the torch of the engine that requires it.
MADE_FOR = {("sgl-kernel", "0.3.21"): "2.9.1", ("sglang-kernel", "0.4.2"): "2.11.0", ("sglang-kernel", "0.4.10"): "2.14.1"}


@pytest.mark.parametrize("torch", ["2.9.1", "2.10.0", "2.11.0", "2.14.1"])
@pytest.mark.parametrize(("name", "version"), list(MADE_FOR))
def test_only_the_torch_that_a_kernel_was_built_for_has_its_symbols(tmp_path: Path, name: str, version: str, torch: str) -> None:
    compiled = [one for one in realwheels.Wheel(name, version).names() if re.match(r"sgl_kernel/.*\.so$", one)]
    realwheels.install(tmp_path, name, version, compiled)
    found = realwheels.judge(realwheels.install(tmp_path, "torch", torch, ["torch/lib/" + one for one in realwheels.TORCH]))
    assert found["abi.undefined-symbol"].verdict == (OK if MADE_FOR[name, version] == torch else ERROR)
