# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A release as data and on disk."""

from __future__ import annotations

import stat
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import releases
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, Finding, FindingError
from ansible_collections.specdec.serving.plugins.module_utils.layout import Layout

FACTS = {
    "instance": "main",
    "environment": "abc",
    "engine": {"name": "sglang", "version": "1"},
    "command": ["-m", "engine"],
    "gate": {"health": "/health", "timeout": 5},
    "secrets": {"api_key": {"option": "api-key", "version": "v1"}},
}


def compose(root: Path, config: t.Optional[dict[str, t.Any]] = None, launcher: str = "launch", **facts: t.Any) -> releases.Release:
    return releases.compose(str(root), {**FACTS, **facts}, config or {"port": 1}, launcher)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"port": 2}},
        {"launcher": "other"},
        {"environment": "def"},
        {"secrets": {"api_key": {"option": "api-key", "version": "v2"}}},
        {"environment_variables": {"A": "1"}},
        {"sandbox": "container"},
    ],
)
def test_every_change_is_another_release(tmp_path: Path, change: dict[str, t.Any]) -> None:
    assert compose(tmp_path, **change).id != compose(tmp_path).id == compose(tmp_path).id


def test_missing_and_unknown_facts_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="gate"):
        releases.compose(str(tmp_path), {key: value for key, value in FACTS.items() if key != "gate"}, {}, "")
    with pytest.raises(ValueError, match="gpu_count"):
        compose(tmp_path, gpu_count=2)


def test_secret_in_the_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="api-key"):
        compose(tmp_path, config={"api-key": "x"})


def test_what_is_stored_is_read_back_and_stored_once(layout: Layout) -> None:
    release = compose(layout.root)
    assert releases.store(layout, release) is True
    assert releases.load(layout, "main", release.id) == release
    assert releases.store(layout, release) is False
    directory = layout.release("main", release.id)
    assert sorted(path.name for path in directory.iterdir()) == ["config.json", "launch.py", "release.json", "specdec-main.service"]
    assert mode(directory) == 0o755 and {mode(path) for path in directory.iterdir()} == {0o644}


FILES = {"config.json": '{"port": 3}', "launch.py": "other", "specdec-main.service": "[Unit]", "release.json": "{"}


@pytest.mark.parametrize("name", sorted(FILES))
def test_changed_file_is_noticed_and_mended(layout: Layout, name: str) -> None:
    release = compose(layout.root)
    releases.store(layout, release)
    (layout.release("main", release.id) / name).write_text(FILES[name], encoding="utf-8")
    with pytest.raises(FindingError, match=r"content is not that|cannot be read"):
        releases.load(layout, "main", release.id)
    assert releases.store(layout, release) is True
    assert releases.load(layout, "main", release.id) == release


@pytest.mark.parametrize("name", sorted(FILES))
def test_lost_file_is_noticed(layout: Layout, name: str) -> None:
    release = compose(layout.root)
    releases.store(layout, release)
    (layout.release("main", release.id) / name).unlink()
    with pytest.raises(FindingError, match="cannot be read"):
        releases.load(layout, "main", release.id)


def test_flip_is_a_relative_link_and_can_be_undone(layout: Layout) -> None:
    release = compose(layout.root)
    releases.store(layout, release)
    assert releases.current(layout, "main") is None
    releases.flip(layout, "main", "0000")
    releases.flip(layout, "main", release.id)
    link = layout.instance("main") / "current"
    assert str(link.readlink()) == "releases/" + release.id and (link / "release.json").exists()
    assert releases.current(layout, "main") == release.id
    releases.flip(layout, "main", None)
    releases.flip(layout, "main", None)
    assert releases.current(layout, "main") is None
    assert [path.name for path in layout.instance("main").iterdir()] == ["releases"]


def test_history_survives_a_torn_line_and_one_of_another_version(layout: Layout) -> None:
    layout.instance("main").mkdir(parents=True)
    assert releases.history(layout, "main") == []
    entry = {"what": "switch", "verdict": "committed"}
    releases.append_history(layout, "main", {**entry, "to": "a"})
    with (layout.instance("main") / "history").open("a", encoding="utf-8") as stream:
        stream.write('{"to": "b')
    releases.append_history(layout, "main", {"schema": 99, "epoch": "another version's"})
    releases.append_history(layout, "main", {**entry, "to": "c"})
    assert [entry["to"] for entry in releases.history(layout, "main")] == ["a", "c"]


def entry(what: str, to: str, verdict: str = "committed") -> dict[str, str]:
    return {"what": what, "to": to, "verdict": verdict}


@pytest.mark.parametrize(
    ("entries", "back"),
    [
        ([], []),
        ([entry("switch", "a")], []),
        ([entry("switch", "a"), entry("switch", "b"), entry("switch", "c")], ["b", "a"]),
        ([entry("switch", "a"), entry("switch", "b", "rolled back")], []),
        ([entry("switch", "a"), entry("switch", "b"), entry("rollback", "a")], []),
        ([entry("switch", "a"), entry("switch", "b"), entry("rollback", "a"), entry("switch", "c")], ["a"]),
        ([entry("switch", "a"), entry("switch", "b"), entry("switch", "a")], ["b"]),
    ],
)
def test_way_back_never_leads_to_what_was_left_by_a_rollback(entries: list[dict[str, str]], back: list[str]) -> None:
    assert releases.way_back(entries) == back


def test_failed_mark(layout: Layout) -> None:
    finding = Finding("gate.health", ERROR, "u", "m", fix="f")
    assert releases.failed(layout, "main", "a") is None
    releases.mark_failed(layout, "main", "a", finding)
    assert releases.failed(layout, "main", "a") == finding
    releases.clear_failed(layout, "main", "a")
    assert releases.failed(layout, "main", "a") is None


def test_secret_is_root_s_alone(layout: Layout) -> None:
    release = compose(layout.root)
    releases.store_secret(layout, "main", "v1", "hunter2")
    path = releases.secret_path(layout, "main", "v1")
    assert path.read_bytes() == b"hunter2" and mode(path) == 0o600 and mode(path.parent) == 0o700
    assert releases.read_secret(layout, release.facts, "api_key") == "hunter2"
    assert releases.read_secret(layout, {**release.facts, "secrets": {}}, "api_key") is None
    assert releases.redact("key hunter2.", releases.secret_values(layout, release.facts)) == "key ***."
    assert "hunter2" not in "".join(release.files().values())


def test_new_versions_of_a_secret_say_nothing() -> None:
    assert len({releases.new_secret_version() for _number in range(100)}) == 100


def test_failed_write_leaves_what_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    releases.write_durably(path, "old")
    with pytest.raises(UnicodeEncodeError):
        releases.write_durably(path, "\ud800")
    assert path.read_text(encoding="utf-8") == "old" and len(list(tmp_path.iterdir())) == 1


def test_user_lives_where_it_may_write(layout: Layout) -> None:
    assert releases.sysusers(layout, "main") == 'u specdec-main - "specdec instance main" %s/state/main /usr/sbin/nologin\n' % layout.root
    with pytest.raises(ValueError, match="no name"):
        releases.sysusers(layout, 'a" b')
