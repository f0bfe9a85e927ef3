# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ways to speculate that cannot work with this model and this draft, by what their configurations say."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.specdec.serving.plugins.module_utils import arguments, fitting, speculation
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, WARNING, Finding

DATA = Path(speculation.__file__).parent / "data"
TABLES: dict[str, t.Any] = {
    name: yaml.safe_load((DATA / (name + ".yml")).read_text()) for name in ("engines", "architectures", "speculation")
}

BLOCK = {"architectures": ["DFlashDraftModel"], "dflash_config": {"block_size": 16}}
EAGLE = {"architectures": ["LlamaForCausalLMEagle"]}
EAGLE3 = {"architectures": ["LlamaForCausalLMEagle3"]}
WHOLE = {"architectures": ["Qwen3ForCausalLM"]}


def found(algorithm: str, draft: t.Any = None, joined: bool = False, tokens: int = 0, window: int = 0) -> list[str]:
    instance = {"speculative": {"num_draft_tokens": tokens, "draft_window": window}}
    described = {"draft": {"config": draft}} if draft else {}
    return [one.id for one in speculation.judge(algorithm, joined, instance, described, lambda option: option)]


@pytest.mark.parametrize(
    ("expected", "options"),
    [
        ("speculative.head", {"algorithm": "EAGLE", "draft": EAGLE3}),
        ("speculative.head", {"algorithm": "EAGLE3", "draft": EAGLE}),
        ("speculative.head", {"algorithm": "dflash", "draft": WHOLE}),
        ("speculative.block", {"algorithm": "DFLASH", "draft": BLOCK, "tokens": 17}),
        ("speculative.block", {"algorithm": "DFLASH", "draft": BLOCK, "tokens": 16, "joined": True}),
        ("speculative.window", {"algorithm": "DFLASH", "draft": BLOCK, "tokens": 16, "window": 8}),
        ("speculative.block", {"algorithm": "DFLASH", "draft": BLOCK, "tokens": 15}),
    ],
)
def test_what_cannot_work_is_refused(expected: str, options: dict[str, t.Any]) -> None:
    assert found(**options) == [expected]


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "EAGLE", "draft": EAGLE},
        {"algorithm": "EAGLE3", "draft": EAGLE3},
        {"algorithm": "EAGLE3", "draft": {"model_type": "llama"}},
        {"algorithm": "DFLASH", "draft": BLOCK, "tokens": 16, "window": 16},
        {"algorithm": "DFLASH", "draft": BLOCK, "tokens": 15, "joined": True},
        {"algorithm": "DFLASH", "tokens": 99},
        {"algorithm": "DDTREE", "draft": WHOLE, "tokens": 16},
        {"algorithm": "STANDALONE", "draft": WHOLE},
        {"algorithm": "DFLASH", "draft": BLOCK, "tokens": 8},
    ],
)
def test_what_works_or_is_not_known_passes(options: dict[str, t.Any]) -> None:
    assert found(**options) == []


def test_the_anchor_is_counted_by_one_engine_and_not_by_the_other() -> None:
    def block(tokens: int, joined: bool) -> list[Finding]:
        instance = {"speculative": {"num_draft_tokens": tokens}}
        return speculation.judge("DFLASH", joined, instance, {"draft": {"config": BLOCK}}, lambda option: "main: " + option)

    [sglang], [vllm] = block(15, False), block(16, True)
    assert (sglang.verdict, sglang.subject, sglang.fix) == (WARNING, "main: speculative.num_draft_tokens", "Write 16.")
    assert "SGLang counts the anchor of the block, vLLM does not" in sglang.message
    assert (vllm.verdict, vllm.found, vllm.expected) == (ERROR, "16", "15 (a block of 16 without its anchor)")


# What the engines' versions ask for

HYBRID = {"model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"]}
EAGLES = {"algorithm": "EAGLE3", "num_steps": 3, "topk": 4, "num_draft_tokens": 8}


