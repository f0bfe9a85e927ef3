# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller half of ``push``: one archive, one transfer, one call."""

from __future__ import annotations

import os
import tempfile
import typing as t

from ansible.plugins.action import ActionBase

from ansible_collections.specdec.serving.plugins.module_utils import artifacts


class ActionModule(ActionBase):
    def run(self, tmp: t.Any = None, task_vars: t.Any = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        wanted = arguments.get("artifacts") or []
        if not wanted:
            return {**result, "changed": False, "placed": [], "bytes": 0}
        if self._task.check_mode:
            return {**result, "changed": True, "placed": [item["dest"] for item in wanted], "bytes": 0}
        with tempfile.TemporaryDirectory(prefix="specdec-push-") as scratch:
            archive = os.path.join(scratch, "artifacts.tar")
            size = artifacts.pack(wanted, archive)
            self._display.display("%s | sending %d artifacts, %.1f MB" % (task_vars["inventory_hostname"], len(wanted), size / 1e6))
            remote = self._connection._shell.join_path(self._make_tmp_path(), "artifacts.tar")
            self._transfer_file(archive, remote)
        arguments["archive"] = remote
        result.update(self._execute_module(module_name="specdec.serving.push", module_args=arguments, task_vars=task_vars))
        result["bytes"] = size
        self._remove_tmp_path(self._connection._shell.tmpdir)
        return result
