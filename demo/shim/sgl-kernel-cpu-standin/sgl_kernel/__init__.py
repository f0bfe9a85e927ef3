# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-in for ``sgl_kernel`` on a host without a GPU.

No CPU build of the kernel package is published. SGLang's CPU path needs very little of it: the ops
that tree verification calls, here in plain torch and written for clarity. They follow SGLang
0.5.23's call sites, change their output arguments in place and return nothing, as the compiled ops
do. Every other op named ``*_cpu`` can be imported and raises when called.
"""

from __future__ import annotations

import ctypes
import typing as t

import torch


def __getattr__(name: str) -> t.Callable[..., t.NoReturn]:
    if not name.endswith("_cpu"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def absent(*args: object, **kwargs: object) -> t.NoReturn:
        raise NotImplementedError(f"the sgl_kernel stand-in has no {name}")

    return absent


def copy_all_layer_kv_cache_cpu(data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor) -> None:
    """Move rows of every layer's K and V buffer from ``src_loc`` to ``tgt_loc``.

    :param data_ptrs: addresses of the buffers, int64 [buffers].
    :param strides: bytes of one row of each buffer, int64 [buffers].
    :param tgt_loc, src_loc: row numbers, int64 [rows]; they may overlap, so rows are read before one is written.
    """
    targets, sources = tgt_loc.tolist(), src_loc.tolist()
    for base, stride in zip(data_ptrs.tolist(), strides.tolist()):
        rows = [ctypes.string_at(base + source * stride, stride) for source in sources]
        for target, row in zip(targets, rows):
            ctypes.memmove(base + target * stride, row, stride)


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Give each request the next cache locations of ``out_cache_loc`` at its places ``[start, end)``."""
    done = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist()):
        req_to_token[row, start:end] = out_cache_loc[done : done + end - start].to(req_to_token.dtype)
        done += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write each request's cache locations ``[start, end)``, one request after the other, to ``out_cache_loc``."""
    done = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist()):
        out_cache_loc[done : done + end - start] = req_to_token[row, start:end].to(out_cache_loc.dtype)
        done += end - start


def fill_bonus_tokens_cpu(accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, accept_stride: int) -> None:
    """Write each request's last accepted token (the target's own, after the accepted drafts) to ``bonus_tokens``."""
    flat = accept_tokens.reshape(-1)
    for request, length in enumerate(accept_lens.tolist()):
        bonus_tokens[request] = flat[accept_stride * request + length - 1]


def fill_accept_out_cache_loc_cpu(accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor) -> None:
    """Gather the cache locations of the accepted nodes (``accept_index`` is -1 where nothing was accepted)."""
    accepted = accept_index[accept_index > -1].long()
    accept_out_cache_loc[: accepted.numel()] = out_cache_loc[accepted]


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk each request's tree along the nodes that equal the target's greedy choice.

    :param predicts: out, int [requests * nodes]: the target's token after each accepted node.
    :param accept_index: out, int [requests, depth + 1]: flat indices of the accepted nodes, the root first.
    :param accept_token_num: out, int [requests]: accepted drafts, the root not counted.
    :param candidates: int [requests, nodes], the tree's tokens.
    :param retrive_index: int [requests, nodes], each node's flat index (the spelling is the op's).
    :param retrive_next_token, retrive_next_sibling: int [requests, nodes], first child and next sibling or -1.
    :param target_predict: int [requests, nodes], the target's greedy token after each node.
    """
    target = target_predict.reshape(-1)
    requests, longest = accept_index.shape
    for request in range(requests):
        node, accepted = 0, 0
        last = int(retrive_index[request, 0])
        accept_index[request, 0] = last
        while accepted + 1 < longest:
            node = int(retrive_next_token[request, node])
            while node != -1 and int(candidates[request, node]) != int(target[last]):
                node = int(retrive_next_sibling[request, node])
            if node == -1:
                break
            predicts[last] = target[last]
            accepted += 1
            last = int(retrive_index[request, node])
            accept_index[request, accepted] = last
        accept_token_num[request] = accepted
        predicts[last] = target[last]
