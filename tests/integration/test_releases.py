# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is done with releases beside deploying them, by playbooks over SSH on a real host; the engine is a double."""

from __future__ import annotations

import hashlib
import json
import re
import typing as t
from pathlib import Path

import pytest
import yaml
from switchhost import CHECKOUT, ENVIRONMENT, KEY, KEY_VERSION, ROOT, Host, plan, play

from ansible_collections.specdec.serving.plugins.module_utils import adoptions


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Host]:
    """A host that nobody else's tests prune or empty, with a file system of its own for the root."""
    made = Host(tmp_path_factory.mktemp("ground"), prefix="specdec-releases", subnet="10.89.88")
    try:
        made.hosts("up", made.name)
        made.sh("mkdir", "-p", ROOT)
        made.sh("mount", "-t", "tmpfs", "-o", "size=256m,mode=0755,exec", "tmpfs", ROOT)
        made.up()
        yield made
    finally:
        made.down()


def committed(host: Host, *releases: t.Any) -> None:
    for release in releases:
        assert host.switch(release)["committed"]


def serves(host: Host, instance: str, release: str) -> None:
    seen = host.describe(instance)
    assert (seen["release"], seen["running"], seen["healthy"]) == (release, release, True), seen


def snapshot(host: Host) -> str:
    """Every file that anything here could touch, with its content's time."""
    places = "/etc/systemd/system /etc/sysusers.d /etc/ld.so.conf.d /etc/passwd /etc/group %s" % ROOT
    return host.sh("sh", "-c", "find %s ! -path '*/state/*' -printf '%%p %%y %%m %%s %%T@ %%l\\n' 2>/dev/null | sort" % places)


def test_rollback_by_playbook_to_the_release_before_and_to_a_named_one(ground: Host) -> None:
    one, two, three = (ground.release("back", acceptance=number) for number in (2, 3, 4))
    committed(ground, one, two, three)
    run = ground.playbook("rollback", "--check", "--diff", specdec_rollback_instance="back")
    assert run.returncode == 0 and "back goes back from %s to %s" % (three.id, two.id) in run.stdout, run.stdout
    assert '-  "double-acceptance": 4' in run.stdout and '+  "double-acceptance": 3' in run.stdout
    serves(ground, "back", three.id)
    run = ground.playbook("rollback", specdec_rollback_instance="back", specdec_why="answers were wrong")
    assert run.returncode == 0, run.stdout
    serves(ground, "back", two.id)
    assert ground.describe("back")["history"][-1]["why"] == "answers were wrong"
    run = ground.playbook("rollback", specdec_rollback_instance="back", specdec_rollback_release=three.id)
    assert run.returncode == 0, run.stdout
    serves(ground, "back", three.id)
    pid = ground.show("specdec-back", "MainPID")
    run = ground.playbook("rollback", specdec_rollback_instance="back", specdec_rollback_release=three.id)
    assert run.returncode == 0 and "changed=0" in run.stdout and "serves %s already" % three.id in run.stdout, run.stdout
    assert ground.show("specdec-back", "MainPID") == pid


def test_rollback_refuses_what_it_cannot_do_and_changes_nothing(ground: Host) -> None:
    release = ground.release("once")
    committed(ground, release)
    before = snapshot(ground)
    refused = {
        "instance nosuch: is not on this host": {"specdec_rollback_instance": "nosuch"},
        "has no release to go back to": {"specdec_rollback_instance": "once"},
        "release 00000000 of once: is not on this host": {"specdec_rollback_instance": "once", "specdec_rollback_release": "00000000"},
    }
    for message, variables in refused.items():
        run = ground.playbook("rollback", **variables)
        assert run.returncode != 0 and message in run.stdout, run.stdout
    assert "%s (current, served, double 1)" % release.id in run.stdout, "the known ones"
    assert snapshot(ground) == before
    serves(ground, "once", release.id)


