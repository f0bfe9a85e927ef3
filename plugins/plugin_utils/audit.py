# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller half of the modules that look at environments: what a host cannot know, brought along.

The table of engines is YAML, which hosts cannot read. What the checks need of other projects lies in the host program: where a
host has none, it is sent to the temporary directory of the call, which is removed at its end.
"""

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase

from ansible_collections.specdec.serving.plugins.module_utils.findings import FindingError
from ansible_collections.specdec.serving.plugins.plugin_utils import controller, hosttools


class AuditAction(ActionBase):
    """Runs the module of the task's own name."""

    def run(self, tmp: t.Any = None, task_vars: t.Any = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        module = "specdec.serving." + self._task.action.rpartition(".")[2]
        arguments = {**self._task.args, "engines": controller.table("engines")}
        answer = self._execute_module(module_name=module, module_args=arguments, task_vars=task_vars)
        if answer.get("program_missing"):
            answer = self._execute_module(module_name=module, module_args={**arguments, **self._program()}, task_vars=task_vars)
            self._remove_tmp_path(self._connection._shell.tmpdir)
        return {**result, **answer}

    def _program(self) -> dict[str, t.Any]:
        """The host program's path on the host, or that there is none."""
        try:
            local, _digest = hosttools.zipapp(controller.cache_directory(), controller.run)
        except FindingError as error:
            self._display.warning("What needs packaging or pyelftools on the host could not be checked: %s" % error.finding.text())
            return {"without_program": True}
        directory = self._make_tmp_path()
        remote = self._transfer_file(str(local), self._connection._shell.join_path(directory, "specdec"))
        self._fixup_perms2([directory, remote])
        return {"program": remote, "without_program": True}
