# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names imported from ``torchvision.transforms``."""

from .functional import InterpolationMode

__all__ = ["InterpolationMode"]
