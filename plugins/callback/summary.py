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
  - Then says where each host of a fleet stands; also when the rollout was stopped, so that some hosts were not reached.
requirements:
  - Enabled by C(callbacks_enabled = specdec.serving.summary) in C(ansible.cfg).
"""

import time
import typing as t

from ansible import constants as C
from ansible.plugins.callback import CallbackBase

from ansible_collections.specdec.serving.plugins.module_utils import plantexts, registrations

#: How the hosts of a fleet may stand, in the order of the summary, and the colour of each.
_GROUPS = {
    "unchanged": C.COLOR_OK,
    "switched": C.COLOR_CHANGED,
    "rolled back": C.COLOR_ERROR,
    "refused": C.COLOR_ERROR,
    "not reached": C.COLOR_HIGHLIGHT,
}


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
        self.failures: dict[str, str] = {}

    def v2_runner_on_ok(self, result: t.Any) -> None:
        self._keep(result)

    def v2_runner_on_failed(self, result: t.Any, ignore_errors: bool = False) -> None:
        self._keep(result)
        if not ignore_errors:
            self._keep_failure(result)

    def v2_runner_on_unreachable(self, result: t.Any) -> None:
        self._keep_failure(result)

    def _keep_failure(self, result: t.Any) -> None:
        failed = [one for one in result.result.get("results") or [result.result] if one.get("failed") or one.get("unreachable")]
        text = str((failed or [result.result])[0].get("msg") or "failed")
        told = [line for line in text.splitlines() if line.startswith("ERROR: ")]
        self.failures[result.host.get_name()] = told[0][len("ERROR: ") :] if told else text.splitlines()[0]

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
            for gone in plan.get("gone", []):
                self._display.display(self._colored("\n%s | %s" % (host, plantexts.gone_text(gone)), C.COLOR_HIGHLIGHT))
        for line in self._fleet():
            self._display.display(line)

    def _fleet(self) -> t.Iterator[str]:
        """Where each host of several stands, also those that were not reached."""
        hosts = sorted({*self.plans, *self.failures})
        if len(hosts) < 2:
            return
        groups: dict[str, list[str]] = {}
        for host in hosts:
            for group, text in self._stands(host):
                groups.setdefault(group, []).append(text)
        yield "\nfleet of %d hosts" % len(hosts)
        for group, color in _GROUPS.items():
            for number, text in enumerate(groups.get(group, ())):
                yield self._colored("  %-12s %s" % (group if number == 0 else "", text), color)

    def _stands(self, host: str) -> t.Iterator[tuple[str, str]]:
        """Group and text of a host: one per instance, or one alone where it did not come so far."""
        releases = self.plans.get(host, {}).get("releases", [])
        if not releases or (host in self.failures and not any((host, one["instance"]) in self.switches for one in releases)):
            yield ("refused", "%s: %s" % (host, self.failures[host])) if host in self.failures else ("unchanged", host)
            return
        for one in releases:
            name = "%s %s" % (host, one["instance"])
            switch = self.switches.get((host, one["instance"]))
            before = one.get("current")
            if not one["switch_needed"]:
                yield "unchanged", "%s: release %s" % (name, one["id"])
            elif switch is None:
                yield "not reached", "%s: %s" % (name, "release %s still serves" % before if before else "nothing serves yet")
            elif switch.get("committed"):
                yield "switched", "%s: release %s" % (name, one["id"])
            elif switch.get("rolled_back_to"):
                yield "rolled back", "%s: release %s serves again: %s" % (name, switch["rolled_back_to"], self.failures.get(host, ""))
            else:
                yield "refused", "%s: %s" % (name, self.failures.get(host, ""))

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
            if (switch.get("times") or {}).get("back") is not None:
                state += ", %.1f s after the failure" % switch["times"]["back"]
        else:
            state, color = "is not switched to", C.COLOR_HIGHLIGHT
        yield ""
        yield self._colored("%s | %s: release %s %s" % (host, instance, release["id"], state), color)
        yield "  engine      %s, environment %s" % (release["engine"], release["environment"])
        if proof is not None:
            yield "  checks      %s" % ", ".join("%d %s" % (count, verdict) for verdict, count in proof.get("verdicts", {}).items())
            if (proof.get("result") or {}).get("skipped"):
                yield "    %-9s %s" % ("left out", ", ".join(proof["result"]["skipped"]))
            for one in (proof.get("result") or {}).get("findings", []):
                if one["verdict"] in ("warning", "error"):
                    yield "    %-9s %s: %s" % (one["verdict"], one["subject"], one["message"])
        for one in (switch or {}).get("findings", []):
            if one["verdict"] == "warning":
                yield "  warning     %s: %s" % (one["message"], one["found"])
            if one["verdict"] == "error":
                yield self._colored("  refused     %s: %s" % (one["message"], one["found"]), C.COLOR_ERROR)
            if one["id"] == registrations.REGISTERED:
                yield "  libraries   %s" % one["message"]
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
