# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """Options of the modules for which the controller fetches packages."""

    DOCUMENTATION = r"""
options:
  wheel_directories:
    description: Directories on the controller that hold wheels.
    type: list
    elements: path
    default: []
  network:
    description: How the controller reaches package indexes; see docs/networks.md.
    type: dict
    default: {}
"""
