# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller half of ``import_health``."""

from __future__ import annotations

from ansible_collections.specdec.serving.plugins.plugin_utils.audit import AuditAction


class ActionModule(AuditAction):
    """See plugin_utils/audit.py."""
