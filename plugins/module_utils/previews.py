# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a job would do, asked before it is started: so a refusal starts nothing, and neither does a job without work."""

from __future__ import annotations

import typing as t

from . import jobs, pruning, removals, rollbacks, transactions
from .runners import Runner

#: Kind → what says what a job of it would do: its whole ``spec``, whether anything would be ``changed``, and ``lines``, ``diff``
#: and ``findings`` about it; and where it must not be started as it stands, ``refusal``, a finding. Raises FindingError.
_KINDS: t.Mapping[str, t.Callable[[t.Mapping[str, t.Any], Runner], dict[str, t.Any]]] = {
    "switch": transactions.preview,
    "rollback": rollbacks.preview,
    "prune": pruning.preview,
    "remove": removals.preview,
}


def preview(spec: t.Mapping[str, t.Any], runner: Runner) -> t.Optional[dict[str, t.Any]]:
    """What the job of a spec would do; None for a kind that only its plan describes. Raises jobs.Busy and FindingError."""
    if spec["kind"] not in _KINDS:
        return None
    jobs.refuse_busy(runner)
    return _KINDS[spec["kind"]](spec, runner)
