# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An overlay that meets a full disk, a file system without writes, or another one being applied: nothing half counts. On a real host."""

from __future__ import annotations

import json
import os
import re
import typing as t
from pathlib import Path

import overlayhost
import pytest
from flow import CHECKOUT, Fleet, Run

from ansible_collections.specdec.serving.plugins.module_utils import artifacts

HOST = "ct200"
SMALL = "/srv/small"
PLAYBOOK = """
- hosts: ct200
  gather_facts: false
  become: true
  tasks:
    - specdec.serving.push:
        artifacts: "{{ lookup('ansible.builtin.file', sent) | from_json }}"
"""

#: Starts two builds of the same environment through the host's program, as two deploys would, and follows the first.
TWICE = """
import json, os
os.environ["ROOT"] = "/opt/specdec"
import overlays_under_fire as driver
from ansible_collections.specdec.serving.plugins.module_utils import jobs
spec = driver.spec("overlaid")
first = jobs.start({**spec, "who": "one@here"}, driver.run)
try:
    jobs.start({**spec, "who": "two@there"}, driver.run)
    second = "started"
except jobs.Busy as busy:
    second = str(busy)
news = {"done": False, "offset": 0}
while not news["done"]:
    news = jobs.follow(first["directory"], news["offset"], 30, driver.run)
print(json.dumps({"second": second, "result": news["result"], "id": spec["environment"]["id"]}))
"""


def push(fleet: Fleet, sent: Path) -> Run:
    """Send what a file with artifacts names."""
    env = {"ANSIBLE_COLLECTIONS_PATH": str(CHECKOUT / "collections")}
    run = fleet.deploy(playbook=str(fleet.state / "push.yml"), variables={"sent": str(sent)}, env=env)
    assert run.rc == 0, run.why
    return run


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Fleet]:
    top = tmp_path_factory.mktemp("faults")
    made = Fleet(top, "specdec-overlaid", "10.89.85")
    sent = top / "artifacts.json"
    sent.write_text(json.dumps(overlayhost.prepare(top)))
    (top / "push.yml").write_text(PLAYBOOK)
    try:
        made.must("demo/hosts/hosts", "up", HOST)
        push(made, sent)
        yield made
    finally:
        made.down()


def driver(fleet: Fleet, *words: str, root: str = overlayhost.ROOT) -> dict[str, t.Any]:
    """What the driver on the host says at its end."""
    program = "PYTHONPATH=%s/bin/specdec ROOT=%s /usr/bin/python3 -B %s" % (overlayhost.ROOT, root, overlayhost.DRIVER)
    return json.loads(fleet.sh(HOST, "%s %s" % (program, " ".join(words))).splitlines()[-1])


def errors(result: t.Mapping[str, t.Any]) -> list[dict[str, t.Any]]:
    return [one for one in result["findings"] if one["verdict"] == "error"]


@pytest.fixture
def small(fleet: Fleet) -> t.Iterator[Fleet]:
    """A root directory on a small file system of its own, with an environment that would serve."""
    parts = " ".join("%s/%s" % (overlayhost.ROOT, part) for part in ("bin", "cache"))
    fleet.sh(HOST, "mkdir -p %s && mount -t tmpfs -o size=160m tmpfs %s && cp -a %s %s/" % (SMALL, SMALL, parts, SMALL))
    try:
        assert driver(fleet, "build", "plain", root=SMALL)["ok"]
        yield fleet
    finally:
        fleet.sh(HOST, "umount --lazy " + SMALL)


def held(fleet: Fleet) -> str:
    """Every environment that counts, with the content of its files."""
    count = (
        "cd %s/environments && for one in */.complete; do echo $one; find ${one%%/*} -type f ! -name '*.pyc' -exec sha256sum {} +; done"
        % SMALL
    )
    return fleet.sh(HOST, count)


