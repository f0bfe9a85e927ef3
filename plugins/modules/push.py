#!/usr/bin/python
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: push
short_description: Send files and trees of the controller in one transfer
description:
  - Packs all artifacts into one archive, sends it once, verifies every digest on the host, and puts each in place by a rename.
  - What is there already with the same content is not touched, and files of a tree that the host holds elsewhere do not travel.
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
options:
  root:
    description: Directory on the host below which all destinations lie.
    type: path
    default: /opt/specdec
  artifacts:
    description: What is sent.
    type: list
    elements: dict
    required: true
    suboptions:
      source:
        description: File or directory on the controller.
        type: str
        required: true
      dest:
        description: Absolute path on the host, below O(root).
        type: str
        required: true
      digest:
        description: The sha256 of a file, or of a tree's sorted paths and contents.
        type: str
        required: true
      mode:
        description: Permissions of a file.
        type: str
        default: "0644"
      held:
        description: Files of a tree that the host has elsewhere, by their paths in it, with their absolute paths there.
        type: dict
        default: {}
  archive:
    description: Path of the archive on the host; set by the action, never by a user.
    type: path
attributes:
  check_mode:
    support: full
    description: Tells what would be sent; sends nothing.
  diff_mode:
    support: none
    description: Content is known by its digest alone.
"""

EXAMPLES = r"""
- name: Send a wheel
  specdec.serving.push:
    artifacts:
      - source: /srv/wheels/example-1.0-py3-none-any.whl
        dest: /opt/specdec/cache/wheels/example-1.0-py3-none-any.whl
        digest: 0d9c5f2f2a5c1c7a1c8b0c4e0f5b3f6f9d3c2b1a0f9e8d7c6b5a493827160504
"""

RETURN = r"""
placed:
  description: Destinations that are new on the host.
  returned: success
  type: list
  elements: str
bytes:
  description: Size of what was sent.
  returned: success
  type: int
"""

import contextlib
import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils import artifacts


def main() -> None:
    item = {
        "source": {"type": "str", "required": True},
        "dest": {"type": "str", "required": True},
        "digest": {"type": "str", "required": True},
        "mode": {"type": "str", "default": "0644"},
        "held": {"type": "dict", "default": {}},
    }
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/opt/specdec"},
            "artifacts": {"type": "list", "elements": "dict", "required": True, "options": item},
            "archive": {"type": "path"},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=bool(module.params["artifacts"]), placed=[item["dest"] for item in module.params["artifacts"]], bytes=0)
    archive = module.params["archive"]
    try:
        placed = artifacts.place(archive, module.params["artifacts"], module.params["root"])
    except (artifacts.Refused, OSError) as error:
        module.fail_json(msg="push: %s. Nothing of it was put in place; run the deploy again once that is mended." % error)
    os.unlink(archive)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(archive))
    module.exit_json(changed=bool(placed), placed=placed, bytes=0)


if __name__ == "__main__":
    main()
