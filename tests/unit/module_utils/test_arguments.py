# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an instance says becomes the arguments of its engine's version, or is refused with what to write instead."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.specdec.serving.plugins.module_utils import arguments, schema

ENGINES = yaml.safe_load(Path(arguments.__file__).with_name("data").joinpath("engines.yml").read_text(encoding="utf-8"))
MODELS = {"model": "/m/target", "draft": "/m/draft"}


def composed(engine: str, version: str, **instance: t.Any) -> arguments.Arguments:
    return arguments.compose(ENGINES[engine], version, "cu130", {"name": "main", "model": {"path": "/m/target"}, **instance}, MODELS)


def refused(engine: str, version: str, added: t.Collection[str] = (), **instance: t.Any) -> dict[str, t.Any]:
    """Findings by subject."""
    found = arguments.check(ENGINES[engine], engine, version, instance, added, lambda option: option)
    return {one.subject: one for one in found}


SGLANG_WINDOWS: list[tuple[dict[str, t.Any], dict[str, dict[str, t.Any]]]] = [
    (
        {"mamba_strategy": "extra_buffer"},
        {
            "0.5.9": {"mamba-scheduler-strategy": "extra_buffer"},
            "0.5.13.post1": {"mamba-scheduler-strategy": "extra_buffer"},
            "0.5.14": {"mamba-scheduler-strategy": "extra_buffer"},
            "0.5.19": {"mamba-scheduler-strategy": "extra_buffer"},
            "0.5.20": {"mamba-radix-cache-strategy": "extra_buffer"},
        },
    ),
    (
        {"cuda_graph_max_batch": 64},
        {"0.5.13": {"cuda-graph-max-bs": 64}, "0.5.19": {"cuda-graph-max-bs": 64}, "0.5.20": {"cuda-graph-max-bs-decode": 64}},
    ),
    ({"cuda_graph": False}, {"0.5.13": {"disable-cuda-graph": True}}),
    ({"cuda_graph": True}, {"0.5.13": {}, "0.5.23": {}}),
    ({"prefix_caching": False, "overlap": False}, {"0.5.9": {"disable-radix-cache": True, "disable-overlap-schedule": True}}),
    ({"prefix_caching": True}, {"0.5.23": {}}),
    (
        {"attention_data_parallel": 4},
        {"0.5.21": {"dp-size": 4, "enable-dp-attention": True}, "0.5.22": {"attn-dp-size": 4}, "0.5.23": {"attn-dp-size": 4}},
    ),
    ({"attention_data_parallel": 1}, {"0.5.21": {}}),
    ({"custom_all_reduce": False, "page_size": 1}, {"0.5.16": {"disable-custom-all-reduce": True, "page-size": 1}}),
]


@pytest.mark.parametrize(("options", "by_version"), SGLANG_WINDOWS)
def test_an_option_is_written_as_the_version_reads_it(options: dict[str, t.Any], by_version: dict[str, dict[str, t.Any]]) -> None:
    plain = composed("sglang", "0.5.9").config
    for version, expected in by_version.items():
        written = composed("sglang", version, **options).config
        assert {name: value for name, value in written.items() if name not in plain} == expected, version


def test_cuda_graphs_are_switched_off_for_both_phases_where_the_flag_is_gone() -> None:
    for version in ("0.5.14", "0.5.19", "0.5.23"):
        graphs = json.loads(composed("sglang", version, cuda_graph=False).config["cuda-graph-config"])
        assert graphs == {"decode": {"backend": "disabled"}, "prefill": {"backend": "disabled"}}


def test_each_value_says_where_it_comes_from() -> None:
    found = composed("sglang", "0.5.23", tensor_parallel=8, extra_args={"--log_level": "info"})
    assert found.config["tp-size"] == 8 and found.config["log-level"] == "info"
    origins = {name: found.origins[name] for name in ("enable-metrics", "port", "tp-size", "log-level")}
    assert origins == {"enable-metrics": "collection", "port": "default", "tp-size": "instance", "log-level": "extra_args"}


def test_an_option_stands_over_what_the_lane_sets() -> None:
    instance = {"name": "main", "model": {"path": "/m/target"}}
    lane = arguments.compose(ENGINES["sglang"], "0.5.23", "cpu", instance, MODELS)
    assert (lane.config["attention-backend"], lane.origins["attention-backend"]) == ("torch_native", "lane cpu")
    own = arguments.compose(ENGINES["sglang"], "0.5.23", "cpu", {**instance, "attention_backend": "intel_amx"}, MODELS)
    assert (own.config["attention-backend"], own.origins["attention-backend"]) == ("intel_amx", "instance")


def test_the_speculation_of_sglang_has_an_argument_for_each_option() -> None:
    speculative = {"algorithm": "DFLASH", "num_draft_tokens": 16, "draft_window": 512, "num_steps": None}
    written = composed("sglang", "0.5.16", speculative=speculative).config
    assert written["speculative-algorithm"] == "DFLASH"
    assert written["speculative-draft-model-path"] == "/m/draft"
    assert written["speculative-num-draft-tokens"] == 16
    assert written["speculative-dflash-draft-window-size"] == 512
    assert composed("sglang", "0.5.20", speculative=speculative).config["speculative-draft-window-size"] == 512
    assert "speculative-num-steps" not in written


def test_the_speculation_of_vllm_is_one_argument() -> None:
    speculative = {"algorithm": "NGRAM", "num_draft_tokens": 4, "lookup_min": 2, "lookup_max": 4}
    models = {"model": "/m/target"}
    written = arguments.compose(ENGINES["vllm"], "0.32.0", "cpu", {"model": {"path": "/m/target"}, "speculative": speculative}, models)
    assert json.loads(written.config["speculative-config"]) == {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    }
    written = composed("vllm", "0.32.0", speculative={"algorithm": "STANDALONE", "num_draft_tokens": 4})
    said = json.loads(written.config["speculative-config"])
    assert said == {"method": "draft_model", "model": "/m/draft", "num_speculative_tokens": 4}


