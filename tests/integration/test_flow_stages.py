# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each stage by its tag on a node that was bare, with the real engine, and no secret anywhere; the tests build on each other."""

from __future__ import annotations

import json
import typing as t
import urllib.error

import pytest
import sweep
from flow import FILES, ROOT, Fleet, Run, variables

HOST = "ct201"
TOKEN = "hf_tokenThatNobodySees"
#: A key that looks different in JSON, in a Python literal, in a shell and in base64.
ROTATED = "sk-\"quoted\\key'-0123456789abcdef"
ADMIN = "admin/key+with=signs-0123456789"
PLAIN = {"overlays": None, "draft": None, "speculative": None, "extra_args": {"speculative-ddtree-budget": None}}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Fleet]:
    """One bare node; no reference is needed without an overlay."""
    made = Fleet(tmp_path_factory.mktemp("stages"), prefix="specdec-stages", subnet="10.89.188")
    try:
        made.start(HOST)
        yield made
    finally:
        made.down()


def deploy(fleet: Fleet, *arguments: str, key: str = "", **more: t.Any) -> Run:
    """A deploy at -vvv with a hub's token in its variables; what it prints shows no secret."""
    wanted = {**variables(**PLAIN), "specdec_hub": {"token": TOKEN}, **more}
    if key:
        wanted["specdec_instance_defaults"]["environment"] = {"OMP_NUM_THREADS": "1"}
        keys = {"api_key": key, "admin_api_key": ADMIN}
        wanted["specdec_instances"] = [{"name": "main", "gpus": "none", "context_length": 1024, "host": "0.0.0.0", "port": 30000, **keys}]
    written = fleet.state / "variables.json"
    written.write_text(json.dumps(wanted))
    run = fleet.deploy("-e", "@%s" % written, "--diff", *arguments, limit=HOST)
    for secret in (TOKEN, ADMIN, fleet.key(), *([key] if key else ())):
        for form in sweep.spellings([secret]):
            assert form not in run.text, "a secret is shown"
    return run


def test_check_mode_on_a_bare_node_shows_changes_nothing_and_writes_no_lock(fleet: Fleet) -> None:
    fleet.must("ansible", HOST, "--become", "-m", "ansible.builtin.ping")  # the first login of a user leaves a directory of its own
    before = fleet.sh(HOST, FILES)
    run = deploy(fleet, "--check")
    assert run.rc == 0 and "pins lack sglang-0.5.23-cpu" in run.text, run.why
    assert fleet.sh(HOST, FILES) == before
    assert not list((fleet.state / "pins").rglob("*.txt"))


@pytest.mark.parametrize("stage", ["switch", "prove"])
def test_a_stage_alone_on_a_bare_node_says_which_comes_first(fleet: Fleet, stage: str) -> None:
    before = fleet.snapshot(HOST)
    run = deploy(fleet, "--tags", stage)
    assert run.rc != 0 and "is not built on this host yet" in run.text and "--tags build" in run.text, run.why
    assert fleet.snapshot(HOST) == before


def test_build_alone_leaves_only_the_switch_to_be_done(fleet: Fleet) -> None:
    checked = deploy(fleet, "--tags", "build", "--check")
    assert checked.rc == 0 and "build environment" in checked.text, checked.why
    run = deploy(fleet, "--tags", "build")
    assert run.rc == 0, run.why
    assert fleet.sh(HOST, "ls %s/environments/*/.complete %s/instances/main/proven/*.json | wc -l" % (ROOT, ROOT)) == "2"
    assert fleet.sh(HOST, "systemctl show --value --property LoadState specdec-main") == "not-found"
    assert "nothing to remove" in fleet.sh(HOST, ROOT + "/bin/specdec prune --dry-run"), "it waits for its switch"


def test_switch_alone_serves_what_was_built(fleet: Fleet) -> None:
    run = deploy(fleet, "--tags", "switch")
    assert run.rc == 0 and "release %s serves" % fleet.release(HOST)["id"] in run.text, run.why
    assert len(fleet.complete("import os\n", HOST)) > 10


def test_an_instance_that_left_the_inventory_is_told_and_serves_on(fleet: Fleet) -> None:
    before = fleet.snapshot(HOST)
    other = [{"name": "other", "gpus": "none", "context_length": 1024, "port": 30001}]
    run = deploy(fleet, "--check", specdec_instances=other)
    assert run.rc == 0, run.why
    assert run.text.count("instance main is on the host (active on port 30000) and not in the inventory: left alone") >= 2
    assert fleet.snapshot(HOST) == before


def test_a_rotated_key_is_a_release_without_a_build(fleet: Fleet) -> None:
    old = fleet.release(HOST)
    run = deploy(fleet, key=ROTATED)
    assert run.rc == 0 and "build environment" not in run.text, run.why
    assert fleet.release(HOST)["environment"] == old["environment"] and fleet.release(HOST)["id"] != old["id"]
    assert len(fleet.complete("import os\n", HOST, key=ROTATED)) > 10
    assert b"flushed" in fleet.ask(HOST, "/flush_cache", b"", ADMIN).lower()
    with pytest.raises(urllib.error.HTTPError):
        fleet.complete("import os\n", HOST)


def test_a_failing_specification_shows_no_secret(fleet: Fleet) -> None:
    run = deploy(fleet, key=ROTATED, specdec_exclude_newer=["a", "list"], specdec_pins_update=17, specdec_host_pins={"torch": 2.1})
    assert run.rc != 0
    for variable in ("specdec_exclude_newer", "specdec_pins_update", "specdec_host_pins.torch"):
        assert "%s on %s" % (variable, HOST) in run.text, run.why


def test_no_secret_lies_anywhere_on_the_host(fleet: Fleet) -> None:
    text, wrong, files = sweep.exposed(lambda script: fleet.sh(HOST, script), [TOKEN, ROTATED, ADMIN, fleet.key()])
    assert "server_args" in text and "***" in text, "the engine logs its arguments, without the key"
    assert wrong == []
    assert any("/secrets/" in path for path in files), "the host has to keep the key itself"
