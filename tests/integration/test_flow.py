# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The product's main job with a real engine, as a user does it; the tests build on each other in this order."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
import typing as t
import urllib.error
from pathlib import Path

import openai
import pytest
import yaml
from flow import CHECKOUT, ROOT, SUBNET, Fleet, cut_off, refused_routes, variables
from index import Index

from ansible_collections.specdec.serving.plugins.module_utils import checks

PROMPT = "import os\nimport sys\n\nclass Error(Exception):\n"
VERIFY = "sglang:spec_verify_calls_total"


def manifest(fleet: Fleet) -> dict[str, t.Any]:
    reference = json.loads((fleet.state / "pins" / "references" / "ct129.json").read_text())
    return json.loads((fleet.state / "pins" / "overlays" / reference["overlays"]["sglang"] / "manifest.json").read_text())


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An older copy of the collection, installed: its deploy does nothing but say so."""
    top = tmp_path_factory.mktemp("older")
    place = top / "ansible_collections" / "specdec" / "serving"
    (place / "playbooks").mkdir(parents=True)
    (place / "galaxy.yml").write_text("namespace: specdec\nname: serving\nversion: 0.0.1\nreadme: README.md\nauthors: []\n")
    (place / "playbooks" / "deploy.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n    - ansible.builtin.fail: {msg: this is the older copy}\n"
    )
    return top


def test_deploy_as_written_beside_an_older_copy(fleet: Fleet, older: Path) -> None:
    run = fleet.deploy(env={"ANSIBLE_COLLECTIONS_PATH": str(older)})
    assert run.rc == 0, run.why
    assert "this is the older copy" not in run.text
    assert "release %s serves" % fleet.release()["id"] in run.text
    assert re.search(r"^ *checks +\d+ not applicable, \d+ ok$", run.text, re.MULTILINE), re.findall("checks .*", run.text)
    assert re.findall(r"^ *warning +.*", run.text, re.MULTILINE) == []
    assert re.search(r"ready +[\d.]+ s after the start", run.text)
    assert re.search(r"completion +.{10}", run.text)
    assert run.acceptance() > 1.3
    assert "GPUs: none" in run.text
    assert "specdec rollback main" in run.text
    assert fleet.key() not in run.text
    left_alone = yaml.safe_load((CHECKOUT / "demo" / "reference" / "expected.yml").read_text())["left_alone"]
    for kind in ("mode_only", "other_package"):
        assert "not captured: %s" % left_alone[kind] in run.text


def test_every_check_of_a_clean_deploy_is_ok_or_not_applicable_and_those_of_gpus_are_named(fleet: Fleet) -> None:
    note = fleet.sh("ct200", "cat %s/instances/main/proven/%s.json" % (ROOT, fleet.release()["id"]))
    found = json.loads(note)["findings"]
    assert [one for one in found if one["verdict"] not in ("ok", "not applicable")] == []
    assert [one for one in found if not (one["subject"] and one["message"] and (one["found"] or one["evidence"]))] == []
    verdicts = {one["id"]: one["verdict"] for one in found}
    assert set(verdicts) == {check.id for check in checks.CHECKS}
    for check in ("lock.satisfied", "record.changed", "overlay.applied", "import.engine", "algorithm.recognised", "arguments.accepted"):
        assert verdicts[check] == "ok", check
    # the lane for the CPU: nothing there that a GPU would have to answer
    gpus = [one for one in found if one["id"] in ("abi.gpu-architecture", "abi.driver-symbol")]
    assert {(one["verdict"], one["message"], bool(one["evidence"])) for one in gpus} == {("not applicable", "this lane uses none", True)}
    assert len(gpus) == 2


def test_the_overlay_is_exactly_what_was_changed_by_hand(fleet: Fleet) -> None:
    expected = yaml.safe_load((CHECKOUT / "demo" / "reference" / "expected.yml").read_text())
    captured = {(entry["action"], entry["path"]) for entry in manifest(fleet)["files"]}
    assert captured == {(action, path) for action in ("add", "change", "delete") for path in expected["overlay"][action]}
    assert {entry["mode"] for entry in manifest(fleet)["files"]} <= {"0644", "0755"}


def test_it_answers_with_the_key_and_not_without(fleet: Fleet) -> None:
    assert len(fleet.complete(PROMPT)) > 10
    for key in ("", "not-the-key-not-the-key"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            fleet.complete(PROMPT, key=key)
        assert refused.value.code == 401


def test_it_answers_the_official_client(fleet: Fleet) -> None:
    base = "http://%s.200:30000/v1" % SUBNET
    client = openai.OpenAI(base_url=base, api_key=fleet.key())
    answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=48, temperature=0)
    assert answer.choices[0].text == fleet.complete(PROMPT)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=base, api_key="not-the-key-not-the-key").completions.create(model="tiny", prompt=PROMPT)


def test_the_second_run_changes_nothing_and_asks_once(fleet: Fleet) -> None:
    before = fleet.snapshot()
    run = fleet.deploy()
    assert run.rc == 0, run.why
    assert run.recap("ct200")["changed"] == 0
    assert 1 <= run.calls["%s.200" % SUBNET] <= 2
    assert "%s.129" % SUBNET not in run.calls
    assert fleet.snapshot() == before


def test_the_engines_own_check_refuses_before_anything_is_switched(fleet: Fleet) -> None:
    # only the code that the overlay brings knows how large a tree may be
    serving = fleet.release()["id"]
    run = fleet.deploy(variables=variables(extra_args={"speculative-ddtree-budget": 99}))
    assert run.rc != 0
    finding = re.search(r"ERROR: (.|\n)*", run.text).group(0)
    assert "--speculative-ddtree-budget is 99, must be in 1..30" in finding, finding[:3000]
    assert fleet.release()["id"] == serving
    assert len(fleet.history()) == 1


@pytest.mark.parametrize(
    "change", [{"speculative": {"algorithm": "NOSUCH"}}, {"overlays": None}], ids=["known to nobody", "without the overlay that adds it"]
)
def test_an_algorithm_that_neither_engine_nor_overlay_knows_is_refused_before_anything_is_built(
    fleet: Fleet, change: dict[str, t.Any]
) -> None:
    before = fleet.snapshot()
    run = fleet.deploy(variables=variables(**change, extra_args={"speculative-ddtree-budget": None}))
    assert run.rc != 0
    assert "sglang 0.5.23 does not know this algorithm, and no overlay adds it" in run.text, run.why
    assert fleet.snapshot() == before


def test_without_speculation_the_text_is_the_same_and_nothing_is_verified(fleet: Fleet) -> None:
    texts = [fleet.complete(prompt) for prompt in (PROMPT, "for i in range(")]
    verified = fleet.counter(VERIFY)
    assert verified > 0
    run = fleet.deploy(variables=variables(speculative=None, draft=None, extra_args={"speculative-ddtree-budget": None}))
    assert run.rc == 0, run.why
    assert [fleet.complete(prompt) for prompt in (PROMPT, "for i in range(")] == texts
    assert fleet.counter(VERIFY) == 0


def test_a_draft_that_does_nothing_is_refused_and_what_served_serves_again(fleet: Fleet) -> None:
    serving = fleet.release()["id"]
    text = fleet.complete(PROMPT)
    run = fleet.deploy(variables=variables(draft={"directory": "{{ specdec_demo_models }}/untrained"}))
    assert run.rc != 0
    assert "the draft does nothing" in run.text
    assert "%s serves again" % serving in run.text
    assert fleet.release()["id"] == serving
    assert fleet.complete(PROMPT) == text
    last = fleet.history()[-1]
    assert (last["verdict"], last["acceptance"]) == ("rolled back", 1.0)


def test_a_controller_killed_in_the_middle_changes_nothing_for_the_users(fleet: Fleet, tmp_path: Path) -> None:
    wanted = variables(extra_args={"max-running-requests": 4})
    output = tmp_path / "out"
    process = fleet.start_deploy(wanted, output)
    record = "%s/instances/main/transaction.json" % ROOT
    limit = time.monotonic() + 600
    while "stopped" not in fleet.sh("ct200", "cat %s 2>/dev/null || true" % record):
        assert process.poll() is None and time.monotonic() < limit, output.read_text()[-3000:]
    fleet.kill(process)
    deadline = json.loads(fleet.sh("ct200", "cat %s 2>/dev/null || echo '{}'" % record)).get("deadline", time.time() + 600)
    entries = fleet.history()
    while len(entries) < 4:
        assert time.time() < deadline
        time.sleep(0.5)
        entries = fleet.history()
    assert entries[-1]["verdict"] in ("committed", "rolled back")
    assert fleet.release()["id"] in (entries[-1]["to"], entries[-1]["from"])
    assert len(fleet.complete(PROMPT)) > 10
    again = fleet.deploy(variables=wanted)
    assert again.rc == 0, again.why
    assert again.recap("ct200")["changed"] == 0 or "release %s serves" % fleet.release()["id"] in again.text


def test_a_rollback_on_the_host_needs_no_controller(fleet: Fleet) -> None:
    leaving = fleet.release()["id"]
    said = fleet.sh("ct200", ROOT + "/bin/specdec rollback main")
    assert "committed" in said or "serves" in said
    assert fleet.release()["id"] != leaving
    assert len(fleet.complete(PROMPT)) > 10


def test_a_third_host_without_a_network_from_the_pins_and_a_wheelhouse_by_an_installed_collection(fleet: Fleet, tmp_path: Path) -> None:
    house = {"specdec_wheelhouse": str(tmp_path / "wheelhouse")}
    filled = fleet.fill(house)
    assert filled.rc == 0, filled.why
    built = fleet.must("ansible-galaxy", "collection", "build", "--output-path", str(tmp_path), str(CHECKOUT))
    (tarball,) = tmp_path.glob("specdec-serving-*.tar.gz")
    fleet.must("ansible-galaxy", "collection", "install", str(tarball), "-p", str(tmp_path / "installed"), "--offline", cwd=tmp_path)
    listed = shutil.which("tar") and fleet.must("tar", "tzf", str(tarball))
    for absent in ("demo/", "molecule/", "tests/", ".ci/", "collections/"):
        assert "\n%s" % absent not in listed, built
    cut_off(fleet, "ct201")
    attempts = refused_routes(fleet, "ct201")
    with fleet.without("ct129"), contextlib.closing(Index()) as nowhere:
        # the controller has nothing cached, and whatever it asked for would be seen here
        options: dict[str, t.Any] = {
            "limit": "ct201",
            "playbook": "specdec.serving.deploy",
            "cwd": tmp_path,
            "variables": house,
            "env": {
                "ANSIBLE_COLLECTIONS_PATH": str(tmp_path / "installed"),
                "ANSIBLE_CALLBACKS_ENABLED": "specdec.serving.summary",
                "XDG_CACHE_HOME": str(tmp_path / "cache"),
                "UV_CACHE_DIR": str(tmp_path / "uv"),
                "UV_DEFAULT_INDEX": nowhere.url,
                **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), nowhere.origin),
            },
        }
        build = fleet.deploy("--tags", "build", **options)
        assert build.rc == 0, build.why
        assert "download: nothing" in build.text
        # counted before the engine starts: that asks its kernel for the way to an outer address, to learn its own, and sends nothing
        assert refused_routes(fleet, "ct201") == attempts
        run = fleet.deploy(**options)
        assert run.rc == 0, run.why
        assert nowhere.seen == []
    assert "%s.129" % SUBNET not in run.calls
    here, there = fleet.release("ct200"), fleet.release("ct201")
    assert here["environment"] == there["environment"]
    fleet.sh("ct201", "test -e %s/environments/%s/.complete" % (ROOT, there["environment"]))
    assert fleet.complete(PROMPT, "ct201") == fleet.complete(PROMPT, "ct200")
