# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A wheelhouse filled for real, by uv and our downloads, from the double of an index."""

from __future__ import annotations

import collections
import json
import sys
import typing as t
from pathlib import Path

import index as double
import pytest

from ansible_collections.specdec.serving.plugins.module_utils import artifacts, locks, wheelhouses
from ansible_collections.specdec.serving.plugins.module_utils.findings import FindingError
from ansible_collections.specdec.serving.plugins.plugin_utils import controller, fetching, gathering, hosttools

WANTED: dict[str, t.Any] = {
    "python": "%d.%d" % sys.version_info[:2],
    "platform": "x86_64-manylinux_2_28",
    "builds": [],
    "exclude_newer": "",
    "excludes": [],
    "indexes": [],
    "sources": {},
}


@pytest.fixture
def index() -> t.Iterator[double.Index]:
    made = double.Index()
    for name in ("engine", "other"):
        made.add(name, "1.0")
    made.add("engine", "1.0", tag="cp39-abi3-manylinux_2_17_aarch64")
    yield made
    made.close()


class House:
    """A wheelhouse, what was said, and uv as it is called for it."""

    def __init__(self, directory: Path, index: double.Index) -> None:
        self.directory = directory / "house"
        self.index = index
        self.said: list[str] = []
        self.env = {"UV_DEFAULT_INDEX": index.url, "UV_CACHE_DIR": str(directory / "cache"), "UV_FIND_LINKS": "", "UV_HTTP_RETRIES": "0"}

    def gathering(self) -> gathering.Gathering:
        return gathering.Gathering(self.directory, controller.run, hosttools.find_uv(), self.env, self.said.append)

    def gather(self, lock: locks.Lock, directories: t.Sequence[Path] = (), **wanted: t.Any) -> bool:
        run = self.gathering()
        run.lock(lock.text(), "the-lock.txt", {**WANTED, **wanted}, directories)
        return run.keep()

    def refusal(self, lock: locks.Lock) -> t.Any:
        with pytest.raises(FindingError) as caught:
            self.gather(lock)
        return caught.value.finding

    def downloads(self) -> dict[str, int]:
        """How often each file was asked for, since the last time."""
        counts = collections.Counter(path.rpartition("/")[2] for method, path in self.index.seen if method == "GET" and "/files/" in path)
        self.index.seen.clear()
        return {name: count for name, count in counts.items() if not name.endswith(".metadata")}

    def manifest(self) -> dict[str, t.Any]:
        return wheelhouses.read(self.directory)


@pytest.fixture
def house(tmp_path: Path, index: double.Index) -> House:
    return House(tmp_path, index)


def lock(index: double.Index, *names: str, wheels: t.Sequence[t.Mapping[str, str]] = ()) -> locks.Lock:
    packages = [locks.Package(name, "1.0", tuple(sorted(one.sha256 for one in index.packages[name]))) for name in names]
    packages += [locks.Package(one["name"], one["version"], (one["sha256"],)) for one in wheels]
    return locks.Lock(tuple(sorted(packages, key=lambda one: one.name)), {}, tuple(wheels))


def test_the_files_that_the_host_takes_are_there_under_their_hashes(house: House, index: double.Index) -> None:
    wanted = lock(index, "engine", "other")
    assert house.gather(wanted)
    assert house.downloads() == {"engine-1.0-py3-none-any.whl": 1, "other-1.0-py3-none-any.whl": 1}
    records = wheelhouses.files(house.directory, house.manifest(), wanted, "the-lock.txt")
    assert [one["name"] for one in records] == ["engine", "other"]
    wheelhouses.verify(house.directory, records)
    assert any("2 of 2 files" in line for line in house.said)
    assert sorted(path.name for path in house.directory.rglob("*") if path.is_file()) == [
        "engine-1.0-py3-none-any.whl",
        "other-1.0-py3-none-any.whl",
        "wheelhouse.json",
    ]


def test_a_second_run_asks_nobody_and_changes_nothing(house: House, index: double.Index) -> None:
    wanted = lock(index, "engine", "other")
    house.gather(wanted)
    house.downloads()
    index.close()
    assert not house.gather(wanted)


def test_another_lock_fetches_only_what_it_has_more(house: House, index: double.Index) -> None:
    house.gather(lock(index, "engine"))
    house.downloads()
    house.gather(lock(index, "engine", "other"))
    assert house.downloads() == {"other-1.0-py3-none-any.whl": 1}
    assert len(house.manifest()["locks"]) == 2


