# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Versions taken over from a reference: captured once, locked in one run, refused where they are not known."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

from flow import CHECKOUT, Fleet, Run, variables

from ansible_collections.specdec.serving.plugins.module_utils import locks, parity


def lock(fleet: Fleet, pins: Path, **change: t.Any) -> Run:
    """``playbooks/lock.yml`` for ct200, whose engine takes its versions from ct129."""
    engine = change.pop("engine", {"version": None, "lock_from": "ct129"})
    wanted = {**variables(engine=engine, **change), "specdec_pins_dir": str(pins)}
    env = {"ANSIBLE_COLLECTIONS_PATH": str(CHECKOUT / "collections")}
    return fleet.deploy(variables=wanted, playbook="specdec.serving.lock", env=env)


def test_a_host_gets_the_versions_of_the_reference(fleet: Fleet, tmp_path: Path) -> None:
    run = lock(fleet, tmp_path)
    assert run.rc == 0, run.why
    there = json.loads((tmp_path / "references" / "ct129.json").read_text())["packages"]
    [path] = (tmp_path / "locks").iterdir()
    locked = locks.parse(path.read_text(), path.name).versions
    both = there.keys() & locked.keys()
    assert len(both) > 100
    assert {name: parity.public(locked[name]) for name in both} == {name: parity.public(there[name]) for name in both}


def test_a_version_that_contradicts_the_reference_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    assert lock(fleet, tmp_path).rc == 0
    before = sorted(path.name for path in tmp_path.rglob("*"))
    run = lock(fleet, tmp_path, engine={"version": "0.5.22", "lock_from": "ct129"})
    assert run.rc != 0
    for words in ("ct200: specdec_instances[main].engine.version", "engine.version contradicts lock_from", "take version out"):
        assert words in run.text, run.why
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_reference_that_was_never_captured_is_named(fleet: Fleet, tmp_path: Path) -> None:
    run = lock(fleet, tmp_path, overlays=[])
    assert run.rc != 0
    for words in ("ct200: specdec_instances[main].engine.lock_from", "nothing is known of this reference", "playbooks/capture.yml"):
        assert words in run.text, run.why
    assert not (tmp_path / "locks").exists()
