# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A double of GPUs for SGLang's check of its arguments on a torch for the CPU: what it asks torch for, and nothing that computes.

The source of this file is run in the engine's own process. The engine's modules are imported first, as on a machine without a GPU, so
that none of them looks for kernels; then torch answers as on the host of a fixture, and what the engine has remembered is forgotten.
"""

from __future__ import annotations

import importlib
import sys
import types
import typing as t

#: What the check of arguments imports on its way; a module that a version has not is left out.
MODULES = ("torchvision.io", "sglang.srt.server_args", "sglang.srt.configs.model_config", "sglang.srt.utils.common")


def feed(name: str, capability: t.Sequence[int], memory: int, count: int, cuda: str) -> None:
    """Have torch answer for GPUs that are not there. :param memory: bytes of each; :param cuda: torch's own CUDA."""
    torch: t.Any = importlib.import_module("torch")
    pictures: t.Any = importlib.import_module("torchvision.io")
    pictures.decode_jpeg = getattr(pictures, "decode_jpeg", None)
    for module in MODULES:
        importlib.import_module(module)
    shown = types.SimpleNamespace(name=name, major=capability[0], minor=capability[1], total_memory=memory, multi_processor_count=188)
    torch.version.cuda = cuda
    answers: dict[str, t.Any] = {
        "is_available": lambda: True,
        "device_count": lambda: count,
        "current_device": lambda: 0,
        "get_device_capability": lambda _device=None: tuple(capability),
        "get_device_name": lambda _device=None: name,
        "get_device_properties": lambda _device=None: shown,
        "mem_get_info": lambda _device=None: (memory, memory),
    }
    for question, answer in answers.items():
        setattr(torch.cuda, question, answer)
    for module in [one for key, one in sys.modules.items() if key.startswith(("sglang.srt.utils", "sglang.srt.server_args"))]:
        for value in list(vars(module).values()):
            if hasattr(value, "cache_clear"):
                value.cache_clear()
