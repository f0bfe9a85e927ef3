# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rollout over three hosts whose second release is bad: the deploy playbook's own second play, after a plan that is given."""

from __future__ import annotations

import json
import re
import typing as t
from pathlib import Path

import pytest
import sweep
import yaml
from switchhost import CHECKOUT, KEY, Host, plan, play

NAMES = ("ct210", "ct211", "ct212")

#: Stands for the plan: answers what it is given.
PLAN_DOUBLE = """#!/usr/bin/python
# WANT_JSON
import json, sys
with open(sys.argv[1]) as stream:
    print(json.dumps(json.load(stream)["answer"]))
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[list[Host]]:
    """Three hosts of one set."""
    state = tmp_path_factory.mktemp("rollout")
    made = [Host(state, name=name, prefix="specdec-rollout", subnet="10.89.187") for name in NAMES]
    try:
        for host in made:
            host.up()
        yield made
    finally:
        made[0].down()


def test_the_first_bad_host_stops_the_rollout(hosts: list[Host], tmp_path: Path) -> None:
    old = {host.name: host.release("fleet") for host in hosts}
    for host in hosts:
        assert host.switch(old[host.name])["committed"]
    modes = dict(zip(NAMES, ("ok", "crash", "ok")))
    new = {host.name: host.release("fleet", mode=modes[host.name], acceptance=3) for host in hosts}
    pids = {host.name: host.show("specdec-fleet", "MainPID") for host in hosts}
    (tmp_path / "plan_double.py").write_text(PLAN_DOUBLE)
    planned = {"name": "Plan", "plan_double": {"answer": "{{ given }}"}, "register": "gpu_host_plan", "tags": ["always"]}
    put = {"name": "Put", "ansible.builtin.include_role": {"name": "specdec.serving.engine_service", "tasks_from": "release.yml"}}
    _build, switch = yaml.safe_load((CHECKOUT / "playbooks" / "deploy.yml").read_text())
    (tmp_path / "rollout.yml").write_text(
        json.dumps([{"hosts": "all", "gather_facts": False, "become": True, "tasks": [planned, put]}, switch])
    )
    own = {name: {"given": plan(old[name], new[name])} for name in NAMES}
    instances = [{"name": "fleet", "api_key": KEY}]
    run = play(
        hosts,
        str(tmp_path / "rollout.yml"),
        *("-vvv", "-e", json.dumps({"specdec_instances": instances})),
        own=own,
        library=str(tmp_path),
    )
    assert run.returncode != 0
    first, second, third = (host.describe("fleet") for host in hosts)
    assert first["running"] == new["ct210"].id and first["healthy"], run.stdout
    assert second["running"] == old["ct211"].id and second["healthy"], run.stdout
    assert third["running"] == old["ct212"].id and hosts[2].show("specdec-fleet", "MainPID") == pids["ct212"]
    assert len(third["history"]) == 1 and hosts[1].show("specdec-fleet", "MainPID") != pids["ct211"]
    assert re.search(r"was refused; %s serves again, [\d.]+ s after the failure" % old["ct211"].id, run.stdout), run.stdout
    assert run.stdout.count("/plugins/modules/release.py\n") == 3, "what the first play put in place the second one does not put again"
    # whoever sees the failing task alone, as in a web interface, is told the same
    told = run.stdout.partition("failed: [ct211]")[2].partition("PLAY RECAP")[0]
    assert re.search(r"%s serves again, [\d.]+ s after the failure" % old["ct211"].id, told)
    for words in ("fleet of 3 hosts:", "switched before: ct210", "not reached, left as they were: ct212"):
        assert words in told, told
    for secret in sweep.spellings([KEY]):
        assert secret not in run.stdout
    summary = run.stdout.rpartition("fleet of 3 hosts")[2]
    assert "switched     ct210 fleet: release %s" % new["ct210"].id in summary, run.stdout
    assert "rolled back  ct211 fleet: release %s serves again: " % old["ct211"].id in summary
    assert "not reached  ct212 fleet: release %s still serves" % old["ct212"].id in summary
