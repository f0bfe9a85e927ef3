# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands against a way to speculate, by the configurations of model and draft: before anything is started."""

from __future__ import annotations

import typing as t

from .architectures import text_config
from .findings import ERROR, Finding

Row = t.Mapping[str, t.Any]

DFLASH = "DFLASH"


def judge(algorithm: str, joined: bool, instance: Row, described: t.Mapping[str, Row], subject: t.Callable[[str], str]) -> list[Finding]:
    """Refusals; what is not known (a model that is not there yet) is not judged.

    :param algorithm: as the user writes it; :param joined: the engine counts without the anchor of a block, as vLLM does.
    :param described: ``model`` and ``draft`` where they are there, see modelfiles.describe.
    :param subject: gives the subject of an option.
    """
    name, speculative = algorithm.upper(), instance["speculative"]
    draft = (described.get("draft") or {}).get("config")
    tokens, window = speculative.get("num_draft_tokens"), speculative.get("draft_window")
    found = []
    if tokens and window and window < tokens:
        found.append(
            _refused("window", subject("speculative.draft_window"), window, "%d or more" % tokens, "is shorter than what is drafted")
        )
    if name == DFLASH and (instance.get("pipeline_parallel") or 1) > 1:
        message = "DFLASH does not work over stages of a pipeline"
        found.append(_refused("parallel", subject("pipeline_parallel"), instance["pipeline_parallel"], "1", message))
    if draft is None:
        return found
    kind = head(draft)
    wanted = {"EAGLE": "EAGLE", "EAGLE3": "EAGLE3", DFLASH: DFLASH}.get(name)
    if wanted and kind != wanted and (kind or wanted == DFLASH):
        message = "the draft is not one for %s" % name
        found.append(
            _refused("head", subject("draft"), "a draft for %s" % (kind or "another algorithm"), "a draft for %s" % wanted, message)
        )
    block = (draft.get("dflash_config") or {}).get("block_size") or draft.get("block_size")
    if name == DFLASH and kind == DFLASH and tokens and isinstance(block, int) and tokens > block - joined:
        message = "is more than the draft proposes at once"
        expected = "%d (a block of %d%s)" % (block - joined, block, " without its anchor" if joined else "")
        found.append(_refused("block", subject("speculative.num_draft_tokens"), tokens, expected, message))
    return found


def head(config: Row) -> str:
    """The algorithm that a draft was made for, empty for a whole model: its architecture says it, or what else it configures."""
    names = " ".join(config.get("architectures") or ()).lower()
    if "dflash" in names or config.get("dflash_config"):
        return DFLASH
    if "eagle3" in names or text_config(config).get("draft_vocab_size"):
        return "EAGLE3"
    return "EAGLE" if "eagle" in names else ""


def _refused(check: str, subject: str, found: t.Any, expected: str, message: str) -> Finding:
    return Finding(
        "speculative." + check, ERROR, subject, message, str(found), expected, fix="Give what is expected, or choose another algorithm."
    )