def ruled(engine: str, version: str, speculative: t.Any, model: t.Any = None, draft: t.Any = "", **options: t.Any) -> list[Finding]:
    """What the table says of an instance, from its options on. :param draft: its config.json; None: there is no draft."""
    wanted = {"name": "main", "model": {"path": "/srv/model"}, "speculative": speculative, **options}
    described, places = {"model": {"config": model or WHOLE}}, {"model": "/srv/model"}
    if draft is not None:
        wanted["draft"], places["draft"], described["draft"] = {"path": "/srv/draft"}, "/srv/draft", {"config": draft or WHOLE}
    composed = arguments.compose(TABLES["engines"][engine], version, "cu130", wanted, places)
    one = fitting.Instance("ct200", wanted, engine, version, True, described, composed)
    here = fitting.situation(TABLES["architectures"], {"devices": []}, one)
    return speculation.rules(TABLES["speculation"], here, one.written)


#: engine, version, speculative, further options, the check, its verdict, the variable that it names, a part of the way out
RULED: list[tuple[str, str, dict[str, t.Any], dict[str, t.Any], str, str, str, str]] = [
    ("sglang", "0.5.23", {"algorithm": "DFLASH"}, {"draft": None}, "draft", ERROR, "draft", "made for this model"),
    ("vllm", "0.32.0", {"algorithm": "EAGLE3", "num_draft_tokens": 3}, {"draft": None}, "draft", ERROR, "draft", "NGRAM"),
    ("sglang", "0.5.9", {"algorithm": "EAGLE", "topk": 4}, {}, "steps", ERROR, "speculative.num_steps", "or none of them"),
    ("sglang", "0.5.23", {"algorithm": "EAGLE3", "num_steps": 3}, {}, "steps", ERROR, "speculative.topk", "or none of them"),
    ("vllm", "0.32.0", {"algorithm": "NGRAM"}, {"draft": None}, "tokens", ERROR, "speculative.num_draft_tokens", "3 to 5"),
    ("sglang", "0.5.16", EAGLES, {"attention_backend": "trtllm_mha"}, "topk", ERROR, "speculative.topk", "topk: 1"),
    ("sglang", "0.5.23", {"algorithm": "DFLASH", "topk": 4}, {"draft": BLOCK}, "topk", WARNING, "speculative.topk", "DDTREE"),
    ("sglang", "0.5.9", EAGLES, {"attention_backend": "triton", "page_size": 16}, "page-size", ERROR, "page_size", "page_size: 1"),
    ("sglang", "0.5.23", EAGLES, {"attention_backend": "fa4", "page_size": 16}, "page-size", ERROR, "page_size", "or triton"),
    (
        "sglang",
        "0.5.23",
        {"algorithm": "NGRAM"},
        {"attention_backend": "triton", "page_size": 16},
        "page-size",
        ERROR,
        "page_size",
        "flashinfer",
    ),
    ("sglang", "0.5.23", {"algorithm": "DDTREE"}, {"page_size": 16}, "page-size", WARNING, "page_size", "page_size: 1"),
    ("sglang", "0.5.12", {"algorithm": "DFLASH"}, {"overlap": True}, "overlap", WARNING, "overlap", "0.5.14 or newer"),
    ("sglang", "0.5.9", {"algorithm": "NGRAM"}, {"overlap": True}, "overlap", WARNING, "overlap", "0.5.14 or newer"),
    ("sglang", "0.5.23", {"algorithm": "DDTREE"}, {"overlap": True}, "overlap", WARNING, "overlap", "no overlap"),
    ("sglang", "0.5.23", {"algorithm": "DFLASH"}, {"pipeline_parallel": 2}, "parallel", ERROR, "pipeline_parallel", "tensor_parallel"),
    (
        "sglang",
        "0.5.16",
        {"algorithm": "STANDALONE"},
        {"attention_data_parallel": 2, "tensor_parallel": 2},
        "parallel",
        ERROR,
        "attention_data_parallel",
        "EAGLE3",
    ),
    (
        "sglang",
        "0.5.22",
        {"algorithm": "DFLASH"},
        {"attention_data_parallel": 2, "tensor_parallel": 2},
        "parallel",
        ERROR,
        "attention_data_parallel",
        "0.5.23",
    ),
    (
        "sglang",
        "0.5.23",
        {"algorithm": "DFLASH"},
        {"attention_data_parallel": 2, "tensor_parallel": 2},
        "parallel",
        ERROR,
        "attention_data_parallel",
        "enable-dp-lm-head",
    ),
    ("sglang", "0.5.13", {"algorithm": "NEXTN"}, {"model": HYBRID}, "mamba", ERROR, "mamba_strategy", "extra_buffer"),
    ("sglang", "0.5.9", {"algorithm": "NEXTN"}, {"model": HYBRID}, "mamba", WARNING, "mamba_strategy", "prefix_caching: false"),
    (
        "sglang",
        "0.5.23",
        {"algorithm": "NEXTN"},
        {"model": HYBRID, "mamba_strategy": "extra_buffer_lazy"},
        "mamba",
        ERROR,
        "mamba_strategy",
        "extra_buffer",
    ),
    (
        "sglang",
        "0.5.16",
        {"algorithm": "none"},
        {"model": HYBRID, "mamba_strategy": "no_buffer", "page_size": 16},
        "mamba",
        ERROR,
        "page_size",
        "page_size: 1",
    ),
    (
        "sglang",
        "0.5.23",
        {"algorithm": "none"},
        {"model": HYBRID, "mamba_strategy": "no_buffer", "page_size": 16},
        "mamba",
        ERROR,
        "page_size",
        "page_size: 1",
    ),
    ("sglang", "0.5.13", {"algorithm": "DFLASH"}, {}, "features", WARNING, "speculative.algorithm", "0.5.14 or newer"),
    (
        "vllm",
        "0.32.0",
        {"algorithm": "draft_model", "num_draft_tokens": 4},
        {"model": {"vocab_size": 10}, "draft": {"vocab_size": 9}},
        "vocabulary",
        ERROR,
        "draft",
        "own family",
    ),
]