def test_a_file_that_came_half_is_gone_on_with(house: House, index: double.Index) -> None:
    wanted = lock(index, "engine")
    content = index.packages["engine"][0].content
    sha256 = index.packages["engine"][0].sha256
    part = house.directory / "wheels" / sha256 / "engine-1.0-py3-none-any.whl.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(content[:100])
    sent: list[int] = []
    came = fetching.Wanted(index.link(index.packages["engine"][0]), sha256, len(content), part.with_suffix(""))
    fetching.fetch(came, fetching.Client({}), sent.append)
    assert sum(sent) == len(content) - 100
    assert came.dest.read_bytes() == content
    house.downloads()
    house.gather(wanted)
    assert house.downloads() == {}


def test_a_beginning_of_another_file_is_thrown_away(house: House, index: double.Index) -> None:
    file = index.packages["engine"][0]
    for left in (b"x" * 50, b"x" * (len(file.content) + 50), b"x" * len(file.content)):
        dest = house.directory / "file.whl"
        dest.parent.mkdir(parents=True, exist_ok=True)
        dest.with_name("file.whl.part").write_bytes(left)
        wanted = fetching.Wanted(index.link(file), file.sha256, len(file.content), dest)
        try:
            fetching.fetch(wanted, fetching.Client({}), lambda count: None)
        except FindingError as error:
            assert error.finding.id == "wheelhouse.hash"
            assert not dest.exists()
            fetching.fetch(wanted, fetching.Client({}), lambda count: None)
        assert dest.read_bytes() == file.content
        dest.unlink()


def test_a_file_that_is_not_the_locked_one_is_not_kept(house: House, index: double.Index) -> None:
    wanted = lock(index, "engine", "other")
    index.packages["other"][0].content = double.wheel("other", "1.0", files={"other.py": b"changed"})[1]
    finding = house.refusal(wanted)
    assert (finding.id, finding.subject) == ("wheelhouse.hash", "other-1.0-py3-none-any.whl")
    assert not list(house.directory.rglob("other-*"))
    assert not (house.directory / "wheelhouse.json").exists()


def test_a_damaged_file_is_named_by_a_deploy_and_fetched_anew_by_another_run(house: House, index: double.Index) -> None:
    wanted = lock(index, "engine", "other")
    house.gather(wanted)
    records = wheelhouses.files(house.directory, house.manifest(), wanted, "the-lock.txt")
    path = wheelhouses.place(house.directory, records[1])
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"X")
    with pytest.raises(FindingError) as caught:
        wheelhouses.verify(house.directory, records)
    assert (caught.value.finding.id, "other-1.0" in caught.value.finding.found) == ("wheelhouse.damaged", True)
    house.downloads()
    assert house.gather(wanted)
    assert house.downloads() == {"other-1.0-py3-none-any.whl": 1}
    assert path.read_bytes() == content


def test_local_wheels_are_copied_and_need_their_directory_only_once(house: House, index: double.Index, tmp_path: Path) -> None:
    filename, content = double.wheel("own", "3.0")
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / filename).write_bytes(content)
    sha256 = artifacts.file_digest(tmp_path / "local" / filename)
    wanted = lock(index, "engine", wheels=[{"name": "own", "version": "3.0", "filename": filename, "sha256": sha256}])
    assert house.refusal(wanted).id == "lock.local-wheel"
    house.gather(wanted, [tmp_path / "local"])
    assert [one["name"] for one in wheelhouses.files(house.directory, house.manifest(), wanted, "x")] == ["engine", "own"]
    assert not house.gather(wanted)


def test_what_is_only_there_as_source_is_refused_with_a_way_out(house: House, index: double.Index) -> None:
    index.put("sourced", "sourced-1.0.tar.gz", b"source")
    finding_lock = lock(index, "engine", "sourced")
    with pytest.raises(FindingError) as caught:
        house.gather(finding_lock, builds=["sourced"])
    assert (caught.value.finding.id, caught.value.finding.found) == ("wheelhouse.source", "sourced-1.0.tar.gz")
    assert "specdec_wheel_directories" in caught.value.finding.fix


def test_what_no_index_has_is_named(house: House, index: double.Index) -> None:
    wanted = lock(index, "engine", "other")
    del index.packages["other"]
    finding = house.refusal(wanted)
    assert finding.id == "wheelhouse.unavailable"
    assert "other" in finding.found + finding.evidence


