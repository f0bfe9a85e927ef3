# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking over a unit that somebody made by hand, as it runs: it becomes the release that an upgrade replaces and goes back to.

Nothing of the unit is touched or copied, for its arguments may hold a key; what is kept is its name and how to ask it.
"""

from __future__ import annotations

import json
import time
import typing as t
from pathlib import Path

from . import gates, releases
from .findings import ERROR, OK, Finding, FindingError
from .layout import SCHEMA, Layout, unit_of
from .runners import Progress, Runner

#: It runs already: what does not answer by then does not serve.
_PATIENCE = 15
#: Tokens of the one completion that shows it serves.
_TOKENS = 16

_LAUNCHER = """import sys

sys.exit("specdec: this release is the unit %s, which was made by hand: start that one")
"""


def compose(
    instance: str,
    unit: str,
    engine: str,
    listener: tuple[str, int],
    secrets: t.Mapping[str, t.Mapping[str, str]],
    timeouts: t.Mapping[str, int],
    ask: t.Mapping[str, t.Any],
) -> releases.Release:
    """The release that stands for a unit made by hand; nothing is read.

    :param listener: the address and port that it listens on.
    :param timeouts: ``start``, ``stop`` and ``gate``, in seconds.
    :param ask: ``served_model``, ``prompts`` and ``health`` of the gate.
    """
    facts = {
        "schema": SCHEMA,
        "instance": instance,
        "adopted": {"unit": unit},
        "environment": "",
        "engine": {"name": engine, "version": "made by hand"},
        "command": [],
        "secrets": {name: dict(secret) for name, secret in secrets.items()},
        "models": [],
        "host": listener[0],
        "port": listener[1],
        "start_timeout": timeouts["start"],
        "stop_timeout": timeouts["stop"],
        "gate": {
            **ask,
            "formula": gates.NOT_COUNTED,
            "counters": {},
            "speculative": False,
            "acceptance_floor": 1.0,
            "floor_enforced": False,
            "max_tokens": _TOKENS,
            "timeout": timeouts["gate"],
        },
    }
    launcher = _LAUNCHER % unit
    description = "# %s was made by hand and stays where it is.\n" % unit
    return releases.Release({**facts, "id": releases.identity(facts, {}, description, launcher)}, {}, description, launcher)


def adopt(spec: t.Mapping[str, t.Any], runner: Runner, progress: Progress) -> dict[str, t.Any]:
    """Job kind *adopt*: ``release`` (facts, config, unit, launcher), with the secrets of the job.

    Returns changed and findings; raises FindingError, with nothing written, when the unit does not run or does not serve.
    """
    layout = Layout(spec["root"])
    release = releases.Release(**spec["release"])
    instance, unit = release.instance, unit_of(release.facts)
    if releases.current(layout, instance) is not None:
        return {"changed": False, "findings": [_finding(unit, "%s has a release already: nothing to take over" % instance).as_dict()]}
    state = _running(unit, runner)
    values = {name: Path(path).read_text(encoding="utf-8") for name, path in spec.get("secret_files", {}).items()}
    progress("adopt", "asking %s, process %s" % (unit, state["MainPID"]))
    facts = {**release.facts, "start_timeout": _PATIENCE}
    gate = gates.Gate(
        facts,
        runner,
        progress,
        since=time.time(),
        ticks=0,
        restarts=int(state.get("NRestarts") or 0),
        key=values.get("api_key"),
        secrets=list(values.values()),
    )
    outcome = gate.pass_through()
    found = [one.as_dict() for one in outcome.findings]
    if not outcome.ok:
        return {"changed": False, "findings": found}
    for name, secret in release.facts["secrets"].items():
        releases.store_secret(layout, instance, secret["version"], values[name])
    releases.store(layout, release)
    releases.write_durably(layout.instance(instance) / "adopted.json", json.dumps({"unit": unit, "enabled": state["UnitFileState"]}))
    entry = {"what": "adopt", "from": None, "to": release.id, "verdict": "committed", "when": time.time()}
    releases.append_history(layout, instance, {**entry, "who": spec.get("who", ""), "why": spec.get("why", "")})
    releases.flip(layout, instance, release.id)
    message = "taken over as release %s of %s; it was not restarted" % (release.id, instance)
    progress("adopt", "%s %s" % (unit, message))
    return {"changed": True, "release": release.id, "findings": [_finding(unit, message).as_dict(), *found]}


def _finding(unit: str, message: str) -> Finding:
    return Finding("adopt.done", OK, unit, message)


def _running(unit: str, runner: Runner) -> dict[str, str]:
    answer = runner(["systemctl", "show", "--property=ActiveState,SubState,MainPID,NRestarts,UnitFileState,LoadState", unit], timeout=30)
    state = dict(line.split("=", 1) for line in answer.stdout.splitlines() if "=" in line)
    if state.get("ActiveState") == "active":
        return state
    raise FindingError(
        Finding(
            "adopt.not-running",
            ERROR,
            unit,
            "does not run, so there is nothing to take over",
            found="%s, %s (%s)" % (state.get("LoadState"), state.get("ActiveState"), state.get("SubState")),
            expected="active",
            fix="start it and see that it serves, or take adopt out of the instance",
        )
    )


def was_enabled(layout: Layout, instance: str) -> bool:
    """Whether the unit made by hand started at boot when it was taken over."""
    try:
        return json.loads((layout.instance(instance) / "adopted.json").read_text(encoding="utf-8"))["enabled"] == "enabled"
    except (OSError, ValueError, KeyError):
        return False