@pytest.mark.parametrize(
    ("what", "id_", "said", "mend"),
    [
        ("fill", "environment.disk", "No space left on device", "rm %s/filler" % SMALL),
        ("remount", "environment.read-only", "Read-only file system", "mount -o remount,rw %s" % SMALL),
    ],
)
def test_a_file_system_that_fails_while_files_are_laid_over(small: Fleet, what: str, id_: str, said: str, mend: str) -> None:
    before = held(small)
    result = driver(small, "build", "overlaid", what, root=SMALL)
    (finding,) = errors(result)
    assert not result["ok"]
    assert (finding["id"], said in finding["evidence"], bool(finding["fix"])) == (id_, True, True)
    assert held(small) == before
    small.sh(HOST, mend)
    assert driver(small, "build", "overlaid", root=SMALL)["ok"]
    assert set(before.splitlines()) < set(held(small).splitlines())
    assert small.sh(HOST, "ls -A %s/environments | wc -l" % SMALL) == "2"


def test_of_two_applies_at_once_the_second_is_told_of_the_first(fleet: Fleet) -> None:
    place = "cd %s && PYTHONPATH=%s/bin/specdec:. /usr/bin/python3 -B -c '%s'" % (
        overlayhost.ROOT,
        overlayhost.ROOT,
        TWICE.replace("'", '"'),
    )
    said = json.loads(fleet.sh(HOST, place).splitlines()[-1])
    assert "build of %s for one@here" % said["id"] in said["second"]
    assert said["result"]["ok"], said
    assert fleet.sh(HOST, "ls -A %s/environments" % overlayhost.ROOT) == said["id"]
    assert not driver(fleet, "build", "overlaid")["changed"]


def test_a_bundle_that_was_edited_on_the_host_is_refused(fleet: Fleet) -> None:
    bundles = overlayhost.PLACE.overlays
    fleet.sh(HOST, "rm -rf %s/environments; echo more | tee -a %s/*/files/engine/tree/t1.py" % (overlayhost.ROOT, bundles))
    (finding,) = errors(driver(fleet, "build", "overlaid"))
    assert (finding["id"], finding["evidence"]) == ("overlay.digest", "engine/tree/t1.py")
    assert "sends the bundle anew" in finding["fix"]
    assert fleet.sh(HOST, "ls -A %s" % bundles) == ""
    assert fleet.sh(HOST, "ls -A %s/environments 2>/dev/null || true" % overlayhost.ROOT) == ""


def test_any_size_is_one_transfer_and_the_same_calls(fleet: Fleet, tmp_path: Path) -> None:
    """One small file, and 20,000 files beside one of 200 MB."""
    for number in range(20000):
        place = tmp_path / "large" / ("d%d" % (number % 100))
        place.mkdir(parents=True, exist_ok=True)
        (place / ("f%d.py" % number)).write_bytes(b"N = %d\n" % number)
    (tmp_path / "large/table.bin").touch()
    os.truncate(tmp_path / "large/table.bin", 200 << 20)
    (tmp_path / "small").mkdir()
    (tmp_path / "small/a.py").write_bytes(b"A = 1\n")
    counted = []
    for name in ("small", "large"):
        tree, sent = tmp_path / name, tmp_path / (name + ".json")
        dest = str(overlayhost.PLACE.overlays / name)
        sent.write_text(json.dumps([artifacts.Artifact(str(tree), dest, artifacts.tree_digest(tree)).as_dict()]))
        run = push(fleet, sent)
        counted.append((run.calls, len(re.findall(r"^<[\d.]+> PUT ", run.text, re.MULTILINE))))
    assert counted[0] == counted[1]
    assert counted[0][1] == 1
    assert fleet.sh(HOST, "cd %s/large && find . -name '*.py' | wc -l && stat -c %%s table.bin" % overlayhost.PLACE.overlays) == (
        "20000\n%d" % (200 << 20)
    )
    (tmp_path / "nothing.json").write_text("[]")
    assert push(fleet, tmp_path / "nothing.json").calls == {}
