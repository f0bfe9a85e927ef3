# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a prune keeps, what it removes, and that the bytes it names are those that come free."""

from __future__ import annotations

import json
import os
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import pruning, releases
from ansible_collections.specdec.serving.plugins.module_utils.findings import FindingError
from ansible_collections.specdec.serving.plugins.module_utils.layout import MARKER, Layout

HASH = "ab" * 32
OTHER_HASH = "cd" * 32


class Host:
    """A root with releases, environments and a cache, as deploys leave them."""

    def __init__(self, directory: Path) -> None:
        self.layout = Layout(directory)
        self.clock = time.time() - 1000

    def write(self, path: Path, size: int = 5000) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        return path

    def environment(self, name: str, package: str = "", lock: str = "", overlays: t.Sequence[str] = ()) -> Path:
        """An environment whose package is a hard link into uv's cache."""
        place = self.layout.environment(name)
        self.write(place / MARKER, 0)
        content = {"overlays": list(overlays), "engine": {"name": "double", "version": "1"}, "wheels": []}
        (place / "environment.json").write_text(json.dumps(content))
        (place / "lock.txt").write_text("double==1 --hash=sha256:%s\n" % lock)
        if package:
            installed = place / "venv" / "lib" / "python3.11" / "site-packages"
            for file in ("module.py", "%s.dist-info/METADATA" % package):
                source = self.layout.uv_cache / "archive-v0" / package / file
                if not source.exists():
                    self.write(source)
                (installed / file).parent.mkdir(parents=True, exist_ok=True)
                os.link(source, installed / file)
            pointer = self.layout.uv_cache / "wheels-v8" / "index" / package
            pointer.parent.mkdir(parents=True, exist_ok=True)
            if not pointer.is_symlink():
                pointer.symlink_to("../../archive-v0/%s" % package)
                self.write(pointer.with_name(package + ".http"))
        return place

    def release(self, instance: str, environment: str, number: int = 0, secret: str = "", model: str = "") -> str:
        """A release beside what serves."""
        facts = {
            "instance": instance,
            "environment": environment,
            "engine": {"name": "double", "version": "1"},
            "command": [],
            "gate": {"timeout": 5},
            "secrets": {"api_key": {"option": "api-key", "version": secret}} if secret else {},
            "models": [str(self.layout.models / model)] if model else [],
        }
        release = releases.compose(str(self.layout.root), facts, {"number": number}, "")
        releases.store(self.layout, release)
        os.utime(self.layout.release(instance, release.id) / "release.json", (self.clock, self.clock))
        self.clock += 1
        self.write(self.layout.instance_state(instance, environment) / "cache")
        return release.id

    def serve(self, instance: str, release: str, verdict: str = "committed", what: str = "switch") -> None:
        self.clock += 1
        entry = {"what": what, "to": release, "verdict": verdict, "when": self.clock}
        releases.append_history(self.layout, instance, entry)
        if verdict == "committed":
            releases.flip(self.layout, instance, release)

    def doomed(self, **asked: t.Any) -> list[str]:
        return [one.what for one in pruning.doomed(self.layout, **asked)]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "root")


def used(directory: Path) -> int:
    """Bytes that a tree takes on its file system, each file once."""
    seen = {}
    for top, _directories, names in os.walk(directory):
        for path in [Path(top), *(Path(top, name) for name in names)]:
            found = path.lstat()
            seen[found.st_ino] = found.st_blocks * 512
    return sum(seen.values())


def test_nothing_on_a_bare_host(host: Host) -> None:
    assert host.doomed() == []


def test_what_serves_and_what_one_could_go_back_to_stays(host: Host) -> None:
    for name in ("one", "two", "gone"):
        host.environment(name)
    host.serve("main", host.release("main", "one"))
    host.serve("main", host.release("main", "two"))
    assert host.doomed() == ["environment gone (double 1)"]


def test_the_depth_bounds_how_far_one_can_go_back(host: Host) -> None:
    for name in ("one", "two", "three"):
        host.environment(name)
    ids = [host.release("main", name) for name in ("one", "two", "three")]
    for release in ids:
        host.serve("main", release)
    assert host.doomed() == []
    assert host.doomed(depth=1) == ["release %s of main" % ids[0], "caches of main for environment one", "environment one (double 1)"]
    assert "environment two (double 1)" in host.doomed(depth=0)


def test_a_release_that_failed_or_was_left_by_a_rollback_goes_its_mark_stays(host: Host) -> None:
    for name in ("one", "two", "three"):
        host.environment(name)
    one, two, bad = host.release("main", "one"), host.release("main", "two"), host.release("main", "three")
    host.serve("main", one)
    host.serve("main", two)
    host.serve("main", bad, verdict="rolled back")
    host.serve("main", one, what="rollback")
    gone = host.doomed()
    assert {"release %s of main" % release for release in (two, bad)} <= set(gone)
    assert "environment three (double 1)" in gone and "environment one (double 1)" not in gone


def test_what_was_prepared_since_the_last_switch_stays(host: Host) -> None:
    for name in ("one", "old", "tonight"):
        host.environment(name)
    old = host.release("main", "old")
    host.serve("main", host.release("main", "one"))
    host.clock += 1
    tonight = host.release("main", "tonight")
    gone = host.doomed()
    assert "release %s of main" % old in gone and "environment old (double 1)" in gone
    assert not [one for one in gone if tonight in one or "tonight" in one]


