# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A release is not put in place where it could not serve."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import releases, services, transactions
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, FindingError
from ansible_collections.specdec.serving.plugins.module_utils.layout import MARKER, Layout


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> releases.Release:
    monkeypatch.setattr(transactions, "prepare_user", lambda *_words: None)
    monkeypatch.setattr(transactions, "guard_boots", lambda *_words: False)
    facts = {
        "instance": "main",
        "environment": "e1",
        "engine": {"name": "double", "version": "1"},
        "command": [],
        "gate": {"timeout": 1},
        "secrets": {"api_key": {"option": "api-key", "version": "v1"}},
    }
    return releases.compose(str(tmp_path), facts, {}, "")


def refused(root: Path, release: releases.Release) -> t.Any:
    with pytest.raises(FindingError) as caught:
        services.install(str(root), release, {}, lambda *_words, **_options: None)
    assert not Layout(root).release("main", release.id).exists()
    assert caught.value.finding.verdict == ERROR
    return caught.value.finding


def test_an_environment_that_was_never_built_gets_no_release(tmp_path: Path, release: releases.Release) -> None:
    finding = refused(tmp_path, release)
    assert (finding.id, finding.subject) == ("release.not-built", "environment e1 of instance main")
    assert str(Layout(tmp_path).environment("e1") / MARKER) in finding.evidence and "--tags build" in finding.fix


def test_a_secret_without_its_value_is_named_by_its_variable(tmp_path: Path, release: releases.Release) -> None:
    environment = Layout(tmp_path).environment("e1")
    environment.mkdir(parents=True)
    (environment / MARKER).touch()
    finding = refused(tmp_path, release)
    assert (finding.id, finding.subject) == ("release.secret", "api_key of instance main")
    assert "v1" in finding.expected and finding.fix == "set api_key of the instance in the inventory"
    assert services.install(str(tmp_path), release, {"api_key": "k" * 16}, lambda *_words, **_options: None)
    assert not services.install(str(tmp_path), release, {}, lambda *_words, **_options: None), "the host holds the value now"
