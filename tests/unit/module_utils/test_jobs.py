# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs: the lock, what a job leaves behind, and how it is followed."""

from __future__ import annotations

import importlib
import json
import sys
import types
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import jobs
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, WARNING, Finding, FindingError
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed

SPEC = {"schema": 1, "kind": "prove", "instance": "main", "who": "ann", "why": "x", "deadline": 100}


class Systemd:
    """The job unit."""

    def __init__(self) -> None:
        self.state: dict[str, str] = {"ActiveState": "inactive"}
        self.started: list[str] = []
        self.refusal = ""

    def runner(self, argv: t.Sequence[str], **_options: t.Any) -> Completed:
        if argv[0] == "systemd-run":
            if self.refusal:
                return Completed(1, "", self.refusal)
            self.started = list(argv)
            description = next(word for word in argv if word.startswith("--description="))
            self.state = {"ActiveState": "active", "Description": description.partition("=")[2]}
            return Completed(0, "", "")
        return Completed(0, "".join("%s=%s\n" % item for item in self.state.items()), "")


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    monkeypatch.setattr(jobs, "JOBS", tmp_path / "jobs")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "specdec").write_bytes(b"program")
    return Systemd()


def spec(tmp_path: Path, **more: t.Any) -> dict[str, t.Any]:
    return {**SPEC, "root": str(tmp_path), **more}


def test_job_keeps_the_program_it_was_started_with(tmp_path: Path, systemd: Systemd) -> None:
    directory = Path(jobs.start(spec(tmp_path), systemd.runner)["directory"])
    assert systemd.started[-2:] == ["job", str(directory)] and str(directory / "specdec") in systemd.started
    assert (directory / "specdec").read_bytes() == b"program"
    assert json.loads((directory / "spec.json").read_text(encoding="utf-8"))["kind"] == "prove"
    assert (directory / "spec.json").stat().st_mode & 0o777 == 0o600 and directory.stat().st_mode & 0o777 == 0o700


def test_switch_is_recovered_within_its_deadline_and_a_build_is_not(tmp_path: Path, systemd: Systemd) -> None:
    jobs.start(spec(tmp_path, kind="switch"), systemd.runner)
    assert any(word.startswith("--property=ExecStopPost=") and " recover --job " in word for word in systemd.started)
    assert {"--property=RuntimeMaxSec=160", "--property=TimeoutStopSec=160"} <= set(systemd.started)
    jobs.start(spec(tmp_path, kind="build"), systemd.runner)
    assert not any("ExecStopPost" in word or "RuntimeMaxSec" in word for word in systemd.started)


def test_second_job_is_told_about_the_first(tmp_path: Path, systemd: Systemd) -> None:
    jobs.start(spec(tmp_path, kind="switch"), systemd.runner)
    systemd.refusal = "Unit specdec-job.service was already loaded"
    with pytest.raises(jobs.Busy, match="switch of main for ann"):
        jobs.start(spec(tmp_path, who="bob"), systemd.runner)
    assert len(list(jobs.JOBS.iterdir())) == 1


def test_refusal_for_another_reason_is_no_lock(tmp_path: Path, systemd: Systemd) -> None:
    systemd.refusal = "Failed to connect to bus"
    with pytest.raises(jobs.NotStarted, match="connect to bus"):
        jobs.start(spec(tmp_path), systemd.runner)


def test_old_jobs_are_forgotten(tmp_path: Path, systemd: Systemd) -> None:
    directories = [jobs.start(spec(tmp_path), systemd.runner)["directory"] for _number in range(15)]
    assert len(list(jobs.JOBS.iterdir())) == 11 and Path(directories[-1]).exists()


