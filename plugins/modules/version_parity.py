#!/usr/bin/python
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: version_parity
short_description: Hold the versions of a virtual environment against what they should be
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - Checks that packages which are released in parts stand together (flashinfer, the kernel package, torch and what was built for it),
    and that what is installed is what was pinned, locked, or is installed elsewhere.
  - Reads metadata alone; the filter P(specdec.serving.parity#filter) does the same with snapshots.
options:
  path:
    description:
      - A virtual environment on the host.
      - Empty for those that a unit of the host starts a Python of, and those that its instances serve from.
    type: path
    default: ''
  root:
    description: Directory on the host that holds everything that was deployed with this collection, where anything was.
    type: path
    default: /opt/specdec
  engines:
    description: What is known of engines; set by the action, never by a user.
    type: dict
    default: {}
  program:
    description: Where the host program lies on the host for this call; set by the action, never by a user.
    type: path
    default: ''
  without_program:
    description: Look although the host program is not to be had; set by the action, never by a user.
    type: bool
    default: false
  wanted:
    description: What to compare with; each part may be left out.
    type: dict
    default: {}
    suboptions:
      pins:
        description: Version or range by package; C(flashinfer) stands for all its parts.
        type: dict
      lock:
        description: Text of a lock or of a requirements file with exact versions.
        type: str
      engine:
        description: C(name) and C(version) of the engine.
        type: dict
      snapshot:
        description: Another environment's, from M(specdec.serving.env_snapshot).
        type: dict
attributes:
  check_mode:
    support: full
    description: Never changes anything.
  diff_mode:
    support: none
    description: There is nothing to compare.
notes:
  - What the checks need of other projects (packaging, pyelftools) is in the host program of this collection. A host without it is sent a
    copy into the temporary directory of the task, which is removed at the end; where even that fails, the findings say what could not
    be checked.
  - Nothing of what is found fails the task; look at RV(verdict).
"""

EXAMPLES = r"""
- name: Do the packages of this environment stand together?
  specdec.serving.version_parity:
    path: /opt/sglang/venv
  register: parity
  failed_when: parity.verdict == 'error'

- name: And are they what was pinned?
  specdec.serving.version_parity:
    path: /opt/sglang/venv
    wanted:
      pins:
        torch: ">=2.9"
      engine:
        name: sglang
        version: 0.5.23
  register: parity
  failed_when: parity.verdict == 'error'
"""

RETURN = r"""
environments:
  description: What was looked at, one by one.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: The virtual environment.
      returned: success
      type: str
      sample: /opt/sglang/venv
    findings:
      description: Of this environment.
      returned: success
      type: list
      elements: dict
findings:
  description:
    - Of all environments; each has C(id), C(verdict), C(subject), C(message), C(found), C(expected), C(evidence), C(cause) and C(fix),
      all strings.
  returned: success
  type: list
  elements: dict
verdict:
  description: The worst of all; C(could not check) where nothing was looked at.
  returned: success
  type: str
  sample: ok
program_missing:
  description: Whether nothing was looked at for want of the host program; seen by the action alone.
  returned: when it is
  type: bool
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils import audits
from ansible_collections.specdec.serving.plugins.module_utils.ansiblerunner import module_runner


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **audits.OPTIONS,
            "wanted": {
                "type": "dict",
                "default": {},
                "options": {
                    "pins": {"type": "dict"},
                    "lock": {"type": "str"},
                    "engine": {"type": "dict"},
                    "snapshot": {"type": "dict"},
                },
            },
        },
        supports_check_mode=True,
    )
    module.exit_json(**audits.compare(module.params, module_runner(module)))


if __name__ == "__main__":
    main()