@pytest.mark.parametrize("case", RULED, ids=["%s-%s" % (case[4], index) for index, case in enumerate(RULED)])
def test_what_a_version_cannot_do_is_told_with_variable_and_way_out(case: tuple[t.Any, ...]) -> None:
    engine, version, speculative, options, check, verdict, variable, way_out = case
    told = [one for one in ruled(engine, version, speculative, **options) if one.id == "speculative." + check]
    assert [(one.verdict, one.subject) for one in told] == [(verdict, "ct200: specdec_instances[main].%s" % variable)]
    assert way_out in told[0].fix and "%s %s" % (engine, version) in told[0].found
    assert told[0].message and "read 2026-" in told[0].evidence


def test_every_row_has_a_case() -> None:
    def answering(case: tuple[t.Any, ...]) -> set[str]:
        rows = [dict(row, check=str(number)) for number, row in enumerate(TABLES["speculation"]["rules"])]
        engine, version, speculative, options = case[:4]
        before = TABLES["speculation"]
        TABLES["speculation"] = {**before, "rules": rows}
        try:
            return {one.id for one in ruled(engine, version, speculative, **options)}
        finally:
            TABLES["speculation"] = before

    answered = set().union(*(answering(case) for case in RULED))
    assert answered == {"speculative.%d" % number for number in range(len(TABLES["speculation"]["rules"]))}


