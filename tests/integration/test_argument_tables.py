# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of arguments against the parsers of released engines, out of their wheels."""

from __future__ import annotations

import argumenttable
import packageindex
import pytest
import yaml

from ansible_collections.specdec.serving.plugins.plugin_utils import hosttools

TABLE = yaml.safe_load(argumenttable.TABLE.read_text(encoding="utf-8"))
_ATTEMPTS = 4


def known(engine: str, version: str) -> set[str]:
    """What the release reads; an index that does not answer is asked again."""
    for attempt in range(_ATTEMPTS):
        try:
            return argumenttable.published(packageindex.Index(packageindex.default_index(hosttools.find_uv())), TABLE[engine], version)
        except packageindex.Unreachable:
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError


# a version of each window in which names are other ones; tests/full reads all
@pytest.mark.parametrize(("engine", "version"), [("sglang", "0.5.9"), ("sglang", "0.5.16"), ("sglang", "0.5.23"), ("vllm", "0.33.0")])
def test_every_argument_that_is_written_exists_and_every_removed_one_is_gone(engine: str, version: str) -> None:
    found = known(engine, version)
    assert argumenttable.differences(TABLE[engine], version, found) == []
    # what would be read wrongly is told: the argument of another window counts as gone here
    life = TABLE[engine]["life"]
    gone = next(name for name in life if name not in found)
    assert argumenttable.differences(TABLE[engine], version, found | {gone}) != []
