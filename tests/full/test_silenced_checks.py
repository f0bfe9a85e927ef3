# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each id of a finding has a test that fails when its check is switched off: see silencing.py.

An id that no unit test meets is produced on hosts alone; the tests there name it.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import typing as t
from pathlib import Path

import pytest

from tests.unit.module_utils import test_finding_ids

CHECKOUT = Path(__file__).resolve().parents[2]

#: Made on real hosts, by what systemd, a kill or a full disk do there; integration tests assert them by name.
ON_HOSTS = {"job.killed", "model.damaged", "model.disk", "model.moving", "model.path"}


@functools.cache
def told() -> dict[str, t.Any]:
    """What the plugin found."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "told.json")
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "silencing", "tests/unit"]
        env = {**os.environ, "PYTHONPATH": str(CHECKOUT / "tests" / "full"), "SPECDEC_SILENCING": str(path)}
        done = subprocess.run(argv, cwd=CHECKOUT, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert path.exists(), done.stdout[-3000:] + done.stderr[-3000:]
        return t.cast("dict[str, t.Any]", json.loads(path.read_text()))


def test_nothing_fails_with_every_check_on() -> None:
    assert told()["failed"] == []


def test_what_only_hosts_show_is_named() -> None:
    assert sorted(test_finding_ids.ids() - set(told()["met"])) == sorted(ON_HOSTS)


@pytest.mark.parametrize("check", sorted(test_finding_ids.ids() - ON_HOSTS))
def test_a_test_fails_when_the_check_is_switched_off(check: str) -> None:
    assert told()["missed"][check], "no test misses it: %s" % told()["met"][check]
