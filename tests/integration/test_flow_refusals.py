# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bad input: one clear error that names host, variable and way out, and a target that is left as it was."""

from __future__ import annotations

import contextlib
import re
import typing as t
from pathlib import Path

import pytest
from flow import Fleet, variables


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
