# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an engine's arguments mean on each kind of GPU: a case for every row of the table, and its contrary."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.specdec.serving.plugins.module_utils import architectures
from ansible_collections.specdec.serving.plugins.module_utils.findings import COULD_NOT_CHECK, ERROR, WARNING

TABLE: dict[str, t.Any] = yaml.safe_load((Path(architectures.__file__).parent / "data" / "architectures.yml").read_text())

#: A model of full attention whose weights are not quantised, alone on its GPU.
PLAIN: dict[str, t.Any] = {
    "attention": "mha",
    "quantization": "none",
    "model": ["qwen3"],
    "experts": False,
    "pcie": True,
    "many": False,
    "p2p": None,
    "algorithm": "NONE",
    "draft": False,
    "speculative": False,
    "draft-attention": None,
}
NVFP4 = {"quantization": "modelopt_fp4"}
QWEN = {**NVFP4, "model": ["qwen3_5_moe"], "attention": "hybrid", "experts": True}
EIGHT = {"many": True}


def here(kind: str, engine: str = "sglang", version: str = "0.5.23", config: t.Any = None, **traits: t.Any) -> architectures.Situation:
    return architectures.Situation(engine, version, frozenset(kind.split()), {**PLAIN, **traits}, config or {})


def judged(situation: architectures.Situation, table: t.Mapping[str, t.Any] = TABLE) -> list[tuple[str, str, str]]:
    found = architectures.judge(table, situation, lambda option: "main: " + option)
    return [(one.id.removeprefix("architecture."), one.verdict, one.subject.partition(": ")[2]) for one in found]


#: kind of GPU, engine, version, argument, value, traits → check, verdict
CASES: list[tuple[str, str, str, str, t.Any, dict[str, t.Any], str, str]] = [
    ("sm120", "sglang", "0.5.23", "attention-backend", "fa3", {}, "attention-backend", ERROR),
    ("sm100", "sglang", "0.5.9", "prefill-attention-backend", "fa3", {}, "attention-backend", ERROR),
    ("sm80", "sglang", "0.5.9", "attention-backend", "fa3", {"attention": "mla"}, "attention-backend", ERROR),
    ("sm89", "sglang", "0.5.23", "attention-backend", "fa4", {}, "attention-backend", ERROR),
    ("sm120", "sglang", "0.5.17", "speculative-draft-attention-backend", "fa4", {}, "attention-backend", ERROR),
    ("sm80", "sglang", "0.5.23", "decode-attention-backend", "trtllm_mha", {}, "attention-backend", ERROR),
    ("sm120", "sglang", "0.5.18", "attention-backend", "trtllm_mha", {}, "attention-backend", ERROR),
    ("sm90", "sglang", "0.5.10", "decode-attention-backend", "trtllm_mha", {}, "attention-backend", ERROR),
    ("sm120", "sglang", "0.5.19", "attention-backend", "trtllm_mha", {"kv-cache-dtype": "fp8_e4m3"}, "attention-backend", ERROR),
    ("sm121", "sglang", "0.5.23", "attention-backend", "trtllm_mla", {}, "attention-backend", ERROR),
    ("sm120", "sglang", "0.5.23", "attention-backend", "cutlass_mla", {}, "attention-backend", ERROR),
    ("sm120", "sglang", "0.5.23", "attention-backend", "flashmla", {}, "attention-backend", ERROR),
    ("sm120", "sglang", "0.5.9", "attention-backend", "flashinfer", {"attention": "hybrid"}, "linear-attention", ERROR),
    ("sm100", "sglang", "0.5.14", "attention-backend", "fa2", {"attention": "hybrid"}, "linear-attention", ERROR),
    ("sm120", "sglang", "0.5.23", "attention-backend", "fa4", {"attention": "hybrid"}, "linear-attention", ERROR),
    ("sm120", "sglang", "0.5.12", "linear-attn-backend", "flashinfer", {}, "linear-attention", ERROR),
    ("sm120", "sglang", "0.5.23", "moe-runner-backend", "flashinfer_trtllm", {}, "moe-runner", ERROR),
    ("sm120", "sglang", "0.5.23", "moe-runner-backend", "deep_gemm", {}, "moe-runner", ERROR),
    ("sm120", "sglang", "0.5.23", "moe-runner-backend", None, {"quantization": "mxfp8"}, "moe-runner", WARNING),
    ("sm90", "sglang", "0.5.23", "fp4-gemm-backend", "flashinfer_cutedsl", {}, "gemm", ERROR),
    ("sm120", "sglang", "0.5.11", "fp4-gemm-backend", "flashinfer_cudnn", {}, "gemm", WARNING),
    ("sm90", "sglang", "0.5.12", "quantization", None, NVFP4, "quantization", ERROR),
    ("sm89", "sglang", "0.5.13", "quantization", None, NVFP4, "quantization", WARNING),
    ("sm120", "sglang", "0.5.23", "quantization", "nvfp4_online", {}, "quantization", ERROR),
    ("sm80", "sglang", "0.5.23", "kv-cache-dtype", "fp8_e4m3", {}, "kv-cache", ERROR),
    ("sm90", "sglang", "0.5.23", "kv-cache-dtype", "fp4_e2m1", {}, "kv-cache", ERROR),
    ("sm120", "sglang", "0.5.23", "kv-cache-dtype", "nvfp4", {}, "kv-cache", WARNING),
    ("sm100", "sglang", "0.5.23", "kv-cache-dtype", "nvfp4", {"algorithm": "DFLASH"}, "kv-cache", ERROR),
    ("sm120", "sglang", "0.5.10", "kv-cache-dtype", "fp8_e4m3", QWEN, "kv-cache", ERROR),
    ("sm120", "sglang", "0.5.23", "disable-custom-all-reduce", False, EIGHT, "all-reduce", WARNING),
    ("sm89", "vllm", "0.33.0", "disable-custom-all-reduce", False, EIGHT, "all-reduce", WARNING),
    ("sm120", "sglang", "0.5.23", "mem-fraction-static", 0.9, {"draft": True}, "memory-share", WARNING),
    ("sm121", "vllm", "0.33.0", "attention-backend", None, {"algorithm": "DFLASH"}, "attention-backend", WARNING),
    ("sm120", "vllm", "0.33.0", "attention-backend", "FLASHINFER", {"speculative": True}, "attention-backend", WARNING),
]


