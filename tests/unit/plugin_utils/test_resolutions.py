# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Locks as uv resolves them on the controller, against a double of an index with stand-in wheels."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from index import JSON, Index
from index import wheel as stand_in

from ansible_collections.specdec.serving.plugins.module_utils import locks, stacks
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, OK, Finding, FindingError
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed
from ansible_collections.specdec.serving.plugins.plugin_utils import controller, hosttools

PARTS = ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache")
STACK = stacks.Stack(
    engine="sglang",
    version="0.5.9",
    lane="cu128",
    machine="x86_64",
    python="3.12",
    platform="x86_64-manylinux_2_36",
    requirements=("sglang==0.5.9",),
    overrides=(),
    excludes=(),
    builds=(),
    indexes=(),
    torch="2.9.1",
    torch_builds={"2.9.1": "cu128", "2.11.0": "cu130"},
    flashinfer="0.6.3",
    parts=PARTS,
    kernel=("sgl-kernel", "0.3.21"),
    kernels=("sgl-kernel", "sglang-kernel"),
    lacks=(),
    package="sglang",
    label="cu128",
)


def inputs(**changes: t.Any) -> dict[str, t.Any]:
    exclude_newer = changes.pop("exclude_newer", "")
    changes.setdefault("label", changes.get("lane", STACK.lane))
    return locks.inputs(dataclasses.replace(STACK, **changes), exclude_newer)


def wheel(directory: Path, name: str, version: str, *arguments: t.Any, **options: t.Any) -> Path:
    """Write a stand-in wheel."""
    directory.mkdir(parents=True, exist_ok=True)
    filename, content = stand_in(name, version, *arguments, **options)
    (directory / filename).write_bytes(content)
    return directory / filename


@pytest.fixture
def serve() -> t.Iterator[t.Callable[[], Index]]:
    """Makes indexes that are closed at the end."""
    made: list[Index] = []

    def one() -> Index:
        made.append(Index())
        return made[-1]

    yield one
    for index in made:
        index.close()


@pytest.fixture
def index(serve: t.Callable[[], Index]) -> Index:
    """What the release needs, as upstream's metadata says it."""
    made = serve()
    made.add(
        "sglang",
        "0.5.9",
        ["torch==2.9.1", "flashinfer_python==0.6.3", "flashinfer_cubin==0.6.3", "sgl-kernel==0.3.21", "quack-kernels==0.2.4"],
    )
    made.add("torch", "2.9.1", ["nvidia-nccl-cu12"])
    for version in ("2.26.2", "2.27.5"):
        made.add("nvidia-nccl-cu12", version)
    made.add("sgl-kernel", "0.3.21")
    for version, least in (("0.6.3", "4.3.4"), ("0.6.8.post1", "4.4.2"), ("0.7.2", "4.5")):
        made.add("flashinfer-python", version, ["nvidia-cutlass-dsl>=" + least])
        made.add("flashinfer-cubin", version)
    made.add("quack-kernels", "0.2.3", ["nvidia-cutlass-dsl==4.3.5"])
    made.add("quack-kernels", "0.2.4", ["nvidia-cutlass-dsl>=4.3.4,<4.4.0"])
    made.add("quack-kernels", "0.3.2", ["nvidia-cutlass-dsl>=4.4.0"])
    for version in ("4.3.5", "4.4.2"):
        made.add("nvidia-cutlass-dsl", version)
    return made


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def resolve(index: Index, wanted: t.Mapping[str, t.Any], cache: Path, directories: t.Sequence[Path] = (), **env: str) -> locks.Lock:
    settings = {"UV_DEFAULT_INDEX": index.url, "UV_CACHE_DIR": str(cache), "UV_HTTP_RETRIES": "0", **env}
    return locks.lock(wanted, controller.run, hosttools.find_uv(), directories, settings)


def finding_of(call: t.Callable[..., t.Any], *arguments: t.Any, **options: t.Any) -> Finding:
    with pytest.raises(FindingError) as caught:
        call(*arguments, **options)
    return caught.value.finding


def sync(lock: locks.Lock, index: Index, tmp_path: Path, *links: str) -> subprocess.CompletedProcess[str]:
    """Install a lock as a host does."""
    (tmp_path / "lock.txt").write_text(lock.text(), encoding="utf-8")
    argv = [hosttools.find_uv(), "pip", "install", "--quiet", "--require-hashes", "--no-deps", "--target", str(tmp_path / "site")]
    argv += ["--python", sys.executable, "--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_36"]
    argv += [
        "--cache-dir",
        str(tmp_path / "host-cache"),
        "--default-index",
        index.url,
        *(word for link in links for word in ("--find-links", link)),
    ]
    return subprocess.run(
        [*argv, "-r", str(tmp_path / "lock.txt")], env={**os.environ, "UV_NO_CONFIG": "1"}, capture_output=True, text=True, check=False
    )


