# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether weights, draft and KV cache can fit: the sum, and the way out."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.specdec.serving.plugins.module_utils import architectures, footprints
from ansible_collections.specdec.serving.plugins.module_utils.findings import COULD_NOT_CHECK, ERROR, Finding

TABLE: dict[str, t.Any] = yaml.safe_load((Path(architectures.__file__).parent / "data" / "architectures.yml").read_text())
GB = 10**9

#: 32 layers, 8 heads of keys and values of 128: 128 KiB of KV a token in 16 bits.
DENSE = {"model_type": "qwen3", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}


def described(size: float, config: t.Optional[dict[str, t.Any]] = None, **more: t.Any) -> dict[str, t.Any]:
    return {"config": DENSE if config is None else config, "weights": {"bytes": size * GB, "problem": ""}, "quantization": None, **more}


def judge(
    model: t.Any, config: t.Optional[dict[str, t.Any]] = None, gpus: t.Sequence[t.Any] = (96,), draft: t.Any = None, engine: str = "sglang"
) -> list[Finding]:
    known = {"model": model, **({"draft": draft} if draft else {})}
    arguments = config or {}
    memory = [one and int(one * GB) for one in gpus]
    degrees = architectures.degrees(TABLE, engine, arguments)
    return footprints.judge(known, degrees, arguments, TABLE["memory"][engine], memory, "ct200: main.model")


def test_what_fits_is_let_pass() -> None:
    assert judge(described(90)) == judge(described(90), {"tp-size": 2}, (96, 96), described(5)) == []


def test_weights_that_cannot_fit_are_refused_with_the_sum_and_what_would_do() -> None:
    [one] = judge(described(150), gpus=[96] * 8)
    assert (one.id, one.verdict, one.subject) == ("fit.weights", ERROR, "ct200: main.model")
    assert (one.found, one.expected) == ("150.0 GB weights = 150.0 GB on each GPU", "<= 96.0 GB")
    assert one.fix == "set tensor_parallel: 2"
    [one] = judge(described(150))
    assert one.fix == "take a checkpoint in a smaller format, or 2 GPUs of this size (tensor_parallel: 2)"


def test_the_draft_counts() -> None:
    [one] = judge(described(180), {"tp-size": 2}, (96, 96), described(20))
    assert one.found == "90.0 GB weights + 10.0 GB draft = 100.0 GB on each GPU"


def test_the_share_of_memory_counts() -> None:
    [one] = judge(described(80), {"mem-fraction-static": 0.8})
    assert one.expected == "<= 76.8 GB (mem-fraction-static 0.8 of 96.0 GB)"
    [one] = judge(described(90), engine="vllm")
    assert one.expected == "<= 86.4 GB (gpu-memory-utilization 0.9 of 96.0 GB)"


def test_the_cache_of_a_request_of_full_length_counts_where_it_is_said() -> None:
    config = {"context-length": 131072}
    [one] = judge(described(80), config)
    assert one.id == "fit.cache" and "17.2 GB KV cache for 131072 tokens = 97.2 GB" in one.found
    assert one.fix == "set context_length to 122070 or less, or a smaller type in kv-cache-dtype"
    assert (
        judge(described(80), {**config, "kv-cache-dtype": "fp8_e4m3"}) == judge(described(80), {**config, "max-total-tokens": 8192}) == []
    )
    assert judge(described(80)) == []


def cache(config: dict[str, t.Any], arguments: t.Optional[dict[str, t.Any]] = None, **more: t.Any) -> float:
    degrees = architectures.degrees(TABLE, "sglang", arguments or {})
    wanted = {"context-length": 1, **(arguments or {})}
    return footprints.measure({"model": described(1, config, **more)}, degrees, wanted, TABLE["memory"]["sglang"]).cache


@pytest.mark.parametrize(
    ("config", "arguments", "more", "bytes_"),
    [
        (DENSE, {}, {}, 131072),
        (DENSE, {"tp-size": 8}, {}, 16384),
        # no GPU has less than one head
        (DENSE, {"tp-size": 16}, {}, 16384),
        (DENSE, {"tp-size": 8, "dp-size": 8, "enable-dp-attention": True}, {}, 131072),
        (DENSE, {"pp-size": 2}, {}, 65536),
        (DENSE, {}, {"quantization": {"kv_cache_quant_algo": "FP8"}}, 65536),
        (DENSE, {"kv-cache-dtype": "bfloat16"}, {"quantization": {"kv_cache_quant_algo": "FP8"}}, 131072),
        ({**DENSE, "dtype": "float32"}, {}, {}, 262144),
        ({"text_config": {**DENSE, "full_attention_interval": 4}}, {}, {}, 32768),
        ({**DENSE, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}, {}, {}, 4096),
        ({"num_hidden_layers": 60, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, {"tp-size": 8}, {}, 69120),
        ({}, {}, {}, 0),
    ],
)
def test_the_cache_of_one_token(config: t.Any, arguments: t.Any, more: t.Any, bytes_: int) -> None:
    assert cache(config, arguments, **more) == bytes_


def test_what_is_running_on_the_gpus_says_nothing() -> None:
    free = {"devices": [{"memory": 96 * GB, "mig": None, "unified": False, "processes": []}]}
    busy = {"devices": [{**free["devices"][0], "processes": [{"pid": 1, "bytes": 95 * GB}]}]}
    assert footprints.sizes(free, "all", None) == footprints.sizes(busy, "all", None) == [96 * GB]


def test_the_sizes_of_parts_and_of_gpus_in_the_hosts_memory() -> None:
    parts = {"enabled": True, "devices": [{"uuid": "MIG-1", "memory": 40 * GB}, {"uuid": "MIG-2", "memory": 10 * GB}]}
    divided = {"devices": [{"memory": 80 * GB, "mig": parts}, {"memory": None, "unified": True, "mig": None}]}
    assert footprints.sizes(divided, ["MIG-2", "1"], 128 * GB) == [10 * GB, 128 * GB]
    assert footprints.sizes(divided, "all", 128 * GB) == [40 * GB, 10 * GB, 128 * GB]


@pytest.mark.parametrize(
    ("model", "config", "gpus"),
    [
        (described(150, weights=None), {}, (96,)),
        (described(150), {"quantization": "fp8"}, (96,)),
        (described(150), {"cpu-offload-gb": 100}, (96,)),
        (described(150), {}, (None,)),
    ],
)
def test_what_is_not_known_is_not_judged(model: t.Any, config: t.Any, gpus: t.Any) -> None:
    [one] = judge({**described(150), **model}, config, gpus)
    assert (one.id, one.verdict) == ("fit.unknown", COULD_NOT_CHECK)


def test_a_checkpoint_that_is_quantised_already_stays_as_large() -> None:
    quantised = described(150, {**DENSE, "quantization_config": {"quant_method": "fp8"}})
    assert [one.id for one in judge(quantised, {"quantization": "fp8"})] == ["fit.weights"]


def test_without_a_model_or_gpus_there_is_nothing_to_say() -> None:
    assert judge(None) == judge(described(500), gpus=()) == judge(described(500), {"tp-size": 8}, (96, 96)) == []
