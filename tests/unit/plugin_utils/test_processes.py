# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host program's runner keeps what the core's protocol promises."""

from __future__ import annotations

import time

import pytest

from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed
from ansible_collections.specdec.serving.plugins.plugin_utils.processes import run


def test_streams_status_stdin_and_environment() -> None:
    done = run(["sh", "-c", 'cat; echo "$A"; echo err >&2; exit 3'], stdin="in ", env={"A": "b"})
    assert done == Completed(3, "in b\n", "err\n")


def test_no_stdin_is_an_empty_one() -> None:
    assert run(["cat"], timeout=20) == Completed(0, "", "")


def test_signal_is_a_negative_status() -> None:
    assert run(["sh", "-c", "kill -9 $$"]).rc == -9


def test_missing_program() -> None:
    done = run(["/no/such/program"])
    assert done.rc == 127 and "No such file" in done.stderr


@pytest.mark.parametrize("streaming", [False, True])
def test_timeout_ends_children_too(streaming: bool) -> None:
    lines: list[str] = []
    begun = time.monotonic()
    done = run(["sh", "-c", "echo begun; sleep 600 & wait"], timeout=0.5, on_line=lines.append if streaming else None)
    assert done.rc == 124 and done.stdout == "begun\n" and time.monotonic() - begun < 60
    assert lines == (["begun"] if streaming else [])


def test_lines_come_while_the_process_runs() -> None:
    seen: list[tuple[str, float]] = []
    done = run(["sh", "-c", "echo one; sleep 0.5; echo two >&2; printf three"], on_line=lambda line: seen.append((line, time.monotonic())))
    assert [line for line, _when in seen] == ["one", "two", "three"]
    assert seen[1][1] - seen[0][1] > 0.3 and done == Completed(0, "one\ntwo\nthree", "")


def test_bytes_that_are_no_text_do_no_harm() -> None:
    assert run(["printf", "a\\377b"]).stdout == "a\ufffdb"
