# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ``diagnose`` filter."""

from __future__ import annotations

DOCUMENTATION = r"""
name: diagnose
short_description: The root of a crash in a journal
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - Reduces the journal of a crashed engine to the one error that the others came from, with cause and way out where they are known.
  - The lines of several processes may be mixed, tracebacks chained or cut off.
options:
  _input:
    description: What C(journalctl --unit=UNIT) prints, best of one start.
    type: str
    required: true
  unit:
    description: Name of the unit, for the finding and the command that shows the failure again.
    type: str
    default: ''
positional: unit
"""

EXAMPLES = r"""
- name: Read the journal of the last hour
  ansible.builtin.command: journalctl --unit=sglang --since=-1h --output=short-iso
  register: journal
  changed_when: false

- name: Say why the engine crashed
  ansible.builtin.debug:
    msg: "{{ journal.stdout | specdec.serving.diagnose('sglang.service') }}"
"""

RETURN = r"""
_value:
  description:
    - The finding, C(id), C(verdict), C(subject), C(message), C(found), C(expected), C(evidence), C(cause) and C(fix), all strings;
      and C(reproduce), a command that shows the failure again.
    - C(verdict) is C(error) for a crash, C(warning) for an error that the unit survived so far, C(ok) where there is none.
  type: dict
"""

import typing as t

from ansible_collections.specdec.serving.plugins.module_utils import diagnosis


def diagnose(text: str, unit: str = "") -> dict[str, str]:
    """See DOCUMENTATION."""
    result = diagnosis.diagnose(text, unit)
    return {**result.finding.as_dict(), "reproduce": result.reproduce}


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"diagnose": diagnose}
