#!/usr/bin/python
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: plan
short_description: Plan what a deploy would do to a host
description:
  - Checks the variables, reads the state of the host in one call, and says which environments, models and releases are to be made
    and which instances are to be switched. Decides on the controller; changes nothing.
  - Fails with every finding that forbids the deploy, before anything is changed.
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
extends_documentation_fragment: [specdec.serving.instances]
options:
  root:
    description: Directory on the host that holds everything.
    type: str
    default: /opt/specdec
  pins_dir:
    description: Directory on the controller that holds locks and overlay bundles.
    type: str
    required: true
  pins:
    description: Versions that differ from the stack's, by package, or where a package comes from; see docs/pins.md.
    type: raw
    default: {}
  host_pins:
    description: The same of this host, package by package over them.
    type: raw
    default: {}
  extra_packages:
    description: Requirements installed besides the engine's own.
    type: raw
    default: []
  wheel_directories:
    description: Directories on the controller that hold wheels.
    type: raw
    default: []
  wheelhouse:
    description: Directory on the controller that all packages come from; no index is asked then. Empty for none.
    type: str
    default: ""
  archives:
    description: Directory on the controller that holds archives of Python, a wheelhouse. Empty for none.
    type: str
    default: ""
  exclude_newer:
    description: Date after which releases of the index are not looked at while locking.
    type: str
    default: ""
  pins_update:
    description: Kinds of pins that are made anew although the pins directory holds them.
    type: raw
    default: []
  hub:
    description: Where models come from that are named by C(repo); C(endpoint) and C(token).
    type: raw
    default: {}
  python:
    description: Which Python environments are built with; a version, or a mapping, see docs/networks.md.
    type: raw
    default: ""
  network:
    description: How controller and hosts reach package indexes and hubs; see docs/networks.md.
    type: raw
    default: {}
  why:
    description: The reason that the history keeps.
    type: str
    default: ""
  state:
    description: The state of the host where it is known already; read from the host otherwise.
    type: dict
attributes:
  check_mode:
    support: full
    description: Never changes anything.
  diff_mode:
    support: none
    description: The plan itself says what differs.
"""

EXAMPLES = r"""
- name: Plan
  specdec.serving.plan:
    pins_dir: "{{ inventory_dir }}/pins"
    instances: "{{ specdec_instances }}"
  register: plan
"""

RETURN = r"""
stages:
  description: The roles that have work to do.
  returned: success
  type: list
  elements: str
missing_pins:
  description: What the pins directory or the host lacks (locks, overlays, wheels, Pythons); the plan is not complete while there is any.
  returned: success
  type: list
  elements: dict
environments:
  description: Environments of the host's instances, each with the job that builds it.
  returned: success
  type: list
  elements: dict
fetches:
  description: Models that the host lacks, each with the job that fetches it from a hub.
  returned: success
  type: list
  elements: dict
adoptions:
  description: Units made by hand that are taken over, each with the job that does it.
  returned: success
  type: list
  elements: dict
gone:
  description: Instances that are on the host and not in the inventory; they are left alone.
  returned: success
  type: list
  elements: dict
releases:
  description: Releases of the host's instances, each with the jobs that prove it and switch to it.
  returned: success
  type: list
  elements: dict
artifacts:
  description: What the controller sends, by kind.
  returned: success
  type: dict
settings:
  description: Each value of the instances' configuration and where it comes from.
  returned: success
  type: list
  elements: dict
state:
  description: The state of the host.
  returned: success
  type: dict
"""