class TestResolution:
    def test_gives_the_same_lock_every_time_and_no_address(self, index: Index, cache: Path) -> None:
        first, second = resolve(index, inputs(), cache), resolve(index, inputs(), cache)
        assert first == second
        assert first.versions["flashinfer-cubin"] == "0.6.3"
        assert str(cache.parent) not in first.text()
        assert "://" not in first.text()
        assert locks.parse(first.text()) == first
        assert {one.verdict for one in locks.check(first, inputs())} == {OK}

    def test_settings_of_the_controller_do_not_decide_it(
        self, index: Index, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected = resolve(index, inputs(), cache)
        (tmp_path / "override.txt").write_text("quack-kernels==0.3.2\n", encoding="utf-8")
        for name in ("UV_OVERRIDE", "UV_EXCLUDE", "UV_CONSTRAINT", "UV_BUILD_CONSTRAINT"):
            monkeypatch.setenv(name, str(tmp_path / "override.txt"))
        monkeypatch.setenv("UV_RESOLUTION", "lowest")
        wheel(tmp_path / "links", "nvidia-nccl-cu12", "99")
        monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "links"))
        assert resolve(index, inputs(), cache) == expected

    def test_half_an_override_resolves_and_is_refused(self, index: Index, cache: Path) -> None:
        wanted = inputs(overrides=("flashinfer-python==0.6.8.post1", "quack-kernels==0.3.2"), flashinfer="0.6.8.post1")
        lock = resolve(index, wanted, cache)
        assert [one.id for one in locks.check(lock, wanted) if one.verdict == ERROR] == ["parity.flashinfer"]

    def test_the_whole_override_is_good(self, index: Index, cache: Path) -> None:
        overrides = (
            "flashinfer-cubin==0.6.8.post1",
            "flashinfer-jit-cache==0.6.8.post1",
            "flashinfer-python==0.6.8.post1",
            "quack-kernels==0.3.2",
        )
        wanted = inputs(overrides=overrides, flashinfer="0.6.8.post1")
        lock = resolve(index, wanted, cache)
        assert {one.verdict for one in locks.check(lock, wanted)} == {OK}
        assert lock.versions["nvidia-cutlass-dsl"] == "4.4.2"

    def test_a_clash_is_shortened_to_the_two_requirements(self, index: Index, cache: Path) -> None:
        one = finding_of(resolve, index, inputs(overrides=("flashinfer-cubin==0.6.8.post1", "flashinfer-python==0.6.8.post1")), cache)
        assert one.id == "lock.unsatisfiable"
        assert one.subject == "sglang 0.5.9 on lane cu128"
        sides = one.found.split(" against ")
        assert sorted(sides) == [
            "flashinfer-python==0.6.8.post1 requires nvidia-cutlass-dsl>=4.4.2",
            "quack-kernels==0.2.4 requires nvidia-cutlass-dsl>=4.3.4,<4.4.0",
        ]
        assert one.fix == "Pin quack-kernels or nvidia-cutlass-dsl to a version that fits the other in specdec_pins."

    def test_a_version_that_does_not_exist(self, index: Index, cache: Path) -> None:
        one = finding_of(resolve, index, inputs(overrides=("torch==2.9.7",)), cache)
        assert one.id == "lock.missing-version"
        assert "torch==2.9.7" in one.found

    def test_a_package_that_has_no_wheel_for_the_platform(self, index: Index, cache: Path) -> None:
        index.add("sgl-kernel", "0.4", tag="cp312-cp312-manylinux_2_39_x86_64")
        one = finding_of(resolve, index, inputs(overrides=("sgl-kernel==0.4",)), cache)
        assert one.id == "lock.no-wheel"
        assert "sgl-kernel==0.4" in one.found

    def test_an_index_that_does_not_answer_is_named_without_its_password(self, index: Index, cache: Path) -> None:
        wanted = inputs(
            overrides=("torch==2.9.1+cu130",), indexes=(stacks.Index("extra", "http://user:secret@127.0.0.1:9/whl", ("torch",)),)
        )
        one = finding_of(resolve, index, wanted, cache)
        assert one.id == "network.unreachable"
        assert "127.0.0.1:9/whl/torch/" in one.found
        assert "secret" not in one.text()

    def test_a_password_that_uv_prints_is_not_repeated(self) -> None:
        def leaky(_argv: t.Sequence[str], **_options: t.Any) -> Completed:
            return Completed(
                2, "", "error: Failed to fetch: `https://user:secret@index.example/simple/torch/`\n  cause: refused by https://u:secret@x"
            )

        one = finding_of(locks.lock, inputs(), leaky, "uv")
        assert one.id == "network.unreachable"
        assert one.found == "https://***@index.example/simple/torch/"
        assert "secret" not in one.text()

    def test_a_local_wheel_is_taken_where_its_version_is_pinned_and_recorded_with_its_hash(
        self, index: Index, cache: Path, tmp_path: Path
    ) -> None:
        path = wheel(tmp_path / "wheels", "torch", "2.9.1+cu130", tag="cp312-cp312-manylinux_2_28_x86_64")
        wheel(tmp_path / "wheels", "quack-kernels", "99")
        dead = (stacks.Index("torch-cu130", "http://127.0.0.1:9/whl", ("torch",)),)
        wanted = inputs(overrides=("torch==2.9.1+cu130",), indexes=dead, lane="cu130")
        lock = resolve(index, wanted, cache, [tmp_path / "wheels"])
        assert [(one["name"], one["version"], one["filename"]) for one in lock.wheels] == [("torch", "2.9.1+cu130", path.name)]
        assert lock.versions["quack-kernels"] == "0.2.4", "a wheel that nobody asked for decided the lock"
        assert locks.locate(lock, [tmp_path / "wheels"]) == ({lock.wheels[0]["sha256"]: path}, [])

    def test_excluded_packages_are_left_out(self, index: Index, cache: Path) -> None:
        assert "quack-kernels" not in resolve(index, inputs(excludes=("quack-kernels",)), cache).versions

    def test_what_it_makes_can_be_installed(self, index: Index, cache: Path, tmp_path: Path) -> None:
        done = sync(resolve(index, inputs(), cache), index, tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "site" / "sglang-0.5.9.dist-info").is_dir()

    def test_a_uv_that_cannot_be_started(self, index: Index, cache: Path) -> None:
        assert finding_of(locks.lock, inputs(), controller.run, "/nowhere/uv").id == "lock.uv"
        assert finding_of(locks.lock, inputs(), controller.run, shutil.which("false")).id == "lock.failed"

    def test_nothing_is_left_behind(self, index: Index, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(scratch))
        resolve(index, inputs(), cache)
        assert list(Path(scratch).iterdir()) == []


