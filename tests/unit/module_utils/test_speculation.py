# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ways to speculate that cannot work with this model and this draft, by what their configurations say."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import speculation

BLOCK = {"architectures": ["DFlashDraftModel"], "dflash_config": {"block_size": 16}}
EAGLE = {"architectures": ["LlamaForCausalLMEagle"]}
EAGLE3 = {"architectures": ["LlamaForCausalLMEagle3"]}
WHOLE = {"architectures": ["Qwen3ForCausalLM"]}


def found(algorithm: str, draft: t.Any = None, joined: bool = False, tokens: int = 0, window: int = 0, stages: int = 1) -> list[str]:
    instance = {"speculative": {"num_draft_tokens": tokens, "draft_window": window}, "pipeline_parallel": stages}
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
        ("speculative.parallel", {"algorithm": "DFLASH", "draft": BLOCK, "stages": 2}),
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
        {"algorithm": "STANDALONE", "draft": WHOLE, "stages": 2},
    ],
)
def test_what_works_or_is_not_known_passes(options: dict[str, t.Any]) -> None:
    assert found(**options) == []
