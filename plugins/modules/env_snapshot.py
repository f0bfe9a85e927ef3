#!/usr/bin/python
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: env_snapshot
short_description: See what is really installed in a virtual environment
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - Returns distributions with their local labels, the files against their RECORDs, the sonames that the loader does not find, the
    interpreter, the engine, the edits of its source, and the driver; and what is wrong with the environment by itself.
  - Works on any host with any virtual environment, also where nothing of this collection was deployed.
  - Only reads. Nothing is imported unless O(imports) is set, and no GPU is asked, so it is safe while the engine serves.
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
  checks:
    description:
      - Check the files, the versions of what belongs together, the names the engine takes from other packages, compiled code, and the
        variables of the units that start it. Reads every file of the environment.
    type: bool
    default: true
  imports:
    description: Import the engine's chain, too, as M(specdec.serving.import_health) does; what another finding explains is told there.
    type: bool
    default: false
  instances:
    description:
      - Check and import those environments, too, that instances of this host serve from.
      - Off, they are only returned as data where the host program is there to check them with their releases (C(specdec verify)).
    type: bool
    default: true
  declared:
    description: Packages whose version was chosen against what others require, so that this is no finding.
    type: list
    elements: str
    default: []
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
- name: See what the engines of this host are served from
  specdec.serving.env_snapshot:
  register: seen

- name: Stop where an environment was edited by hand
  ansible.builtin.assert:
    that: seen | specdec.serving.findings(id='record', format='verdict') == 'ok'
    fail_msg: "{{ seen | specdec.serving.findings(['error'], format='text') }}"

- name: Name the versions of one environment, quickly
  specdec.serving.env_snapshot:
    path: /opt/sglang/venv
    checks: false
  register: seen

- name: Show them
  ansible.builtin.debug:
    msg: "{{ seen.environments[0].snapshot.packages }}"
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
    snapshot:
      description:
        - C(path), C(python) (path, version, implementation, build, machine; empty where it does not start), C(engine) (name, version),
          C(kernels), C(lacks), C(packages) (version by name), C(labels) (CUDA label by name), C(torch) (its CUDA label), C(editable),
          C(overlays), C(edits) (how the engine's source differs from its wheel), C(records) and C(libraries) (null without
          checks), C(services), C(driver), C(gpus).
      returned: when the environment could be opened
      type: dict
    findings:
      description: Of this environment.
      returned: success
      type: list
      elements: dict
program:
  description: Whether the host program of this collection is on the host.
  returned: success
  type: bool
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
            "checks": {"type": "bool", "default": True},
            "imports": {"type": "bool", "default": False},
            "instances": {"type": "bool", "default": True},
            "declared": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    module.exit_json(**audits.snapshot(module.params, module_runner(module)))


if __name__ == "__main__":
    main()
