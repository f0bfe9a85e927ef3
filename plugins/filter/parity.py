# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ``parity`` filter."""

from __future__ import annotations

DOCUMENTATION = r"""
name: parity
short_description: Compare what is installed with what should be
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - Holds the snapshot of an environment against itself (parts of one project at one version, labels that fit torch's CUDA), and against
    pins, a lock, an engine version or another snapshot.
  - Between two snapshots what serving depends on must have equal public versions; another kind of GPU may have another lane. All other
    packages are reported.
options:
  _input:
    description: What M(specdec.serving.env_snapshot) returned, of which every environment with an engine is judged; or one snapshot of it.
    type: dict
    required: true
  wanted:
    description:
      - Another snapshot, or what the module returned on another host, of which the environment with the same engine is taken.
      - Or a mapping with any of C(pins), C(lock), C(engine) and C(snapshot), as of M(specdec.serving.version_parity).
    type: dict
    default: {}
  host:
    description: Name of the host, for the findings.
    type: str
    default: ''
  whole:
    description:
      - Give what was found in each environment where it lies, too, and each root cause once, with what follows from it in its evidence.
      - What the environments show by themselves is then not judged again.
    type: bool
    default: false
  instances:
    description: With O(whole), what C(specdec verify --json) tells of the host's instances, by their names.
    type: dict
    default: {}
positional: wanted, host
"""

EXAMPLES = r"""
- name: See both hosts
  specdec.serving.env_snapshot:
    checks: false
  register: seen

- name: Is this host's engine what the reference has?
  ansible.builtin.assert:
    that: found | specdec.serving.findings(format='verdict') != 'error'
    fail_msg: "{{ found | specdec.serving.findings(verdicts=['error'], format='text') }}"
  vars:
    found: "{{ seen | specdec.serving.parity(hostvars['ct129'].seen) }}"
"""

RETURN = r"""
_value:
  description: Findings, each with C(id), C(verdict), C(subject), C(message), C(found), C(expected), C(evidence), C(cause), C(fix).
  type: list
  elements: dict
"""

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.specdec.serving.plugins.module_utils import comparisons
from ansible_collections.specdec.serving.plugins.module_utils.findings import FindingError


def parity(
    seen: t.Mapping[str, t.Any],
    wanted: t.Optional[t.Mapping[str, t.Any]] = None,
    host: str = "",
    whole: bool = False,
    instances: t.Optional[t.Mapping[str, t.Any]] = None,
) -> list[dict[str, str]]:
    """See DOCUMENTATION."""
    if not isinstance(seen, t.Mapping) or not seen.keys() & ({"environments"} if whole else {"packages", "environments"}):
        raise AnsibleFilterError("specdec.serving.parity takes what the module env_snapshot returned, or one snapshot of it")
    asked = wanted or {}
    if asked.keys() & {"packages", "environments"}:
        asked = {"snapshot": asked}
    try:
        if whole:
            found = comparisons.audit(seen, instances or {}, asked, host)
        elif "packages" in seen:
            found = comparisons.findings({**seen, "host": host}, asked)
        else:
            found = comparisons.environments(seen, asked, host)
    except FindingError as error:
        raise AnsibleFilterError(error.finding.text()) from error
    return [one.as_dict() for one in found]


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"parity": parity}