def situation(case: tuple[t.Any, ...]) -> architectures.Situation:
    kind, engine, version, option, value, traits = case[:6]
    arguments = {name: one for name, one in traits.items() if name not in PLAIN}
    config = {**arguments, **({} if value is None else {option: value})}
    return here(kind, engine, version, config, **{name: one for name, one in traits.items() if name in PLAIN})


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(part) for part in case[:5]))
def test_what_fails_or_is_slow_on_a_kind_of_gpu(case: tuple[t.Any, ...]) -> None:
    assert (case[6], case[7], case[3]) in judged(situation(case))


def test_every_rule_has_a_case_that_nothing_else_answers() -> None:
    for row in TABLE["rules"]:
        without = {**TABLE, "rules": [one for one in TABLE["rules"] if one is not row]}
        assert any(not judged(situation(case), without) and judged(situation(case)) for case in CASES), row


@pytest.mark.parametrize(
    ("kind", "version", "config"),
    [
        ("sm90", "0.5.23", {"attention-backend": "fa3"}),
        ("sm120", "0.5.18", {"attention-backend": "fa4"}),
        ("sm120", "0.5.19", {"attention-backend": "trtllm_mha"}),
        ("sm100", "0.5.9", {"attention-backend": "trtllm_mla", "moe-runner-backend": "flashinfer_trtllm"}),
        ("sm120", "0.5.23", {"kv-cache-dtype": "fp8_e4m3", "moe-runner-backend": "flashinfer_cutlass", "mem-fraction-static": 0.9}),
        ("", "0.5.23", {"attention-backend": "fa3"}),
    ],
)
def test_what_runs_is_let_pass(kind: str, version: str, config: dict[str, t.Any]) -> None:
    assert judged(here(kind, version=version, config=config)) == []


def test_a_finding_names_where_it_is_known_from_and_a_way_out() -> None:
    found = architectures.judge(TABLE, here("sm120", config={"attention-backend": "trtllm_mla"}), lambda option: option)
    [one] = found
    assert (one.found, one.fix) == ("attention-backend: trtllm_mla, sglang 0.5.23, sm120", "use triton")
    assert "#24633" in one.evidence and "2026-11-30" in one.evidence


def test_one_of_two_kinds_is_enough_to_refuse_and_not_to_set_a_default() -> None:
    both = here("sm89 sm120", config={"moe-runner-backend": "deep_gemm"})
    assert judged(both) == [("moe-runner", ERROR, "moe-runner-backend")]
    assert architectures.defaults(TABLE, both).arguments == {}


