# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model that a deploy fetches from a hub, with a token that nobody gets to see."""

from __future__ import annotations

import json
import typing as t

import pytest
from flow import CHECKOUT, ROOT, Fleet, Run, variables
from hub import Hub, Repository

TOKEN = "hf_tokenThatNobodySees"
MODEL = CHECKOUT / "demo" / "models" / "target"
REVISION = Repository({}).commit
PLACE = "%s/models/org--target/%s" % (ROOT, REVISION)


@pytest.fixture
def hub(fleet: Fleet) -> t.Iterator[Hub]:
    files = {path.name: path.read_bytes() for path in MODEL.iterdir()}
    repository = Repository(files, large=frozenset({"model.safetensors"}), token=TOKEN)
    made = Hub({"org/target": repository}, "%s.1" % fleet.subnet)
    yield made
    made.close()


def deploy(fleet: Fleet, hub: Hub, token: str, *arguments: str) -> Run:
    """As loud and as open as it can be made; nothing of it may show the token."""
    wanted = variables(model={"directory": None, "repo": "org/target", "revision": REVISION})
    written = fleet.state / "hub.json"
    written.write_text(json.dumps({**wanted, "specdec_hub": {"endpoint": hub.endpoint, "token": token}}))
    run = fleet.deploy("--diff", "-e", "@%s" % written, *arguments)
    assert token not in run.text
    return run


def test_a_model_is_fetched_from_a_hub_and_its_token_stays_hidden(fleet: Fleet, hub: Hub) -> None:
    # pins and environment are there, whichever test came first: a plan without them says nothing of models
    ready = fleet.deploy("--tags", "build")
    assert ready.rc == 0, ready.why
    checked = deploy(fleet, hub, TOKEN, "--tags", "build", "--check")
    assert checked.rc == 0, checked.why
    assert "fetch org/target at %s from the hub" % REVISION in checked.text and hub.seen == []

    refused = deploy(fleet, hub, TOKEN + "Wrong", "--tags", "build")
    assert refused.rc != 0 and "specdec_hub.token" in refused.text, refused.why

    run = deploy(fleet, hub, TOKEN)
    assert run.rc == 0, run.why
    assert PLACE in fleet.release()["models"] and len(fleet.complete("import os\n")) > 10
    names = sorted(path.name for path in MODEL.iterdir())
    assert fleet.sh("ct200", "ls %s" % PLACE).split() == names
    assert fleet.sh("ct200", "stat -c %%a %s %s/.complete %s/model.safetensors" % (PLACE, PLACE, PLACE)).split() == ["755", "644", "644"]
    left = "grep -rl %s /run/specdec %s/models %s/instances /root /tmp /var/tmp; journalctl --no-pager | grep -c %s; true"
    assert fleet.sh("ct200", left % (TOKEN, ROOT, ROOT, TOKEN)) == "0"

    asked = len(hub.seen)
    again = deploy(fleet, hub, TOKEN)
    assert again.rc == 0 and again.recap("ct200")["changed"] == 0 and len(hub.seen) == asked, again.why
    back = fleet.deploy()
    assert back.rc == 0, back.why
