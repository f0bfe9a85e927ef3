# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a person reads about the packages that a build brings."""

from __future__ import annotations

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import packagelists

OLD = {"torch": "2.9.0", "numpy": "2.1", "gone": "1"}
NEW = {"torch": "2.9.1", "numpy": "2.1", "quack": "0.3", "local": "1+x"}
SIZES = {"torch": 899_000_000, "numpy": 15_000_000, "quack": 1200}


def test_versions_that_changed_are_listed_with_what_is_downloaded() -> None:
    changes = packagelists.compare(OLD, NEW, SIZES)
    assert packagelists.listed(changes) == [
        "gone 1 → none, nothing to download",
        "local none → 1+x, size unknown",
        "quack none → 0.3, 1.2 kB",
        "torch 2.9.0 → 2.9.1, 899 MB",
    ]
    assert packagelists.summary(changes, "e1") == [
        "packages: 1 changed, 2 new, 1 gone against environment e1: torch 2.9.0 → 2.9.1",
        "download: 899 MB (torch 899 MB, quack 1.2 kB) and 1 package(s) of unknown size",
    ]


def test_what_an_earlier_environment_fetched_is_not_downloaded() -> None:
    changes = packagelists.compare({}, NEW, SIZES, [("torch", "2.9.1"), ("quack", "0.2"), ("local", "1+x")])
    assert {one["name"]: one["bytes"] for one in changes} == {"torch": 0, "numpy": 15_000_000, "quack": 1200, "local": 0}
    assert packagelists.summary(changes, None) == ["download: 15.0 MB (numpy 15.0 MB, quack 1.2 kB)"]


def test_the_same_packages_change_nothing() -> None:
    assert packagelists.compare(NEW, NEW, SIZES) == []
    assert packagelists.summary([], "e1") == ["packages: the same against environment e1"]


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (99_960, "100 kB"), (999_600, "1.0 MB"), (8_100_000_000, "8.1 GB")]
)
def test_bytes_are_read_by_a_person(count: int, shown: str) -> None:
    assert packagelists.size(count) == shown