#: kind of GPU, engine, version, traits → arguments, environment
DEFAULTS: list[tuple[str, str, str, dict[str, t.Any], dict[str, t.Any], dict[str, str]]] = [
    ("sm120", "sglang", "0.5.23", {}, {"attention-backend": "flashinfer"}, {}),
    ("sm120", "sglang", "0.5.9", {"attention": "mla"}, {"attention-backend": "triton"}, {}),
    ("sm120", "sglang", "0.5.9", {"attention": "sparse"}, {}, {}),
    ("sm120", "sglang", "0.5.23", {"attention": "sinks"}, {"attention-backend": "triton"}, {}),
    (
        "sm120",
        "sglang",
        "0.5.10.dev20260301",
        {**QWEN, **EIGHT, "p2p": "far"},
        {
            "attention-backend": "triton",
            "moe-runner-backend": "flashinfer_cutlass",
            "fp4-gemm-backend": "flashinfer_cutlass",
            "kv-cache-dtype": "bfloat16",
            "disable-custom-all-reduce": True,
        },
        {"NCCL_P2P_LEVEL": "SYS"},
    ),
    (
        "sm120",
        "sglang",
        "0.5.12",
        {**NVFP4, "attention": "sparse"},
        {"fp4-gemm-backend": "flashinfer_cutlass"},
        {},
    ),
    ("sm120", "vllm", "0.16.0", {**EIGHT, "p2p": "translated"}, {"disable-custom-all-reduce": True}, {"NCCL_P2P_DISABLE": "1"}),
    ("sm120", "vllm", "0.16.0", {"p2p": "refused"}, {}, {"NCCL_P2P_DISABLE": "1"}),
    ("sm120", "vllm", "0.16.0", {"p2p": "near"}, {}, {}),
    ("sm100", "sglang", "0.5.23", {**QWEN, "pcie": False, "many": True}, {}, {}),
    ("sm89", "sglang", "0.5.23", EIGHT, {"disable-custom-all-reduce": True}, {}),
]


@pytest.mark.parametrize(("kind", "engine", "version", "traits", "arguments", "environment"), DEFAULTS)
def test_what_is_set_where_nobody_says_otherwise(
    kind: str, engine: str, version: str, traits: t.Any, arguments: t.Any, environment: t.Any
) -> None:
    found = architectures.defaults(TABLE, here(kind, engine, version, **traits))
    assert (found.arguments, found.environment) == (arguments, environment)
    assert set(found.reasons) == {*arguments, *environment} and all(found.reasons.values())


def test_every_default_has_a_case_that_nothing_else_answers() -> None:
    for row in TABLE["defaults"]:
        without = {**TABLE, "defaults": [one for one in TABLE["defaults"] if one is not row]}
        situations = [here(kind, engine, version, **traits) for kind, engine, version, traits, _arguments, _environment in DEFAULTS]
        assert any(architectures.defaults(without, one) != architectures.defaults(TABLE, one) for one in situations), row


def test_what_the_user_says_is_kept() -> None:
    found = architectures.defaults(TABLE, here("sm120", config={"attention-backend": "triton"}))
    assert found.arguments == {}


def test_defaults_are_let_pass_by_the_rules() -> None:
    for kind, engine, version, traits, arguments, _environment in DEFAULTS:
        assert judged(here(kind, engine, version, arguments, **traits)) == [], (kind, version, traits)


def test_every_row_says_where_it_comes_from_and_asks_what_is_known() -> None:
    keys = {"check", "engine", "kinds", "options", "values", "except", "above", "when", "versions", "verdict", "why", "instead"}
    keys |= {"set", "environment", "source", "read"}
    for row in (*TABLE["rules"], *TABLE["defaults"]):
        assert set(row) <= keys and {"why", "source", "read"} <= set(row), row
        assert set(row.get("kinds", ())) <= set(TABLE["kinds"]), row
        asked = set(row.get("when", {})) - set(PLAIN)
        assert asked <= {"kv-cache-dtype", "mamba-ssm-dtype"}, row


# Traits


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "qwen3"}, "mha"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, "mla"),
        ({"model_type": "glm_moe_dsa", "kv_lora_rank": 512, "index_topk": 2048}, "sparse"),
        ({"model_type": "qwen3_5_moe", "text_config": {"model_type": "qwen3_5_moe_text", "linear_num_value_heads": 64}}, "hybrid"),
        ({"model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"]}, "hybrid"),
        ({"model_type": "gpt_oss"}, "sinks"),
    ],
)
def test_the_attention_of_a_model(config: dict[str, t.Any], expected: str) -> None:
    assert architectures.model_traits(TABLE, {"config": config}, {})["attention"] == expected


@pytest.mark.parametrize(
    ("config", "beside", "argument", "expected"),
    [
        ({}, None, None, "none"),
        ({"quantization_config": {"quant_method": "fp8"}}, None, None, "fp8"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, None, None, "modelopt_fp4"),
        ({"text_config": {"quantization_config": {"quant_method": "compressed-tensors"}}}, None, None, "compressed-tensors"),
        ({}, {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}, None, "modelopt_fp4"),
        ({}, None, "nvfp4_online", "nvfp4_online"),
    ],
)
def test_how_the_weights_are_quantised(config: t.Any, beside: t.Any, argument: t.Any, expected: str) -> None:
    given = {"quantization": argument} if argument else {}
    assert architectures.model_traits(TABLE, {"config": config, "quantization": beside}, given)["quantization"] == expected


