# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the files of models on this machine say: configuration, size of the weights, whose tokenizer it is.

Of weights only the headers are read: a safetensors file begins with eight bytes, the little-endian length of the JSON that follows
and names every tensor with its type, shape and place.
"""

from __future__ import annotations

import hashlib
import json
import struct
import typing as t
from pathlib import Path

CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"
_TOKENIZER = "tokenizer.json"
_MODELOPT = "hf_quant_config.json"
#: No header of a real model is near this; a file that claims more is none.
_LONGEST_HEADER = 100 * 1024 * 1024


def describe(groups: t.Iterable[t.Iterable[str]]) -> dict[str, dict[str, t.Any]]:
    """What lies in each directory that is there; the others are left out. Nothing is raised.

    :param groups: directories of what is served together: a model, or a model and its draft.

    ``config``: content of config.json, null where it cannot be read; ``problem``: why. ``quantization``: what ModelOpt wrote
    beside it, null without. ``weights``: ``bytes`` of all tensors and a ``problem`` (empty: none); null where there are no
    safetensors. ``tokenizer``: sha256 of tokenizer.json, null without one; ``against``: how it compares with the first of the
    group, only where the files differ (a tokenizer may be written in several ways): how many ``tokens`` both could have, how many of
    them are ``other``, an ``example``, and the ``problem`` why that is not known.
    """
    described: dict[str, dict[str, t.Any]] = {}
    for group in groups:
        own = {name: described.get(name) or _one(Path(name)) for name in group if Path(name).is_dir()}
        first = next(iter(own), "")
        for name, one in own.items():
            if one["tokenizer"] and own[first]["tokenizer"] not in (None, one["tokenizer"]):
                one["against"] = _compare(Path(name), Path(first))
        described.update(own)
    return described


def absent(directory: str) -> dict[str, t.Any]:
    """The description of a directory that is not there."""
    return _described(None, "no directory %s" % directory)


def _described(config: t.Optional[dict[str, t.Any]], problem: str) -> dict[str, t.Any]:
    return {"config": config, "problem": problem, **dict.fromkeys(("quantization", "weights", "tokenizer", "against"))}


def _one(directory: Path) -> dict[str, t.Any]:
    config, problem = None, ""
    try:
        config = json.loads((directory / CONFIG).read_bytes())
        if not isinstance(config, dict):
            config, problem = None, "%s is no mapping" % CONFIG
    except OSError as error:
        problem = "%s: %s" % (CONFIG, error.strerror)
    except ValueError as error:
        problem = "%s: %s" % (CONFIG, error)
    found = {"quantization": _quantization(directory), "weights": _weights(directory), "tokenizer": _digest(directory)}
    return {**_described(config, problem), **found}


def _quantization(directory: Path) -> t.Optional[dict[str, t.Any]]:
    """What ModelOpt wrote beside the configuration."""
    try:
        given = json.loads((directory / _MODELOPT).read_bytes())["quantization"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return given if isinstance(given, dict) else None


def _digest(directory: Path) -> t.Optional[str]:
    try:
        return hashlib.sha256((directory / _TOKENIZER).read_bytes()).hexdigest()
    except OSError:
        return None


def _compare(directory: Path, first: Path) -> dict[str, t.Any]:
    try:
        own, other = _vocabulary(directory), _vocabulary(first)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        return {"tokens": 0, "other": 0, "example": "", "problem": "%s: %s" % (_TOKENIZER, error or type(error).__name__)}
    strange = [token for token, number in own.items() if other.get(token, number) != number]
    numbers = set(other.values())
    strange += [token for token, number in own.items() if token not in other and number in numbers]
    example = min(strange, default="")
    words = "%r is %d here, %s there" % (example, own[example], other.get(example, "another")) if strange else ""
    return {"tokens": min(len(own), len(other)), "other": len(strange), "example": words, "problem": ""}


def _vocabulary(directory: Path) -> dict[str, int]:
    """Token → number, with the tokens that were added later."""
    content = json.loads((directory / _TOKENIZER).read_bytes())
    tokens = content["model"]["vocab"]
    # a unigram model lists its tokens with their scores
    numbered = dict(tokens) if isinstance(tokens, dict) else {row[0]: number for number, row in enumerate(tokens)}
    numbered.update({one["content"]: one["id"] for one in content.get("added_tokens") or ()})
    return numbered


def _weights(directory: Path) -> t.Optional[dict[str, t.Any]]:
    try:
        index = json.loads((directory / _INDEX).read_bytes())
        names = sorted(set(index["weight_map"].values()))
    except OSError:
        names = sorted(path.name for path in directory.glob("*.safetensors"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return {"bytes": 0, "problem": "%s cannot be read" % _INDEX}
    if not names:
        return None
    total, problems = 0, []
    for name in names:
        try:
            total += _tensors(directory / name)
        except (OSError, ValueError) as error:
            problems.append("%s: %s" % (name, getattr(error, "strerror", None) or error))
    return {"bytes": total, "problem": "; ".join(problems[:4])}


def _tensors(path: Path) -> int:
    """Bytes of the tensors in a file. Raises OSError, ValueError where it is no whole file of that format."""
    with path.open("rb") as stream:
        beginning = stream.read(8)
        if len(beginning) < 8:
            raise ValueError("is cut off")
        (length,) = struct.unpack("<Q", beginning)
        if length > _LONGEST_HEADER:
            raise ValueError("is no safetensors file")
        header = json.loads(stream.read(length))
    try:
        total = sum(one["data_offsets"][1] - one["data_offsets"][0] for name, one in header.items() if name != "__metadata__")
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError("is no safetensors file") from error
    size = path.stat().st_size
    if size < 8 + length + total:
        raise ValueError("is cut off: %d of %d bytes" % (size, 8 + length + total))
    return int(total)
