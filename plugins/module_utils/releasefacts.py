# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the release of an instance says besides the engine's arguments: where it listens, its secrets, its limits, its gate."""

from __future__ import annotations

import typing as t

from . import arguments, probes, releases, schema, stacks, units
from . import models as hub
from .layout import Layout

DEFAULT_HOST = arguments.DEFAULTS["host"]

#: Mean tokens per verification below which a draft costs more than it brings.
ACCEPTANCE_FLOOR = 1.05

#: Bytes of memory that one nvcc may take (flashinfer#3634).
COMPILER_MEMORY = 8 * 1024**3

Instance = t.Mapping[str, t.Any]


def compose(
    instance: Instance,
    stack: stacks.Stack,
    engine: t.Mapping[str, t.Any],
    environment: str,
    layout: Layout,
    models: t.Mapping[str, str],
    secrets_: t.Mapping[str, t.Mapping[str, str]],
    host: t.Mapping[str, t.Any],
) -> dict[str, t.Any]:
    """The facts of a release (see releases.compose).

    :param engine: its row of ``data/engines.yml``; :param environment: id; :param models: path on the host by part.
    :param host: its state as gathered; read are memory, cpus and temporary.
    """
    name = instance["name"]
    directories = str(layout.environment(environment)), str(layout.instance_state(name, environment))
    listener, port = address(instance)
    limits, service = timeouts(instance), instance.get("service") or {}
    variables = arguments.environment_variables(engine, stack.lane, instance, *directories)
    return {
        "instance": name,
        "environment": environment,
        "engine": {"name": stack.engine, "version": stack.version},
        "command": engine["command"],
        "config_option": engine["config_option"],
        "secrets": secrets_,
        "environment_variables": {**_of_host(host, directories[1]), **variables},
        "models": sorted(models.values()),
        "host": listener,
        "port": port,
        "start_timeout": limits["start"],
        "start_timeout_by_size": "start_timeout" not in service,
        "stop_timeout": limits["stop"],
        "service": {key: value for key, value in (arguments.row(engine["service"], stack.version) or {}).items() if key != "versions"},
        "memory_max": service.get("memory_max", ""),
        "sandbox": service.get("sandbox", units.STRICT),
        "gpus": "cuda" not in stack.lacks,
        "dry_run": probes.dry_run(engine, stack.version, stack.lacks, stack.package),
        "gate": gate(instance, engine),
    }


def _of_host(host: t.Mapping[str, t.Any], state: str) -> dict[str, str]:
    """What the environment of a service owes to the host: how many kernels are compiled at a time, and where files are put and run."""
    variables = {}
    memory, cpus = (host.get("memory") or {}).get("total"), host.get("cpus")
    if memory and cpus:
        variables["MAX_JOBS"] = str(max(1, min(cpus, memory // COMPILER_MEMORY)))
    if (host.get("temporary") or {}).get("executable") is False:
        variables["TMPDIR"] = "%s/tmp" % state
    return variables


def address(instance: Instance) -> tuple[str, int]:
    """Where the instance listens: host and port."""
    return instance.get("host", DEFAULT_HOST), instance.get("port", arguments.DEFAULTS["port"])


def model_on_host(layout: Layout, model: t.Mapping[str, t.Any]) -> t.Optional[str]:
    """Where a model is served from, None for one that is sent from the controller: its place depends on its content."""
    return model.get("path") or (str(layout.models / hub.place(model["repo"], model["revision"])) if model.get("repo") else None)


def models_on_host(layout: Layout, instance: Instance) -> list[str]:
    """The same for an instance's model and draft."""
    places = [model_on_host(layout, instance[part]) for part in ("model", "draft") if instance.get(part)]
    return [place for place in places if place]


def timeouts(instance: Instance) -> dict[str, int]:
    """Seconds that the service's start (see releases.start_limit) and stop may take."""
    service = instance.get("service") or {}
    return {"start": service.get("start_timeout", 900), "stop": service.get("stop_timeout", 120)}


def secrets(instance: Instance, engine: t.Mapping[str, t.Any], known: t.Mapping[str, t.Optional[str]]) -> dict[str, dict[str, str]]:
    """Per secret the engine's option and the version; a new one unless the host holds just this value already.

    :param known: versions on the host that hold the wanted values, by name.
    """
    return {
        name: {"option": engine["secrets"][name], "version": known.get(name) or releases.new_secret_version()}
        for name in schema.SECRETS
        if instance.get(name) and name in engine["secrets"]
    }


def gate(instance: Instance, engine: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """What has to hold after a start (see gates.py)."""
    wanted = instance.get("gate") or {}
    speculates = arguments.speculates(instance)
    return {
        "served_model": arguments.served_model_name(instance),
        "speculative": speculates,
        "acceptance_floor": wanted.get("acceptance_floor", ACCEPTANCE_FLOOR),
        "floor_enforced": speculates and instance["speculative"]["algorithm"].upper() != "NGRAM",
        "max_tokens": wanted.get("max_tokens", 64),
        "prompts": list(wanted.get("prompts") or arguments.PROMPTS),
        "timeout": wanted.get("timeout", 300),
        **engine["gate"],
    }


def query(facts: t.Mapping[str, t.Any], reached: str) -> str:
    """A command that asks the server of a release; :param reached: address of the host."""
    key = " -H 'Authorization: Bearer '$KEY" if facts["secrets"] else ""
    body = '{"model": "%s", "prompt": "Hello", "max_tokens": 16}' % facts["gate"]["served_model"]
    host = DEFAULT_HOST if units.loopback(facts["host"]) else reached
    return "curl http://%s:%d/v1/completions%s -H 'Content-Type: application/json' -d '%s'" % (host, facts["port"], key, body)