def test_vllm_takes_what_it_calls_otherwise() -> None:
    options = {"tensor_parallel": 4, "data_parallel": 2, "expert_parallel": 8, "memory_fraction": 0.8, "context_length": 4096}
    options.update(max_running_requests=32, cuda_graph=False, prefix_caching=False, page_size=16, served_model_name="m")
    written = composed("vllm", "0.33.0", **options).config
    expected = {"tensor-parallel-size": 4, "data-parallel-size": 2, "enable-expert-parallel": True, "gpu-memory-utilization": 0.8}
    expected.update({"max-model-len": 4096, "max-num-seqs": 32, "enforce-eager": True, "enable-prefix-caching": False})
    expected.update({"block-size": 16, "served-model-name": "m", "model": "/m/target", "host": "127.0.0.1", "port": 30000})
    assert written == expected


@pytest.mark.parametrize(
    ("written", "algorithm", "sglang", "vllm"),
    [
        ("one of vllm's", "draft_model", "STANDALONE", "draft_model"),
        ("one of sglang's", "STANDALONE", "STANDALONE", "draft_model"),
        ("its own layers", "nextn", "NEXTN", "mtp"),
        ("the same", "MTP", "NEXTN", "mtp"),
        ("eagle", "Eagle3", "EAGLE3", "eagle3"),
    ],
)
def test_an_algorithm_has_one_name_for_the_user(written: str, algorithm: str, sglang: str, vllm: str) -> None:
    assert written
    assert arguments.method(ENGINES["sglang"], algorithm) == sglang
    assert arguments.method(ENGINES["vllm"], algorithm) == vllm


@pytest.mark.parametrize(
    ("engine", "version", "argument", "instead"),
    [
        ("sglang", "0.5.20", "cuda-graph-max-bs", "cuda-graph-max-bs-decode"),
        ("sglang", "0.5.23", "--mamba_scheduler_strategy", "mamba-radix-cache-strategy"),
        ("sglang", "0.5.16", "mamba-radix-cache-strategy", "mamba-scheduler-strategy"),
        ("sglang", "0.5.16", "disable-cuda-graph", "cuda-graph-config"),
        ("sglang", "0.5.13", "cuda-graph-config", "disable-cuda-graph"),
        ("sglang", "0.5.23", "enable-dp-attention", "attn-dp-size"),
        ("sglang", "0.5.23", "nsa-prefill-backend", "dsa-prefill-backend"),
        ("vllm", "0.33.0", "swap-space", "kv-offloading-size"),
    ],
)
def test_an_argument_that_a_version_does_not_read_is_refused_with_its_replacement(
    engine: str, version: str, argument: str, instead: str
) -> None:
    found = refused(engine, version, extra_args={argument: 1})["extra_args." + argument]
    assert found.id == "arguments.removed"
    assert instead in found.fix
    assert "%s %s" % (engine, version) in found.message


def test_an_argument_is_passed_through_where_the_version_reads_it_an_overlay_adds_it_or_nobody_knows_it() -> None:
    assert not refused("sglang", "0.5.19", extra_args={"cuda-graph-max-bs": 8})
    assert not refused("sglang", "0.5.23", ["nsa_prefill_backend"], extra_args={"nsa-prefill-backend": "fa3"})
    assert not refused("sglang", "0.5.23", extra_args={"speculative-ddtree-budget": 8})


@pytest.mark.parametrize(
    ("engine", "version", "options", "subject", "known"),
    [
        ("vllm", "0.32.0", {"max_total_tokens": 8192}, "max_total_tokens", "max_running_requests"),
        ("vllm", "0.16.0", {"moe_backend": "triton"}, "moe_backend", "attention_backend"),
        ("vllm", "0.32.0", {"speculative": {"algorithm": "EAGLE3", "topk": 4}}, "speculative.topk", "num_draft_tokens"),
        ("sglang", "0.5.23", {"speculative": {"algorithm": "NGRAM", "lookup_max": 4}}, "speculative.lookup_max", "num_draft_tokens"),
        ("sglang", "0.5.9", {"speculative": {"algorithm": "NGRAM", "draft_window": 4}}, "speculative.draft_window", "num_steps"),
    ],
)
def test_an_option_that_the_engine_has_no_argument_for_is_refused(
    engine: str, version: str, options: dict[str, t.Any], subject: str, known: str
) -> None:
    found = refused(engine, version, **options)
    assert [one.id for one in found.values()] == ["arguments.option"]
    assert known in found[subject].expected
    assert "extra_args" in found[subject].fix


def test_what_only_speculation_needs_is_not_judged_without_it() -> None:
    assert not refused("vllm", "0.32.0", speculative={"algorithm": "none", "topk": 4})


def test_every_option_of_an_instance_becomes_an_argument_of_some_engine() -> None:
    for option in schema.ENGINE_OPTIONS:
        assert any(option in engine["options"] for engine in ENGINES.values()), option
    for option in schema.INSTANCE["speculative"].options or {}:
        assert any(option in engine["speculative"] for engine in ENGINES.values()), option


def test_a_listener_whose_key_guards_only_a_part_is_told() -> None:
    found = refused("vllm", "0.32.0", host="0.0.0.0")["host"]
    assert found.id == "arguments.open-endpoints" and found.verdict == "warning"
    assert "/v1" in found.message and "proxy" in found.fix
    assert not refused("vllm", "0.32.0", host="127.0.0.1") and not refused("vllm", "0.32.0")
    assert not refused("sglang", "0.5.23", host="0.0.0.0")
