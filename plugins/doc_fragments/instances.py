# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """Options of the modules that look at the servers of a host."""

    DOCUMENTATION = r"""
options:
  instances:
    description: The servers of the host.
    type: raw
    default: []
  instance_defaults:
    description: Options that hold for every instance that does not say otherwise.
    type: raw
    default: {}
  host_defaults:
    description: The same of this host, merged over them.
    type: raw
    default: {}
"""
