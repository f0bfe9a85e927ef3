# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ``secrets`` filter."""

from __future__ import annotations

DOCUMENTATION = r"""
name: secrets
short_description: The secret values of instances
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - Takes the secret options out of a list of instances, so that a task can hand just them to a module that hides them.
options:
  _input:
    description: The instances, as in C(specdec_instances).
    type: list
    elements: dict
    required: true
  defaults:
    description: Options that hold for every instance, as in C(specdec_instance_defaults).
    type: dict
    default: {}
  host_defaults:
    description: The same of the host, merged over them, as in C(specdec_host_defaults).
    type: dict
    default: {}
positional: defaults, host_defaults
"""

EXAMPLES = r"""
- name: Read which stored secrets equal the wanted ones
  specdec.serving.gather:
    secrets: "{{ specdec_instances | specdec.serving.secrets(specdec_instance_defaults, specdec_host_defaults) }}"
"""

RETURN = r"""
_value:
  description: Per instance name a mapping of secret names to values; instances without secrets are left out.
  type: dict
"""

import typing as t

from ansible_collections.specdec.serving.plugins.module_utils import schema


def secrets(
    instances: list[dict[str, t.Any]],
    defaults: t.Optional[dict[str, t.Any]] = None,
    host_defaults: t.Optional[dict[str, t.Any]] = None,
) -> dict[str, dict[str, str]]:
    """See DOCUMENTATION."""
    common = schema.merge(defaults or {}, host_defaults or {})
    return schema.secrets([schema.merge(common, one) for one in instances])


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"secrets": secrets}