class TestAnIndexThatFails:
    def test_is_down(self, index: Index, cache: Path) -> None:
        index.close()
        one = finding_of(resolve, index, inputs(), cache)
        assert (one.id, one.found) == ("network.unreachable", index.url + "/sglang/")
        assert "Connection refused" in one.evidence

    def test_is_broken(self, index: Index, cache: Path) -> None:
        index.fault = "error"
        one = finding_of(resolve, index, inputs(), cache)
        assert (one.id, one.found) == ("network.answer", index.url + "/sglang/")
        assert "500" in one.evidence

    def test_answers_with_a_login_page(self, index: Index, cache: Path) -> None:
        index.fault = "garbage"
        one = finding_of(resolve, index, inputs(), cache)
        assert one.id == "lock.missing-version"
        assert "sglang==0.5.9" in one.found
        assert "login page" in one.cause

    @pytest.mark.parametrize(("kind", "body"), [(JSON, b"<html>"), ("application/pdf", b"%PDF"), (JSON, b"{}")])
    def test_answers_garbage(self, index: Index, cache: Path, kind: str, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(index, "answer", lambda _path, _accept: (200, kind, body))
        one = finding_of(resolve, index, inputs(), cache)
        assert one.id == "network.answer", one.text()
        assert one.found == index.url + "/sglang/"

    def test_damaged_metadata(self, index: Index, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        answer = index.answer
        damaged = (200, "text/plain", b"Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.9\n")
        monkeypatch.setattr(index, "answer", lambda path, accept: damaged if path.endswith(".metadata") else answer(path, accept))
        assert finding_of(resolve, index, inputs(), cache).id == "network.answer"

    def test_a_file_that_is_not_the_locked_one_is_refused_at_install(self, index: Index, cache: Path, tmp_path: Path) -> None:
        lock = resolve(index, inputs(), cache)
        [torch] = index.packages["torch"]
        torch.filename, torch.content = stand_in("torch", "2.9.1", files={"torch/evil.py": b""})
        done = sync(lock, index, tmp_path)
        assert done.returncode != 0
        assert "Hash mismatch for `torch==2.9.1`" in done.stderr


class TestTheSameInputsGiveTheSameLock:
    """Ids are over what a host takes, so neither another controller nor what comes to an index later moves them."""

    def test_after_files_for_other_hosts_came_to_an_old_version(self, index: Index, cache: Path, tmp_path: Path) -> None:
        index.packages["torch"].clear()
        index.add("torch", "2.9.1", ["nvidia-nccl-cu12"], tag="cp312-cp312-manylinux_2_28_x86_64")
        first = resolve(index, inputs(), cache)
        for tag in (
            "cp312-cp312-manylinux_2_28_aarch64",
            "cp313-cp313-manylinux_2_28_x86_64",
            "cp312-cp312-manylinux_2_17_x86_64",
            "cp312-cp312-win_amd64",
        ):
            index.add("torch", "2.9.1", ["nvidia-nccl-cu12"], tag=tag)
        index.put("torch", "torch-2.9.1.tar.gz", b"source")
        second = resolve(index, inputs(), tmp_path / "cache of another controller")
        assert second == first
        assert second.text() == first.text()
        assert sync(first, index, tmp_path).returncode == 0

    def test_with_a_date_even_after_a_better_file_came(self, index: Index, cache: Path, tmp_path: Path) -> None:
        wanted = inputs(exclude_newer="2026-02-01")
        first = resolve(index, wanted, cache)
        index.add("torch", "2.9.1", ["nvidia-nccl-cu12"], uploaded="2026-03-01T00:00:00Z", tag="cp312-cp312-manylinux_2_28_x86_64")
        index.add("nvidia-nccl-cu12", "2.99", uploaded="2026-03-01T00:00:00Z")
        assert resolve(index, wanted, tmp_path / "other") == first
        assert resolve(index, inputs(), tmp_path / "other") != first, "without the date both would have counted"

    def test_on_another_controller(self, index: Index, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = resolve(index, inputs(), cache)
        (tmp_path / "uv").mkdir()
        (tmp_path / "uv" / "uv.toml").write_text('resolution = "lowest"\n[[index]]\nurl = "http://127.0.0.1:9"\n', encoding="utf-8")
        (tmp_path / "pyproject.toml").write_text('[tool.uv]\noverride-dependencies = ["torch==1"]\n', encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
        environment = {"XDG_CONFIG_HOME": str(tmp_path), "LC_ALL": "tr_TR.UTF-8", "LANGUAGE": "de", "TZ": "Asia/Tokyo"}
        for name, value in {**environment, "UV_PRERELEASE": "allow", "UV_NO_BINARY": "1", "UV_PYTHON": "3.8"}.items():
            monkeypatch.setenv(name, value)
        assert resolve(index, inputs(), tmp_path / "other").text() == expected.text()

    def test_sizes_are_told_and_decide_nothing(self, index: Index, cache: Path, tmp_path: Path) -> None:
        path = wheel(tmp_path / "wheels", "torch", "2.9.1", ["nvidia-nccl-cu12"])
        lock = resolve(index, inputs(overrides=("torch==2.9.1",)), cache, [tmp_path / "wheels"])
        assert lock.sizes["torch"] == path.stat().st_size
        assert lock.sizes["sglang"] == len(index.packages["sglang"][0].content)
        assert locks.parse(lock.text()) == lock
        assert dataclasses.replace(lock, sizes={}).id == lock.id


class TestPlacesOfTheirOwn:
    """What specdec_pins takes from another place than the default index."""

    @pytest.fixture
    def named(self, serve: t.Callable[[], Index], index: Index) -> Index:
        """An index of somebody else, with what may confuse a resolver."""
        made = serve()
        made.add("quack-kernels", "0.2.4", ["nvidia-cutlass-dsl>=4.3.4"], files={"quack.py": b"OURS = 1\n"})
        for name in ("sglang", "torch", "nvidia-cutlass-dsl", "nvidia-nccl-cu12"):
            made.add(name, "99")
        index.add("quack-kernels", "99", ["evil"])
        return made

    def wanted(self, named: Index, name: str = "quack-kernels", version: str = "0.2.4") -> dict[str, t.Any]:
        return inputs(
            overrides=("%s==%s" % (name, version),),
            sources={name: {"index": named.url}},
            indexes=(stacks.Index("specdec_pins", named.url, (name,)),),
        )

    def test_a_named_index_is_asked_for_the_named_package_alone_and_no_other_for_that(
        self, index: Index, named: Index, cache: Path
    ) -> None:
        lock = resolve(index, self.wanted(named), cache)
        assert named.asked() == {"quack-kernels"}
        assert "quack-kernels" not in index.asked()
        [package] = [one for one in lock.packages if one.name == "quack-kernels"]
        assert package.hashes == (named.packages["quack-kernels"][0].sha256,)
        assert lock.versions["torch"] == "2.9.1"
        assert "://" not in lock.text()

    def test_a_host_installs_that_file_from_the_page_of_that_index(self, index: Index, named: Index, cache: Path, tmp_path: Path) -> None:
        wanted = self.wanted(named)
        lock = resolve(index, wanted, cache)
        pages = locks.pages(wanted, (), lock.versions)
        assert pages == [named.url + "/quack-kernels/"]
        assert sync(lock, index, tmp_path, *pages).returncode == 0
        assert (tmp_path / "site" / "quack.py").read_text() == "OURS = 1\n"

    def test_it_is_in_the_lock_only_where_something_requires_it(self, index: Index, named: Index, cache: Path) -> None:
        named.add("unheard-of", "1")
        lock = resolve(index, self.wanted(named, "unheard-of", "1"), cache)
        assert "unheard-of" not in lock.versions

    def test_an_index_that_gives_no_hash_is_asked_for_the_file(
        self, index: Index, named: Index, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        page = named.page
        monkeypatch.setattr(named, "page", lambda name, as_json: re.sub(rb"#sha256=[0-9a-f]+", b"", page(name, as_json)))
        lock = resolve(index, self.wanted(named), cache)
        [package] = [one for one in lock.packages if one.name == "quack-kernels"]
        assert package.hashes == (named.packages["quack-kernels"][0].sha256,)

    def test_a_file_without_a_sha256_is_no_package_of_a_lock(self) -> None:
        def weak(_argv: t.Sequence[str], **_options: t.Any) -> Completed:
            file = 'wheels = [{ url = "https://index.example/torch-2.9.1-py3-none-any.whl", hashes = { md5 = "0" } }]'
            return Completed(0, '[[packages]]\nname = "torch"\nversion = "2.9.1"\n%s\n' % file, "")

        one = finding_of(locks.lock, inputs(), weak, "uv")
        assert (one.id, one.subject) == ("lock.no-hash", "torch")
        assert "pin it by url and sha256 in specdec_pins" in one.fix

    def test_a_version_that_the_named_index_lacks(self, index: Index, named: Index, cache: Path) -> None:
        one = finding_of(resolve, index, self.wanted(named, version="0.2.5"), cache)
        assert (one.id, one.subject) == ("lock.missing-version", "specdec_pins.quack-kernels.index")

    def test_a_named_index_that_is_down(self, index: Index, named: Index, cache: Path) -> None:
        named.close()
        one = finding_of(resolve, index, self.wanted(named), cache)
        assert (one.id, one.subject) == ("network.unreachable", "specdec_pins.quack-kernels.index")

    def test_a_wheel_by_its_hash_is_the_only_one_that_counts(self, index: Index, cache: Path, tmp_path: Path) -> None:
        path = wheel(tmp_path / "given", "torch", "2.9.1", ["nvidia-nccl-cu12"], files={"torch.py": b""})
        other = wheel(tmp_path / "other", "torch", "2.9.1", ["nvidia-nccl-cu12"])
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        wanted = inputs(overrides=("torch==2.9.1",), sources={"torch": {"filename": path.name, "sha256": sha256}})
        lock = resolve(index, wanted, cache, [other.parent, path.parent])
        assert [(one["filename"], one["sha256"]) for one in lock.wheels] == [(path.name, sha256)]
        assert "torch" not in index.asked()
        assert locks.file_name(wanted) != locks.file_name(inputs(overrides=("torch==2.9.1",)))
        one = finding_of(resolve, index, wanted, cache, [other.parent])
        assert (one.id, one.expected) == ("lock.local-wheel", "sha256 " + sha256)

    def test_extras_are_kept_and_what_is_excluded_stays_out(self, index: Index, cache: Path, tmp_path: Path) -> None:
        wheel(tmp_path / "wheels", "torch", "2.9.1", ["nvidia-nccl-cu12; extra == 'cu12'"], extras=["cu12"])
        wheel(tmp_path / "wheels", "quack-kernels", "0.2.4", ["unheard-of"])
        wanted = inputs(overrides=("quack-kernels==0.2.4", "torch[cu12]==2.9.1"), excludes=("quack-kernels",))
        lock = resolve(index, wanted, cache, [tmp_path / "wheels"])
        assert "nvidia-nccl-cu12" in lock.versions
        assert not {"quack-kernels", "unheard-of"} & set(lock.versions)
        assert [one["name"] for one in lock.wheels] == ["torch"]
