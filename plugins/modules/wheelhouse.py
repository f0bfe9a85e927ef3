#!/usr/bin/python
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: wheelhouse
short_description: Gather every file that locks need in a directory of the controller
description:
  - Downloads each wheel that the host of a lock takes, checks its hash, and keeps it under it; likewise what the controller needs to
    make the host's own tools.
  - Goes on where an earlier run stopped; what is there is not downloaded again. The manifest is written last. No host is asked.
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
extends_documentation_fragment: [specdec.serving.packages]
options:
  directory:
    description: The wheelhouse; made where it is not there.
    type: path
    required: true
  environments:
    description: Environments whose locks are gathered, as the plan names them.
    type: list
    elements: dict
    required: true
  python:
    description: The Python of the hosts, as C(specdec_python) says; its archive is gathered where it comes from a wheelhouse.
    type: raw
    default: ""
  machine:
    description: Machine of the host, for its tools.
    type: str
    choices: [x86_64, aarch64]
    default: x86_64
attributes:
  check_mode:
    support: full
    description: Tells which locks would be gathered; downloads nothing.
  diff_mode:
    support: none
    description: Files are known by their hashes alone.
"""

EXAMPLES = r"""
- name: Gather what the host's environments are made of
  specdec.serving.wheelhouse:
    directory: /srv/wheelhouse
    environments: "{{ gpu_host_plan.environments }}"
    machine: "{{ gpu_host_plan.state.os.machine }}"
"""

RETURN = r"""
fetched:
  description: Files that are new.
  returned: success
  type: list
  elements: str
locks:
  description: Locks that the wheelhouse holds, name by id.
  returned: success
  type: dict
"""
