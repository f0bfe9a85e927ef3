#!/usr/bin/python
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: lock
short_description: Resolve a stack to a hashed lock in the pins directory
description:
  - Runs uv on the controller for the host's platform, Python and lane, and keeps the result in the pins directory.
  - A lock that the pins hold is left as it is unless O(replace) says otherwise. No host is asked.
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
extends_documentation_fragment: [specdec.serving.packages]
options:
  pins_dir:
    description: Directory on the controller that keeps the lock.
    type: path
    required: true
  inputs:
    description: What is resolved, as the plan names it.
    type: dict
    required: true
  variable:
    description: The variable that the stack comes from, for messages.
    type: str
    default: ""
  replace:
    description: Whether a lock that the pins hold is made anew.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Tells whether a lock would be made; makes none.
  diff_mode:
    support: full
    description: Shows the packages that differ.
"""

EXAMPLES = r"""
- name: Lock what the plan misses
  specdec.serving.lock:
    pins_dir: "{{ inventory_dir }}/pins"
    inputs: "{{ item.inputs }}"
  loop: "{{ gpu_host_plan.missing_pins | selectattr('kind', 'equalto', 'lock') }}"
"""

RETURN = r"""
id:
  description: Id of the lock.
  returned: success
  type: str
path:
  description: File of the lock.
  returned: success
  type: str
"""