def test_instances_do_not_lose_what_another_one_shares(host: Host) -> None:
    host.environment("shared")
    host.environment("own")
    host.serve("one", host.release("one", "shared"))
    host.serve("two", host.release("two", "own"))
    host.serve("two", host.release("two", "shared"))
    assert host.doomed(depth=0, without=["two"]) == ["environment own (double 1)"]


def test_cache_wheels_bundles_models_and_secrets_go_with_their_last_user(host: Host) -> None:
    host.environment("kept", package="double-1", lock=HASH, overlays=["kept"])
    host.environment("gone", package="double-2", lock=OTHER_HASH, overlays=["gone"])
    for kept, gone in ((HASH, OTHER_HASH), ("kept", "gone")):
        top = host.layout.wheels if kept == HASH else host.layout.overlays
        for name in (kept, gone):
            host.write(top / name / "some.whl")
    for name in ("kept", "gone"):
        host.write(host.layout.models / name / "1" / MARKER)
        host.write(host.layout.models / "half" / "1.partial" / "weights")
        releases.store_secret(host.layout, "main", name, "value")
    host.serve("main", host.release("main", "kept", secret="kept", model="kept/1"))
    gone = pruning.doomed(host.layout)
    assert [one.what for one in gone] == [
        "a secret of main that no release uses",
        "environment gone (double 1)",
        "cached double-2",
        "wheel some.whl",
        "overlay bundle gone",
        "model gone/1",
    ]
    before = used(host.layout.root)
    done = pruning.remove_all(gone, lambda *_words, **_data: None, "prune.failed")
    assert done.freed == before - used(host.layout.root)
    assert done.findings == [] and host.doomed() == []
    assert sorted(path.name for path in host.layout.uv_cache.glob("wheels-v8/index/*")) == ["double-1", "double-1.http"]
    assert [one.id for one in pruning.kept_findings(host.layout)] == ["prune.partial"]


def test_a_file_that_something_else_links_frees_nothing(host: Host) -> None:
    """The cache's copy stays where another environment has the same package."""
    host.environment("kept", package="double-1")
    gone = host.environment("gone", package="double-1")
    host.serve("main", host.release("main", "kept"))
    before = used(host.layout.root)
    done = pruning.remove_all(pruning.doomed(host.layout), lambda *_words, **_data: None, "prune.failed")
    assert done.freed == before - used(host.layout.root)
    assert done.freed < 40000 and not gone.exists()
    assert (host.layout.uv_cache / "archive-v0" / "double-1" / "module.py").exists()


def test_a_removal_that_was_cut_short_is_finished(host: Host) -> None:
    host.write(host.layout.environments / (pruning.REMOVED + "12") / "venv" / "file")
    host.write(host.layout.models / "org" / (pruning.REMOVED + "34") / "weights")
    pruning.remove_all(pruning.doomed(host.layout), lambda *_words, **_data: None, "prune.failed")
    assert list(host.layout.environments.iterdir()) == list((host.layout.models / "org").iterdir()) == []


def test_nothing_is_removed_while_a_kept_release_cannot_be_read(host: Host) -> None:
    host.environment("one")
    host.environment("gone")
    release = host.release("main", "one")
    host.serve("main", release)
    (host.layout.release("main", release) / "config.json").write_text("{}")
    spec = {"kind": "prune", "root": str(host.layout.root)}
    with pytest.raises(FindingError) as refused:
        pruning.prune(spec, None, lambda *_words, **_data: None)
    assert refused.value.finding.id == "prune.unreadable"
    assert host.layout.environment("gone").exists()


@pytest.mark.parametrize("keep", ["many", "-1", "1.5"])
def test_a_number_of_releases_is_a_number(host: Host, keep: str) -> None:
    with pytest.raises(FindingError, match="specdec_prune_keep: is no number") as refused:
        pruning.preview({"kind": "prune", "root": str(host.layout.root), "keep": keep}, None)
    assert (refused.value.finding.id, refused.value.finding.found) == ("prune.keep", keep)
    assert "specdec_prune_keep" in refused.value.finding.fix


def test_a_prune_says_what_it_freed_and_what_did_not_go(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.environment("one")
    gone, stays = host.environment("gone"), host.environment("stays")
    host.serve("main", host.release("main", "one"))
    remove = pruning.remove

    def busy(path: Path) -> None:
        if path == stays:
            raise OSError(16, "Device or resource busy")
        remove(path)

    monkeypatch.setattr(pruning, "remove", busy)
    result = pruning.prune({"kind": "prune", "root": str(host.layout.root)}, None, lambda *_words, **_data: None)
    done, failed = result["findings"]
    assert (done["id"], done["verdict"], done["subject"]) == ("prune.done", "ok", "the host")
    assert "with 1 things" in done["message"] and result["removed"] == ["environment gone (double 1)"]
    assert (failed["id"], failed["verdict"], failed["subject"]) == ("prune.failed", "error", "environment stays (double 1)")
    assert "busy" in failed["evidence"] and "run this again" in failed["fix"]
    assert stays.exists() and not gone.exists()


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (5_260_000_000, "5.3 GB"), (2 * 10**15, "2000.0 TB")]
)
def test_sizes_for_a_person(count: int, text: str) -> None:
    assert pruning.size(count) == text
