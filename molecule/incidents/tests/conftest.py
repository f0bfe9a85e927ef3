# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host of the incidents, in the set that molecule made."""

from __future__ import annotations

import os
import runpy
import sys
import typing as t
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[3] / "tests"
runpy.run_path(str(TESTS / "unit" / "conftest.py"))  # makes the collection importable
sys.path.insert(0, str(TESTS / "integration"))


@pytest.fixture(scope="session")
def scene() -> t.Any:
    """ct200 with GPUs and a service."""
    import incidents

    variables = ("SPECDEC_DEMO_STATE", "SPECDEC_DEMO_PREFIX", "SPECDEC_DEMO_SUBNET")
    state, prefix, subnet = (os.environ[name] for name in variables)
    made = incidents.Scene(Path(state), prefix, subnet)
    made.up()
    return made
