# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wheels built from commits for real, by git and uv, with a build backend inside the repository: no network is needed."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import typing as t
import zipfile
from pathlib import Path

import pytest
import uv

from ansible_collections.specdec.serving.plugins.module_utils import wheelbuilds
from ansible_collections.specdec.serving.plugins.module_utils.findings import Finding, FindingError
from ansible_collections.specdec.serving.plugins.module_utils.layout import Layout
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed
from ansible_collections.specdec.serving.plugins.plugin_utils import processes as real

PROJECT = (
    '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n[project]\nname = "tiny-kernel"\nversion = "1.0"\n'
)
BACKEND = """
import os, pathlib, sys, zipfile
def build_wheel(directory, config_settings=None, metadata_directory=None):
    words = os.environ.get("FAIL")
    if words:
        sys.exit(words)
    print("compiling for", os.environ["TORCH_CUDA_ARCH_LIST"], flush=True)
    name = "tiny_kernel-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(directory, name), "w") as wheel:
        wheel.writestr("tiny_kernel.py", "ARCHITECTURES = %r\\n" % os.environ["TORCH_CUDA_ARCH_LIST"])
        wheel.writestr("tiny_kernel-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: tiny-kernel\\nVersion: 1.0\\n")
        wheel.writestr("tiny_kernel-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr("tiny_kernel-1.0.dist-info/RECORD", "")
    return name
"""


class Builder:
    """A build host: its root, a repository, and what was told."""

    def __init__(self, directory: Path) -> None:
        self.layout = Layout(directory / "root")
        self.layout.bin.mkdir(parents=True)
        self.layout.uv.symlink_to(uv.find_uv_bin())
        self.repository = directory / "repository"
        (self.repository / "kernels").mkdir(parents=True)
        (self.repository / "kernels" / "pyproject.toml").write_text(PROJECT)
        (self.repository / "kernels" / "backend.py").write_text(BACKEND)
        self.git("init", "--quiet", "-b", "master")
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", "kernels")
        self.commit = self.git("rev-parse", "HEAD").strip()
        self.told: list[str] = []

    def git(self, *words: str) -> str:
        identity = {"GIT_%s_%s" % (who, what): "tester@example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        env = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": "/dev/null"}
        return subprocess.run(["git", "-C", str(self.repository), *words], env=env, check=True, capture_output=True, text=True).stdout

    def build(self, runner: t.Any = real.run, **changes: t.Any) -> dict[str, t.Any]:
        spec = {
            "root": str(self.layout.root),
            "package": "tiny-kernel",
            "git": self.repository.as_uri(),
            "commit": self.commit,
            "subdirectory": "kernels",
            "environment": {"TORCH_CUDA_ARCH_LIST": "9.0;12.0"},
            "python": sys.executable,
            **changes,
        }
        return wheelbuilds.build(spec, runner, lambda _stage, message, **_data: self.told.append(message))

    def refusal(self, runner: t.Any = real.run, **changes: t.Any) -> Finding:
        """The finding of a build that must fail and leave nothing."""
        with pytest.raises(FindingError) as caught:
            self.build(runner, **changes)
        assert not self.layout.wheels.exists()
        assert not (self.layout.cache / "builds").exists()
        assert caught.value.finding.subject.startswith("specdec_pins.tiny-kernel")
        return caught.value.finding


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(tmp_path)


def test_a_wheel_of_the_commit_is_built_with_its_variables_and_known_by_its_hash(builder: Builder) -> None:
    (builder.repository / "kernels" / "backend.py").write_text("later, and broken")
    builder.git("commit", "--quiet", "-am", "later")
    result = builder.build()
    (done,) = result["findings"]
    assert (done["id"], done["verdict"], done["subject"]) == ("wheel.built", "ok", "tiny-kernel")
    assert builder.commit in done["message"] and done["found"] == "tiny_kernel-1.0-py3-none-any.whl"
    wheel = result["wheel"]
    path = builder.layout.wheels / wheel["sha256"] / "tiny_kernel-1.0-py3-none-any.whl"
    assert wheel["path"] == str(path)
    assert (wheel["name"], wheel["version"], wheel["size"], wheel["glibc"]) == ("tiny-kernel", "1.0", path.stat().st_size, "")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == wheel["sha256"]
    assert zipfile.ZipFile(path).read("tiny_kernel.py") == b"ARCHITECTURES = '9.0;12.0'\n"
    assert any(builder.commit[:12] in line for line in builder.told)
    assert any("TORCH_CUDA_ARCH_LIST=9.0;12.0" in line for line in builder.told)
    assert not (builder.layout.cache / "builds").exists()
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_commit_that_no_branch_points_at_is_found(builder: Builder) -> None:
    first = builder.commit
    builder.git("commit", "--quiet", "--allow-empty", "-m", "next")
    builder.git("config", "uploadpack.allowAnySHA1InWant", "false")
    assert builder.build(commit=first)["changed"]


def test_a_commit_that_does_not_exist(builder: Builder) -> None:
    one = builder.refusal(commit="1" * 40)
    assert (one.id, one.message) == ("wheel.commit", "the repository has no such commit")


def test_a_repository_that_is_not_there(builder: Builder) -> None:
    assert builder.refusal(git="file:///nowhere/at/all").id == "wheel.repository"


def test_no_git(builder: Builder) -> None:
    one = builder.refusal(lambda argv, **options: Completed(127, "", "no git") if argv[0] == "git" else real.run(argv, **options))
    assert (one.id, one.message) == ("wheel.git", "git is not on the build host")


def test_another_package_than_the_pins(builder: Builder) -> None:
    one = builder.refusal(package="tiny-kernel-other")
    assert (one.id, one.found) == ("wheel.package", "tiny_kernel-1.0-py3-none-any.whl")


def test_a_place_without_a_project(builder: Builder) -> None:
    assert builder.refusal(subdirectory="elsewhere").id == "wheel.project"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("error: command 'gcc' failed: No such file or directory", "wheel.compiler"),
        ("error: command 'x86_64-linux-gnu-g++' failed: No such file or directory", "wheel.compiler"),
        ("CMake Error: CMAKE_CUDA_COMPILER not set\n  No CMAKE_CUDA_COMPILER could be found.", "wheel.compiler"),
        ("x.c:1:10: fatal error: Python.h: No such file or directory\n error: command 'gcc' failed with exit code 1", "wheel.headers"),
        ("x.c:9:1: error: expected ';'\nerror: command 'gcc' failed with exit code 1", "wheel.build"),
        ("fatal error: error writing to x.s: No space left on device", "wheel.disk"),
    ],
)
def test_why_a_build_failed(builder: Builder, words: str, name: str) -> None:
    one = builder.refusal(environment={"FAIL": words})
    assert one.id == name, one.text()
    assert words.splitlines()[-1] in one.evidence
    assert one.fix


def test_what_a_killed_build_left_goes(builder: Builder) -> None:
    left = builder.layout.cache / "builds" / "source"
    left.mkdir(parents=True)
    assert builder.build()["changed"]
    assert not left.exists()


def test_a_full_disk_while_the_wheel_is_kept(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_self: Path, _target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(FindingError) as caught:
        builder.build()
    assert (caught.value.finding.id, caught.value.finding.subject) == ("wheel.disk", "specdec_pins.tiny-kernel")
    assert not (builder.layout.cache / "builds").exists()
