#!/usr/bin/python
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gather
short_description: Read the whole state of a serving host in one call
description:
  - Returns what the host is, what lies under the root directory, and what serves.
  - Nothing is written, whatever the mode.
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
options:
  root:
    description: Directory on the host that holds everything.
    type: path
    default: /opt/specdec
  ports:
    description: TCP ports whose listener is named.
    type: list
    elements: int
    default: []
  secrets:
    description:
      - Per instance a mapping of secret names to wanted values.
      - The answer holds the stored version that equals the value, or null; never a value.
    type: dict
    default: {}
  prefix:
    description: A directory that may hold a Python besides those that are found anyway.
    type: str
    default: ""
  models:
    description: Directories of models of which configuration, tokenizer and the headers of the weights are read, each model with its draft.
    type: list
    elements: list
    default: []
attributes:
  check_mode:
    support: full
    description: Never changes anything.
  diff_mode:
    support: none
    description: There is nothing to compare.
"""

EXAMPLES = r"""
- name: Read the state of the host
  specdec.serving.gather:
    ports: [30000]
  register: host
"""

RETURN = r"""
state:
  description:
    - What the host is (C(os), C(systemd), C(memory), C(disk), C(gpus), C(pythons)), what it holds
      (C(tools), C(wheels), C(overlays), C(models), C(model_files), C(environments)), and what serves (C(instances), C(listeners), C(job)).
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils import hoststate
from ansible_collections.specdec.serving.plugins.module_utils.ansiblerunner import module_runner


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/opt/specdec"},
            "ports": {"type": "list", "elements": "int", "default": []},
            "secrets": {"type": "dict", "default": {}, "no_log": True},
            "prefix": {"type": "str", "default": ""},
            "models": {"type": "list", "elements": "list", "default": []},
        },
        supports_check_mode=True,
    )
    asked = {name: module.params[name] for name in ("root", "ports", "secrets", "prefix", "models")}
    state = hoststate.gather(runner=module_runner(module), **asked)
    module.exit_json(changed=False, state=state)


if __name__ == "__main__":
    main()