def test_rollback_of_a_busy_host_names_who_is_at_work(ground: Host) -> None:
    committed(ground, ground.release("atwork"), ground.release("atwork", acceptance=3))
    job = ground.start(ground.release("atwork", mode="hang", patience=600))
    ground.wait_for_step("atwork", "gating")
    run = ground.playbook("rollback", specdec_rollback_instance="atwork")
    assert run.returncode != 0 and "The host is busy: specdec: switch of atwork for tester" in run.stdout, run.stdout
    ground.sh("systemctl", "stop", "specdec-job.service")
    ground.follow(job)


def test_prune_frees_what_it_says_and_nothing_that_serves_or_could_again(ground: Host) -> None:
    """Two instances on environments of their own; a third environment, which nobody refers to, goes."""
    for name in ("aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb", "cccccccccccccccc"):
        ground.add_environment(name, engine={"name": "double", "version": "1"})
        ground.sh("dd", "if=/dev/urandom", "of=%s/environments/%s/weights" % (ROOT, name), "bs=1M", "count=8", "status=none")
    cache = ROOT + "/cache/uv/archive-v0/x"
    linked = "mkdir -p %s/double-1.dist-info && ln %s/environments/cccccccccccccccc/weights %s/weights" % (cache, ROOT, cache)
    ground.sh("sh", "-c", linked)
    first = [ground.release("prune-one", environment=name) for name in ("aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb")]
    second = ground.release("prune-two", environment="aaaaaaaaaaaaaaaa")
    committed(ground, *first, second)
    before = snapshot(ground)
    run = ground.playbook("prune", "--check", "--diff")
    assert run.returncode == 0 and "would remove environment cccccccccccccccc (double 1)" in run.stdout, run.stdout
    assert "-environment cccccccccccccccc" in run.stdout
    for kept in ("aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb", first[0].id):
        assert kept not in run.stdout
    assert "would free" in ground.specdec("prune", "--dry-run") and snapshot(ground) == before
    free = "df --output=avail -B1 %s | tail -1" % ROOT
    space = int(ground.sh("sh", "-c", free))
    run = ground.playbook("prune")
    assert run.returncode == 0, run.stdout
    said = int(re.search(r"freed [\d.]+ MB \((\d+) bytes\)", run.stdout)[1])
    assert said > 8e6 and abs(int(ground.sh("sh", "-c", free)) - space - said) < 0.05 * said
    assert set(ground.sh("ls", ROOT + "/environments").split()) - {ENVIRONMENT} == {"aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"}
    run = ground.playbook("prune")
    assert run.returncode == 0 and "changed=0" in run.stdout and "nothing to remove" in run.stdout, run.stdout
    serves(ground, "prune-two", second.id)
    ground.specdec("rollback", "prune-one")
    serves(ground, "prune-one", first[0].id)
    assert "would remove environment bbbbbbbbbbbbbbbb" in ground.specdec("prune", "--dry-run"), "nobody can go back to what a rollback left"


def test_prune_never_runs_beside_a_job(ground: Host) -> None:
    for name in (ENVIRONMENT, "dddddddddddddddd"):
        ground.add_environment(name)
    job = ground.start(ground.release("prune-busy", mode="hang", patience=600))
    ground.wait_for_step("prune-busy", "gating")
    run = ground.playbook("prune")
    assert run.returncode != 0 and "The host is busy: specdec: switch of prune-busy for tester" in run.stdout, run.stdout
    assert ground.sh("ls", ROOT + "/environments/dddddddddddddddd")
    ground.sh("systemctl", "stop", "specdec-job.service")
    ground.follow(job)


#: Sends requests one after the other until the file it is named is there; prints how many were answered rightly, and the rest.
CLIENT = """
import json, os, sys, urllib.request
port, key, end = sys.argv[1:]
right, wrong = 0, []
while not os.path.exists(end):
    body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 9}).encode()
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    request = urllib.request.Request("http://127.0.0.1:%s/v1/completions" % port, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            text = json.load(answer)["choices"][0]["text"]
        right += text == "the quick brown fox jumps over a lazy dog"
    except Exception as error:
        wrong.append(repr(error))
print(json.dumps([right, wrong]))
"""