def test_the_controllers_own_tools_are_gathered_and_made_from_it_offline(
    house: House, index: double.Index, tmp_path: Path, monkeypatch
) -> None:
    made = {}
    for name, tag in (("uv", "py3-none-manylinux_2_17_x86_64"), ("packaging", "py3-none-any")):
        file = index.add(name, "1.0", files={"%s-1.0.data/scripts/uv" % name: b"#!/bin/sh\n"} if name == "uv" else None, tag=tag)
        made[name] = "%s==1.0 \\\n    --hash=sha256:%s\n" % (name, file.sha256)
    requirements = tmp_path / "host_tools.txt"
    requirements.write_text("".join(made.values()))
    monkeypatch.setattr(hosttools, "REQUIREMENTS", requirements)
    run = house.gathering()
    run.tools("x86_64")
    assert run.keep()
    index.close()
    again = house.gathering()
    again.tools("x86_64")
    assert not again.keep()
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "empty"))
    tools = hosttools.tools(tmp_path / "tools", controller.offline(house.directory), "x86_64")
    assert Path(tools["uv"]["path"]).read_text() == "#!/bin/sh\n"


def test_credentials_go_to_the_index_alone(house: House, index: double.Index) -> None:
    asked: list[t.Optional[str]] = []
    answer = index.server.RequestHandlerClass.respond

    def respond(self: t.Any) -> None:
        asked.append(self.headers.get("Authorization"))
        answer(self)

    index.server.RequestHandlerClass.respond = respond
    file = index.packages["engine"][0]
    environ = {"UV_DEFAULT_INDEX": "own=" + index.url, "UV_INDEX_OWN_USERNAME": "me", "UV_INDEX_OWN_PASSWORD": "pass:word"}
    for env in (environ, {"UV_INDEX_URL": index.url.replace("://", "://me:pass%3Aword@")}, {}):
        fetching.fetch(
            fetching.Wanted(index.link(file), file.sha256, None, house.directory / ("%d.whl" % len(asked))),
            fetching.Client(env),
            lambda count: None,
        )
    assert asked == ["Basic bWU6cGFzczp3b3Jk", "Basic bWU6cGFzczp3b3Jk", None]


def test_a_failed_download_shows_no_password(house: House, index: double.Index) -> None:
    url = index.link(index.packages["engine"][0]).replace("://", "://me:hunter2@") + ".gone"
    with pytest.raises(FindingError) as caught:
        fetching.fetch(fetching.Wanted(url, "0" * 64, None, house.directory / "x"), fetching.Client({}), lambda count: None)
    assert caught.value.finding.id == "wheelhouse.fetch"
    assert "hunter2" not in caught.value.finding.text()


def test_a_manifest_that_was_edited_is_refused(house: House, index: double.Index) -> None:
    wanted = lock(index, "engine")
    house.gather(wanted)
    path = house.directory / "wheelhouse.json"
    manifest = json.loads(path.read_text())
    manifest["locks"][wanted.id]["files"][0]["sha256"] = "0" * 64
    path.write_text(json.dumps(manifest))
    assert house.refusal(wanted).id == "wheelhouse.edited"
    path.write_text(wheelhouses.text(manifest))  # by someone who also mends the id
    with pytest.raises(FindingError) as caught:
        wheelhouses.files(house.directory, house.manifest(), wanted, "x")
    assert caught.value.finding.id == "wheelhouse.edited"


def test_what_is_not_whole_is_named(house: House, index: double.Index) -> None:
    wanted = lock(index, "engine", "other")
    with pytest.raises(FindingError) as caught:
        house.manifest()
    assert caught.value.finding.id == "wheelhouse.none"
    house.gather(wanted)
    with pytest.raises(FindingError) as caught:
        wheelhouses.files(house.directory, house.manifest(), lock(index, "engine"), "another-lock.txt")
    assert (caught.value.finding.id, "the-lock.txt" in caught.value.finding.found) == ("wheelhouse.lock", True)
    records = house.manifest()["locks"][wanted.id]["files"]
    wheelhouses.place(house.directory, records[0]).unlink()
    wheelhouses.place(house.directory, records[1]).write_bytes(b"short")
    with pytest.raises(FindingError) as caught:
        wheelhouses.files(house.directory, house.manifest(), wanted, "x")
    assert caught.value.finding.id == "wheelhouse.incomplete"
    assert "engine-1.0-py3-none-any.whl (not there)" in caught.value.finding.found
    assert "other-1.0-py3-none-any.whl (5 of" in caught.value.finding.found