def test_follow_hands_out_every_whole_line_once(tmp_path: Path, systemd: Systemd) -> None:
    directory = Path(jobs.start(spec(tmp_path), systemd.runner)["directory"])
    tell = jobs.progress_to(directory / "progress.jsonl")
    tell("a", "one", extra=1)
    with (directory / "progress.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"stage": "torn')
    news = jobs.follow(directory, 0, 5, systemd.runner)
    assert [(line["stage"], line["message"], line["extra"]) for line in news["lines"]] == [("a", "one", 1)]
    assert not news["done"] and not news["lost"]
    again = jobs.follow(directory, news["offset"], 0, systemd.runner)
    assert again["lines"] == [] and again["offset"] == news["offset"]


def test_end_is_told_when_the_lock_is_free(tmp_path: Path, systemd: Systemd) -> None:
    directory = Path(jobs.start(spec(tmp_path), systemd.runner)["directory"])
    jobs.finish(directory, {"findings": []})
    systemd.state["ActiveState"] = "deactivating"
    news = jobs.follow(directory, 0, 0, systemd.runner)
    assert not news["done"] and news["result"] is None
    systemd.state = {"ActiveState": "inactive"}
    news = jobs.follow(directory, 0, 5, systemd.runner)
    assert news["done"] and news["result"]["ok"] and not news["lost"]


@pytest.mark.parametrize("state", [{"ActiveState": "inactive"}, {"ActiveState": "active", "Description": "another [ffff]"}])
def test_job_without_a_result_is_lost(tmp_path: Path, systemd: Systemd, state: dict[str, str]) -> None:
    directory = jobs.start(spec(tmp_path), systemd.runner)["directory"]
    systemd.state = state
    news = jobs.follow(directory, 0, 5, systemd.runner)
    assert news["done"] and news["lost"] and news["result"] is None


def test_queued_job_is_not_lost(tmp_path: Path, systemd: Systemd) -> None:
    directory = jobs.start(spec(tmp_path), systemd.runner)["directory"]
    systemd.state.update(ActiveState="inactive", Job="17")
    assert not jobs.follow(directory, 0, 0, systemd.runner)["lost"]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> t.Callable[..., dict[str, t.Any]]:
    """Run a job whose work is a function of the test's."""

    def run(function: t.Callable[..., t.Any], **changes: t.Any) -> dict[str, t.Any]:
        module = types.ModuleType("work")
        vars(module)["do"] = function
        monkeypatch.setitem(sys.modules, jobs.__package__ + ".work", module)
        monkeypatch.setattr(jobs, "KINDS", {"prove": ("work", "do")})
        (tmp_path / "spec.json").write_text(json.dumps(spec(tmp_path, **changes)), encoding="utf-8")
        result = jobs.run(tmp_path, lambda *_a, **_k: Completed(0, "", ""))
        assert json.loads((tmp_path / "result.json").read_text(encoding="utf-8")) == result
        return result

    return run


def test_work_gets_what_it_needs(work: t.Callable[..., dict[str, t.Any]], tmp_path: Path) -> None:
    def do(given: dict[str, t.Any], runner: t.Any, progress: t.Any) -> dict[str, t.Any]:
        progress("stage", runner(["x"]).stdout + given["instance"])
        return {"findings": [], "changed": True, "more": 1}

    assert work(do) == {"ok": True, "changed": True, "findings": [], "more": 1}
    assert json.loads((tmp_path / "progress.jsonl").read_text(encoding="utf-8"))["message"] == "main"


@pytest.mark.parametrize(("verdict", "ok"), [(ERROR, False), (WARNING, True)])
def test_findings_decide(work: t.Callable[..., dict[str, t.Any]], verdict: str, ok: bool) -> None:
    result = work(lambda *_a: {"findings": [Finding("a.b", verdict, "s", "m", fix="f").as_dict()]})
    assert result["ok"] is ok


def test_finding_that_stops_the_work_is_the_result(work: t.Callable[..., dict[str, t.Any]]) -> None:
    def do(*_arguments: t.Any) -> t.NoReturn:
        raise FindingError(Finding("a.b", ERROR, "s", "m", fix="f"))

    assert [finding["id"] for finding in work(do)["findings"]] == ["a.b"]


def test_exception_becomes_a_finding_with_its_traceback(work: t.Callable[..., dict[str, t.Any]]) -> None:
    def do(*_arguments: t.Any) -> t.NoReturn:
        raise ZeroDivisionError("by hand")

    result = work(do)
    assert not result["ok"] and result["findings"][0]["id"] == "job.failed"
    assert "by hand" in result["findings"][0]["message"] and "in do" in result["findings"][0]["evidence"]


@pytest.mark.parametrize("changes", [{"kind": "dance"}, {"schema": 2}])
def test_job_of_another_version_is_refused(work: t.Callable[..., dict[str, t.Any]], changes: dict[str, t.Any]) -> None:
    assert work(lambda *_a: {"findings": []}, **changes)["findings"][0]["id"] == "job.unknown"


def test_every_kind_has_its_work() -> None:
    for module, function in jobs.KINDS.values():
        assert callable(getattr(importlib.import_module("." + module, jobs.__package__), function))


def test_secrets_reach_a_job_as_files_and_go_with_it(tmp_path: Path, systemd: Systemd, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = Path(jobs.start(spec(tmp_path), systemd.runner, {"hub_token": "hf_secretValue"})["directory"])
    written = (directory / "spec.json").read_text(encoding="utf-8")
    path = Path(json.loads(written)["secret_files"]["hub_token"])
    assert path.read_text(encoding="utf-8") == "hf_secretValue"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert "hf_secretValue" not in written + " ".join(systemd.started)
    monkeypatch.setattr(jobs, "KINDS", {})
    jobs.run(directory, systemd.runner)
    assert not path.exists()


def test_the_secrets_of_a_job_that_was_killed_go_when_that_is_seen(tmp_path: Path, systemd: Systemd) -> None:
    directory = Path(jobs.start(spec(tmp_path), systemd.runner, {"hub_token": "hf_secretValue"})["directory"])
    assert not jobs.follow(directory, 0, 0, systemd.runner)["done"] and (directory / "secrets" / "hub_token").exists()
    systemd.state = {"ActiveState": "inactive"}
    assert jobs.follow(directory, 0, 0, systemd.runner)["lost"] and not (directory / "secrets").exists()


def test_the_secrets_of_a_job_that_was_killed_unseen_go_with_the_next(tmp_path: Path, systemd: Systemd) -> None:
    first = Path(jobs.start(spec(tmp_path), systemd.runner, {"hub_token": "hf_secretValue"})["directory"])
    systemd.state = {"ActiveState": "inactive"}
    second = Path(jobs.start(spec(tmp_path), systemd.runner, {"hub_token": "hf_secretValue"})["directory"])
    assert not (first / "secrets").exists() and (second / "secrets" / "hub_token").exists()


def test_a_job_without_its_program_leaves_nothing(tmp_path: Path, systemd: Systemd) -> None:
    (tmp_path / "bin" / "specdec").unlink()
    with pytest.raises(jobs.NotStarted, match="program is not there"):
        jobs.start(spec(tmp_path), systemd.runner, {"hub_token": "hf_secretValue"})
    assert systemd.started == [] and list((tmp_path / "jobs").iterdir()) == []


@pytest.mark.parametrize(("number", "message"), [(28, "the file system is full"), (30, "the file system cannot be written to")])
def test_a_file_system_that_takes_nothing_is_named_instead_of_a_traceback(number: int, message: str) -> None:
    finding = jobs.unexpected(OSError(number, "no", "/opt/specdec/state"))
    assert (finding.id, finding.verdict, finding.subject) == ("job.disk", ERROR, "/opt/specdec/state")
    assert message in finding.message and "/opt/specdec/state" in finding.evidence
    assert "free some space" in finding.fix
    assert jobs.unexpected(OSError(5, "Input/output error")).id == "job.failed"
