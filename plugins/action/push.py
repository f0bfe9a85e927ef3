# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller half of ``push``: one archive, one transfer, one call; several for what is large, so that it goes on where it stopped."""

from __future__ import annotations

import os
import tempfile
import typing as t

from ansible.plugins.action import ActionBase

from ansible_collections.specdec.serving.plugins.module_utils import artifacts

#: Bytes of one transfer. No deploy of an overlay or of tools comes near it; a wheelhouse does.
_BATCH = 256 * 1024 * 1024


class ActionModule(ActionBase):
    def run(self, tmp: t.Any = None, task_vars: t.Any = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        wanted = arguments.get("artifacts") or []
        if not wanted:
            return {**result, "changed": False, "placed": [], "bytes": 0}
        if self._task.check_mode:
            return {**result, "changed": True, "placed": [item["dest"] for item in wanted], "bytes": 0}
        parts = artifacts.batches(wanted, _BATCH)
        placed: list[str] = []
        sent = 0
        for number, part in enumerate(parts, 1):
            where = ", part %d of %d" % (number, len(parts)) if len(parts) > 1 else ""
            answer = self._send(part, where, arguments, task_vars)
            sent += answer["bytes"]
            placed += answer.get("placed", [])
            result.update(answer)
            if answer.get("failed") or answer.get("unreachable"):
                break
        return {**result, "changed": bool(placed), "placed": placed, "bytes": sent}

    def _send(
        self, part: t.Sequence[t.Mapping[str, t.Any]], where: str, arguments: t.Mapping[str, t.Any], task_vars: t.Any
    ) -> dict[str, t.Any]:
        """One archive, one transfer, one call."""
        with tempfile.TemporaryDirectory(prefix="specdec-push-") as scratch:
            archive = os.path.join(scratch, "artifacts.tar")
            try:
                size = artifacts.pack(part, archive)
            except (artifacts.Refused, OSError) as error:
                return {"failed": True, "msg": "push: %s; nothing was sent. Run the deploy again once that is mended." % error, "bytes": 0}
            self._display.display("%s | sending %d artifacts, %.1f MB%s" % (task_vars["inventory_hostname"], len(part), size / 1e6, where))
            remote = self._connection._shell.join_path(self._make_tmp_path(), "artifacts.tar")
            self._transfer_file(archive, remote)
        asked = {**arguments, "artifacts": list(part), "archive": remote}
        answer = self._execute_module(module_name="specdec.serving.push", module_args=asked, task_vars=task_vars)
        if answer.get("failed") or answer.get("unreachable"):
            self._remove_tmp_path(self._connection._shell.tmpdir)
        # else the module took it away: that saves a call
        self._connection._shell.tmpdir = None
        return {**answer, "bytes": size}
