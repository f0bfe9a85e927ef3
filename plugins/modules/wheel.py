#!/usr/bin/python
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: wheel
short_description: Bring the wheel of a pin to the controller
description:
  - Fetches a wheel by its address and compares its sha256; or builds one from a commit in a job on the host that it is delegated
    to, and keeps that wheel in the pins directory, so that every host installs it and nobody builds it again.
  - A wheel that is there is left as it is unless O(replace) says otherwise.
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
options:
  package:
    description: Name of the package.
    type: str
    required: true
  source:
    description: Where it comes from, as C(specdec_pins) says it; C(url) and C(sha256), or C(git), C(commit), C(build_host).
    type: dict
    required: true
  python:
    description: Minor version of the Python that a wheel is built for.
    type: str
  machine:
    description: Machine that a wheel is built for.
    type: str
  pins_dir:
    description: Directory on the controller that keeps built wheels.
    type: path
    required: true
  root:
    description: Directory on the build host that holds everything.
    type: path
    default: /opt/specdec
  network:
    description: How indexes are reached; see docs/networks.md.
    type: dict
    default: {}
  replace:
    description: Whether a wheel that was built is built anew.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Fetches and builds nothing.
  diff_mode:
    support: none
    description: The lock shows the package that differs.
"""

EXAMPLES = r"""
- name: Build a kernel for the architectures of these hosts
  specdec.serving.wheel:
    package: sgl-kernel
    source:
      git: https://git.example/kernels
      commit: 0123456789abcdef0123456789abcdef01234567
      build_host: ct201
      environment: {TORCH_CUDA_ARCH_LIST: "12.0"}
    python: "3.12"
    machine: x86_64
    pins_dir: "{{ inventory_dir }}/pins"
  delegate_to: ct201
"""

RETURN = r"""
path:
  description: The wheel's file on the controller.
  returned: success
  type: str
sha256:
  description: Its sha256.
  returned: success
  type: str
"""
