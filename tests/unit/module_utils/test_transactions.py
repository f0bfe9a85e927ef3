# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The transaction's decisions, with systemd and the engine played by a double: wherever it ends, it ends well."""

from __future__ import annotations

import contextlib
import json
import os
import types
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import adoptions, gates, releases, remains, transactions, units
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, OK, Finding, FindingError
from ansible_collections.specdec.serving.plugins.module_utils.layout import Layout
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed

UNIT = "specdec-main.service"


class Killed(BaseException):
    """The process ends here; nothing after it runs."""


class Host:
    """systemd with one unit. Its engine runs the release that is current when it starts."""

    def __init__(self, directory: Path) -> None:
        self.layout = Layout(directory / "root")
        self.units = directory / "units"
        self.run = directory / "run"
        for path in (self.units, self.run, self.layout.instance("main")):
            path.mkdir(parents=True)
        self.active = False
        self.enabled: set[str] = set()
        self.said: list[str] = []
        self.bad: set[str] = set()
        self.calls: list[str] = []
        self.loaded: t.Optional[str] = None
        self.kill_at: t.Optional[int] = None
        self.stuck = False

    @property
    def running_file(self) -> Path:
        return self.run / "release"

    @property
    def running(self) -> t.Optional[str]:
        return self.running_file.read_text(encoding="utf-8") if self.active else None

    def moment(self) -> None:
        """A point at which the process may be killed."""
        if self.kill_at is not None:
            self.kill_at -= 1
            if self.kill_at < 0:
                self.kill_at = None
                raise Killed

    def runner(self, argv: t.Sequence[str], **_options: t.Any) -> Completed:
        self.moment()
        verb = argv[1]
        if argv[0] == "systemctl" and verb != "show":
            self.calls.append(verb)
        if verb == "show":
            return Completed(0, "".join("%s=%s\n" % item for item in self.state().items()), "")
        if verb == "start":
            self.start()
        elif verb == "stop" and not self.stuck:
            self.active = False
        elif verb == "enable":
            self.enabled.add(argv[-1])
        elif verb == "disable":
            self.enabled.discard(argv[-1])
        elif verb == "daemon-reload":
            self.loaded = self.unit_text()
        self.moment()
        return Completed(0, "", "")

    def unit_text(self) -> t.Optional[str]:
        path = self.units / UNIT
        return path.read_text(encoding="utf-8") if path.exists() else None

    def start(self) -> None:
        assert self.loaded is not None and self.loaded == self.unit_text(), "systemd would start a unit it has not read"
        current = releases.current(self.layout, "main")
        assert current is not None
        self.active = True
        self.running_file.write_text(current, encoding="utf-8")

    def boot(self) -> None:
        """Power was cut and is back; the recovery unit has run before the instance starts."""
        self.active = False
        self.running_file.unlink(missing_ok=True)
        transactions.flip_back(self.layout, self.runner)
        self.loaded = self.unit_text()
        if UNIT in self.enabled:
            self.start()

    def state(self) -> dict[str, str]:
        return {
            "ActiveState": "active" if self.active else "inactive",
            "SubState": "x",
            "NRestarts": "0",
            "UnitFileState": "enabled" if UNIT in self.enabled else "disabled",
            "TimeoutStopUSec": "1s",
            "NeedDaemonReload": "yes" if self.loaded != self.unit_text() else "no",
            "Job": "0",
        }

    def release(self, number: int, **facts: t.Any) -> str:
        """Put a release in place; its id."""
        made = releases.compose(
            str(self.layout.root),
            {
                "instance": "main",
                "environment": "abc",
                "engine": {"name": "double", "version": "1"},
                "command": [],
                "gate": {"timeout": 20},
                "stop_timeout": 30 + number,
                **facts,
            },
            {"number": number},
            "",
        )
        releases.store(self.layout, made)
        return made.id

    def job(self, kind: t.Callable[..., dict[str, t.Any]] = transactions.switch, **spec: t.Any) -> dict[str, t.Any]:
        whole = {"root": str(self.layout.root), "instance": "main", "who": "w", "why": "y", **spec}
        return kind(whole, self.runner, lambda _stage, message, **_data: self.said.append(message))

    def verdicts(self) -> list[tuple[t.Optional[str], str, str]]:
        return [(entry["from"], entry["to"], entry["verdict"]) for entry in releases.history(self.layout, "main")]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    environment = made.layout.environment("abc")
    environment.mkdir(parents=True)
    (environment / ".complete").touch()
    for module in (transactions, releases):
        monkeypatch.setattr(module, "UNITS", made.units)
    monkeypatch.setattr(units, "running_file", lambda _name: str(made.running_file))
    monkeypatch.setattr(transactions, "prepare_user", lambda *_args: None)
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)  # no power is cut here, and it takes its time

    def write_durably(path: Path, text: str, mode: int = 0o644, real: t.Any = releases.write_durably) -> None:
        made.moment()
        real(path, text, mode)
        made.moment()

    monkeypatch.setattr(releases, "write_durably", write_durably)

    class Gate:
        def __init__(self, release: dict[str, t.Any], *_args: t.Any, **_options: t.Any) -> None:
            self.release = release

        def pass_through(self) -> gates.Outcome:
            made.moment()
            good = made.running == self.release["id"] and made.running not in made.bad
            finding = Finding("gate.health", OK, UNIT, "m") if good else Finding("gate.health", ERROR, UNIT, "sick", fix="f")
            return gates.Outcome([finding], {"ready": 1.0}, {"acceptance": 2.0} if good else {})

    monkeypatch.setattr(gates, "Gate", Gate)
    return made


