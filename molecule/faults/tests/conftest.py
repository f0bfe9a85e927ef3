# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host of the faults, in the set that molecule made."""

from __future__ import annotations

import os
import runpy
import sys
import typing as t
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[3] / "tests"
runpy.run_path(str(TESTS / "unit" / "conftest.py"))  # makes the collection importable
sys.path[:0] = [str(TESTS / "integration"), str(TESTS / "doubles")]


@pytest.fixture(scope="session")
def site() -> t.Iterator[t.Any]:
    """ct200 with a first release that serves."""
    import faulthost

    variables = ("SPECDEC_DEMO_STATE", "SPECDEC_DEMO_PREFIX", "SPECDEC_DEMO_SUBNET")
    state, prefix, subnet = (os.environ[name] for name in variables)
    made = faulthost.Site(Path(state), prefix, subnet)
    made.up()
    try:
        yield made
    finally:
        made.down()
