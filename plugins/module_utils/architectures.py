# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an engine's arguments mean on the GPUs that run them: data/architectures.yml over the traits of an instance.

A rule is about an argument, on a kind of GPU, in some versions of an engine; what it asks of the instance besides are *traits*. A
trait that is not known (None: the model is not on the host yet) fits no row, and is named.
"""

from __future__ import annotations

import dataclasses
import json
import typing as t

from .findings import COULD_NOT_CHECK, Finding
from .schema import ALGORITHM_NONE

Row = t.Mapping[str, t.Any]

#: Traits that are read from the model's files; None before those are there.
MODEL_TRAITS = ("attention", "quantization", "model", "experts")


@dataclasses.dataclass(frozen=True)
class Default:
    """What is set where nobody says otherwise: arguments, environment variables, and the reason of each."""

    arguments: t.Mapping[str, t.Any]
    environment: t.Mapping[str, str]
    reasons: t.Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Situation:
    """An instance on its GPUs.

    :param kinds: of the GPUs, names of the table; :param traits: see :func:`model_traits`, :func:`gpu_traits`.
    :param config: the engine's arguments; every one is a trait, too.
    """

    engine: str
    version: str
    kinds: frozenset[str]
    traits: Row
    config: Row

    def trait(self, name: str) -> t.Any:
        """A trait, or else the argument of that name; None where neither is known."""
        return self.traits[name] if name in self.traits else self.config.get(name)

    def fits(self, row: Row, every: bool) -> bool:
        """Whether engine, version and kinds are those of a row. :param every: all GPUs have to be of its kinds, not only one."""
        from packaging.specifiers import SpecifierSet

        if row.get("engine", self.engine) != self.engine:
            return False
        if "versions" in row and not SpecifierSet(row["versions"]).contains(self.version, prereleases=True):
            return False
        if "kinds" not in row:
            return True
        kinds = self.kinds & set(row["kinds"])
        return bool(kinds) and (kinds == self.kinds or not every)

    def holds(self, row: Row) -> bool:
        """Whether all further traits are those of a row."""
        if self.unknown(row) or any(self.trait(name) is None for name in row.get("given", ())):
            return False
        return all(_among(self.trait(name), allowed) for name, allowed in row.get("when", {}).items())

    def unknown(self, row: Row) -> bool:
        """Whether a row asks for a trait of the model that is not known yet."""
        return any(name in MODEL_TRAITS and self.traits.get(name) is None for name in row.get("when", {}))


def _among(value: t.Any, allowed: t.Sequence[t.Any]) -> bool:
    return any(one in allowed for one in value) if isinstance(value, (tuple, list)) else value in allowed


# Traits


def kinds(table: Row, devices: t.Iterable[Row]) -> frozenset[str]:
    """The kinds of these GPUs; what does not tell its capability, or is of no kind, is left out."""
    capabilities = {one.get("compute_capability") for one in devices}
    return frozenset(name for name, listed in table["kinds"].items() if capabilities & set(listed))


def text_config(config: Row) -> Row:
    """The part of a config.json that describes the language model: some models hold it one level deeper."""
    inner = config.get("text_config") or config.get("language_config") or config.get("thinker_config")
    return inner if isinstance(inner, dict) else config


def model_traits(table: Row, described: t.Optional[Row], config: Row) -> dict[str, t.Any]:
    """What the model's files say (see modelfiles.describe).

    ``attention``: sparse, mla, hybrid (linear and full layers), sinks, or mha. ``model``: the names of its type.
    ``quantization``: as the engine calls it, ``none`` without. ``experts``: whether it has any.

    :param config: the engine's arguments.
    """
    content = (described or {}).get("config")
    if content is None:
        return dict.fromkeys(MODEL_TRAITS)
    text = text_config(content)
    return {
        "attention": _attention(text),
        "model": [one for one in (content.get("model_type"), text.get("model_type")) if one],
        "quantization": config.get("quantization") or _quantization(table, described or {}, content),
        "experts": any(text.get(name) for name in ("num_experts", "n_routed_experts", "num_local_experts")),
    }


def _attention(text: Row) -> str:
    layers = text.get("layer_types") or ()
    if text.get("index_topk"):
        return "sparse"
    if text.get("kv_lora_rank"):
        return "mla"
    if "linear_attention" in layers or text.get("linear_num_value_heads") or text.get("hybrid_override_pattern"):
        return "hybrid"
    return "sinks" if text.get("model_type") == "gpt_oss" else "mha"


def _quantization(table: Row, described: Row, content: Row) -> str:
    """ModelOpt writes a file of its own beside the configuration, or into it."""
    given = content.get("quantization_config") or text_config(content).get("quantization_config") or {}
    algorithm = given.get("quant_algo") or (described.get("quantization") or {}).get("quant_algo")
    return table["quantization"].get(algorithm) or given.get("quant_method") or "none"


def gpu_traits(facts: Row, count: int) -> dict[str, t.Any]:
    """What the GPUs of an instance are to each other.

    ``pcie``: no NVLink between them. ``many``: more than two work on one model.
    ``p2p``: refused (the driver), translated (an IOMMU), far (allowed, across host bridges), or near; None where nobody told.

    :param facts: see gpus.py, without the GPUs that the instance does not use (gpufindings.used).
    :param count: how many GPUs one model is split over.
    """
    devices = facts["devices"]
    links = [one.get("nvlinks") for one in devices]
    return {
        "pcie": None if None in links or not links else not any(links),
        "many": count > 2,
        "p2p": _p2p(facts) if count > 1 else None,
    }


def _p2p(facts: Row) -> t.Optional[str]:
    topology, numbers = facts.get("topology"), range(len(facts["devices"]))
    if not topology or not topology["p2p"]:
        return None
    pairs = [(one, other) for one in numbers for other in numbers if one != other]
    if any(topology["p2p"][one][other] != "ok" for one, other in pairs):
        return "refused"
    if any((one.get("iommu") or "").startswith("DMA") for one in facts["devices"]):
        return "translated"
    return "far" if any(topology["paths"][one][other] in ("SYS", "NODE") for one, other in pairs) else "near"


def degrees(table: Row, engine: str, config: Row) -> dict[str, int]:
    """How a model is spread, by the engine's arguments: tensor, data, pipeline, expert, and attention (its data parallelism).

    ``gpus``: how many it takes. Where attention is data parallel, or experts are spread, they share the GPUs of the tensors.
    """
    row = table["parallel"][engine]
    given = {name: _number(config.get(option)) for name, option in row["arguments"].items()}
    if row["attention"] and config.get(row["attention"]):
        given["attention"] = given["data"]
    replicas = 1 if given.get("attention", 1) > 1 else given["data"]
    return {"expert": 1, "attention": 1, **given, "gpus": given["tensor"] * given["pipeline"] * replicas}


def _number(value: t.Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1


def speculative_traits(config: Row, wanted: Row, described: t.Mapping[str, Row]) -> dict[str, t.Any]:
    """What speculates, and how, whichever arguments the engine has for it.

    :param config: the engine's arguments; :param wanted: the instance; :param described: by part, see modelfiles.describe.
    """
    algorithm = str((wanted.get("speculative") or {}).get("algorithm", ALGORITHM_NONE))
    joined = config.get("speculative-config")
    inner = json.loads(joined) if isinstance(joined, str) else joined or {}
    sizes = [text_config((described.get(part) or {}).get("config") or {}).get("vocab_size") for part in ("model", "draft")]
    return {
        "algorithm": algorithm.upper(),
        "method": config.get("speculative-algorithm") or inner.get("method"),
        "draft": bool(wanted.get("draft") or config.get("speculative-draft-model-path") or inner.get("model")),
        "speculative": algorithm.lower() != ALGORITHM_NONE,
        "tokens": inner.get("num_speculative_tokens"),
        "tree": _number(config.get("speculative-eagle-topk")) > 1,
        "paged": _number(config.get("page-size")) > 1,
        "overlap": wanted.get("overlap"),
        "vocabulary": None if None in sizes else "same" if sizes[0] == sizes[1] else "other",
        "draft-attention": inner.get("attention_backend"),
    }


# What follows


def defaults(table: Row, here: Situation) -> Default:
    """What is set where nobody says otherwise; an argument that the configuration has already is left out."""
    arguments: dict[str, t.Any] = {}
    environment: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for row in table["defaults"]:
        if not here.fits(row, every=True) or not here.holds(row):
            continue
        arguments.update({name: value for name, value in row.get("set", {}).items() if name not in here.config})
        environment.update(row.get("environment", {}))
        reasons.update(dict.fromkeys((*row.get("set", {}), *row.get("environment", {})), row["why"]))
    return Default(arguments, environment, reasons)


def judge(table: Row, here: Situation, subject: t.Callable[[str], str]) -> list[Finding]:
    """What fails or is slow on these GPUs.

    :param subject: names where an argument is written.
    """
    found = hits(table["rules"], here)
    return [Finding("architecture." + row["check"], subject=subject(option), **told(row, here, option)) for row, option in found]


def hits(rows: t.Iterable[Row], here: Situation) -> list[tuple[Row, str]]:
    """The rows that speak against something, each with the argument (or trait) that it speaks against."""
    held = [row for row in rows if here.fits(row, every=False) and here.holds(row)]
    return [(row, name) for row in held for name in (row.get("options") or row["traits"]) if _hit(row, _value(row, here, name))]


def _value(row: Row, here: Situation, name: str) -> t.Any:
    return here.config.get(name) if "options" in row else here.traits.get(name)


def _hit(row: Row, value: t.Any) -> bool:
    if "above" in row:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and value > row["above"]
    if "except" in row:
        return value is not None and value not in row["except"]
    return value in row["values"]


def told(row: Row, here: Situation, option: str) -> dict[str, str]:
    """What a row says against an argument: the parts of a finding but its id and subject."""
    value = _value(row, here, option)
    shown = "no %s" % option if value in (None, False) else "%s: %s" % (option, value)
    return {
        "verdict": row["verdict"],
        "message": row["why"],
        "found": ", ".join([shown, "%s %s" % (here.engine, here.version), *sorted(here.kinds)]),
        "expected": str(row["instead"]),
        "evidence": "%s, read %s" % (row["source"], row["read"]),
        "fix": "use %s" % row["instead"],
    }


def unread(table: Row, here: Situation, subject: str, model: str) -> list[Finding]:
    """That some rows could not be judged, for the model's files are not there yet; by name."""
    if not here.kinds or all(here.traits.get(name) is not None for name in MODEL_TRAITS):
        return []
    rows = [row for row in (*table["rules"], *table["defaults"]) if here.fits(row, every=False) and here.unknown(row)]
    if not rows:
        return []
    named = sorted({row.get("check") or "the default of %s" % ", ".join(row["set"]) for row in rows})
    return [
        Finding(
            "architecture.unread",
            COULD_NOT_CHECK,
            subject,
            "what depends on the model is not known: its files are not on the host yet",
            model,
            "config.json",
            "not judged: " + "; ".join(named),
            fix="nothing: it is judged when the model is there, before anything is switched",
        )
    ]
