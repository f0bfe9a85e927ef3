# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a deploy would do to a host: from what is wanted and what is there, nothing asked, nothing done.

The plan is complete when no pin is missing; until then it names the pins to make first.
"""

from __future__ import annotations

import dataclasses
import os
import secrets as random
import typing as t

from . import arguments, artifacts, environments, gates, locks, overlays, releases, schema, stacks, transactions, units
from .findings import ERROR, Finding, errors
from .layout import MARKER, SCHEMA, Layout


class Pins(t.Protocol):
    """What the plan reads of a pins directory (plugin_utils/pins.py)."""

    def lock(self, name: str) -> t.Optional[str]: ...

    def reference(self, host: str) -> dict[str, t.Any]: ...

    def manifest(self, digest: str) -> t.Optional[dict[str, t.Any]]: ...

    def bundle(self, digest: str) -> t.Any: ...


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What the inventory wants of one host.

    :param instances: merged and checked (see schema.instances).
    :param tools: digests and sources of ``specdec`` and ``uv``, see plugin_utils/hosttools.py.
    :param wheel_directories: local directories with wheels on the controller.
    """

    host: str
    root: str
    pins_dir: str
    instances: t.Sequence[t.Mapping[str, t.Any]]
    pins: t.Mapping[str, str]
    extra_packages: t.Sequence[str]
    wheel_directories: t.Sequence[str]
    exclude_newer: str
    index: t.Mapping[str, t.Any]
    tools: t.Mapping[str, t.Mapping[str, str]]
    launcher: str
    who: str
    why: str


class Planner:
    """Collects the parts of one host's plan."""

    def __init__(self, wanted: Wanted, state: t.Mapping[str, t.Any], tables: t.Mapping[str, t.Any], pins: Pins) -> None:
        self.wanted = wanted
        self.state = state
        self.tables = tables
        self.pins = pins
        self.layout = Layout(wanted.root)
        self.findings: list[Finding] = []
        self.missing: list[dict[str, t.Any]] = []
        self.values: list[dict[str, str]] = []
        self.environments: dict[str, dict[str, t.Any]] = {}
        self.releases: list[dict[str, t.Any]] = []
        self.artifacts: dict[str, list[dict[str, str]]] = {"tools": [], "overlays": [], "wheels": [], "models": []}

    def refuse(self, id_: str, subject: str, message: str, found: str, expected: str, fix: str) -> None:
        """Add an error that forbids everything."""
        self.findings.append(
            Finding("plan." + id_, ERROR, "%s on %s" % (subject, self.wanted.host), message, found=found, expected=expected, fix=fix)
        )

    def plan(self) -> dict[str, t.Any]:
        """The plan as plain data."""
        self._check_host()
        for instance in self.wanted.instances:
            self._plan_instance(instance)
        self._plan_tools()
        return {
            "host": self.wanted.host,
            "root": self.wanted.root,
            "findings": [one.as_dict() for one in self.findings],
            "missing_pins": self.missing,
            "values": self.values,
            "environments": list(self.environments.values()),
            "releases": self.releases,
            "artifacts": self.artifacts,
            "stages": self._stages(),
        }

    def _check_host(self) -> None:
        state = self.state
        if state["os"]["system"] != "Linux" or not state["systemd"]["running"]:
            self.refuse(
                "no-systemd", "the host", "does not run systemd", state["os"]["name"] or state["os"]["system"], "Linux with systemd as its first process",
                "deploy to a host (or a container with an init) that runs systemd",
            )
        if state["job"]:
            self.refuse("busy", "the host", "is busy with another deploy", state["job"]["description"], "no job", "wait until that has ended, then run this again")

    def _plan_tools(self) -> None:
        for name, tool in sorted(self.wanted.tools.items()):
            if self.state["tools"].get(name) != tool["digest"]:
                dest = {"specdec": self.layout.specdec, "uv": self.layout.uv}[name]
                self.artifacts["tools"].append(artifacts.Artifact(tool["path"], str(dest), tool["digest"], "0755").as_dict())

    def _stages(self) -> list[str]:
        needed = {
            "uv": self.artifacts["tools"],
            "source_overlay": self.artifacts["overlays"],
            "engine_env": [one for one in self.environments.values() if not one["present"]],
            "model_store": self.artifacts["models"],
            "verify": [one for one in self.releases if one["switch"]],
            "engine_service": [one for one in self.releases if one["switch"]],
        }
        return [stage for stage, work in needed.items() if work]

    def _plan_instance(self, instance: t.Mapping[str, t.Any]) -> None:
        stack = self._stack(instance)
        bundles = self._bundles(instance)
        self._check_port(instance)
        if stack is None:
            return
        lock = self._lock(stack)
        if lock is None or bundles is None:
            return
        environment = self._environment(stack, lock, bundles)
        models = self._models(instance)
        if models is not None and environment is not None and not errors(self.findings):
            self._release(instance, stack, environment, models)
