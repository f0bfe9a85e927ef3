# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether model, draft and KV cache can fit on the GPUs, from the headers of the weights and the sizes of the GPUs.

What is free now says nothing: the instance of before may be serving. Everything here is a lower bound, so that what is refused could
not have worked; what fits by it may still be too much.
"""

from __future__ import annotations

import dataclasses
import typing as t

from .architectures import text_config
from .findings import COULD_NOT_CHECK, ERROR, Finding

Row = t.Mapping[str, t.Any]

#: Bytes of an element of the KV cache, by the beginning of the type's name.
_ELEMENT = (("fp8", 1.0), ("mxfp8", 1.0), ("fp4", 0.5), ("nvfp4", 0.5), ("float32", 4.0), ("fp32", 4.0))
_USUAL = 2.0


@dataclasses.dataclass(frozen=True)
class Footprint:
    """Bytes on each GPU; ``tokens`` is what the KV cache is counted for, None where nobody says how long a request may be."""

    weights: float
    draft: float
    cache: float
    tokens: t.Optional[int]

    @property
    def total(self) -> float:
        """All together."""
        return self.weights + self.draft + self.cache

    def text(self) -> str:
        """The sum, for a person."""
        parts = [(self.weights, "weights"), (self.draft, "draft")]
        words = ["%.1f GB %s" % (size / 1e9, name) for size, name in parts if size]
        if self.tokens:
            words.append("%.1f GB KV cache for %d tokens" % (self.cache / 1e9, self.tokens))
        return "%s = %.1f GB on each GPU" % (" + ".join(words), self.total / 1e9)


def measure(described: t.Mapping[str, Row], degrees: t.Mapping[str, int], config: Row, row: Row) -> Footprint:
    """What an instance takes on each GPU.

    :param described: ``model`` and perhaps ``draft``, see modelfiles.describe; the model has weights.
    :param degrees: see architectures.degrees.
    :param config: the engine's arguments; :param row: of the table's ``memory``, which of them say what.
    """
    split = degrees["tensor"] * degrees["pipeline"]
    tokens = config.get(row["context"])
    limit = config.get(row["limit"]) if row["limit"] else None
    if isinstance(limit, int) and isinstance(tokens, int):
        tokens = min(tokens, limit)
    tokens = tokens if isinstance(tokens, int) else None
    sizes = {part: (one["weights"] or {}).get("bytes", 0) for part, one in described.items()}
    cache = sum(_cache(one, degrees, str(config.get(row["cache"]) or "auto")) for one in described.values()) * (tokens or 0)
    # a draft is split over the tensors' GPUs, and lies on the last stage of a pipeline alone
    return Footprint(sizes["model"] / split, sizes.get("draft", 0) / degrees["tensor"], cache, tokens)


def _cache(described: Row, degrees: t.Mapping[str, int], kind: str) -> float:
    """Bytes of one token's keys and values on each GPU; 0 where the configuration does not say it."""
    text = text_config(described.get("config") or {})
    layers = text.get("num_hidden_layers") or 0
    listed = text.get("layer_types")
    if listed:
        layers = sum("full" in one for one in listed)
    elif text.get("full_attention_interval"):
        layers //= text["full_attention_interval"]
    if kind == "auto":
        kind = (described.get("quantization") or {}).get("kv_cache_quant_algo") or text.get("dtype") or text.get("torch_dtype") or ""
    element = next((size for name, size in _ELEMENT if str(kind).lower().startswith(name)), _USUAL)
    if text.get("kv_lora_rank"):
        return layers * (text["kv_lora_rank"] + (text.get("qk_rope_head_dim") or 0)) * element / degrees["pipeline"]
    heads = text.get("num_key_value_heads") or text.get("num_attention_heads") or 0
    size = text.get("head_dim") or (text.get("hidden_size") or 0) // (text.get("num_attention_heads") or 1)
    ranks = max(degrees["tensor"] // degrees["attention"], 1)
    return layers * 2 * max(heads / ranks, min(heads, 1)) * size * element / degrees["pipeline"]


def sizes(facts: Row, wanted: t.Union[str, t.Sequence[t.Any]], host_memory: t.Optional[int]) -> list[t.Optional[int]]:
    """Bytes of each GPU (or part of one) that an instance uses, however much of it is taken now; None where nobody tells.

    :param facts: without the GPUs that it does not use; :param host_memory: what a GPU without memory of its own works in.
    """
    names = {str(one) for one in wanted} if not isinstance(wanted, str) else set()
    found: list[t.Optional[int]] = []
    for one in facts["devices"]:
        parts = (one.get("mig") or {}).get("devices") or []
        chosen = [part["memory"] for part in parts if not names or part["uuid"] in names]
        found += chosen or [host_memory if one.get("unified") else one.get("memory")]
    return found


def judge(
    described: t.Mapping[str, Row],
    degrees: t.Mapping[str, int],
    config: Row,
    row: Row,
    memory: t.Sequence[t.Optional[int]],
    subject: str,
) -> list[Finding]:
    """That it cannot fit; nothing where it may, or where the model is not there yet.

    :param memory: see :func:`sizes`.
    """
    model = described.get("model")
    if not model or not memory or len(memory) < degrees["gpus"]:
        return []
    weights = model.get("weights")
    changed = [name for name in row["changes"] if config.get(name) and not (name == "quantization" and _quantised(model))]
    if weights is None or changed or None in memory:
        why = "the weights are in no safetensors" if weights is None else "; ".join("%s: %s" % (name, config[name]) for name in changed)
        return [_unknown(why or "the driver does not tell how large a GPU is", subject)]
    smallest = min(one for one in memory if one is not None)
    share = config.get(row["share"]) or row["default"]
    room = smallest * (share if isinstance(share, (int, float)) else 1.0)
    taken = measure(described, degrees, config, row)
    if taken.total <= room:
        return []
    said = (
        "%.1f GB" % (smallest / 1e9)
        if room == smallest
        else "%.1f GB (%s %s of %.1f GB)" % (room / 1e9, row["share"], share, smallest / 1e9)
    )
    fits = taken.weights + taken.draft <= room
    return [
        Finding(
            "fit.weights" if not fits else "fit.cache",
            # an engine may begin with less cache than its longest request; that request then never runs
            ERROR,
            subject,
            "model and draft cannot fit on these GPUs"
            if not fits
            else "the KV cache of one request of full length cannot fit beside the model",
            taken.text(),
            "<= " + said,
            "headers of the safetensors; the GPUs' sizes, whatever is running on them",
            fix=_way_out(taken, degrees, room, len(memory), row, fits),
        )
    ]


def _quantised(model: Row) -> bool:
    config = model.get("config") or {}
    return bool(model.get("quantization") or config.get("quantization_config") or text_config(config).get("quantization_config"))


def _unknown(why: str, subject: str) -> Finding:
    message = "whether model and draft fit on the GPUs is not known"
    return Finding(
        "fit.unknown", COULD_NOT_CHECK, subject, message, why, "weights in safetensors, loaded as they are", fix="start it and see"
    )


def _way_out(taken: Footprint, degrees: t.Mapping[str, int], room: float, gpus: int, row: Row, fits: bool) -> str:
    if fits and taken.tokens:
        tokens = int((room - taken.weights - taken.draft) * taken.tokens / taken.cache)
        return "set context_length to %d or less, or a smaller type in %s" % (tokens, row["cache"])
    needed = -(-(taken.weights + taken.draft) * degrees["tensor"] // room)
    wanted = 1
    while wanted < needed:
        wanted *= 2
    if wanted <= gpus // (degrees["gpus"] // degrees["tensor"]):
        return "set tensor_parallel: %d" % wanted
    return "take a checkpoint in a smaller format, or %d GPUs of this size (tensor_parallel: %d)" % (wanted, wanted)
