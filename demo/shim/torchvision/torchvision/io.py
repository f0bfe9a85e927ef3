# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names imported from ``torchvision.io``."""

from __future__ import annotations

import enum
import typing as t


class ImageReadMode(enum.Enum):
    """Colour modes, as torchvision numbers them."""

    UNCHANGED = 0
    GRAY = 1
    GRAY_ALPHA = 2
    RGB = 3
    RGB_ALPHA = 4


def decode_image(*args: object, **kwargs: object) -> t.NoReturn:
    """Refuse: no image is decoded in text-only serving."""
    raise NotImplementedError("the torchvision stand-in decodes no images")
