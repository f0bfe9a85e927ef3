# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``wheelhouse`` runs on the controller alone: uv names the files, they are downloaded here."""

from __future__ import annotations

import typing as t
from pathlib import Path

from ansible.plugins.action import ActionBase

from ansible_collections.specdec.serving.plugins.module_utils import locks, pythons
from ansible_collections.specdec.serving.plugins.module_utils.findings import FindingError
from ansible_collections.specdec.serving.plugins.plugin_utils import controller, hosttools
from ansible_collections.specdec.serving.plugins.plugin_utils.gathering import Gathering, exclusive


class ActionModule(ActionBase):
    def run(self, tmp: t.Any = None, task_vars: t.Any = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        arguments, host = self._task.args, task_vars["inventory_hostname"]
        environments = arguments["environments"]
        if self._task.check_mode:
            names = ", ".join(one["locked"]["name"] for one in environments)
            return {**result, "changed": bool(environments), "msg": "would gather %s" % (names or "nothing")}
        if not arguments["directory"]:
            return {**result, "failed": True, "msg": "%s: set specdec_wheelhouse to the directory that is to be filled." % host}
        directory = Path(arguments["directory"]).expanduser().absolute()
        places = locks.wheel_directories(arguments.get("wheel_directories") or [], controller.environment())

        def say(line: str) -> None:
            self._display.display("%s | gather | %s" % (host, line))

        try:
            # hosts of one stack come here at the same time: the first fetches, the others find it
            with exclusive(directory):
                network = arguments.get("network") or {}
                env = controller.network_environment(network)
                run = Gathering(directory, controller.networked(network), hosttools.find_uv(), env, say)
                for one in environments:
                    known = [Path(place) for place in one["locked"]["directories"]]
                    run.lock(one["job"]["lock"], one["locked"]["name"], one["locked"]["inputs"], [*places, *known])
                asked = pythons.wanted(arguments.get("python") or "")
                if asked.source == pythons.WHEELHOUSE:
                    run.python(pythons.archive(run.metadata(asked.downloads, host), asked, arguments["machine"], host))
                run.tools(arguments.get("machine", "x86_64"))
                changed = run.keep()
        except FindingError as error:
            headline = "%s: the wheelhouse %s is not complete; what is whole stays:" % (host, directory)
            return {**result, **controller.refusal(headline, [error.finding])}
        held = {id_: one["name"] for id_, one in run.manifest["locks"].items()}
        return {**result, "changed": changed, "fetched": run.fetched, "locks": held}
