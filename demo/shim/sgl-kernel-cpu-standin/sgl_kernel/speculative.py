# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one op of ``sgl_kernel.speculative`` the CPU path imports."""

from __future__ import annotations

import torch


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Derive positions and tree links from ancestor masks; all four outputs are changed in place.

    :param tree_mask: bool [requests * nodes * nodes]; ``[r, i, j]``: node j is node i or an ancestor of it.
    :param verified_seq_len: int [requests], tokens before the tree.
    :param positions: out, int [requests * nodes].
    :param retrive_index: out, int [requests, nodes], each node's flat index (the spelling is the op's).
    :param retrive_next_token, retrive_next_sibling: out, int [requests, nodes], first child and next sibling or -1.
    """
    nodes = range(draft_token_num)
    masks = tree_mask.reshape(batch_size, draft_token_num, draft_token_num).bool().tolist()
    for request, (mask, length) in enumerate(zip(masks, verified_seq_len.tolist())):
        ancestors = [[j for j in range(i) if mask[i][j]] for i in nodes]
        parents = [max(above, default=-1) for above in ancestors]
        for i in nodes:
            flat = request * draft_token_num + i
            later = range(i + 1, draft_token_num)
            positions.view(-1)[flat] = length + len(ancestors[i])
            retrive_index.view(-1)[flat] = flat
            retrive_next_token.view(-1)[flat] = next((k for k in later if parents[k] == i), -1)
            retrive_next_sibling.view(-1)[flat] = next((k for k in later if i and parents[k] == parents[i]), -1)
