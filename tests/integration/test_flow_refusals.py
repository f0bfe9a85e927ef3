# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bad input: one clear error that names host, variable and way out, and a target that is left as it was."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import typing as t
from pathlib import Path

import pytest
from flow import CHECKOUT, Fleet, variables


def refused(fleet: Fleet, *said: str, **options: t.Any) -> None:
    """The deploy fails with all of this in its message; ct200 is bit for bit what it was."""
    before = fleet.snapshot()
    run = fleet.deploy(**options)
    assert run.rc != 0
    for words in said:
        assert words in run.text, run.why
    assert fleet.snapshot() == before


@contextlib.contextmanager
def undone(fleet: Fleet, host: str, do: str, undo: str) -> t.Iterator[None]:
    """A state of a host that is taken back whatever happens."""
    fleet.sh(host, do)
    try:
        yield
    finally:
        fleet.sh(host, undo)


def test_an_unknown_engine(fleet: Fleet) -> None:
    said = ("specdec_instances[main].engine.name on ct200", "is not allowed", "use one of: sglang, vllm")
    refused(fleet, *said, variables=variables(engine={"name": "sglnag"}))


def test_an_unknown_version(fleet: Fleet) -> None:
    said = ("ct200: specdec_instances[main].engine.version", "0.5.99", "0.5.23")
    refused(fleet, *said, variables=variables(engine={"version": "0.5.99"}))


def test_a_misspelt_variable(fleet: Fleet) -> None:
    said = ("specdec_instnaces on ct200", "is no variable of this collection", "write specdec_instances")
    refused(fleet, *said, variables={"specdec_instnaces": []})


def test_a_misspelt_option(fleet: Fleet) -> None:
    said = ("specdec_instances[main].tensor_paralel on ct200", "is no option", "write tensor_parallel")
    refused(fleet, *said, variables=variables(tensor_paralel=1))


def test_a_wrong_type(fleet: Fleet) -> None:
    said = ("specdec_instances on ct200", "is not a list", "give specdec_instances as a list")
    refused(fleet, *said, variables={"specdec_instances": {"name": "main"}})


def test_a_directory_that_holds_no_model(fleet: Fleet, tmp_path: Path) -> None:
    said = ("specdec_instances[main].model.directory on ct200", "no config.json in %s" % tmp_path, "name a model's directory")
    refused(fleet, *said, variables=variables(model={"directory": str(tmp_path)}))


def test_all_that_the_arguments_cannot_do_is_named_at_once(fleet: Fleet, tmp_path: Path) -> None:
    """A draft for another algorithm and another tokenizer, an argument that is gone, and instances that get in each other's way."""
    draft = tmp_path / "draft"
    shutil.copytree(CHECKOUT / "demo" / "models" / "draft", draft)
    tokens = json.loads((draft / "tokenizer.json").read_text())
    names = list(tokens["model"]["vocab"])
    tokens["model"]["vocab"] = {name: number for number, name in enumerate([*names[:3], *reversed(names[3:])])}
    (draft / "tokenizer.json").write_text(json.dumps(tokens))
    spread = {"host": "127.0.0.1", "tensor_parallel": 2, "attention_data_parallel": 2}
    main = {
        **spread,
        "draft": {"directory": str(draft)},
        "speculative": {"algorithm": "DFLASH"},
        "pipeline_parallel": 2,
        "extra_args": {"speculative-ddtree-budget": None, "mamba-scheduler-strategy": "extra_buffer"},
    }
    other = {"host": "127.0.0.1", "port": 30235, "tensor_parallel": 3}
    plain = variables(speculative=None, draft=None, extra_args=None, overlays=None)
    instances = [{"name": "main", **main}, {"name": "other", **other}, {"name": "high", **spread, "port": 65400}]
    refused(
        fleet,
        "ct200: specdec_instances[main].draft: the draft is not one for DFLASH",
        "ct200: specdec_instances[main].draft: the draft is for another tokenizer",
        "name a draft that was made for this model",
        "ct200: specdec_instances[main].pipeline_parallel: it does not work over stages of a pipeline",
        "use pipeline_parallel: 1, with more tensor_parallel",
        "ct200: specdec_instances[main].extra_args.mamba-scheduler-strategy: sglang 0.5.23 does not read this argument",
        "Write instead: mamba-radix-cache-strategy (option mamba_strategy).",
        "ct200: specdec_instances[other].tensor_parallel: the attention heads of the model cannot be shared out evenly",
        "use one of: 1, 2, 4",
        "ct200: specdec_instances[other].port: takes a port that instance main takes, too",
        "move port of one of them by more than",
        "ct200: specdec_instances[high].port: the engine would take a port that there is not",
        "use a port of 65297 or less",
        variables={**plain, "specdec_instances": instances},
    )


