# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""DDTREE: a small causal language model grows one draft tree per step.

Arguments and pure functions; ddtree_worker.py serves with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

DEFAULT_BUDGET = 8
DEFAULT_DEPTH = 4
DEFAULT_TOPK = 3


class Node(NamedTuple):
    """A proposed token: log-probability of its path from the root, number of its parent (0 is the root), token."""

    score: float
    parent: int
    token: int


def capacity(depth: int, topk: int) -> int:
    """Return the most nodes a beam of width ``topk`` proposes in ``depth`` levels."""
    return topk + (depth - 1) * topk * topk


def handle_ddtree(server_args: ServerArgs) -> None:
    """Complete and check DDTREE's arguments, then apply NGRAM's rules, whose verification it uses.

    :raises ValueError: not on the CPU, no draft model, or a budget that the tree cannot hold.
    """
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view
    from sglang.srt.arg_groups.speculative_hook import _handle_ngram

    given = resolving_view(server_args)
    if given.device != "cpu":
        raise ValueError(f"DDTREE runs on the CPU only, not on {given.device!r}.")
    if given.speculative_draft_model_path is None:
        raise ValueError("DDTREE needs --speculative-draft-model-path.")

    budget, width = given.speculative_ddtree_budget, given.speculative_num_draft_tokens
    if budget is None:
        budget = DEFAULT_BUDGET if width is None else width - 1
    elif width not in (None, budget + 1):
        raise ValueError("--speculative-num-draft-tokens must be --speculative-ddtree-budget + 1.")
    depth = given.speculative_num_steps or DEFAULT_DEPTH
    topk = given.speculative_eagle_topk or DEFAULT_TOPK
    most = capacity(depth, topk)
    if not 1 <= budget <= most:
        raise ValueError(f"--speculative-ddtree-budget is {budget}, must be in 1..{most} for depth {depth} and top-k {topk}.")
    declare_resolution(
        server_args,
        "handle_ddtree",
        speculative_ddtree_budget=budget,
        speculative_num_draft_tokens=budget + 1,
        speculative_num_steps=depth,
        speculative_ngram_max_bfs_breadth=topk,  # NGRAM's rules make it speculative_eagle_topk
    )
    _handle_ngram(server_args)


@torch.inference_mode()
def grow_tree(model: torch.nn.Module, context: Sequence[int], budget: int, depth: int, topk: int) -> tuple[list[int], list[int]]:
    """Return tokens and parents, both [budget + 1], of the most probable draft tree below ``context``.

    Node 0 is the root, the last token of ``context``; its parent is -1 and parents come before their children.
    Every level expands the ``topk`` best nodes of the level before by ``topk`` tokens each. A node is never more
    probable than its parent, so the ``budget`` most probable nodes are always a tree.
    """
    out = model(input_ids=torch.tensor([list(context)]), use_cache=True)
    cache = out.past_key_values
    beam = [Node(0.0, -1, context[-1])]
    numbers = [0]  # of the beam's nodes
    nodes: list[Node] = []  # number i + 1 at index i
    for level in range(depth):
        logprobs, tokens = out.logits[:, -1].log_softmax(-1).topk(topk)
        base = len(nodes)
        for above, number, row, choices in zip(beam, numbers, logprobs.tolist(), tokens.tolist()):
            nodes += [Node(above.score + logprob, number, token) for logprob, token in zip(row, choices)]
        if level + 1 == depth:
            break
        best = sorted(range(base, len(nodes)), key=lambda i: -nodes[i].score)[:topk]
        cache.reorder_cache(torch.tensor([(i - base) // topk for i in best]))
        beam, numbers = [nodes[i] for i in best], [i + 1 for i in best]
        out = model(input_ids=torch.tensor([[node.token] for node in beam]), past_key_values=cache, use_cache=True)
    # At equal score the smaller number wins, which is the parent's.
    kept = sorted(sorted(range(len(nodes)), key=lambda i: (-nodes[i].score, i))[:budget])
    renumbered = {0: 0, **{i + 1: place for place, i in enumerate(kept, start=1)}}
    return (
        [int(context[-1]), *(nodes[i].token for i in kept)],
        [-1, *(renumbered[nodes[i].parent] for i in kept)],
    )


def tree_mask(parents: Sequence[int]) -> np.ndarray:
    """Return bool [nodes, nodes]; ``[i, j]``: node j is node i or one of its ancestors."""
    mask = np.eye(len(parents), dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask
