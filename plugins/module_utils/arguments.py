# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An instance's options turned into the engine's own arguments, with the origin of each.

What becomes what is data (``data/engines.yml``); here is only the order in which it is laid over
each other: fixed, lane, options, speculation, and last what the user passes through by name.
"""

from __future__ import annotations

import dataclasses
import typing as t

from . import units
from .findings import ERROR, WARNING, Finding
from .layout import canonical
from .schema import ALGORITHM_NONE, ENGINE_OPTIONS

#: Fixed prompts over which acceptance is measured: plain code and prose, never random tokens, whose
#: acceptance says nothing about real use.
PROMPTS = (
    "def __init__(self, name, value=None):\n",
    "import os\nimport sys\n\nclass Error(Exception):\n",
    "    def test(self):\n        self.assertEqual(",
    "        if not isinstance(",
    "for i in range(len(self._data)):\n",
)


#: What holds where the instance does not say.
DEFAULTS: t.Mapping[str, t.Any] = {"host": "127.0.0.1", "port": 30000, "tensor_parallel": 1}


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The configuration of an engine without secrets, where each value comes from, and which option of the instance says it."""

    config: dict[str, t.Any]
    origins: dict[str, str]
    options: dict[str, str] = dataclasses.field(default_factory=dict)


def row(rows: t.Iterable[t.Mapping[str, t.Any]], version: str) -> t.Optional[t.Mapping[str, t.Any]]:
    """The first row of data whose ``versions`` hold an engine's version; None where none does."""
    from packaging.specifiers import SpecifierSet

    return next((one for one in rows if SpecifierSet(one["versions"]).contains(version, prereleases=True)), None)


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


def compose(
    engine: t.Mapping[str, t.Any], version: str, lane: str, instance: t.Mapping[str, t.Any], models: t.Mapping[str, str]
) -> Arguments:
    """The engine's configuration.

    :param engine: the engine's row of ``data/engines.yml``.
    :param version: the engine's version: names of arguments change.
    :param lane: the lane's name.
    :param instance: the merged instance.
    :param models: paths on the host of ``model`` and, where there is one, ``draft``.

    What the version has no argument for is left out; :func:`check` refuses it.
    """
    config: dict[str, t.Any] = {}
    origins: dict[str, str] = {}
    options: dict[str, str] = {}

    def put(arguments: t.Mapping[str, t.Any], origin: str, option: str = "") -> None:
        config.update(arguments)
        origins.update(dict.fromkeys(arguments, origin))
        options.update(dict.fromkeys(arguments, option))

    put(engine["fixed"], "collection")
    put(engine["lanes"].get(lane, {}).get("arguments", {}), "lane " + lane)
    given = {option: value for option, value in instance.items() if value is not None}
    values = {**DEFAULTS, **given, "model": models["model"], "served_model_name": served_model_name(instance)}
    for option, row in engine["options"].items():
        if option in values:
            put(_written(row, version, values[option]), "instance" if option in given else "default", option)
    if speculates(instance):
        for option, written in _speculation(engine, version, instance, models):
            put(written, "instance", option)
    for name, value in (instance.get("extra_args") or {}).items():
        put({_plain(name): value}, "extra_args", "extra_args.%s" % name)
    return Arguments(config, origins, options)


def method(engine: t.Mapping[str, t.Any], algorithm: str) -> str:
    """What an engine calls an algorithm; SGLang writes its own in capitals, vLLM in small letters."""
    name = engine["methods"].get(algorithm.upper(), algorithm.upper())
    return name.lower() if engine.get("joined") else name


def row_of(entry: t.Any, version: str) -> t.Optional[t.Mapping[str, t.Any]]:
    """The row of an option that holds for a version, None where the version has no such argument."""
    from packaging.specifiers import SpecifierSet

    rows = entry if isinstance(entry, list) else [entry if isinstance(entry, t.Mapping) else {"name": entry}]
    return next((row for row in rows if SpecifierSet(row.get("versions", "")).contains(version, prereleases=True)), None)


