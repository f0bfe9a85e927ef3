#!/usr/bin/python
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: import_health
short_description: Import the engine, torch, the kernels and flashinfer, in stages
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - Imports the chain that an engine's start begins with, by the environment's own Python, and says of each link whether it loads, in
    which version, from where, and how long it took. A crash, a hang and a process left behind are findings.
  - The imports run in a transient unit that cannot write anywhere, has no network, and a C(/tmp) of its own; no bytecode is written.
    GPUs are out of sight, so that no CUDA context is made while an engine serves.
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
  user:
    description: Who imports; whoever runs the module, where it is empty.
    type: str
    default: ''
  sandbox:
    description: Use a transient unit; without one, where a host has no systemd, imports may write caches below C(/tmp).
    type: bool
    default: true
  devices:
    description: Let the imports see the GPUs. They may make a CUDA context there.
    type: bool
    default: false
  deadline:
    description: Seconds for all imports together.
    type: float
    default: 300
  environment:
    description:
      - Variables for the imports, besides those of the unit that starts the environment; what may be a secret by its name is not taken
        from there.
    type: dict
    default: {}
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
- name: Does what the engine starts with load?
  specdec.serving.import_health:
    path: /opt/sglang/venv
    deadline: 120
  register: health
  failed_when: health.verdict == 'error'

- name: Show the findings
  ansible.builtin.debug:
    msg: "{{ health | specdec.serving.findings(format='text') }}"
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
    stages:
      description: Per link C(ok), C(version), C(file), C(seconds), and C(error), the chain of exceptions.
      returned: when the environment could be opened
      type: dict
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
            "user": {"type": "str", "default": ""},
            "sandbox": {"type": "bool", "default": True},
            "devices": {"type": "bool", "default": False},
            "deadline": {"type": "float", "default": 300},
            "environment": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    module.exit_json(**audits.imports(module.params, module_runner(module)))


if __name__ == "__main__":
    main()
