# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller half of ``job``: starts it, shows its progress, returns its result."""

from __future__ import annotations

import collections
import typing as t

from ansible.plugins.action import ActionBase

from ansible_collections.specdec.serving.plugins.module_utils import findings, layout, networks
from ansible_collections.specdec.serving.plugins.plugin_utils import controller

#: Kinds that the host can foretell in check mode (module_utils/previews.py); the plan says the rest.
_FORESEEN = ("rollback", "prune", "remove")


class ActionModule(ActionBase):
    def run(self, tmp: t.Any = None, task_vars: t.Any = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        host = task_vars["inventory_hostname"]
        spec = {"schema": layout.SCHEMA, "who": controller.who(), "why": "", **self._task.args["spec"]}
        result.update(kind=spec["kind"], instance=spec.get("instance"))
        if self._task.check_mode and spec["kind"] not in _FORESEEN:
            return {**result, "changed": True, "msg": "would run: %s" % spec["kind"], "result": {"findings": []}}
        try:
            network = networks.packed(self._task.args.get("network") or {})
        except findings.FindingError as error:
            return {**result, **controller.refusal("%s: nothing was changed:" % host, [error.finding])}
        arguments: dict[str, t.Any] = {"spec": spec, "secrets": {**(self._task.args.get("secrets") or {}), **network}}
        started: t.Optional[float] = None
        while True:
            news = self._execute_module(module_name="specdec.serving.job", module_args=arguments, task_vars=task_vars)
            if news.get("failed"):
                return {**result, **news}
            result["diff"] = result.get("diff") or news.get("diff", [])
            for line in news.get("foreseen", ()):
                self._display.display("%s | %-6s | %s" % (host, spec["kind"], line))
                result["foreseen"] = news["foreseen"]
            for line in news["lines"]:
                started = started or line["t"]
                self._display.display(
                    "%s | %-6s | %5.1f s | %s: %s" % (host, spec["kind"], line["t"] - started, line["stage"], line["message"])
                )
            if news["done"]:
                break
            arguments = {"directory": news["directory"], "offset": news["offset"]}
        if self._task.check_mode:
            return {**result, "changed": news["changed"], "result": news["result"]}
        return self._ended(result, task_vars, spec, news)

    def _ended(
        self, result: dict[str, t.Any], task_vars: t.Mapping[str, t.Any], spec: t.Mapping[str, t.Any], news: t.Mapping[str, t.Any]
    ) -> dict[str, t.Any]:
        host = task_vars["inventory_hostname"]
        outcome = news["result"] or {}
        verdicts = collections.Counter(one["verdict"] for one in outcome.get("findings", ()))
        result.update(changed=bool(outcome.get("changed")), result=outcome, verdicts=dict(sorted(verdicts.items())))
        if news["lost"]:
            result.update(
                failed=True,
                msg="%s: the %s ended without a result: its process was killed or the host restarted. "
                "What served before serves, or is brought back by the host itself; run the deploy again." % (host, spec["kind"]),
            )
        elif not outcome["ok"]:
            # What went well would only hide the rest: Ansible shows all of a failed result.
            telling = [one for one in outcome["findings"] if one["verdict"] not in (findings.OK, findings.NOT_APPLICABLE)]
            result["result"] = {key: value for key, value in outcome.items() if key != "timings"}
            result["result"]["findings"] = telling
            wrong = findings.errors(findings.from_dict(one) for one in outcome["findings"])
            told = ["%s: the %s found:" % (host, spec["kind"]), *(one.text() for one in wrong), *_served(outcome), *_fleet(task_vars)]
            result.update(failed=True, msg="\n".join(told))
        return result


def _served(outcome: t.Mapping[str, t.Any]) -> list[str]:
    """What serves after a switch that was taken back."""
    back, seconds = outcome.get("rolled_back_to"), (outcome.get("times") or {}).get("back")
    if not back or seconds is None:
        return []
    return ["release %s serves again, %.1f s after the failure" % (back, seconds)]


def _fleet(task_vars: t.Mapping[str, t.Any]) -> list[str]:
    """Where the other hosts of a rollout stand, which this failure stops: also for who sees nothing but this task."""
    everyone, batch = list(task_vars.get("ansible_play_hosts_all") or ()), list(task_vars.get("ansible_play_batch") or ())
    places = [everyone.index(one) for one in batch if one in everyone]
    if len(everyone) < 2 or not places:
        return []
    plans = {one: (task_vars["hostvars"][one].get("gpu_host_plan") or {}).get("releases") for one in everyone}
    wanted = {one: any(release["switch_needed"] for release in plans[one] or ()) for one in everyone}
    groups = {
        "switched before": [one for one in everyone[: min(places)] if wanted[one]],
        "in the same batch, see there": [one for one in batch if one != task_vars["inventory_hostname"]],
        "not reached, left as they were": [one for one in everyone[max(places) + 1 :] if wanted[one]],
        "nothing to switch": [one for one in everyone if one not in batch and plans[one] and not wanted[one]],
        "refused before the switches": [one for one in everyone if one not in batch and not plans[one]],
    }
    return ["fleet of %d hosts:" % len(everyone), *("  %s: %s" % (group, ", ".join(names)) for group, names in groups.items() if names)]