@pytest.mark.parametrize(
    ("engine", "version", "speculative", "options"),
    [
        ("sglang", "0.5.23", {"algorithm": "DFLASH"}, {"draft": BLOCK, "overlap": True}),
        ("sglang", "0.5.23", {"algorithm": "NGRAM"}, {"draft": None, "overlap": True}),
        ("sglang", "0.5.9", {"algorithm": "EAGLE3"}, {}),
        ("sglang", "0.5.23", EAGLES, {"attention_backend": "triton", "page_size": 16}),
        ("sglang", "0.5.23", EAGLES, {"attention_backend": "flashinfer"}),
        ("sglang", "0.5.23", {"algorithm": "NEXTN"}, {"model": HYBRID, "draft": None}),
        ("sglang", "0.5.13", {"algorithm": "NEXTN"}, {"model": HYBRID, "draft": None, "mamba_strategy": "extra_buffer"}),
        ("sglang", "0.5.13", {"algorithm": "NEXTN"}, {"model": HYBRID, "draft": None, "prefix_caching": False}),
        ("sglang", "0.5.23", {"algorithm": "EAGLE3"}, {"attention_data_parallel": 2, "tensor_parallel": 2}),
        (
            "sglang",
            "0.5.23",
            {"algorithm": "DFLASH"},
            {"attention_data_parallel": 2, "tensor_parallel": 2, "extra_args": {"enable-dp-lm-head": True}},
        ),
        ("sglang", "0.5.9", {"algorithm": "none"}, {"draft": None, "page_size": 64, "overlap": True}),
        ("vllm", "0.32.0", {"algorithm": "MTP"}, {"draft": None}),
        ("vllm", "0.32.0", {"algorithm": "draft_model", "num_draft_tokens": 4}, {"model": {"vocab_size": 9}, "draft": {"vocab_size": 9}}),
    ],
)
def test_what_a_version_can_do_passes(engine: str, version: str, speculative: dict[str, t.Any], options: dict[str, t.Any]) -> None:
    assert ruled(engine, version, speculative, **options) == []


def test_an_argument_that_was_passed_through_is_named_as_such() -> None:
    [one] = ruled("sglang", "0.5.23", {"algorithm": "DFLASH"}, extra_args={"pp-size": 2})
    assert (one.id, one.subject) == ("speculative.parallel", "ct200: specdec_instances[main].extra_args.pp-size")


# Which models a DFlash draft can read from


def targeted(version: str, name: str, algorithm: str = "DFLASH", changed: bool = False) -> list[Finding]:
    model = {"config": {"architectures": [name]}}
    return speculation.target(TABLES["speculation"], algorithm, version, model, changed, lambda option: "main: " + option)


def test_a_model_whose_class_hands_nothing_to_a_dflash_draft_is_refused() -> None:
    [one] = targeted("0.5.13", "Gemma4ForCausalLM")
    assert (one.id, one.verdict, one.subject, one.found) == ("speculative.target", ERROR, "main: model", "Gemma4ForCausalLM")
    assert (one.message, one.fix) == (
        "SGLang 0.5.13 has no DFlash for this class of models",
        "Choose SGLang 0.5.14 or newer, or another algorithm.",
    )
    assert "Qwen3ForCausalLM" in one.expected
    [one] = targeted("0.5.23", "GPT2LMHeadModel")
    assert "Choose another algorithm, or give the instance an overlay" in one.fix


@pytest.mark.parametrize(
    "options",
    [
        {"version": "0.5.14", "name": "Gemma4ForCausalLM"},
        {"version": "0.5.23", "name": "Qwen3ForCausalLM"},
        {"version": "0.5.23", "name": "GPT2LMHeadModel", "algorithm": "EAGLE3"},
        {"version": "0.5.23", "name": "GPT2LMHeadModel", "changed": True},
        {"version": "0.5.9", "name": "GPT2LMHeadModel"},
    ],
    ids=["from this release on", "from the first on", "another algorithm", "an overlay changes models", "before DFlash"],
)
def test_a_class_that_is_known_or_not_to_be_judged_passes(options: dict[str, t.Any]) -> None:
    assert targeted(**options) == []
