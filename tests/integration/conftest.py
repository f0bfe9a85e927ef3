# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host of these tests: made once, with the host program and a double of an engine on it."""

from __future__ import annotations

import runpy
import sys
import typing as t
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
runpy.run_path(str(HERE.parent / "unit" / "conftest.py"))  # makes the collection importable
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent / "doubles"))
sys.path.append(str(HERE.parents[1]))  # for tests.unit.…: small wheels and packages made on the spot


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[t.Any]:
    """A host of its own set, so that no other is disturbed; removed afterwards."""
    import switchhost

    made = switchhost.Host(tmp_path_factory.mktemp("hosts"))
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[t.Any]:
    """The demo's hosts under names of their own, with ct129 prepared; removed afterwards."""
    import flow

    made = flow.Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        made.up()
        yield made
    finally:
        made.down()