def test_upgrading_one_instance_loses_no_request_on_another(ground: Host) -> None:
    """Two instances on environments of their own; one is switched, refused, rolled back and pruned, the other answers throughout."""
    for name in (ENVIRONMENT, "ffffffffffffffff"):
        ground.add_environment(name)
    steady, one = ground.release("steady"), ground.release("moving")
    committed(ground, steady, one)
    port, end = steady.facts["port"], "/run/client-end"
    unit = ["systemd-run", "--unit=client", "--quiet", "--property=StandardOutput=file:/run/client-said", "--property=RemainAfterExit=yes"]
    ground.sh(*unit, "python3", "-c", CLIENT, str(port), KEY, end)
    two = ground.release("moving", environment="ffffffffffffffff", acceptance=3)
    committed(ground, two)
    refused = ground.switch(ground.release("moving", environment="ffffffffffffffff", mode="crash"))
    assert refused["rolled_back_to"] == two.id
    ground.specdec("rollback", "moving")
    ground.specdec("prune")
    ground.sh("touch", end)
    ground.sh("timeout", "20", "sh", "-c", "until [ -s /run/client-said ]; do sleep 0.1; done")
    right, wrong = json.loads(ground.sh("cat", "/run/client-said"))
    assert wrong == [] and right > 100
    serves(ground, "moving", one.id)
    serves(ground, "steady", steady.id)


HAND_MADE = """# Written by hand.
[Unit]
Description=an engine, by hand
[Service]
ExecStart=/opt/handmade/venv/bin/python -B /opt/handmade/engine.py --config /opt/handmade/config.json
Restart=on-failure
[Install]
WantedBy=multi-user.target
"""


