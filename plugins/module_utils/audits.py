# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the modules env_snapshot, version_parity and import_health do with the environments of a host. Read-only."""

from __future__ import annotations

import typing as t
from pathlib import Path

from . import comparisons, findings, folding, hostlibraries, probes, references, snapshots
from .findings import COULD_NOT_CHECK, Finding, FindingError
from .layout import Layout
from .runners import Runner

#: Options that all three have: which environments, and what their controller halves add.
OPTIONS: dict[str, dict[str, t.Any]] = {
    "path": {"type": "path", "default": ""},
    "root": {"type": "path", "default": "/opt/specdec"},
    "engines": {"type": "dict", "default": {}},
    "program": {"type": "path", "default": ""},
    "without_program": {"type": "bool", "default": False},
}

#: How env_snapshot imports: as import_health does by itself.
DEFAULTS: dict[str, t.Any] = {"user": "", "sandbox": True, "devices": False, "deadline": probes.DEADLINE, "environment": {}}

Parameters = t.Mapping[str, t.Any]


def run(parameters: Parameters, runner: Runner, look: t.Callable[[snapshots.Environment], dict[str, t.Any]]) -> dict[str, t.Any]:
    """The result of a module: ``look`` at each environment; findings of all, and the worst verdict.

    With ``program_missing`` nothing was looked at: the caller may bring the host program and ask again.
    """
    missing = hostlibraries.provide(parameters["root"], parameters["program"])
    if missing and not parameters["without_program"]:
        return {"changed": False, "program_missing": True}
    results = []
    try:
        known = snapshots.places(parameters["root"], parameters["path"])
    except OSError as error:
        known = []
        results.append(_failed(parameters["root"], str(error)))
    for venv in known:
        try:
            results.append({"path": str(venv), **look(snapshots.open_environment(venv, parameters["engines"], runner, parameters["root"]))})
        except FindingError as error:
            results.append({"path": str(venv), "findings": [error.finding]})
        except ImportError as error:
            results.append(_failed(str(venv), str(error)))
    if not results:
        results.append(_failed(parameters["root"], "no unit starts a Python of an environment, and no instance is deployed"))
    everything = [one for result in results for one in result["findings"]]
    listed = [{**result, "findings": [one.as_dict() for one in result["findings"]]} for result in results]
    return {
        "changed": False,
        "environments": listed,
        "findings": [one.as_dict() for one in everything],
        "verdict": findings.worst(everything),
    }


def _failed(subject: str, why: str) -> dict[str, t.Any]:
    fix = "Name the environment (`path`); let the controller bring the host program, which holds packaging and pyelftools."
    finding = Finding("environment.complete", COULD_NOT_CHECK, subject, "no environment could be looked at", why, fix=fix)
    return {"path": "", "findings": [finding]}


def snapshot(parameters: Parameters, runner: Runner) -> dict[str, t.Any]:
    """env_snapshot: the data, and unless ``checks`` is off what is wrong with each environment by itself.

    With ``instances`` off those that the host program judges are not judged here: it knows their releases, too.
    """
    layout = Layout(parameters["root"])
    program = layout.specdec.exists()
    judged = () if parameters["instances"] or not program else tuple(references.deployed(layout))

    def look(environment: snapshots.Environment) -> dict[str, t.Any]:
        wanted = environment.venv not in judged
        state = snapshots.verified(environment.installed) if wanted and parameters["checks"] else None
        found = snapshots.findings(environment, runner, state, parameters["declared"]) if state else []
        if wanted and parameters["imports"]:
            found += _imports(environment, runner, DEFAULTS)[0]
        return {"snapshot": snapshots.take(environment, runner, state), "findings": folding.fold(found)}

    return {**run(parameters, runner, look), "program": program}


def compare(parameters: Parameters, runner: Runner) -> dict[str, t.Any]:
    """version_parity: each environment against what is wanted."""

    def look(environment: snapshots.Environment) -> dict[str, t.Any]:
        wanted = {key: value for key, value in parameters["wanted"].items() if value}
        return {"findings": comparisons.findings(snapshots.take(environment, runner), wanted)}

    return run(parameters, runner, look)


def imports(parameters: Parameters, runner: Runner) -> dict[str, t.Any]:
    """import_health: the import chain of each environment."""

    def look(environment: snapshots.Environment) -> dict[str, t.Any]:
        found, stages = _imports(environment, runner, parameters)
        return {"findings": folding.fold(found), "stages": stages}

    return run(parameters, runner, look)


def _imports(environment: snapshots.Environment, runner: Runner, parameters: Parameters) -> tuple[list[Finding], dict[str, t.Any]]:
    row = environment.installed.row
    variables = {**snapshots.variables(environment), **{key: str(value) for key, value in parameters["environment"].items()}}
    report = probes.run_imports(
        environment.venv / "bin" / "python",
        row["imports"],
        runner,
        user=parameters["user"],
        environment=variables,
        sandbox=parameters["sandbox"],
        devices=parameters["devices"],
        deadline=parameters["deadline"],
    )
    homes = [environment.venv, *(Path(one) for one in environment.editable.values())]
    stages = {part: dict(line) for part, line in report.stages.items() if part != "models"}
    return probes.imports(report, row, homes, parameters["devices"]), stages
