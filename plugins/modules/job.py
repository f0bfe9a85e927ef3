#!/usr/bin/python
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: job
short_description: Run long work on the host and follow it
description:
  - Starts a job (build an environment or a wheel, fetch a model, prove a release, switch an instance, roll back, prune, remove) in a
    transient systemd unit of the host, shows its progress, and returns its result.
  - The job runs on when the controller dies. Its unit is the lock of the host, so a second job is refused with the name
    of the first.
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
options:
  spec:
    description: What is to be done, with the keys C(kind), C(root), C(who), C(why) and those of the kind.
    type: dict
  secrets:
    description: Values the job needs and nobody may see, by name; the job finds each in a file that only root reads, until it ends.
    type: dict
    default: {}
  network:
    description: How the job reaches package indexes and hubs; travels as a secret; see docs/networks.md.
    type: dict
    default: {}
  directory:
    description: Directory of a started job; set by the action, never by a user.
    type: path
  offset:
    description: How much of the progress is known already; set by the action, never by a user.
    type: int
    default: 0
  wait:
    description: Seconds that one call waits for news.
    type: float
    default: 20
attributes:
  check_mode:
    support: full
    description: Starts nothing; a rollback, a prune and a removal say what they would do.
  diff_mode:
    support: partial
    description: A rollback shows both configurations and units, a prune and a removal what goes. For the rest the plan shows what differs.
"""

EXAMPLES = r"""
- name: Go back to the release before
  specdec.serving.job:
    spec:
      kind: rollback
      root: /opt/specdec
      instance: main
      who: somebody
      why: answers were wrong
"""

RETURN = r"""
result:
  description: What the job found and did, with its C(findings).
  returned: when the job has ended
  type: dict
foreseen:
  description: What the job would do, for a person.
  returned: in check mode, and when there is nothing to do
  type: list
  elements: str
lines:
  description: Progress since O(offset).
  returned: success
  type: list
  elements: dict
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils import jobs, previews
from ansible_collections.specdec.serving.plugins.module_utils.ansiblerunner import module_runner
from ansible_collections.specdec.serving.plugins.module_utils.findings import FindingError, from_dict


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "spec": {"type": "dict"},
            "secrets": {"type": "dict", "default": {}, "no_log": True},
            "network": {"type": "dict", "default": {}, "no_log": True},
            "directory": {"type": "path"},
            "offset": {"type": "int", "default": 0},
            "wait": {"type": "float", "default": 20},
        },
        required_one_of=[("spec", "directory")],
        supports_check_mode=True,
    )
    runner = module_runner(module)
    directory = module.params["directory"]
    seen: dict[str, t.Any] = {}
    if directory is None:
        try:
            seen = previews.preview(module.params["spec"], runner) or {}
            if module.check_mode or not seen.get("changed", True):
                module.exit_json(**_foreseen(seen))
            if seen.get("refusal"):
                raise FindingError(from_dict(seen["refusal"]))
            directory = jobs.start(seen.get("spec", module.params["spec"]), runner, module.params["secrets"])["directory"]
        except jobs.Busy as busy:
            module.fail_json(
                msg="The host is busy: %s. It was left alone; wait until that has ended, then run this again." % busy, busy=True
            )
        except jobs.NotStarted as error:
            module.fail_json(msg="The host did not start the job: %s. Nothing was changed; mend that, then run this again." % error)
        except FindingError as error:
            module.fail_json(msg="Nothing was changed. " + error.finding.text(), finding=error.finding.as_dict())
    news = jobs.follow(directory, module.params["offset"], module.params["wait"], runner)
    module.exit_json(changed=bool((news["result"] or {}).get("changed")), directory=directory, diff=seen.get("diff", []), **news)


def _foreseen(seen: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """What is known without a job: all of it in check mode, and that there is nothing to do."""
    return {
        "changed": seen.get("changed", True),
        "foreseen": list(seen.get("lines", ())),
        "diff": seen.get("diff", []),
        "result": {"ok": True, "changed": False, "findings": list(seen.get("findings", ()))},
        "lines": [],
        "done": True,
        "lost": False,
    }


if __name__ == "__main__":
    main()
