# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An instance's options turned into the engine's own arguments, with the origin of each.

What becomes what is data (``data/engines.yml``); here is only the order in which it is laid over
each other: fixed, options, lane, speculation, and last what the user passes through by name.
"""

from __future__ import annotations

import dataclasses
import typing as t

from .layout import canonical
from .schema import ALGORITHM_NONE

#: Fixed prompts over which acceptance is measured: plain code and prose, never random tokens, whose
#: acceptance says nothing about real use.
PROMPTS = (
    "def __init__(self, name, value=None):\n",
    "import os\nimport sys\n\nclass Error(Exception):\n",
    "    def test(self):\n        self.assertEqual(",
    "        if not isinstance(",
    "for i in range(len(self._data)):\n",
)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The configuration of an engine without secrets, and where each value comes from."""

    config: dict[str, t.Any]
    origins: dict[str, str]


def speculates(instance: t.Mapping[str, t.Any]) -> bool:
    """Whether the instance wants speculative decoding at all."""
    algorithm = (instance.get("speculative") or {}).get("algorithm", ALGORITHM_NONE)
    return algorithm.lower() != ALGORITHM_NONE


def served_model_name(instance: t.Mapping[str, t.Any]) -> str:
    """The name clients ask for: as written, else the repository, else the last part of the path."""
    model = instance["model"]
    return (
        instance.get("served_model_name") or model.get("repo") or (model.get("path") or model["directory"]).rstrip("/").rpartition("/")[2]
    )


def compose(engine: t.Mapping[str, t.Any], lane: str, instance: t.Mapping[str, t.Any], models: t.Mapping[str, str]) -> Arguments:
    """The engine's configuration.

    :param engine: the engine's row of ``data/engines.yml``.
    :param lane: the lane's name.
    :param instance: the merged instance.
    :param models: paths on the host of ``model`` and, where there is one, ``draft``.
    """
    config: dict[str, t.Any] = {}
    origins: dict[str, str] = {}

    def put(name: str, value: t.Any, origin: str) -> None:
        config[name] = value
        origins[name] = origin

    for name, value in engine["fixed"].items():
        put(name, value, "collection")
    values = {
        "model": models["model"],
        "served_model_name": served_model_name(instance),
        "host": instance.get("host", "127.0.0.1"),
        "port": instance.get("port", 30000),
        "tensor_parallel": instance.get("tensor_parallel", 1),
        "context_length": instance.get("context_length"),
    }
    for option, value in values.items():
        if value is not None:
            put(engine["options"][option], value, "instance" if option in instance else "default")
    for name, value in engine["lanes"].get(lane, {}).get("arguments", {}).items():
        put(name, value, "lane " + lane)
    if speculates(instance):
        for name, value in _speculation(engine, instance, models).items():
            put(name, value, "instance")
    for name, value in (instance.get("extra_args") or {}).items():
        put(name.lstrip("-").replace("_", "-"), value, "extra_args")
    return Arguments(config, origins)


def _speculation(engine: t.Mapping[str, t.Any], instance: t.Mapping[str, t.Any], models: t.Mapping[str, str]) -> dict[str, t.Any]:
    wanted = dict(instance["speculative"])
    if models.get("draft"):
        wanted["draft"] = models["draft"]
    names = engine["speculative"]
    if names:
        return {names[option]: value for option, value in wanted.items() if value is not None}
    joined = {"method": wanted["algorithm"].lower(), "model": wanted.get("draft"), "num_speculative_tokens": wanted.get("num_draft_tokens")}
    return {"speculative-config": canonical({key: value for key, value in joined.items() if value is not None}).decode()}


def environment_variables(
    engine: t.Mapping[str, t.Any], lane: str, instance: t.Mapping[str, t.Any], environment: str, state: str
) -> dict[str, str]:
    """The environment of the service: caches of its own, the environment's programs first on PATH.

    :param environment: path of the environment on the host.
    :param state: path of the directory that the service user may write.
    """
    variables = dict(engine["environment"])
    variables.update({name: state if below == "." else "%s/%s" % (state, below) for name, below in engine["caches"].items()})
    variables["PATH"] = "%s/venv/bin:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin" % environment
    if isinstance(instance.get("gpus"), list):
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in instance["gpus"])
    variables["LD_LIBRARY_PATH"] = "%s/lib" % environment
    variables.update(engine["lanes"].get(lane, {}).get("environment", {}))
    variables.update({str(name): str(value) for name, value in (instance.get("environment") or {}).items()})
    return variables