def test_a_model_without_dflash(fleet: Fleet, tmp_path: Path) -> None:
    for part, architecture in (("model", "GPT2LMHeadModel"), ("draft", "DFlashDraftModel")):
        config = json.loads((CHECKOUT / "demo" / "models" / "draft" / "config.json").read_text())
        (tmp_path / part).mkdir()
        (tmp_path / part / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))
    change = {part: {"directory": str(tmp_path / part)} for part in ("model", "draft")}
    said = (
        "ct200: specdec_instances[main].model: SGLang 0.5.23 has no DFlash for this class of models",
        "GPT2LMHeadModel",
        "Choose another algorithm",
    )
    budget = {"speculative-ddtree-budget": None}
    refused(fleet, *said, variables=variables(**change, speculative={"algorithm": "DFLASH"}, overlays=None, extra_args=budget))


def test_a_disk_too_small(fleet: Fleet) -> None:
    with undone(fleet, "ct200", "mkdir -p /srv/small && mount -t tmpfs -o size=64m tmpfs /srv/small", "umount /srv/small"):
        said = ("specdec_root (/srv/small/specdec) on ct200", "too little space is free", "0.1 GB free on /srv/small", "set specdec_root")
        refused(fleet, *said, variables={"specdec_root": "/srv/small/specdec"})


def test_a_port_that_somebody_else_holds(fleet: Fleet) -> None:
    server = "import http.server as s; s.HTTPServer(('127.0.0.1', 30123), s.SimpleHTTPRequestHandler).serve_forever()"
    start = (
        'systemd-run --quiet --collect --unit=taker python3 -c "%s"; '
        "until python3 -c \"import socket; socket.create_connection(('127.0.0.1', 30123))\" 2>/dev/null; do :; done" % server
    )
    with undone(fleet, "ct200", start, "systemctl stop taker"):
        change = {"specdec_instances": [{"name": "main", "port": 30123}]}
        said = ("specdec_instances[main].port on ct200", "is taken", "port 30123 belongs to process", "choose another port")
        refused(fleet, *said, variables={**variables(), **change})


def test_no_systemd(fleet: Fleet) -> None:
    # What sd_booted(3) looks for; systemd itself runs on.
    with undone(fleet, "ct200", "mv /run/systemd/system /run/systemd/system.away", "mv /run/systemd/system.away /run/systemd/system"):
        before = fleet.sh("ct200", "find /opt/specdec -printf '%p %T@\\n' | sort")
        run = fleet.deploy()
        assert run.rc != 0
        assert "does not run systemd" in run.text
        assert "the host on ct200" in run.text
        assert fleet.sh("ct200", "find /opt/specdec -printf '%p %T@\\n' | sort") == before


def test_a_reference_without_the_package(fleet: Fleet, tmp_path: Path) -> None:
    change = {**variables(overlays=[{"reference": "ct201"}]), "specdec_pins_dir": str(tmp_path), "specdec_reference": {"venv": "/opt/none"}}
    said = ("the overlay of sglang on ct201 could not be captured", "no sglang below /opt/none", "set specdec_reference.venv")
    refused(fleet, *said, variables=change)


def test_a_reference_that_cannot_be_reached_while_pins_are_missing(fleet: Fleet, tmp_path: Path) -> None:
    said = (
        "ct200: the overlay of sglang on ct129 could not be captured",
        "the reference cannot be reached, and the pins hold no overlay of it",
        "specdec_instances of ct200: overlays[].reference ct129",
        "start ct129",
    )
    with fleet.without("ct129"):
        refused(fleet, *said, variables={"specdec_pins_dir": str(tmp_path)})


def test_deploy_without_the_collections_link_names_it(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "deploy.yml").write_text(Path(__file__).resolve().parents[2].joinpath("deploy.yml").read_text())
    run = fleet.deploy(cwd=tmp_path, env={"ANSIBLE_COLLECTIONS_PATH": str(tmp_path / "none")})
    assert run.rc != 0
    assert "collections/ansible_collections/specdec/serving/playbooks/deploy.yml" in run.text
    assert len(re.findall(r"^\[ERROR\]", run.text, re.MULTILINE)) == 1


@pytest.mark.parametrize("command", [["--check", "--diff"]])
def test_check_mode_shows_and_changes_nothing(fleet: Fleet, command: list[str]) -> None:
    before = fleet.snapshot()
    run = fleet.deploy(*command, variables=variables(extra_args={"max-running-requests": 2}))
    assert run.rc == 0, run.why
    assert '"max-running-requests": 2' in run.text
    assert fleet.snapshot() == before
