# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a rollback goes to when little is said, and what it refuses."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import releases, rollbacks
from ansible_collections.specdec.serving.plugins.module_utils.findings import FindingError
from ansible_collections.specdec.serving.plugins.module_utils.layout import MARKER, Layout


def keep(layout: Layout, instance: str, argument: int, *, served: bool = True, start: int = 10) -> str:
    """A release on disk, and in the history when it served."""
    facts = {
        "instance": instance,
        "environment": "abc",
        "engine": {"name": "double", "version": "1"},
        "command": [],
        "gate": {"timeout": 5},
        "start_timeout": start,
        "stop_timeout": 1,
    }
    release = releases.compose(str(layout.root), facts, {"argument": argument}, "")
    releases.store(layout, release)
    if served:
        releases.append_history(layout, instance, {"what": "switch", "to": release.id, "verdict": "committed"})
        releases.flip(layout, instance, release.id)
    return release.id


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path)
    made.environment("abc").mkdir(parents=True)
    (made.environment("abc") / MARKER).touch()
    return made


def ask(layout: Layout, **spec: t.Any) -> dict[str, t.Any]:
    return rollbacks.specification({"kind": "rollback", "root": str(layout.root), **spec})


def test_the_only_instance_goes_back_to_the_release_before_within_a_deadline(layout: Layout) -> None:
    one, _two = keep(layout, "main", 1), keep(layout, "main", 2, start=100)
    spec = ask(layout, instance="", release="")
    # stop 1, start 10, gate 5; and the way back: stop 1, start 100, gate 5
    assert (spec["instance"], spec["release"], spec["deadline"]) == ("main", one, 122)


def test_a_release_may_be_named_and_need_not_have_served(layout: Layout) -> None:
    keep(layout, "main", 1)
    other = keep(layout, "main", 2, served=False)
    assert ask(layout, instance="main", release=other)["release"] == other


@pytest.mark.parametrize(
    ("asked", "id_", "message"),
    [
        ({}, "rollback.instance", "the instance: is not named, and this host holds several"),
        ({"instance": "nosuch"}, "rollback.instance", "instance nosuch: is not on this host"),
        ({"instance": "main"}, "transaction.no-way-back", "has no release to go back to"),
        ({"instance": "main", "release": "0"}, "rollback.release", "release 0 of main: is not on this host"),
    ],
)
def test_refusals_say_what_there_is(layout: Layout, asked: dict[str, str], id_: str, message: str) -> None:
    for instance in ("main", "other"):
        keep(layout, instance, 1)
    with pytest.raises(FindingError, match=message) as refused:
        ask(layout, **asked)
    assert refused.value.finding.id == id_ and refused.value.finding.fix


def test_an_unknown_release_is_refused_with_what_speaks_for_the_known_ones(layout: Layout) -> None:
    one, failed = keep(layout, "main", 1), keep(layout, "main", 2, served=False)
    with pytest.raises(FindingError) as refused:
        ask(layout, release="0")
    assert "%s (current, served, double 1)" % one in refused.value.finding.found
    assert "%s (has not served, double 1)" % failed in refused.value.finding.found


def test_nothing_was_deployed(layout: Layout) -> None:
    with pytest.raises(FindingError, match="holds none"):
        ask(layout)