def test_a_unit_made_by_hand_is_taken_over_upgraded_and_returned_to(ground: Host, tmp_path: Path) -> None:
    """The adoption changes and restarts nothing of it; a failing upgrade and a rollback bring it back, and it starts at boot again."""
    ground.add_environment(ENVIRONMENT)
    good = ground.release("adopted")
    config = {"host": "127.0.0.1", "port": good.facts["port"], "api-key": KEY}
    engine = (CHECKOUT / "tests" / "doubles" / "engine.py").read_bytes()
    ground.put(
        {
            "/opt/handmade/engine.py": (engine, 0o644),
            "/opt/handmade/config.json": (json.dumps(config).encode(), 0o600),
            "/opt/handmade/venv/bin/python": "/usr/bin/python3",
            "/etc/systemd/system/handmade.service": (HAND_MADE.encode(), 0o644),
        }
    )
    adopted = adoptions.compose(
        "adopted",
        "handmade.service",
        "double",
        ("127.0.0.1", good.facts["port"]),
        {"api_key": {"option": "api-key", "version": KEY_VERSION}},
        {"start": 6, "stop": 3, "gate": 6},
        {"served_model": "tiny", "prompts": ["a", "b"], "health": "/health"},
    )
    content = {"facts": adopted.facts, "config": adopted.config, "unit": adopted.unit, "launcher": adopted.launcher}
    job = {"schema": 1, "kind": "adopt", "root": ROOT, "who": "tester", "why": "", "instance": "adopted", "release": content}

    def adopt(key: str) -> dict[str, t.Any]:
        return ground.agent(spec=job, wait=True, job_secrets={"api_key": key})["result"]

    places = "/opt/handmade /etc/systemd/system/handmade.service /etc/systemd/system/*.wants/handmade.service"
    mine = "find " + places + " -printf '%p %m %s %T@\\n' | sort"
    before = snapshot(ground)
    assert ids(adopt(KEY)) == ["adopt.not-running"]
    ground.sh("systemctl", "enable", "--now", "--quiet", "handmade")
    ground.sh("timeout", "10", "sh", "-c", "until grep -q ':%04X .* 0A ' /proc/net/tcp; do sleep 0.05; done" % good.facts["port"])
    assert ids(adopt("not-the-key-not-the-key")) == ["gate.generation"]
    assert not exists(ground, ROOT + "/instances/adopted") and snapshot(ground).count("specdec-adopted") == before.count("specdec-adopted")

    untouched, pid = ground.sh("sh", "-c", mine), ground.show("handmade", "MainPID")
    stage = {"ansible.builtin.include_role": {"name": "specdec.serving.engine_service", "tasks_from": "adopt.yml"}}
    (tmp_path / "adopt.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "become": True, "tasks": [stage]}]))
    planned = {"root": ROOT, "adoptions": [{"instance": "adopted", "unit": "handmade.service", "id": adopted.id, "job": job}]}
    given = {"gpu_host_plan": planned, "specdec_instances": [{"name": "adopted", "api_key": KEY}]}
    run = play([ground], str(tmp_path / "adopt.yml"), "-e", json.dumps(given))
    assert run.returncode == 0 and "changed=1" in run.stdout and "it was not restarted" in run.stdout, run.stdout
    assert not adopt(KEY)["changed"]
    assert (ground.sh("sh", "-c", mine), ground.show("handmade", "MainPID")) == (untouched, pid)
    serves(ground, "adopted", adopted.id)
    assert "adopted: healthy" in ground.specdec("status", "adopted")

    refused = ground.switch(ground.release("adopted", mode="crash"))
    assert refused["rolled_back_to"] == adopted.id, refused
    serves(ground, "adopted", adopted.id)
    assert ground.show("handmade", "UnitFileState") == "enabled"

    _build, switching = yaml.safe_load((CHECKOUT / "playbooks" / "deploy.yml").read_text())
    (tmp_path / "switch.yml").write_text(json.dumps([switching]))
    run = play([ground], str(tmp_path / "switch.yml"), "-e", json.dumps({**given, "gpu_host_plan": plan(adopted, good)}))
    assert run.returncode == 0, run.stdout
    serves(ground, "adopted", good.id)
    assert (ground.show("handmade", "ActiveState"), ground.show("handmade", "UnitFileState")) == ("inactive", "disabled")
    ground.specdec("prune")

    run = ground.playbook("rollback", specdec_rollback_instance="adopted")
    assert run.returncode == 0, run.stdout
    serves(ground, "adopted", adopted.id)
    assert (ground.show("handmade", "ActiveState"), ground.show("handmade", "UnitFileState")) == ("active", "enabled")
    assert (ground.show("specdec-adopted", "ActiveState"), ground.show("specdec-adopted", "UnitFileState")) == ("inactive", "disabled")
    assert (
        ground.sh("sh", "-c", "sha256sum < /etc/systemd/system/handmade.service").split()[0]
        == hashlib.sha256(HAND_MADE.encode()).hexdigest()
    )
    again = ground.playbook("rollback", specdec_rollback_instance="adopted", specdec_rollback_release=adopted.id)
    assert again.returncode == 0 and "changed=0" in again.stdout, again.stdout

    run = ground.playbook("remove", specdec_remove_instance="adopted", specdec_remove_confirm=True)
    assert run.returncode == 0, run.stdout
    assert ground.show("handmade", "ActiveState") == "active" and "specdec-adopted" not in snapshot(ground)
    ground.sh("systemctl", "disable", "--now", "--quiet", "handmade")


def ids(result: t.Mapping[str, t.Any]) -> list[str]:
    """Ids of the findings that forbid going on."""
    return [finding["id"] for finding in result["findings"] if finding["verdict"] == "error"]


def exists(host: Host, *paths: str) -> list[str]:
    """Those of the paths that are on the host."""
    return [path for path in paths if host.sh("sh", "-c", "test -e %s && echo yes || true" % path)]


def test_remove_takes_one_instance_off_and_leaves_no_trace_of_it(ground: Host) -> None:
    stays, model = ground.release("stays"), ROOT + "/models/org/1"
    committed(ground, stays)
    ground.specdec("prune")
    pid = ground.show("specdec-stays", "MainPID")
    before = snapshot(ground)
    ground.put({model + "/.complete": (b"", 0o644)})
    ground.add_environment("eeeeeeeeeeeeeeee")
    committed(ground, ground.release("leaves", environment="eeeeeeeeeeeeeeee", models=[model]), ground.release("leaves", models=[model]))
    deployed = snapshot(ground)
    unconfirmed = ground.playbook("remove", specdec_remove_instance="leaves")
    assert unconfirmed.returncode != 0 and "specdec_remove_confirm: is not set" in unconfirmed.stdout, unconfirmed.stdout
    foreseen = ground.playbook("remove", "--check", "--diff", specdec_remove_instance="leaves")
    for run in (unconfirmed, foreseen):
        for gone in (
            "unit specdec-leaves.service",
            "system user specdec-leaves",
            "environment eeeeeeeeeeeeeeee",
            "keys and history of leaves",
        ):
            assert gone in run.stdout, run.stdout
    assert foreseen.returncode == 0 and "-unit specdec-leaves.service" in foreseen.stdout and "model org" not in foreseen.stdout
    assert snapshot(ground) == deployed
    run = ground.playbook("remove", specdec_remove_instance="leaves", specdec_remove_confirm="true")
    assert run.returncode == 0 and "changed=1" in run.stdout, run.stdout
    assert exists(ground, model + "/.complete") and not exists(ground, "/run/specdec-leaves")
    ground.sh("rm", "-r", ROOT + "/models")
    assert names(snapshot(ground)) == names(before)
    assert ground.show("specdec-leaves", "LoadState") == "not-found"
    assert ground.show("specdec-stays", "MainPID") == pid
    again = ground.playbook("remove", specdec_remove_instance="leaves", specdec_remove_confirm="true")
    assert again.returncode == 0 and "changed=0" in again.stdout and "nothing to remove of leaves" in again.stdout, again.stdout


def names(listing: str) -> list[str]:
    """The paths of a snapshot, and of files that are not accounts also size and mode; directories change their time only."""
    rows = [line.split() for line in listing.splitlines()]
    return [" ".join(row[:3] if row[1] == "d" else row[:4]) for row in rows]


def test_remove_refuses_what_is_not_said(ground: Host) -> None:
    before = snapshot(ground)
    for variables in ({}, {"specdec_remove_instance": "stays", "specdec_remove_everything": True}):
        run = ground.playbook("remove", specdec_remove_confirm=True, **variables)
        assert run.returncode != 0 and "exactly one of them" in run.stdout, run.stdout
    run = ground.playbook("remove", specdec_remove_confirm=True, specdec_remove_instance="../x")
    assert run.returncode != 0 and "is no name" in run.stdout, run.stdout
    assert snapshot(ground) == before


def test_remove_everything_leaves_models_and_what_is_somebody_elses(ground: Host) -> None:
    """Last, for nothing is left on the host then."""
    ground.add_environment(ENVIRONMENT)
    committed(ground, ground.release("last-one"), ground.release("last-two"))
    ground.put({ROOT + "/models/org/1/.complete": (b"", 0o644), ROOT + "/notes": (b"mine", 0o644)})
    run = ground.playbook("remove", specdec_remove_everything=True, specdec_remove_confirm=True)
    assert run.returncode == 0, run.stdout
    assert sorted(ground.sh("ls", "-A", ROOT).split()) == ["models", "notes"]
    traces = ground.sh("sh", "-c", "find /etc /usr/lib/systemd /var/lib -name '*specdec*'; getent passwd group | grep specdec || true")
    assert traces == ""
    assert ground.sh("sh", "-c", "systemctl list-units --all --plain --no-legend 'specdec-*' | grep -v job || true") == ""
    again = ground.playbook("remove", specdec_remove_everything=True, specdec_remove_confirm=True)
    assert again.returncode == 0 and "changed=0" in again.stdout, again.stdout
    run = ground.playbook("remove", "--check", specdec_remove_everything=True, specdec_remove_models=True)
    assert "would remove %s/models and all in it" % ROOT in run.stdout, run.stdout
