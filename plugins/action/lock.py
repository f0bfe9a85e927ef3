# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``lock`` runs on the controller alone: uv resolves, the pins directory keeps."""

from __future__ import annotations

import typing as t
from pathlib import Path

from ansible.plugins.action import ActionBase

from ansible_collections.specdec.serving.plugins.module_utils import findings, locks
from ansible_collections.specdec.serving.plugins.module_utils.findings import FindingError
from ansible_collections.specdec.serving.plugins.plugin_utils import controller, hosttools
from ansible_collections.specdec.serving.plugins.plugin_utils.pins import Pins


class ActionModule(ActionBase):
    def run(self, tmp: t.Any = None, task_vars: t.Any = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        arguments = self._task.args
        host = task_vars["inventory_hostname"]
        inputs = arguments["inputs"]
        name = locks.file_name(inputs)
        where = ": ".join(one for one in (host, arguments.get("variable")) if one)
        pins = Pins(arguments["pins_dir"])
        if self._task.check_mode:
            wanted = arguments.get("replace") or pins.lock(name) is None
            return {**result, "changed": bool(wanted), "msg": "would lock %s" % name if wanted else "%s is there" % name}
        try:
            # Hosts of one stack come here at the same time: the first makes the lock, the others find it.
            with pins.exclusive():
                before = pins.lock(name)
                if before is not None and not arguments.get("replace"):
                    return {**result, "changed": False, "id": locks.parse(before).id, "path": str(pins.directory / "locks" / name)}
                self._display.display("%s | lock   | resolving %s" % (host, name))
                directories = [Path(one) for one in arguments.get("wheel_directories") or ()]
                runner = controller.networked(arguments.get("network") or {})
                lock = locks.lock(inputs, runner, hosttools.find_uv(), directories)
                refused = findings.errors(locks.check(lock, inputs))
                if refused:
                    return {**result, **controller.refusal("%s: %s is refused; nothing was changed:" % (where, name), refused)}
                path = pins.keep_lock(name, lock.text())
        except FindingError as error:
            return {**result, **controller.refusal("%s: %s could not be locked; nothing was changed:" % (where, name), [error.finding])}
        self._display.display("%s | lock   | %d packages, id %s" % (host, len(lock.packages), lock.id))
        return {**result, "changed": before != lock.text(), "id": lock.id, "path": str(path), "diff": _diff(before, lock)}


def _diff(before: t.Optional[str], lock: locks.Lock) -> dict[str, str]:
    """The packages that differ, as Ansible shows a difference."""
    old = locks.parse(before).versions if before else {}
    return {"before": _listed(old), "after": _listed(lock.versions)}


def _listed(versions: t.Mapping[str, str]) -> str:
    return "".join("%s==%s\n" % item for item in sorted(versions.items()))
