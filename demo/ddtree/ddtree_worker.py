# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""DDTREE's worker: the draft model's tree, verified by the target in one pass.

Verification, acceptance and KV commit are NGRAMWorker's; only the tree comes from elsewhere.
"""

from __future__ import annotations

import logging

import numpy as np
import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.runtime_context import get_device, get_schedule, get_spec
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from sglang.srt.speculative.ddtree_utils import grow_tree, tree_mask
from sglang.srt.speculative.ngram_worker import NGRAMWorker

logger = logging.getLogger(__name__)

#: Tokens of text the draft model sees.
DRAFT_WINDOW = 64


class _NoCorpus:
    """Stands where NGRAMWorker keeps its corpus, which needs a C++ build."""

    def reset(self) -> None:
        pass

    def erase_match_state(self, rids: list) -> None:
        pass


class DDTreeWorker(NGRAMWorker):
    """NGRAMWorker with a draft model in place of the n-gram corpus."""

    def __init__(self, server_args: ServerArgs, gpu_id: int, nccl_port: int, target_worker: TpModelWorker):
        BaseSpecWorker.__init__(self)  # not NGRAMWorker's own, which builds the corpus
        spec, schedule = get_spec(), get_schedule()
        if not schedule.disable_overlap_schedule:
            raise ValueError("DDTREE does not support overlap scheduling.")
        self.server_args = server_args
        self.enable_overlap = False
        self._target_worker = target_worker
        self.model_runner = target_worker.model_runner
        self.page_size = schedule.page_size
        self.device = get_device().device
        self.draft_token_num = spec.speculative_num_draft_tokens
        self.speculative_num_draft_tokens = spec.speculative_num_draft_tokens
        self.speculative_num_steps = spec.speculative_num_steps
        self.topk = spec.speculative_eagle_topk
        self.adaptive_controller = None
        self.grammar_tree_host = None
        self._prev_decode_rids = set()
        self.ngram_corpus = _NoCorpus()
        self.draft_model = self._load_draft(spec.speculative_draft_model_path)

    def _load_draft(self, path: str) -> torch.nn.Module:
        """Load the draft model.

        :raises ValueError: its vocabulary is not the target's.
        """
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        drafts, targets = model.config.vocab_size, self.model_runner.model_config.vocab_size
        if drafts != targets:
            raise ValueError(f"DDTREE's draft has a vocabulary of {drafts}, the target of {targets}.")
        shape = (self.draft_token_num - 1, self.speculative_num_steps, self.topk)
        logger.info("DDTREE draft model loaded from %s: budget=%d depth=%d topk=%d", path, *shape)
        return model

    def _prepare_draft_tokens(self, batch: ScheduleBatch) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens [requests * nodes] and ancestor masks [requests * nodes * nodes]."""
        tokens, masks = [], []
        for req in batch.reqs:
            context = (list(req.origin_input_ids_unpadded[-DRAFT_WINDOW:]) + list(req.output_ids[-DRAFT_WINDOW:]))[-DRAFT_WINDOW:]
            nodes, parents = grow_tree(self.draft_model, context, self.draft_token_num - 1, self.speculative_num_steps, self.topk)
            tokens.append(nodes)
            masks.append(tree_mask(parents))
        return np.array(tokens, dtype=np.int64).ravel(), np.stack(masks).ravel()

    def _update_ngram_corpus(self, batch: ScheduleBatch) -> None:
        pass