def serves(host: Host, release: t.Optional[str]) -> None:
    """Assert that the host serves this release and nothing is left over (None: nothing serves)."""
    assert host.running == release
    assert releases.current(host.layout, "main") == release
    assert transactions.unfinished(host.layout, "main") is None
    assert (UNIT in host.enabled) is (release is not None)
    if release:
        assert releases.unit_in_place(host.layout, "main", release)
    else:
        assert host.unit_text() is None


def test_first_deploy(host: Host) -> None:
    one = host.release(1)
    result = host.job(release=one)
    assert result["ok"] and result["committed"] and result["changed"] and set(result["times"]) == {"stop", "start", "ready"}
    serves(host, one)
    assert host.verdicts() == [(None, one, "committed")]
    assert "specdec-recover.service" in host.enabled


def test_second_release_and_the_deadline_is_told_before_the_stop(host: Host) -> None:
    one, two = host.release(1), host.release(2)
    host.job(release=one)
    host.said.clear()
    host.job(release=two)
    serves(host, two)
    first, second = host.said[:2]
    # stop 31, start 600, gate 20; back: stop 32, start 600, gate 20
    assert "at most 1303 s" in first and "stopped" in second


def test_deadline_of_a_first_deploy_has_no_previous_release() -> None:
    release = {"stop_timeout": 10, "start_timeout": 100, "gate": {"timeout": 5}}
    assert transactions.deadline(release, None) == transactions.Deadline(0, 100, 5, 10)
    assert transactions.deadline(release, {**release, "stop_timeout": 7}).total == 7 + 100 + 5 + (10 + 100 + 5)


