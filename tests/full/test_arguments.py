# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of arguments against the parser of every release that it names."""

from __future__ import annotations

import argumenttable
import pytest
import test_argument_tables

RELEASES = [(engine, version) for engine, row in test_argument_tables.TABLE.items() for version in row["parser"]["versions"]]


@pytest.mark.parametrize(("engine", "version"), RELEASES)
def test_arguments_of_a_release(engine: str, version: str) -> None:
    found = test_argument_tables.known(engine, version)
    assert argumenttable.differences(test_argument_tables.TABLE[engine], version, found) == []
