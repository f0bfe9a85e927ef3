#!/usr/bin/python
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: capture
short_description: Capture an overlay from a reference host
description:
  - Compares an installed package with its own RECORD, or a package from a checkout or a commit with the wheel of its release, and
    keeps what was changed, added or deleted by hand as a bundle in the pins directory.
  - Run with C(delegate_to) the reference. Nothing is written on the reference but a temporary file.
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
extends_documentation_fragment: [specdec.serving.packages]
options:
  reference:
    description: Inventory name of the reference.
    type: str
    required: true
  target:
    description: Inventory name of the host that needs the overlay, for the messages.
    type: str
    default: ""
  venv:
    description: Directory of the reference's virtual environment; found from its units and the root directory when empty.
    type: str
    default: ""
  package:
    description: Distribution whose files are compared.
    type: str
    default: sglang
  root:
    description: Directory on the reference that holds what was deployed to it, if anything was.
    type: str
    default: /opt/specdec
  binaries:
    description: Compiled libraries and large files that are captured nevertheless, by their paths below site-packages.
    type: list
    elements: str
    default: []
  pins_dir:
    description: Directory on the controller that keeps the bundle.
    type: path
    required: true
  replace:
    description: Whether a bundle that the pins hold for this reference and package is captured anew.
    type: bool
    default: false
  base:
    description:
      - Of a package that is not installed from a wheel, the version of its release and the files of that one's wheel with their sha256;
        set by the action, never by a user.
    type: dict
  archive:
    description: Path of a temporary file on the reference; set by the action, never by a user.
    type: path
attributes:
  check_mode:
    support: full
    description: Captures, but keeps nothing.
  diff_mode:
    support: full
    description: Shows each text file before and after the edit, where the unmodified package is at hand on the controller.
"""

EXAMPLES = r"""
- name: Capture what was changed by hand
  specdec.serving.capture:
    reference: ct129
    pins_dir: "{{ inventory_dir }}/pins"
  delegate_to: ct129
"""

RETURN = r"""
digest:
  description: Digest of the bundle.
  returned: success
  type: str
manifest:
  description: The bundle's manifest.
  returned: success
  type: dict
ignored:
  description: What differs and is not captured, with the reason.
  returned: success
  type: list
  elements: dict
uncommitted:
  description: Of a package from a checkout or a commit, the captured files that no commit holds.
  returned: success
  type: list
  elements: str
source:
  description: Kind, address, commit and release tag of a package that is not installed from a wheel.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils import references
from ansible_collections.specdec.serving.plugins.module_utils.ansiblerunner import module_runner
from ansible_collections.specdec.serving.plugins.module_utils.findings import FindingError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "reference": {"type": "str", "required": True},
            "target": {"type": "str", "default": ""},
            "venv": {"type": "str", "default": ""},
            "package": {"type": "str", "default": "sglang"},
            "root": {"type": "str", "default": "/opt/specdec"},
            "binaries": {"type": "list", "elements": "str", "default": []},
            "wheel_directories": {"type": "list", "elements": "path", "default": []},
            "network": {"type": "dict", "default": {}, "no_log": True},
            "pins_dir": {"type": "path", "required": True},
            "replace": {"type": "bool", "default": False},
            "base": {"type": "dict"},
            "archive": {"type": "path"},
        },
        supports_check_mode=True,
    )
    asked = {name: module.params[name] for name in ("venv", "package", "archive", "root", "binaries", "base")}
    try:
        captured = references.capture(**asked, runner=module_runner(module))
    except FindingError as error:
        module.fail_json(msg="%s: %s" % (module.params["reference"], error.finding.text()), finding=error.finding.as_dict())
    module.exit_json(changed=False, **captured)


if __name__ == "__main__":
    main()
