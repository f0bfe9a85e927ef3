# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a deploy did, per host, at its end; also when a batch failed."""

from __future__ import annotations

DOCUMENTATION = r"""
name: summary
type: aggregate
short_description: Tell per host what serves after a deploy
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - Prints per host and instance the release that serves, the verdicts of the checks, the time to ready, a completion,
    the acceptance length, and the commands that query it and roll it back.
requirements:
  - Enabled by C(callbacks_enabled = specdec.serving.summary) in C(ansible.cfg).
"""

import time
import typing as t

from ansible import constants as C
from ansible.plugins.callback import CallbackBase


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "specdec.serving.summary"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self.plans: dict[str, dict[str, t.Any]] = {}
        self.proofs: dict[tuple[str, str], dict[str, t.Any]] = {}
        self.switches: dict[tuple[str, str], dict[str, t.Any]] = {}

    def v2_runner_on_ok(self, result: t.Any) -> None:
        self._keep(result)

    def v2_runner_on_failed(self, result: t.Any, ignore_errors: bool = False) -> None:
        self._keep(result)

    def _keep(self, result: t.Any) -> None:
        host = result.host.get_name()
        for one in result.result.get("results") or [result.result]:
            if "stages" in one:
                self.plans[host] = one
            kind, instance = one.get("kind"), one.get("instance")
            if kind == "prove":
                self.proofs[host, instance] = one
            elif kind == "switch":
                self.switches[host, instance] = one.get("result") or {}

    def v2_playbook_on_stats(self, stats: t.Any) -> None:
        for host, plan in sorted(self.plans.items()):
            for release in plan.get("releases", []):
                for line in self._lines(host, plan, release):
                    self._display.display(line)

    def _lines(self, host: str, plan: t.Mapping[str, t.Any], release: t.Mapping[str, t.Any]) -> t.Iterator[str]:
        instance = release["instance"]
        proof = self.proofs.get((host, instance))
        switch = self.switches.get((host, instance))
        committed = switch is not None and switch.get("committed")
        if not release["switch_needed"]:
            state, color = "serves, unchanged", C.COLOR_OK
        elif committed:
            state, color = "serves", C.COLOR_CHANGED
        elif switch and switch.get("rolled_back_to"):
            state, color = "was refused; %s serves again" % switch["rolled_back_to"], C.COLOR_ERROR
        else:
            state, color = "is not switched to", C.COLOR_HIGHLIGHT
        yield ""
        yield self._colored("%s | %s: release %s %s" % (host, instance, release["id"], state), color)
        yield "  engine      %s, environment %s" % (release["engine"], release["environment"])
        if proof is not None:
            yield "  checks      %s" % ", ".join("%d %s" % (count, verdict) for verdict, count in proof.get("verdicts", {}).items())
            for one in (proof.get("result") or {}).get("findings", []):
                if one["verdict"] in ("warning", "error"):
                    yield "    %-9s %s: %s" % (one["verdict"], one["subject"], one["message"])
        for one in (switch or {}).get("findings", []):
            if one["verdict"] == "error":
                yield self._colored("  refused     %s: %s" % (one["message"], one["found"]), C.COLOR_ERROR)
        if switch:
            times, gate = switch.get("times") or {}, switch.get("gate") or {}
            if "ready" in times:
                yield "  ready       %.1f s after the start" % times["ready"]
            if gate.get("completion"):
                yield "  completion  %r" % gate["completion"]
            if gate.get("acceptance") is not None:
                yield "  acceptance  %.2f tokens per verification over %d prompts (floor %.2f)" % (
                    gate["acceptance"],
                    gate["prompts"],
                    gate["floor"],
                )
        elif release.get("recorded"):
            yield "  recorded    %s" % _recorded(release["recorded"])
        yield "  query       %s" % release["query"]
        yield "  roll back   ansible %s -b -m ansible.builtin.command -a '%s/bin/specdec rollback %s'" % (host, plan["root"], instance)

    def _colored(self, text: str, color: str) -> str:
        from ansible.utils.color import stringc

        return stringc(text, color)


def _recorded(entry: t.Mapping[str, t.Any]) -> str:
    """What the host kept of the switch to the release that serves."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(entry["when"]))
    parts = ["%s UTC by %s" % (when, entry["who"]), "ready %.1f s after the start" % (entry.get("times") or {}).get("ready", 0.0)]
    if entry.get("acceptance") is not None:
        parts.append("acceptance %.2f tokens per verification" % entry["acceptance"])
    return ", ".join(parts)
