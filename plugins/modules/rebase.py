#!/usr/bin/python
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rebase
short_description: Propose captured overlays for another engine version
description:
  - Looks for captured overlays that were made for another engine version than their instance wants, and merges, file by file with
    C(git merge-file), what they change with what the wanted version changed.
  - Puts a proposed bundle and a report into C(proposals) of the pins directory, and applies nothing. Runs on the controller; no host is
    asked.
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
extends_documentation_fragment: [specdec.serving.packages, specdec.serving.instances]
options:
  pins_dir:
    description: Directory on the controller that holds the overlay bundles.
    type: path
    required: true
  machine:
    description: Machine for which the packages are read.
    type: str
    default: x86_64
attributes:
  check_mode:
    support: full
    description: Merges and tells the result; keeps nothing.
  diff_mode:
    support: none
    description: The report names each file; the proposed bundle holds the texts.
"""

EXAMPLES = r"""
- name: Propose the overlays for the engine version that is wanted now
  specdec.serving.rebase:
    pins_dir: "{{ inventory_dir }}/pins"
    instances: "{{ specdec_instances }}"
"""

RETURN = r"""
proposals:
  description: One for each overlay that was made for another version.
  returned: success
  type: list
  elements: dict
  contains:
    overlay:
      description: Digest of the captured overlay.
      type: str
    version:
      description: The engine version that is wanted.
      type: str
    directory:
      description: Where the proposal lies on the controller.
      type: str
    clean:
      description: Whether nothing is left to a person.
      type: bool
    files:
      description: What became of each file, with the number of conflicts.
      type: list
      elements: dict
"""