def test_a_model_that_is_not_there_yet_is_told_with_what_it_decides() -> None:
    unknown = architectures.model_traits(TABLE, None, {})
    assert set(unknown.values()) == {None}
    situation_ = here("sm120", **unknown)
    assert architectures.defaults(TABLE, situation_).arguments == {}
    [one] = architectures.unread(TABLE, situation_, "ct200: model", "/models/x")
    assert (one.id, one.verdict) == ("architecture.unread", COULD_NOT_CHECK)
    assert "kv-cache" in one.evidence and "the default of attention-backend" in one.evidence
    assert architectures.unread(TABLE, here("sm120"), "", "") == architectures.unread(TABLE, here("", **unknown), "", "") == []


def facts(count: int = 2, p2p: str = "ok", path: str = "SYS", links: t.Optional[int] = 0, iommu: str = "") -> dict[str, t.Any]:
    pairs = [[None if one == other else value for other in range(count)] for value in (p2p, path) for one in range(count)]
    devices = [{"index": number, "nvlinks": links, "iommu": iommu} for number in range(count)]
    return {"devices": devices, "topology": {"p2p": pairs[:count], "paths": pairs[count:]}}


@pytest.mark.parametrize(
    ("facts_", "expected"),
    [
        (facts(), {"pcie": True, "many": False, "p2p": "far"}),
        (facts(path="PIX"), {"pcie": True, "many": False, "p2p": "near"}),
        (facts(p2p="chipset not supported"), {"pcie": True, "many": False, "p2p": "refused"}),
        (facts(iommu="DMA-FQ"), {"pcie": True, "many": False, "p2p": "translated"}),
        (facts(4, links=18), {"pcie": False, "many": True, "p2p": "far"}),
        (facts(1), {"pcie": True, "many": False, "p2p": None}),
        (facts(links=None), {"pcie": None, "many": False, "p2p": "far"}),
        ({"devices": [], "topology": None}, {"pcie": None, "many": False, "p2p": None}),
    ],
)
def test_what_gpus_are_to_each_other(facts_: dict[str, t.Any], expected: dict[str, t.Any]) -> None:
    assert architectures.gpu_traits(facts_, len(facts_["devices"])) == expected


@pytest.mark.parametrize(
    ("engine", "config", "expected"),
    [
        ("sglang", {}, (1, 1)),
        ("sglang", {"tp-size": 8}, (8, 1)),
        ("sglang", {"tp-size": 4, "dp-size": 2}, (8, 1)),
        ("sglang", {"tp-size": 8, "dp-size": 8, "enable-dp-attention": True}, (8, 8)),
        ("sglang", {"tp-size": 8, "attn-dp-size": 4}, (8, 4)),
        ("vllm", {"tensor-parallel-size": 2, "pipeline-parallel-size": 2, "data-parallel-size": 2}, (8, 1)),
    ],
)
def test_how_many_gpus_a_model_takes(engine: str, config: dict[str, t.Any], expected: tuple[int, int]) -> None:
    found = architectures.degrees(TABLE, engine, config)
    assert (found["gpus"], found["attention"]) == expected


def test_what_speculates_is_read_from_either_engines_arguments() -> None:
    joined = {"speculative-config": '{"method": "dflash", "attention_backend": "TRITON_ATTN", "num_speculative_tokens": 15}'}
    model, draft = {"config": {"text_config": {"vocab_size": 9}}}, {"config": {"vocab_size": 8}}
    wanted = {"speculative": {"algorithm": "dflash"}, "draft": {"path": "/srv/draft"}}
    found = architectures.speculative_traits(joined, wanted, {"model": model, "draft": draft})
    assert found == {
        "algorithm": "DFLASH",
        "method": "dflash",
        "draft": True,
        "speculative": True,
        "tokens": 15,
        "tree": False,
        "paged": False,
        "overlap": None,
        "vocabulary": "other",
        "draft-attention": "TRITON_ATTN",
    }
    config = {"speculative-algorithm": "EAGLE3", "speculative-eagle-topk": 4, "page-size": 16}
    found = architectures.speculative_traits(config, {"speculative": {"algorithm": "eagle3"}, "overlap": True}, {"model": model})
    assert (found["method"], found["draft"], found["tree"], found["paged"], found["overlap"]) == ("EAGLE3", False, True, True, True)
    assert found["vocabulary"] is None
    assert architectures.speculative_traits({}, {}, {})["speculative"] is False
