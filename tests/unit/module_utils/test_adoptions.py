# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A unit made by hand becomes a release when it serves, and nothing is written when it does not; systemd and gate are doubles."""

from __future__ import annotations

import dataclasses
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import adoptions, gates, releases
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, OK, Finding, FindingError
from ansible_collections.specdec.serving.plugins.module_utils.layout import Layout
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed

UNIT = "sglang.service"
HEALTHY = Finding("gate.health", OK, UNIT, "is healthy")
SICK = Finding("gate.health", ERROR, UNIT, "does not answer", fix="look at its journal")


def adopt(root: Path, state: str = "active") -> dict[str, t.Any]:
    ask = {"served_model": "tiny", "prompts": ["one"], "health": "/health"}
    timeouts = {"start": 100, "stop": 10, "gate": 5}
    release = adoptions.compose("main", UNIT, "sglang", ("127.0.0.1", 30000), {}, timeouts, ask)
    spec = {"root": str(root), "release": dataclasses.asdict(release), "who": "ann", "why": "x"}
    shown = "LoadState=loaded\nActiveState=%s\nSubState=x\nMainPID=7\nNRestarts=0\nUnitFileState=enabled\n" % state
    return adoptions.adopt(spec, lambda *_words, **_options: Completed(0, shown, ""), lambda *_words, **_data: None)


def gate_of(monkeypatch: pytest.MonkeyPatch, finding: Finding) -> None:
    class Gate:
        def __init__(self, *_words: t.Any, **_options: t.Any) -> None: ...

        def pass_through(self) -> gates.Outcome:
            return gates.Outcome([finding], {}, {})

    monkeypatch.setattr(gates, "Gate", Gate)


def test_a_unit_that_serves_is_taken_over_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate_of(monkeypatch, HEALTHY)
    result = adopt(tmp_path)
    assert result["changed"] and releases.current(Layout(tmp_path), "main") == result["release"]
    done = result["findings"][0]
    assert (done["id"], done["verdict"], done["subject"]) == ("adopt.done", OK, UNIT)
    assert "it was not restarted" in done["message"] and result["release"] in done["message"]
    assert adoptions.was_enabled(Layout(tmp_path), "main")
    again = adopt(tmp_path)
    (finding,) = again["findings"]
    assert not again["changed"] and (finding["id"], "nothing to take over" in finding["message"]) == ("adopt.done", True)


def test_a_unit_that_does_not_run_is_not_taken_over(tmp_path: Path) -> None:
    with pytest.raises(FindingError) as caught:
        adopt(tmp_path, "failed")
    finding = caught.value.finding
    assert (finding.id, finding.verdict, finding.subject) == ("adopt.not-running", ERROR, UNIT)
    assert "failed" in finding.found and "take adopt out of the instance" in finding.fix
    assert not Layout(tmp_path).instances.exists()


def test_a_unit_that_does_not_serve_is_not_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate_of(monkeypatch, SICK)
    assert adopt(tmp_path) == {"changed": False, "findings": [SICK.as_dict()]}
    assert not Layout(tmp_path).instances.exists()
