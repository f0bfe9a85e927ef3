# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the core starts a process: it does not; whoever calls it hands in a runner."""

from __future__ import annotations

import dataclasses
import typing as t


@dataclasses.dataclass(frozen=True)
class Completed:
    """What a process left behind: exit status (negative: minus the signal), decoded output."""

    rc: int
    stdout: str
    stderr: str


class Runner(t.Protocol):
    """Start ``argv`` (no shell), wait, return what it left behind.

    ``env`` is added to the caller's environment; ``timeout`` is in seconds and gives rc 124 when it
    passes; a program that is not there gives rc 127. Nothing is raised. With ``on_line`` both streams
    are merged into ``stdout``, and every line is handed over without its end as soon as it is there.
    """

    def __call__(
        self,
        argv: t.Sequence[str],
        *,
        stdin: t.Optional[str] = None,
        env: t.Optional[t.Mapping[str, str]] = None,
        timeout: t.Optional[float] = None,
        on_line: t.Optional[t.Callable[[str], None]] = None,
    ) -> Completed: ...


class Progress(t.Protocol):
    """Tell whoever waits what is being done: a short stage name and one line."""

    def __call__(self, stage: str, message: str, **data: t.Any) -> None: ...
