# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The runner of the controller and of the host program: real processes (see module_utils/runners.py)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed

TIMED_OUT = 124
NOT_FOUND = 127


def run(
    argv: t.Sequence[str],
    *,
    stdin: t.Optional[str] = None,
    env: t.Optional[t.Mapping[str, str]] = None,
    timeout: t.Optional[float] = None,
    on_line: t.Optional[t.Callable[[str], None]] = None,
) -> Completed:
    """Start a process in a session of its own, so that a timeout ends its children too."""
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if on_line else subprocess.PIPE,
            env={**os.environ, **(env or {})},
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Completed(NOT_FOUND, "", str(error))
    if on_line is None:
        return _collect(process, stdin, timeout)
    return _stream(process, stdin, timeout, on_line)


def _collect(process: subprocess.Popen[str], stdin: t.Optional[str], timeout: t.Optional[float]) -> Completed:
    try:
        stdout, stderr = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        _end(process)
        stdout, stderr = process.communicate()
        return Completed(TIMED_OUT, stdout, stderr)
    finally:
        # an interrupt does not reach what has a session of its own
        if process.poll() is None:
            _end(process)
    return Completed(process.returncode, stdout, stderr)


def _stream(
    process: subprocess.Popen[str], stdin: t.Optional[str], timeout: t.Optional[float], on_line: t.Callable[[str], None]
) -> Completed:
    late = threading.Event()

    def expire() -> None:
        late.set()
        _end(process)

    timer = threading.Timer(timeout, expire) if timeout is not None else None
    if timer:
        timer.start()
    try:
        if process.stdin:
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(stdin or "")
        lines = []
        for line in process.stdout or ():
            lines.append(line)
            on_line(line.rstrip("\n"))
        process.wait()
    finally:
        if timer:
            timer.cancel()
        if process.poll() is None:
            _end(process)
    return Completed(TIMED_OUT if late.is_set() else process.returncode, "".join(lines), "")


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