def _written(entry: t.Any, version: str, value: t.Any) -> dict[str, t.Any]:
    """The arguments that say what an option is."""
    row = row_of(entry, version)
    if row is None or ("when" in row and value is not row["when"]) or ("above" in row and value <= row["above"]):
        return {}
    return {row["name"]: row.get("value", value), **row.get("also", {})}


def _speculation(
    engine: t.Mapping[str, t.Any], version: str, instance: t.Mapping[str, t.Any], models: t.Mapping[str, str]
) -> list[tuple[str, dict[str, t.Any]]]:
    """Options and the arguments that they become."""
    wanted = {name: value for name, value in instance["speculative"].items() if value is not None}
    wanted["algorithm"] = method(engine, wanted["algorithm"])
    if models.get("draft"):
        wanted["draft"] = models["draft"]
    table = engine["speculative"]
    written = [
        ("draft" if option == "draft" else "speculative.%s" % option, _written(table[option], version, value))
        for option, value in wanted.items()
        if option in table
    ]
    if not engine.get("joined"):
        return written
    keys = {name: value for _option, arguments in written for name, value in arguments.items()}
    return [("speculative", {engine["joined"]: canonical(keys).decode()})]


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def check(
    engine: t.Mapping[str, t.Any],
    name: str,
    version: str,
    instance: t.Mapping[str, t.Any],
    added: t.Collection[str],
    subject: t.Callable[[str], str],
) -> list[Finding]:
    """Refusals: options that this version has no argument for, and arguments passed through that it does not know (any more).

    :param name: of the engine; :param added: arguments that overlays add.
    :param subject: gives the subject of an option.
    """
    label = "%s %s" % (name, version)
    found = []
    asked = {option: instance[option] for option in ENGINE_OPTIONS if instance.get(option) is not None}
    inner = {option: value for option, value in (instance.get("speculative") or {}).items() if value is not None}
    tables = (("", engine["options"], asked), ("speculative.", engine["speculative"], inner if speculates(instance) else {}))
    for prefix, table, values in tables:
        for option, value in values.items():
            if option not in table or row_of(table[option], version) is None:
                known = ", ".join(sorted(one for one in table if row_of(table[one], version)))
                fix = "Leave it out; or pass an argument of the engine's own through extra_args."
                message = "%s has no argument for it" % label
                found.append(Finding("arguments.option", ERROR, subject(prefix + option), message, str(value), known, fix=fix))
    guarded = engine.get("guarded")
    if guarded and not units.loopback(instance.get("host") or DEFAULTS["host"]):
        message = "the key of %s guards only %s; the rest answers everybody who reaches this address" % (name, ", ".join(guarded))
        fix = "Leave host at %s and put a proxy in front that passes only these." % DEFAULTS["host"]
        listens = instance["host"]
        found.append(Finding("arguments.open-endpoints", WARNING, subject("host"), message, listens, DEFAULTS["host"], fix=fix))
    for written_as in instance.get("extra_args") or {}:
        argument = _plain(written_as)
        life = engine["life"].get(argument)
        if life is None or argument.replace("-", "_") in added or alive(life, version):
            continue
        words = "since %s" % life["since"] if "since" in life and not _since(life, version) else "until %s" % life["until"]
        message = "%s does not read this argument from its configuration" % label
        fix = "Write instead: %s." % life["instead"]
        expected = "an argument of this version; it is one %s" % words
        found.append(Finding("arguments.removed", ERROR, subject("extra_args.%s" % written_as), message, argument, expected, fix=fix))
    return found


def _since(life: t.Mapping[str, str], version: str) -> bool:
    from packaging.version import Version

    return "since" not in life or Version(version) >= Version(life["since"])


def alive(life: t.Mapping[str, str], version: str) -> bool:
    """Whether a version has an argument."""
    from packaging.version import Version

    return _since(life, version) and ("until" not in life or Version(version) < Version(life["until"]))


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
