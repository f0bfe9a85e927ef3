#!/usr/bin/python
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: release
short_description: Put releases on a host beside what serves
description:
  - Writes the files, secrets, user and state directory of releases. A release is known by its content and written once.
  - Nothing that serves is touched; a job of kind C(switch) does that.
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
options:
  root:
    description: Directory on the host that holds everything.
    type: path
    default: /opt/specdec
  releases:
    description: The releases, as the plan composed them.
    type: list
    elements: dict
    required: true
    suboptions:
      facts:
        description: The content of C(release.json).
        type: dict
        required: true
      config:
        description: The engine's configuration without secrets.
        type: dict
        required: true
      unit:
        description: The text of the unit.
        type: str
        required: true
      launcher:
        description: The text of the launcher.
        type: str
        required: true
  secrets:
    description: Per instance the values of its secrets.
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Tells and shows what would be written.
  diff_mode:
    support: full
    description: Shows configuration and unit against those of the current release.
"""

EXAMPLES = r"""
- name: Put the planned releases in place
  specdec.serving.release:
    releases: "{{ gpu_host_plan.releases | map(attribute='files') }}"
    secrets: "{{ specdec_instances | specdec.serving.secrets }}"
"""

RETURN = r"""
written:
  description: Ids of the releases that are new on the host.
  returned: success
  type: list
  elements: str
placed:
  description: Ids of all these releases, which are on the host now.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils import releases, services
from ansible_collections.specdec.serving.plugins.module_utils.ansiblerunner import module_runner
from ansible_collections.specdec.serving.plugins.module_utils.findings import FindingError


def main() -> None:
    item = {
        "facts": {"type": "dict", "required": True},
        "config": {"type": "dict", "required": True},
        "unit": {"type": "str", "required": True},
        "launcher": {"type": "str", "required": True},
    }
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/opt/specdec"},
            "releases": {"type": "list", "elements": "dict", "required": True, "options": item},
            "secrets": {"type": "dict", "default": {}, "no_log": True},
        },
        supports_check_mode=True,
    )
    root = module.params["root"]
    wanted = [releases.Release(one["facts"], one["config"], one["unit"], one["launcher"]) for one in module.params["releases"]]
    diff = [services.differences(root, one) for one in wanted]
    written = []
    try:
        for one in wanted:
            secrets = module.params["secrets"].get(one.instance, {})
            if module.check_mode or services.install(root, one, secrets, module_runner(module)):
                written.append(one.id)
    except FindingError as error:
        module.fail_json(msg=error.finding.text(), finding=error.finding.as_dict())
    module.exit_json(changed=bool(written), written=written, placed=[one.id for one in wanted], diff=diff)


if __name__ == "__main__":
    main()
