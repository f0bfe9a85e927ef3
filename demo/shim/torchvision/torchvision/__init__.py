# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-in for torchvision in text-only serving.

SGLang and transformers import a few names at start, whatever the model. The published builds are
tied to a CUDA torch and fail to load beside a CPU one. Here are those names; none processes images.
"""

__version__ = "0.28.0+standin"