def test_what_the_old_release_leaves_ends_the_switch_before_the_new_one_starts(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = host.release(1, gpus=True), host.release(2)
    host.job(release=one)
    asked = []

    def gone(before: t.Any, uses_gpus: bool, *_more: t.Any) -> Finding:
        asked.append(uses_gpus)
        return Finding("transaction.old-release", ERROR, "what served before", "still holds memory of GPUs", fix="f")

    monkeypatch.setattr(remains, "gone", gone)
    host.calls.clear()
    result = host.job(release=two)
    assert (asked, result["rolled_back_to"], host.calls.count("start")) == ([True], one, 1)
    serves(host, one)
    assert releases.failed(host.layout, "main", two) is None, "it is not the new release's fault"


def test_a_large_model_may_take_longer_to_start_and_the_deadline_says_so(host: Host, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    with (model / "weights.safetensors").open("wb") as stream:
        stream.truncate(50 * 10**9)
    small, large = host.release(1), host.release(2, models=[str(model)], start_timeout_by_size=True)
    fixed = host.release(3, models=[str(model)])
    limits = [releases.start_limit(releases.load(host.layout, "main", one).facts) for one in (small, large, fixed)]
    assert limits == [600, 600 + 500, 600]
    spec = {"root": str(host.layout.root), "instance": "main", "release": large, "deadline": 10}
    # stop 0, start 1100, gate 20; back: stop 32
    assert transactions.preview(spec, host.runner) == {"spec": {**spec, "deadline": 1152}, "changed": True}
    assert transactions.preview({**spec, "release": "gone"}, host.runner)["spec"]["deadline"] == 10


def test_unit_text_alone_decides_whether_systemd_reads_again(host: Host) -> None:
    one = host.release(1)
    host.job(release=one)
    same_unit = releases.compose(
        str(host.layout.root),
        {key: value for key, value in releases.load(host.layout, "main", one).facts.items() if key not in ("id", "schema")},
        {"number": 99},
        "",
    )
    releases.store(host.layout, same_unit)
    host.calls.clear()
    host.job(release=same_unit.id)
    assert "daemon-reload" not in host.calls and "enable" not in host.calls
    host.job(release=host.release(2))
    assert host.calls.count("daemon-reload") == 1


def test_nothing_to_do_touches_nothing(host: Host) -> None:
    one = host.release(1)
    host.job(release=one)
    host.calls.clear()
    result = host.job(release=one)
    assert result["ok"] and not result["changed"] and host.calls == [] and len(host.verdicts()) == 1


@pytest.mark.parametrize("how", ["stopped", "other runs", "unit edited", "forced"])
def test_same_release_is_started_again_where_it_does_not_serve_as_released(host: Host, how: str) -> None:
    one = host.release(1)
    host.job(release=one)
    if how == "stopped":
        host.active = False
    elif how == "other runs":
        host.running_file.write_text("other", encoding="utf-8")
    elif how == "unit edited":
        (host.units / UNIT).write_text("[Service]\n", encoding="utf-8")
    host.calls.clear()
    assert host.job(release=one, force=how == "forced")["changed"]
    assert "start" in host.calls
    serves(host, one)


def test_failing_gate_goes_back_and_is_remembered(host: Host) -> None:
    one, two = host.release(1), host.release(2)
    host.job(release=one)
    host.bad.add(two)
    result = host.job(release=two)
    assert not result["ok"] and not result["committed"] and result["rolled_back_to"] == one
    serves(host, one)
    assert host.verdicts()[-1] == (one, two, "rolled back")
    host.bad.clear()
    with pytest.raises(FindingError, match="not tried again unasked"):
        host.job(release=two)
    assert host.job(release=two, force=True)["committed"]
    assert releases.failed(host.layout, "main", two) is None


def test_failing_first_deploy_leaves_nothing(host: Host) -> None:
    one = host.release(1)
    host.bad.add(one)
    result = host.job(release=one)
    assert not result["ok"] and result["rolled_back_to"] is None
    serves(host, None)


def test_previous_release_that_fails_too_is_left_running_and_named(host: Host) -> None:
    one, two = host.release(1), host.release(2)
    host.job(release=one)
    host.bad |= {one, two}
    result = host.job(release=two)
    assert [finding["subject"] for finding in result["findings"]][-1] == "%s, back on release %s" % (UNIT, one)
    assert host.verdicts()[-1][2] == "failed" and host.running == one


def test_restart_that_fails_is_not_restarted_once_more(host: Host) -> None:
    one = host.release(1)
    host.job(release=one)
    host.bad.add(one)
    host.calls.clear()
    assert not host.job(release=one, force=True)["ok"]
    assert host.calls.count("start") == 1 and host.verdicts()[-1] == (one, one, "failed")


def test_engine_that_does_not_stop_is_named(host: Host) -> None:
    one, two = host.release(1), host.release(2)
    host.job(release=one)
    host.stuck = True
    result = host.job(release=two)
    assert "transaction.stop" in [finding["id"] for finding in result["findings"]]
    assert releases.failed(host.layout, "main", two) is None, "the release is not to blame"
    assert host.running == one


@pytest.mark.parametrize(
    ("missing", "id_"),
    [("environment", "transaction.environment-missing"), ("secret", "transaction.secret-missing"), ("release", "release.broken")],
)
def test_incomplete_release_is_refused_before_anything_is_touched(host: Host, missing: str, id_: str) -> None:
    one = host.release(1)
    host.job(release=one)
    two = host.release(2, secrets={"api_key": {"option": "api-key", "version": "v"}} if missing == "secret" else {})
    if missing == "environment":
        (host.layout.environment("abc") / ".complete").unlink()
    host.calls.clear()
    with pytest.raises(FindingError) as refused:
        host.job(release="0000" if missing == "release" else two)
    assert refused.value.finding.id == id_ and refused.value.finding.fix
    assert host.calls == []
    serves(host, one)


def test_lost_previous_release_is_a_warning(host: Host) -> None:
    one, two = host.release(1), host.release(2)
    host.job(release=one)
    (host.layout.release("main", one) / "config.json").unlink()
    result = host.job(release=two)
    assert result["ok"] and [finding["verdict"] for finding in result["findings"]] == ["warning", "ok"]
    serves(host, two)


def test_rollback_goes_to_the_one_before_and_no_further(host: Host) -> None:
    one, two = host.release(1), host.release(2)
    host.job(release=one)
    host.job(release=two)
    assert host.job(transactions.rollback)["committed"]
    serves(host, one)
    with pytest.raises(FindingError, match="no release to go back to"):
        host.job(transactions.rollback)
    assert host.job(transactions.rollback, release=two)["committed"]
    serves(host, two)


def kill_points() -> range:
    """More than a switch has moments at which it can be killed."""
    return range(60)


@pytest.mark.parametrize("how", ["recover", "boot", "next deploy", "killed again"])
@pytest.mark.parametrize("bad", [False, True])
def test_killed_anywhere_it_serves_one_release_completely(host: Host, tmp_path: Path, how: str, bad: bool) -> None:
    ended = False
    for moment in kill_points():
        one, two = host.release(2 * moment + 1000), host.release(2 * moment + 1001)
        host.job(release=one)
        host.bad = {two} if bad else set()
        host.kill_at = moment
        try:
            host.job(release=two)
            ended = True
        except Killed:
            pass
        host.kill_at = None
        if how == "killed again":
            host.kill_at = 4
            with contextlib.suppress(Killed):
                host.job(transactions.recover)
            host.kill_at = None
        if how == "boot":
            host.boot()
        host.job(transactions.recover)
        if how == "next deploy":
            host.bad = set()
            host.job(release=two, force=True)
        expected = two if host.verdicts()[-1][2] == "committed" and host.verdicts()[-1][1] == two else one
        if bad and how != "next deploy":
            assert expected == one
        serves(host, expected)
        host.bad = set()
        if ended:
            break
    assert ended, "the switch has more moments than were tried"


def test_killed_first_deploy_leaves_nothing_or_all(host: Host) -> None:
    for moment in kill_points():
        one = host.release(moment)
        host.kill_at = moment
        try:
            host.job(release=one)
        except Killed:
            pass
        else:
            serves(host, one)
            return
        host.kill_at = None
        host.job(transactions.recover)
        if host.verdicts() and host.verdicts()[-1][2] == "committed":
            serves(host, one)
            return
        serves(host, None)
    raise AssertionError("the switch has more moments than were tried")


def test_recovery_tells_the_history_once(host: Host) -> None:
    one, two = host.release(1), host.release(2)
    host.job(release=one)
    record = host.layout.instance("main") / "transaction.json"
    host.job(release=two)
    entry = releases.history(host.layout, "main")[-1]
    # Killed between the history and the end of the record.
    left = {"schema": 1, "id": entry["transaction"], "step": "committed", "from": one, "to": two}
    record.write_text(json.dumps(left), encoding="utf-8")
    host.job(transactions.recover)
    assert len(host.verdicts()) == 2
    serves(host, two)


@pytest.mark.parametrize("left", ['{"schema": 99, "step": "melted"}', "{torn", "[]"])
def test_a_record_of_another_version_is_refused_and_what_serves_is_left_alone(host: Host, left: str) -> None:
    one, two = host.release(1), host.release(2)
    host.job(release=one)
    (host.layout.instance("main") / "transaction.json").write_text(left, encoding="utf-8")
    host.calls.clear()
    with pytest.raises(FindingError) as refused:
        host.job(release=two)
    assert refused.value.finding.id == "transaction.record"
    assert host.calls == [] and host.running == one


def test_a_full_disk_before_the_switch_stops_nothing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = host.release(1), host.release(2)
    host.job(release=one)

    def full(*_words: t.Any) -> t.Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    host.calls.clear()
    with pytest.raises(FindingError) as refused:
        host.job(release=two)
    assert refused.value.finding.id == "transaction.disk" and "stop" not in host.calls
    serves(host, one)


def test_description_for_a_person(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "healthy", lambda _release: True)
    one, two = host.release(1), host.release(2)
    host.job(release=one)
    host.job(release=two)
    seen = transactions.describe(host.layout, "main", host.runner)
    assert (seen["release"], seen["running"], seen["healthy"], seen["way_back"]) == (two, two, True, [one])
    (host.layout.release("main", two) / "launch.py").unlink()
    assert transactions.describe(host.layout, "main", host.runner)["problem"]["id"] == "release.broken"


# What is told, and with which way out


def failing(host: Host, monkeypatch: pytest.MonkeyPatch, verb: str, words: str) -> None:
    """systemd refuses this from now on."""
    real = host.runner

    def runner(argv: t.Sequence[str], **options: t.Any) -> Completed:
        return Completed(1, "", words) if argv[1] == verb else real(argv, **options)

    monkeypatch.setattr(host, "runner", runner)


@pytest.mark.parametrize(
    ("step", "id_", "verdict", "message", "served"),
    [
        ("gating", "transaction.interrupted", "warning", "was interrupted and taken back", 0),
        ("committed", "transaction.recovered", "ok", "was committed: it stays", 1),
    ],
)
def test_what_became_of_an_interrupted_switch_is_told(host: Host, step: str, id_: str, verdict: str, message: str, served: int) -> None:
    both = host.release(1), host.release(2)
    host.job(release=both[0])
    releases.flip(host.layout, "main", both[1])
    (host.units / UNIT).write_text(releases.load(host.layout, "main", both[1]).unit, encoding="utf-8")
    host.loaded = host.unit_text()
    host.active = False
    host.start()
    record = {"schema": 1, "id": "t", "what": "switch", "step": step, "from": both[0], "to": both[1], "at": {}}
    (host.layout.instance("main") / "transaction.json").write_text(json.dumps(record), encoding="utf-8")
    finding = host.job(transactions.recover)["findings"][0]
    assert (finding["id"], finding["verdict"], finding["subject"]) == (id_, verdict, "instance main")
    assert message in finding["message"]
    assert (verdict == "ok") is (finding["fix"] == "")
    serves(host, both[served])


def test_a_unit_that_systemd_does_not_start_is_told_and_a_first_deploy_taken_back(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(host, monkeypatch, "start", "Unit is masked.")
    result = host.job(release=host.release(1))
    (finding,) = [one for one in result["findings"] if one["id"] == "transaction.start"]
    assert not result["ok"] and (finding["verdict"], finding["subject"], finding["evidence"]) == ("error", UNIT, "Unit is masked.")
    assert "systemctl status %s" % UNIT in finding["fix"]
    serves(host, None)


def test_a_boot_guard_that_cannot_be_enabled_stops_the_switch_and_is_tried_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    one = host.release(1)
    with monkeypatch.context() as patch:
        failing(host, patch, "enable", "Read-only file system")
        with pytest.raises(FindingError) as refused:
            host.job(release=one)
    finding = refused.value.finding
    assert (finding.id, finding.verdict, finding.evidence) == ("transaction.systemd", ERROR, "Read-only file system")
    assert finding.subject == "systemctl enable --quiet specdec-recover.service" and finding.fix
    serves(host, None)
    assert host.job(release=one)["ok"] and "specdec-recover.service" in host.enabled


def test_an_adopted_unit_that_is_gone_is_not_gone_back_to(host: Host) -> None:
    one = host.release(1)
    host.job(release=one)
    ask = {"served_model": "m", "prompts": ["p"], "health": "/health"}
    timeouts = {"start": 1, "stop": 1, "gate": 1}
    adopted = adoptions.compose("main", "sglang.service", "sglang", ("127.0.0.1", 30000), {}, timeouts, ask)
    releases.store(host.layout, adopted)
    host.calls.clear()
    with pytest.raises(FindingError) as refused:
        host.job(transactions.rollback, release=adopted.id)
    finding = refused.value.finding
    assert (finding.id, finding.verdict, finding.expected) == ("transaction.unit-gone", ERROR, "loaded")
    assert adopted.id in finding.subject and "sglang.service" in finding.subject
    assert finding.fix == "bring the unit back, or go to another release: specdec status main"
    assert host.calls == []
    serves(host, one)


def test_a_user_that_cannot_be_made_is_told_in_systemds_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(user: str) -> t.Any:
        raise KeyError(user)

    monkeypatch.setattr(releases, "SYSUSERS", tmp_path / "sysusers.d")
    monkeypatch.setattr(transactions, "pwd", types.SimpleNamespace(getpwnam=nobody))
    layout = Layout(tmp_path / "root")
    with pytest.raises(FindingError) as refused:
        release = {"instance": "main", "environment": "abc"}
        transactions.prepare_user(layout, release, lambda *_words, **_options: Completed(1, "", "Failed to write /etc/passwd"))
    finding = refused.value.finding
    assert (finding.id, finding.verdict, finding.subject) == ("transaction.user", ERROR, "user specdec-main")
    assert finding.evidence == "Failed to write /etc/passwd" and "specdec-main by hand" in finding.fix
    assert not layout.root.exists()
