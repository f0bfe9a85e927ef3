# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a person reads on the host."""

from __future__ import annotations

import argparse
import json
import types
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import checks
from ansible_collections.specdec.serving.plugins.module_utils.findings import FindingError
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed
from specdec import main

SEEN = {
    "instance": "main",
    "release": "r2",
    "running": "r2",
    "facts": {"engine": {"name": "sglang", "version": "1"}, "environment": "abc", "host": "127.0.0.1", "port": 30000},
    "problem": None,
    "state": {"ActiveState": "active", "SubState": "running", "StateChangeTimestamp": "Mon 03:00", "NRestarts": "0"},
    "healthy": True,
    "history": [
        {"when": 0, "what": "switch", "from": None, "to": "r1", "verdict": "committed", "who": "ann", "why": "first", "acceptance": 2.5},
        {"when": 1, "what": "switch", "from": "r1", "to": "r2", "verdict": "committed", "who": "bob", "why": "", "acceptance": None},
    ],
    "unfinished": None,
    "way_back": ["r1"],
}


def lines(**changes: t.Any) -> list[str]:
    return [line.strip() for line in main.status_text({**SEEN, **changes}).splitlines()]


def test_status_says_what_runs_and_how_to_go_back() -> None:
    said = lines()
    assert said[0] == "main: healthy"
    assert "go back      specdec rollback main    (to r1)" in said
    assert any("sglang 1" in line for line in said) and any("127.0.0.1:30000" in line for line in said)
    assert any("nothing → r1: committed, acceptance 2.50, ann, first" in line for line in said)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"healthy": False}, "main: NOT HEALTHY"),
        ({"healthy": None}, "main: not running"),
        ({"running": "r1"}, "BUT RUNS     r1: restart it: systemctl restart specdec-main"),
        ({"unfinished": {"what": "switch", "to": "r3", "step": "gating"}}, "UNFINISHED   switch to r3, last step: gating"),
        ({"release": None, "facts": None, "running": None}, "release      none: nothing has served here"),
    ],
)
def test_status_says_what_is_wrong(changes: dict[str, t.Any], expected: str) -> None:
    assert expected in lines(**changes)


def test_nothing_to_go_back_to_is_not_offered() -> None:
    assert not any("rollback main" in line for line in lines(way_back=[]))


def call(root: Path, *arguments: str) -> int:
    return main.main(["--root", str(root), *arguments])


def test_unknown_instance_names_the_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "instances" / "main").mkdir(parents=True)
    assert call(tmp_path, "status", "mian") == 1
    assert "expected: main" in capsys.readouterr().err
    with pytest.raises(FindingError) as refused:
        main._instances(argparse.Namespace(root=str(tmp_path), instance="mian"))
    assert (refused.value.finding.id, refused.value.finding.subject) == ("instance.unknown", "instance mian")
    assert refused.value.finding.fix == "name one of these"


def test_rollback_without_a_way_back_is_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "instances" / "main").mkdir(parents=True)
    assert call(tmp_path, "rollback", "main") == 1
    said = capsys.readouterr().err
    assert "no release to go back to" in said and "Traceback" not in said


def test_recovery_after_a_job_that_ended_well_does_nothing(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (job / "spec.json").write_text(json.dumps({"root": str(tmp_path), "kind": "switch"}), encoding="utf-8")
    assert call(tmp_path, "recover", "--job", str(job)) == 0
    assert [path.name for path in job.iterdir()] == ["spec.json"]


def test_recovery_by_hand_waits_for_a_job_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "run", lambda *_a, **_k: Completed(0, "ActiveState=active\nDescription=a switch\n", ""))
    assert call(tmp_path, "recover") == 1
    assert "busy: a switch" in capsys.readouterr().err


def test_job_s_status_is_its_result(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps({"schema": 1, "kind": "dance"}), encoding="utf-8")
    assert call(tmp_path, "job", str(tmp_path)) == 1
    assert json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["findings"][0]["found"].startswith("kind dance")


def test_diagnosis_names_cause_and_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "instances" / "main").mkdir(parents=True)
    text = 'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\nOSError: [Errno 98] Address already in use\n'
    monkeypatch.setattr(main, "run", lambda argv, **_k: Completed(0, "" if "--dmesg" in argv else text, ""))
    assert call(tmp_path, "diagnose") == 1
    said = capsys.readouterr().out
    assert "Address already in use" in said and "ss -ltnp" in said
    assert "systemctl restart specdec-main.service" in said


def test_diagnosis_of_a_unit_that_was_made_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(main, "run", lambda argv, **_k: asked.extend(argv) or Completed(0, "" if "--dmesg" in argv else "serving\n", ""))
    assert call(tmp_path, "diagnose", "vllm.service") == 0
    assert "--unit=vllm.service" in asked


def test_diagnosis_of_a_healthy_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "instances" / "main").mkdir(parents=True)
    monkeypatch.setattr(main, "run", lambda argv, **_k: Completed(0, "" if "--dmesg" in argv else "serving\n", ""))
    assert call(tmp_path, "diagnose", "main") == 0


def test_verify_asks_for_the_engine_of_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "instances" / "main").mkdir(parents=True)
    asked: list[dict[str, t.Any]] = []
    monkeypatch.setattr(main.releases, "current", lambda *_: "r2")
    monkeypatch.setattr(main.releases, "load", lambda *_: types.SimpleNamespace(facts=SEEN["facts"]))
    monkeypatch.setattr(checks, "prove", lambda spec, *_: asked.append(spec) or {"findings": []})
    main.main(["--root", str(tmp_path), "verify", "main"])
    assert asked[0]["wanted"] == {"engine": "sglang", "version": "1"}
