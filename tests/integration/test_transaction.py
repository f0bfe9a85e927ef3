# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The transaction on a real systemd: what is promised to hold when a switch goes well, badly, or is killed."""

from __future__ import annotations

import json
import re
import typing as t

import pytest
import sweep
from switchhost import KEY, ROOT, Host

from ansible_collections.specdec.serving.plugins.module_utils import units


def ids(result: t.Mapping[str, t.Any]) -> list[str]:
    """Ids of the findings that forbid going on."""
    return [finding["id"] for finding in result["findings"] if finding["verdict"] == "error"]


def serves(host: Host, instance: str, release: str) -> dict[str, t.Any]:
    """Assert that an instance serves exactly this release; how it stands."""
    seen = host.describe(instance)
    assert (seen["release"], seen["running"], seen["healthy"]) == (release, release, True), seen
    assert seen["unfinished"] is None
    return seen


def test_first_deploy_serves_and_will_after_a_boot(host: Host) -> None:
    release = host.release("first")
    result = host.switch(release)
    assert result["committed"] and result["changed"], result
    assert result["gate"]["acceptance"] == pytest.approx(2.5, abs=0.01)
    seen = serves(host, "first", release.id)
    assert seen["state"]["UnitFileState"] == "enabled"
    assert [(entry["from"], entry["to"], entry["verdict"]) for entry in seen["history"]] == [(None, release.id, "committed")]


def test_secret_stays_out_of_the_journal_and_the_command_line(host: Host) -> None:
    host.switch(host.release("secret"))
    journal = host.sh("journalctl", "--unit=specdec-secret", "--output=cat")
    assert "server_args={" in journal and "***" in journal
    for spelling in (KEY, json.dumps(KEY)[1:-1], "0123456789abcdef'"):
        assert spelling not in journal
    pid = host.show("specdec-secret", "MainPID")
    listing = host.sh("sh", "-c", "cat /proc/*/cmdline /proc/%s/environ | tr '\\0' '\\n'" % pid)
    assert KEY not in listing and "engine.py" in listing
    assert host.sh("stat", "-c", "%a %U", "/run/specdec-secret/config.yaml") == "600 specdec-secret"


def test_sandbox_is_as_tight_as_promised(host: Host) -> None:
    host.switch(host.release("tight"))
    said = host.sh("systemd-analyze", "security", "--no-pager", "specdec-tight", check=False)
    exposure = re.search(r"Overall exposure level for specdec-tight\.service: ([\d.]+)", said)
    assert exposure and float(exposure[1]) <= 1.5, said
    assert host.sh("systemd-analyze", "verify", "specdec-tight.service") == ""


@pytest.mark.parametrize(("sandbox", "gpus"), [("strict", False), ("strict", True), ("container", True)])
def test_same_sandbox_holds_for_a_command(host: Host, sandbox: str, gpus: bool) -> None:
    release = host.release("probe", sandbox=sandbox, gpus=gpus)
    host.install(release)
    unit = units.parse("specdec-probe.service", release.unit)
    script = "id -un; pwd; echo $PATH; touch /etc/x 2>/dev/null && echo writable; grep NoNewPrivs /proc/self/status"
    said = host.sh("systemd-run", "--wait", "--pipe", "--quiet", *unit.run_properties(), "sh", "-c", script).splitlines()
    state, path = unit.environment()["HOME"], unit.environment()["PATH"]
    assert said == ["specdec-probe", state, path, "NoNewPrivs:\t1"]


def test_second_release_replaces_the_first_and_a_rollback_returns(host: Host) -> None:
    one, two = host.release("second"), host.release("second", acceptance=3)
    host.switch(one)
    assert host.switch(two)["committed"]
    serves(host, "second", two.id)
    said = host.specdec("status", "second")
    assert "specdec rollback second    (to %s)" % one.id in said
    host.specdec("rollback", "second")
    seen = serves(host, "second", one.id)
    assert seen["way_back"] == []


def test_switch_to_what_runs_does_nothing_and_starts_it_when_it_does_not_run(host: Host) -> None:
    release = host.release("again")
    host.switch(release)
    pid = host.show("specdec-again", "MainPID")
    result = host.switch(release)
    assert result["committed"] and not result["changed"]
    assert host.show("specdec-again", "MainPID") == pid
    host.sh("systemctl", "stop", "specdec-again")
    assert host.switch(release)["changed"]
    serves(host, "again", release.id)


@pytest.mark.parametrize(
    ("mode", "acceptance", "finding"),
    [
        ("crash", 2.5, "gate.unit-died"),
        ("hang", 2.5, "gate.health"),
        ("wedge", 2.5, "gate.timeout"),
        ("dies", 2.5, "gate.unit-died"),
        ("ok", 1.0, "gate.draft-does-nothing"),
    ],
)
def test_failing_gate_brings_the_previous_release_back(host: Host, mode: str, acceptance: float, finding: str) -> None:
    good = host.release("gate")
    assert host.switch(good)["committed"]
    bad = host.release("gate", mode=mode, acceptance=acceptance)
    result = host.switch(bad, force=True)
    assert ids(result) == [finding], result["findings"]
    assert not result["ok"] and result["rolled_back_to"] == good.id
    seen = serves(host, "gate", good.id)
    assert seen["history"][-1]["verdict"] == "rolled back"
    assert KEY not in json.dumps(result)


