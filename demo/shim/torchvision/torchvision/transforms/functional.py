# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names imported from ``torchvision.transforms.functional``."""

from __future__ import annotations

import enum
import typing as t


class InterpolationMode(enum.Enum):
    """Interpolation modes, as torchvision spells them."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


def pil_to_tensor(*args: object, **kwargs: object) -> t.NoReturn:
    """Refuse: no image is converted in text-only serving."""
    raise NotImplementedError("the torchvision stand-in converts no images")
