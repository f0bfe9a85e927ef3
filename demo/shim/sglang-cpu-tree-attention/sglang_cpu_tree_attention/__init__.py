# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SGLang plugin: the torch_native attention backend verifies a draft tree.

On the CPU SGLang verifies trees with its AMX kernels only. This plugin (entry-point group
``sglang.srt.plugins``) lets ``torch_native`` do it too: while a tree is verified each node sees the
verified text and its own ancestors. Everything else goes to the backend's own method.
"""

from __future__ import annotations

import typing as t

import torch
from torch.nn.functional import scaled_dot_product_attention


def register() -> None:
    """Replace ``TorchNativeAttnBackend.forward_extend``; called once per process by SGLang."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    plain = TorchNativeAttnBackend.forward_extend

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True):
        if forward_batch.forward_mode.is_target_verify():
            return _verify(self, q, k, v, layer, forward_batch, save_kv_cache)
        return plain(self, q, k, v, layer, forward_batch, save_kv_cache)

    TorchNativeAttnBackend.forward_extend = forward_extend


def _verify(
    backend: t.Any,
    q: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    layer: t.Any,
    forward_batch: t.Any,
    save_kv_cache: bool,
) -> torch.Tensor:
    """Attention of all tree nodes of a batch: q [requests * nodes, heads * head size] to the same shape."""
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    pool = backend.token_to_kv_pool
    if save_kv_cache and k is not None and v is not None:
        pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, backend.swa_out_cache_loc), k, v)
    keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)

    requests, nodes = forward_batch.batch_size, forward_batch.spec_info.draft_token_num
    queries = q.view(requests, nodes, layer.tp_q_head_num, layer.qk_head_dim)
    trees = forward_batch.spec_info.custom_mask.reshape(requests, nodes, nodes).bool()
    outputs = []
    for query, tree, row, verified in zip(queries, trees, forward_batch.req_pool_indices, forward_batch.seq_lens.tolist()):
        locations = backend.req_to_token_pool.req_to_token[row, : verified + nodes].long()
        mask = torch.cat([tree.new_ones(nodes, verified), tree], dim=1)
        output = scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            keys[locations].transpose(0, 1)[None].to(q.dtype),
            values[locations].transpose(0, 1)[None].to(q.dtype),
            attn_mask=mask,
            scale=layer.scaling,
            enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
        )
        outputs.append(output[0].transpose(0, 1))
    return torch.cat(outputs).reshape(requests * nodes, -1)
