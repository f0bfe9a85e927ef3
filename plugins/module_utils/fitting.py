# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether an instance fits what it is to run on: its model's files, its GPUs, its ports; and what those GPUs need to be said.

Pure: over the tables, the state of the host and the engine's arguments; before anything is built or stopped.
"""

from __future__ import annotations

import dataclasses
import typing as t

from . import architectures, footprints, gpufindings, placements
from .arguments import Arguments
from .findings import COULD_NOT_CHECK, ERROR, WARNING, Finding

Row = t.Mapping[str, t.Any]

#: Of a vocabulary this share may differ: tokens of formats that only one of the two uses.
_STRANGE = 0.01


@dataclasses.dataclass(frozen=True)
class Instance:
    """One instance and what is known of it.

    :param host: inventory name; :param wanted: merged, see schema.instances.
    :param engine, version, lane: what it runs on; :param cuda: whether the lane uses GPUs.
    :param described: ``model`` and ``draft`` where they are there, see modelfiles.describe.
    :param arguments: the engine's, composed.
    """

    host: str
    wanted: Row
    engine: str
    version: str
    cuda: bool
    described: t.Mapping[str, Row]
    arguments: Arguments

    def subject(self, option: str) -> str:
        """Names an option of it."""
        return "%s: specdec_instances[%s].%s" % (self.host, self.wanted["name"], option)

    def written(self, argument: str, option: str = "") -> str:
        """Names where an argument of the engine is written. :param option: the option that says it, where that is known."""
        if self.arguments.origins.get(argument) == "extra_args":
            return self.subject("extra_args.%s" % argument)
        return self.subject(option) if option else "%s: specdec_instances[%s]: %s" % (self.host, self.wanted["name"], argument)

    @property
    def gpus(self) -> t.Any:
        """What it may use of the host's GPUs."""
        return (self.wanted.get("gpus") or "all") if self.cuda else "none"


def situation(table: Row, facts: Row, one: Instance) -> architectures.Situation:
    """The instance on its GPUs; on a lane without CUDA there are none.

    :param facts: of the host's GPUs, see gpus.py.
    """
    config, chosen = one.arguments.config, gpufindings.used(facts, one.gpus)
    degrees = architectures.degrees(table, one.engine, config)
    traits = {
        **architectures.model_traits(table, one.described.get("model"), config),
        **architectures.gpu_traits(chosen, degrees["tensor"]),
        **architectures.speculative_traits(config, one.wanted, one.described),
        "replicated": degrees["attention"] > 1,
    }
    return architectures.Situation(one.engine, one.version, architectures.kinds(table, chosen["devices"]), traits, config)


def preset(table: Row, facts: Row, one: Instance) -> architectures.Default:
    """What its GPUs need and nobody said."""
    found = architectures.defaults(table, situation(table, facts, one))
    own = one.wanted.get("environment") or {}
    return dataclasses.replace(found, environment={name: value for name, value in found.environment.items() if name not in own})


def judge(table: Row, state: Row, one: Instance, taken: t.Container[str]) -> list[Finding]:
    """All that stands against it.

    :param taken: uuids of GPUs that other instances use.
    """
    found = files(one)
    config, facts = one.arguments.config, state["gpus"]
    degrees = architectures.degrees(table, one.engine, config)
    found += placements.divides(one.described, degrees, one.subject)
    here = situation(table, facts, one)
    found += architectures.judge(table, here, one.written)
    if "model" not in one.described:
        found += architectures.unread(table, here, one.subject("model"), _shown(one.wanted["model"]))
    if one.cuda:
        chosen = gpufindings.used(facts, one.gpus)
        found += placements.spread(degrees, chosen, one.subject("tensor_parallel"))
        found += placements.near(facts, chosen, degrees["tensor"], taken, one.subject("gpus"))
        memory = footprints.sizes(chosen, one.gpus, (state.get("memory") or {}).get("total"))
        found += footprints.judge(one.described, degrees, config, table["memory"][one.engine], memory, one.subject("model"))
    return found


def files(one: Instance) -> list[Finding]:
    """What is wrong with the files of model and draft."""
    found = []
    for part, described in one.described.items():
        subject, place = one.subject(part), _shown(one.wanted[part])
        if described["config"] is None:
            fix = "name the directory of a model: the one with config.json"
            found.append(
                Finding("plan.model-directory", ERROR, subject, "is no model", described["problem"], "config.json", place, fix=fix)
            )
        elif (described["weights"] or {}).get("problem"):
            fix = "bring these files again, whole"
            message = "its weights are not whole"
            found.append(
                Finding("plan.model-weights", ERROR, subject, message, described["weights"]["problem"], "whole files", place, fix=fix)
            )
    return found + _tokenizers(one)


def _tokenizers(one: Instance) -> list[Finding]:
    compared = (one.described.get("draft") or {}).get("against")
    if not compared:
        return []
    subject, expected = one.subject("draft"), "the vocabulary of the model"
    fix = "name a draft that was made for this model"
    if compared["problem"]:
        message = "whether the draft's tokens are the model's is not known"
        return [Finding("plan.tokenizer", COULD_NOT_CHECK, subject, message, compared["problem"], expected, fix=fix)]
    if not compared["other"]:
        return []
    many = compared["other"] > _STRANGE * compared["tokens"]
    return [
        Finding(
            "plan.tokenizer",
            ERROR if many else WARNING,
            subject,
            "the draft is for another tokenizer" if many else "some tokens of the draft are not the model's",
            "%d of %d tokens differ, for example %s" % (compared["other"], compared["tokens"], compared["example"]),
            expected,
            "tokenizer.json of both",
            "Its proposals would be other words than it means; none would be accepted." if many else "",
            fix,
        )
    ]


def _shown(model: Row) -> str:
    return model.get("path") or model.get("directory") or "%s at %s" % (model["repo"], model["revision"])


def ports(table: Row, engine: str, wanted: Row, config: t.Optional[Row] = None) -> dict[int, str]:
    """Every port that an instance takes, and what for.

    :param config: the engine's arguments; without them what the user wrote is enough for a first look.
    """
    spread = {"attn-dp-size": wanted["attention_data_parallel"]} if (wanted.get("attention_data_parallel") or 1) > 1 else {}
    passed = {name.lstrip("-").replace("_", "-"): value for name, value in (wanted.get("extra_args") or {}).items()}
    given = config or {**spread, **passed}
    return placements.ports(table["ports"][engine], wanted.get("port", 30000), given)
