# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a stopped release may leave behind: processes of its unit, and memory that they hold on GPUs.

A unit made by hand with ``KillMode=process`` leaves its workers; a process stuck in a driver keeps its memory after its end.
"""

from __future__ import annotations

import time
import typing as t
from pathlib import Path

from . import gates, gpus
from .findings import COULD_NOT_CHECK, ERROR, OK, Finding
from .runners import Runner

#: Seconds until what was killed has to be gone: a driver needs a moment for a large GPU's memory.
PATIENCE = 30.0
_POLL = 0.1
_SUBJECT = "what served before"


def processes(units: t.Iterable[str], runner: Runner, proc: Path = gates.PROC) -> list[gates.Listener]:
    """Every process of these units' control groups; a container's own unit of the same name is another one."""
    shown = [runner(["systemctl", "show", "--value", "--property=ControlGroup", unit], timeout=30).stdout.strip() for unit in units]
    groups = [group for group in shown if group.startswith("/")]
    found = [gates.process(directory) for directory in proc.glob("[0-9]*")] if groups else []
    return [one for one in found if any((one.cgroup + "/").startswith(group + "/") for group in groups)]


def gone(
    before: t.Sequence[gates.Listener],
    uses_gpus: bool,
    root: str,
    runner: Runner,
    proc: Path = gates.PROC,
    files: Path = Path("/"),
    patience: float = PATIENCE,
) -> Finding:
    """``transaction.old-release``: whether processes from before a stop are gone, and hold no memory of a GPU; waits for it.

    :param files: root of the host's file system (``/`` but in tests).
    """
    end = time.monotonic() + patience
    while True:
        # a pid may have been given to another process since
        alive = [one for one in before if gates.process(proc / str(one.pid)).started == one.started and one.started]
        held = gpus.holders(root, runner, files) if uses_gpus and not alive else {}
        holding = {one.pid: held[one.pid] for one in before if one.pid in held} if held is not None else {}
        if not (alive or holding):
            break
        if time.monotonic() > end:
            return _left(alive, holding)
        time.sleep(_POLL)
    if held is None:
        message = "its processes are gone; whether they hold memory of a GPU is not known"
        return Finding("transaction.old-release", COULD_NOT_CHECK, _SUBJECT, message, fix="see what nvidia-smi says")
    memory = ", and hold no memory of a GPU" if uses_gpus else ""
    return Finding("transaction.old-release", OK, _SUBJECT, "its %d processes are gone%s" % (len(before), memory))


def _left(alive: t.Sequence[gates.Listener], holding: t.Mapping[t.Optional[int], t.Optional[int]]) -> Finding:
    told = [one.text() for one in alive]
    told += ["process %s holds %s" % (pid, "%.1f GB" % (size / 1e9) if size else "memory") for pid, size in holding.items()]
    return Finding(
        "transaction.old-release",
        ERROR,
        _SUBJECT,
        "is stopped, but its processes %s" % ("are not gone" if alive else "still hold memory of GPUs"),
        found="; ".join(told),
        expected="none",
        cause="its unit leaves workers behind (KillMode=process), or a driver does not let go of them",
        fix="end those processes; if they cannot be killed, reset the GPU or restart the host, then run the deploy again",
    )