def test_crash_is_shown_with_its_own_words_and_not_tried_again_unasked(host: Host) -> None:
    good, bad = host.release("crash"), host.release("crash", mode="crash")
    host.switch(good)
    evidence = host.switch(bad)["findings"][-1]["evidence"]
    assert "RuntimeError: flashinfer-cubin does not match" in evidence
    assert "Stopping" not in evidence, "the words of this start alone"
    pid = host.show("specdec-crash", "MainPID")
    assert ids(host.switch(bad)) == ["transaction.failed-before"]
    assert host.show("specdec-crash", "MainPID") == pid


def test_failing_first_deploy_leaves_nothing_running(host: Host) -> None:
    result = host.switch(host.release("nothing", mode="unhealthy"))
    assert ids(result) == ["gate.health"] and result["rolled_back_to"] is None
    assert host.show("specdec-nothing", "ActiveState") == "inactive"
    assert host.show("specdec-nothing", "LoadState") == "not-found"
    assert host.describe("nothing")["release"] is None


def test_foreign_process_on_the_port_is_named(host: Host) -> None:
    release = host.release("port")
    port = str(release.facts["port"])
    host.sh("systemd-run", "--unit=squatter", "--quiet", "python3", "-m", "http.server", "--bind", "127.0.0.1", port)
    host.sh("timeout", "10", "sh", "-c", "until grep -q ':%04X .* 0A ' /proc/net/tcp; do sleep 0.05; done" % int(port))
    result = host.switch(release)
    host.sh("systemctl", "stop", "squatter")
    assert ids(result) == ["gate.port-owner"]
    assert "squatter.service" in result["findings"][-1]["found"]


@pytest.mark.parametrize(("old", "new", "step"), [("stubborn", "ok", "stopped"), ("ok", "hang", "gating")])
def test_killed_job_leaves_the_previous_release_serving(host: Host, old: str, new: str, step: str) -> None:
    instance = "killed-" + step
    previous = host.release(instance, mode=old)
    assert host.switch(previous)["committed"]
    job = host.start(host.release(instance, mode=new, acceptance=3, patience=600))
    host.wait_for_step(instance, step)
    host.sh("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "specdec-job.service")
    ended = host.follow(job)
    assert not ended["lost"] and ids(ended["result"]) == ["job.killed"]
    seen = serves(host, instance, previous.id)
    assert seen["history"][-1]["verdict"] == "rolled back"


def test_killed_first_deploy_leaves_nothing_running(host: Host) -> None:
    job = host.start(host.release("killed-first", mode="hang", patience=600))
    host.wait_for_step("killed-first", "gating")
    host.sh("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "specdec-job.service")
    host.follow(job)
    assert host.describe("killed-first")["release"] is None
    assert host.show("specdec-killed-first", "ActiveState") == "inactive"


def test_second_job_is_refused_with_the_name_of_the_first(host: Host) -> None:
    job = host.start(host.release("busy", mode="hang", patience=600))
    host.wait_for_step("busy", "gating")
    refused = host.start(host.release("other"))
    assert "switch of busy for tester" in refused["busy"]
    host.sh("systemctl", "stop", "specdec-job.service")
    assert ids(host.follow(job)["result"]) == ["job.killed"]
    assert host.describe("other")["release"] is None


def test_power_cut_in_the_middle_leaves_the_previous_release_serving(host: Host) -> None:
    previous = host.release("power")
    host.switch(previous)
    host.start(host.release("power", mode="hang", patience=600))
    host.wait_for_step("power", "gating")
    host.power_cycle()
    host.wait_until_idle()
    seen = serves(host, "power", previous.id)
    assert seen["history"][-1]["verdict"] == "rolled back"
    assert not host.sh("ls", "%s/instances/power" % ROOT).count("transaction")


def test_no_secret_lies_anywhere_on_the_host(host: Host) -> None:
    host.switch(host.release("swept"))
    host.switch(host.release("swept", mode="crash"))
    text, wrong, files = sweep.exposed(lambda script: host.sh("sh", "-c", script), [KEY])
    assert "server_args" in text and "***" in text, "the engine logs its arguments, without the key"
    assert wrong == []
    assert any("/secrets/" in path for path in files), "the host has to keep the key itself"
    host.sh("sh", "-c", "umask 077; echo '%s' > /var/tmp/left; chmod 0644 /var/tmp/left" % KEY)
    assert "/var/tmp/left" in sweep.exposed(lambda script: host.sh("sh", "-c", script), [KEY])[1], "it would be found"
    host.sh("rm", "/var/tmp/left")
