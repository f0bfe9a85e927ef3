# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands against a way to speculate: data/speculation.yml, and what the configurations of model and draft say; before a start."""

from __future__ import annotations

import typing as t

from . import architectures
from .architectures import Situation, text_config
from .findings import ERROR, WARNING, Finding

Row = t.Mapping[str, t.Any]

DFLASH = "DFLASH"


def rules(table: Row, here: Situation, written: t.Callable[[str, str], str]) -> list[Finding]:
    """What the engine's version says against the arguments.

    :param written: names where an argument is written, given the argument and the option that says it.
    """
    return [
        Finding("speculative." + row["check"], subject=written(option, row["variable"]), **architectures.told(row, here, option))
        for row, option in architectures.hits(table["rules"], here)
    ]


def target(
    table: Row, algorithm: str, version: str, model: t.Optional[Row], changed: bool, subject: t.Callable[[str], str]
) -> list[Finding]:
    """Whether SGLang's code of this model hands a DFlash draft what it reads.

    :param model: see modelfiles.describe; None while it is not there.
    :param changed: overlays change the engine's models, so that the table does not hold.
    """
    from packaging.version import Version

    names = ((model or {}).get("config") or {}).get("architectures") or ()
    releases = [one for one in table["targets"] if Version(one) <= Version(version)]
    known = {name for one in releases for name in table["targets"][one]}
    if algorithm.upper() != DFLASH or changed or not known or not names or known & set(names):
        return []
    since = [one for one, listed in table["targets"].items() if set(listed) & set(names)]
    fix = "Choose another algorithm, or give the instance an overlay whose model has set_dflash_layers_to_capture."
    if since:
        fix = "Choose SGLang %s or newer, or another algorithm." % min(since, key=Version)
    message = "SGLang %s has no DFlash for this class of models" % version
    evidence = "set_dflash_layers_to_capture in its srt/models"
    found, expected = ", ".join(names), "one of %s" % ", ".join(sorted(known))
    return [Finding("speculative.target", ERROR, subject("model"), message, found, expected, evidence, fix=fix)]


def judge(algorithm: str, joined: bool, instance: Row, described: t.Mapping[str, Row], subject: t.Callable[[str], str]) -> list[Finding]:
    """Refusals by what the draft's configuration says; what is not known (a model that is not there yet) is not judged.

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
    if name == DFLASH and kind == DFLASH and tokens and isinstance(block, int):
        found += _block(tokens, block, joined, subject("speculative.num_draft_tokens"))
    return found


def _block(tokens: int, block: int, joined: bool, subject: str) -> list[Finding]:
    """One engine counts the block's anchor, the other does not: a number that is carried over is one off."""
    expected = "%d (a block of %d%s)" % (block - joined, block, " without its anchor" if joined else "")
    if tokens > block - joined:
        return [_refused("block", subject, tokens, expected, "is more than the draft proposes at once")]
    if not joined and tokens == block - 1:
        message = "is one less than the draft proposes: SGLang counts the anchor of the block, vLLM does not"
        fix = "Write %d." % block
        return [Finding("speculative.block", WARNING, subject, message, str(tokens), expected, fix=fix)]
    return []


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
