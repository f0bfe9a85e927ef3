# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller half of the flow: check what is written, gather once, decide everything else here."""

from __future__ import annotations

import typing as t
from pathlib import Path

from ansible.plugins.action import ActionBase

from ansible_collections.specdec.serving.plugins.module_utils import (
    findings,
    fitting,
    locks,
    networks,
    plans,
    plantexts,
    pythons,
    releasefacts,
    schema,
)
from ansible_collections.specdec.serving.plugins.module_utils.layout import Layout
from ansible_collections.specdec.serving.plugins.plugin_utils import controller, hosttools
from ansible_collections.specdec.serving.plugins.plugin_utils.layers import Layers
from ansible_collections.specdec.serving.plugins.plugin_utils.pins import Pins

_LAUNCHER = Path(__file__).resolve().parents[2] / "roles" / "uv" / "files" / "specdec" / "launch.py"


class ActionModule(ActionBase):
    def run(self, tmp: t.Any = None, task_vars: t.Any = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        host = task_vars["inventory_hostname"]
        damaged = controller.stacks()[1]
        if damaged:
            return {**result, **controller.refusal("%s: nothing was changed; the table of stacks has to be mended first:" % host, damaged)}
        arguments = self._task.args
        instances, wrong = schema.instances(
            host, arguments.get("instances"), arguments.get("instance_defaults"), arguments.get("host_defaults")
        )
        wrong += schema.check_names(host, task_vars)
        wrong += schema.check_settings(host, arguments, task_vars["groups"]["all"]) or [
            *networks.check(host, arguments["network"]),
            *pythons.check(host, arguments["python"]),
        ]
        if wrong:
            return {**result, **controller.refusal("%s: nothing was changed; the inventory has to be mended first:" % host, wrong)}
        state = arguments.get("state")
        if state is None:
            answer = self._gather(arguments, instances, task_vars)
            if answer.get("failed") or answer.get("unreachable"):
                return {**result, **answer}
            state = answer["state"]
        address = self._templar.template(task_vars.get("ansible_host")) or host
        try:
            plan = self._plan(host, address, arguments, instances, state)
        except findings.FindingError as error:
            return {**result, **controller.refusal("%s: nothing was changed, because:" % host, [error.finding])}
        refused = findings.errors(findings.from_dict(one) for one in plan["findings"])
        if refused:
            return {**result, **controller.refusal("%s: nothing was changed, because:" % host, refused)}
        for line in plantexts.changes(plan):
            self._display.display("%s | plan   | %s" % (host, line))
        if self._task.diff:
            for line in plantexts.package_changes(plan):
                self._display.display("%s | plan   | %s" % (host, line))
        if self._task.check_mode:
            for one in plan["settings"]:
                self._display.display("%s | plan   | %s: %s = %s (%s)" % (host, one["instance"], one["name"], one["value"], one["origin"]))
        return {**result, "changed": False, **plan, "state": state}

    def _gather(self, arguments: t.Mapping[str, t.Any], instances: t.Sequence[t.Mapping[str, t.Any]], task_vars: t.Any) -> dict[str, t.Any]:
        table = controller.table("architectures")
        asked = {
            "root": arguments["root"],
            "ports": sorted({port for one in instances for port in fitting.ports(table, one["engine"]["name"], one)}),
            "secrets": schema.secrets(instances),
            "prefix": pythons.wanted(arguments["python"]).prefix,
            "models": [releasefacts.models_on_host(Layout(arguments["root"]), one) for one in instances],
        }
        return self._execute_module(module_name="specdec.serving.gather", module_args=asked, task_vars=task_vars)

    def _plan(
        self,
        host: str,
        address: str,
        arguments: t.Mapping[str, t.Any],
        instances: t.Sequence[t.Mapping[str, t.Any]],
        state: t.Mapping[str, t.Any],
    ) -> dict[str, t.Any]:
        house = Path(arguments["wheelhouse"]).expanduser().absolute() if arguments.get("wheelhouse") else None
        runner = controller.offline(house) if house else controller.networked(arguments["network"])
        wanted = plans.Wanted(
            host=host,
            address=address,
            root=arguments["root"],
            pins_dir=arguments["pins_dir"],
            instances=instances,
            pins={**arguments["pins"], **(arguments.get("host_pins") or {})},
            extra_packages=arguments["extra_packages"],
            wheel_directories=locks.wheel_directories(arguments["wheel_directories"], controller.environment()),
            wheelhouse=str(house) if house else "",
            archives=str(Path(arguments["archives"]).expanduser().absolute()) if arguments.get("archives") else "",
            exclude_newer=arguments["exclude_newer"],
            pins_update=arguments["pins_update"],
            hub=arguments["hub"].get("endpoint", ""),
            tools=hosttools.tools(controller.cache_directory(), runner, state["os"]["machine"]),
            launcher=_LAUNCHER.read_text(encoding="utf-8"),
            who=controller.who(),
            why=arguments["why"],
            python=pythons.wanted(arguments["python"]),
            cache=controller.cache_directory(),
            origins=schema.origins(arguments["instances"], arguments.get("instance_defaults") or {}, arguments.get("host_defaults")),
        )
        tables = {
            "stacks": controller.stacks()[0],
            **{name: controller.table(name) for name in ("engines", "architectures", "speculation")},
        }
        pins, cache = Pins(arguments["pins_dir"]), controller.cache_directory()
        # in check mode the pins stay as they are
        kept = cache / "overlays" if self._task.check_mode else pins.overlays
        layers = Layers(kept, cache, runner, state["os"]["machine"], wanted.wheel_directories, house)
        return plans.Planner(wanted, state, tables, pins, layers).plan()
