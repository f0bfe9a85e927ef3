# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The runner of all tests counts what ran, and is red when nothing did."""

from __future__ import annotations

import runpy
import sys
import typing as t
from pathlib import Path

import pytest


class AnyLine(str):
    """Equal to any line."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str)

    __hash__ = str.__hash__


ANY_LINE = AnyLine()
RUNNER = Path(__file__).resolve().parents[1] / "run.py"


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> t.Any:
    loaded = runpy.run_path(str(RUNNER), run_name="runner")
    monkeypatch.setitem(loaded["run"].__globals__, "LOGS", tmp_path)
    monkeypatch.setitem(loaded["run"].__globals__, "CHECKOUT", tmp_path)
    return loaded


def outcome(runner: t.Any, tmp_path: Path, *, text: str = "", script: str = "") -> t.Any:
    """One kind run: a pytest file of this text, or a Python program."""
    if text:
        (tmp_path / "test_it.py").write_text(text)
        command = (sys.executable, "-m", "pytest", "-q", "--junit-xml", "{junit}", str(tmp_path / "test_it.py"))
    else:
        command = (sys.executable, "-c", script)
    return runner["run"](runner["Kind"]("kind", command), runner["Progress"]())


def test_pytests_results_are_counted(runner: t.Any, tmp_path: Path) -> None:
    seen = outcome(runner, tmp_path, text="def test_good():\n    pass\n\n\ndef test_bad():\n    assert 1 == 2\n")
    assert (seen.passed, seen.skipped, seen.failures) == (1, 0, {"test_it.test_bad": "assert 1 == 2"})


def test_lines_are_counted(runner: t.Any, tmp_path: Path) -> None:
    seen = outcome(runner, tmp_path, script="print('ok one'); print('skipped two'); print('not ok three: why')")
    assert (seen.passed, seen.skipped, seen.failures) == (1, 1, {"three": "why"})


def test_nothing_run_is_red(runner: t.Any, tmp_path: Path) -> None:
    assert outcome(runner, tmp_path, script="pass").failures == {"kind": "no test was run"}
    assert outcome(runner, tmp_path, text="VALUE = 1\n").failures


def test_a_command_that_fails_is_red_even_when_tests_passed(runner: t.Any, tmp_path: Path) -> None:
    assert outcome(runner, tmp_path, script="import sys; print('ok one'); sys.exit(3)").failures


def test_lanes_run_side_by_side_and_the_end_names_what_failed(
    runner: t.Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of the two waits for the other's file: one after the other they would wait for ever."""
    meet = (
        "import pathlib, sys, time\n"
        "pathlib.Path(sys.argv[2]).touch()\n"
        "while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)\n"
        "print('not ok %s: it broke' % sys.argv[1])"
    )
    kinds = tuple(
        runner["Kind"](name, (sys.executable, "-c", meet, other, name), lane=lane)
        for lane, (name, other) in enumerate((("one", "two"), ("two", "one")))
    )
    monkeypatch.setitem(runner["main"].__globals__, "KINDS", kinds)
    assert runner["main"]([]) == 1
    assert capsys.readouterr().out.splitlines()[-5:] == [
        *(line for kind, other in (("one", "two"), ("two", "one")) for line in (ANY_LINE, "    %s: it broke" % other)),
        "0 passed, 2 failed",
    ]
