# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ``findings`` filter."""

from __future__ import annotations

DOCUMENTATION = r"""
name: findings
short_description: Select, judge and show findings
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - Takes the findings of one or several results, wherever in them they stand, the worst first; keeps those that are asked for; and gives
    them as a list, as text for a person, or as their worst verdict.
options:
  _input:
    description: A finding, a list of findings, the result of a task that has some, or a list of such results.
    type: raw
    required: true
  verdicts:
    description: Keep only these; all, where it is empty.
    type: list
    elements: str
    choices: [ok, warning, error, could not check, not applicable]
    default: []
  id:
    description: Keep only findings of this id, or of this area (C(record) for C(record.changed) and its like).
    type: str
    default: ''
  format:
    description:
      - C(list) for the findings, C(text) for what a person reads, C(verdict) for the worst verdict.
      - The worst of none is C(could not check), for no evidence is no proof; where O(verdicts) or O(id) left nothing over of some, it is
        C(ok).
    type: str
    choices: [list, text, verdict]
    default: list
positional: verdicts
"""

EXAMPLES = r"""
- name: Look at the environments of this host
  specdec.serving.env_snapshot:
  register: seen

- name: Show what is wrong
  ansible.builtin.debug:
    msg: "{{ seen | specdec.serving.findings(['error', 'warning'], format='text') }}"

- name: Fail where something is
  ansible.builtin.assert:
    that: seen | specdec.serving.findings(format='verdict') not in ['error', 'could not check']
"""

RETURN = r"""
_value:
  description: A list of findings, text, or a verdict, by O(format).
  type: raw
"""

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.specdec.serving.plugins.module_utils import findings as core

FORMATS = ("list", "text", "verdict")
_KEYS = {"id", "verdict", "subject", "message"}


def findings(data: t.Any, verdicts: t.Sequence[str] = (), id: str = "", format: str = "list") -> t.Any:
    """See DOCUMENTATION."""
    if format not in FORMATS:
        raise AnsibleFilterError("specdec.serving.findings: format %r is none of %s" % (format, ", ".join(FORMATS)))
    unknown = [one for one in verdicts if one not in core.VERDICTS]
    if unknown:
        raise AnsibleFilterError("specdec.serving.findings: %s is none of the verdicts %s" % (", ".join(unknown), ", ".join(core.VERDICTS)))
    everything = [core.from_dict(one) for one in collected(data)]
    kept = [one for one in everything if one.verdict in (verdicts or core.VERDICTS) and (not id or (one.id + ".").startswith(id + "."))]
    kept.sort(key=lambda one: -core.VERDICTS.index(one.verdict))
    if format == "verdict":
        return core.OK if everything and not kept else core.worst(kept)
    if format == "text":
        return "\n".join(one.text() for one in kept)
    return [one.as_dict() for one in kept]


def collected(data: t.Any) -> t.Iterator[dict[str, str]]:
    """Every finding in a finding, a result, or a list of them; of a result its own list alone, not what it is made from."""
    if isinstance(data, t.Mapping):
        if data.keys() >= _KEYS:
            yield {str(key): str(value) for key, value in data.items()}
        elif "findings" in data:
            yield from collected(data["findings"])
        elif "results" in data or "result" in data:
            yield from collected(data.get("results") or data.get("result"))
    elif isinstance(data, (list, tuple)):
        for one in data:
            yield from collected(one)
    elif data is not None:
        raise AnsibleFilterError("specdec.serving.findings takes findings or results that hold some, not %s" % type(data).__name__)


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"findings": findings}
