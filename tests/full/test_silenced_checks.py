# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each id of a finding has a test that fails when its check is switched off.

The unit tests are run once to learn which of them meets which id (silencing.py); then, for each id, those of them that do, with the
findings of that id silenced: one has to fail. An id that no unit test meets is produced on hosts alone; the tests there name it.
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
#: How many of an id's tests are tried, the shortest first.
TRIED = 40

#: Made on real hosts, by what systemd, a kill or a full disk do there; integration tests assert them by name.
ON_HOSTS = {"environment.read-only", "job.killed", "model.damaged", "model.disk", "model.moving", "model.path"}


def unit_tests(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run unit tests with the plugin."""
    argv = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "silencing", *words]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT / "tests" / "full"), **environment}
    return subprocess.run(argv, cwd=CHECKOUT, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


@functools.cache
def met() -> dict[str, list[str]]:
    """By id the unit tests that meet it."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "met.json")
        done = unit_tests("tests/unit", SPECDEC_MET=str(path))
        assert done.returncode == 0, done.stdout[-3000:]
        return t.cast("dict[str, list[str]]", json.loads(path.read_text()))


def test_what_only_hosts_show_is_named() -> None:
    assert sorted(test_finding_ids.ids() - set(met()) - ON_HOSTS) == []


@pytest.mark.parametrize("check", sorted(test_finding_ids.ids() - ON_HOSTS))
def test_a_test_fails_when_the_check_is_switched_off(check: str) -> None:
    done = unit_tests(*met()[check][:TRIED], SPECDEC_SILENCED=check)
    assert done.returncode == 1, "no test misses %s:\n%s" % (check, done.stdout[-2000:])
