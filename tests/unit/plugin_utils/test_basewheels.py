# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Unmodified packages, fetched by the real uv from a directory of wheels."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

import pytest
import uv

from ansible_collections.specdec.serving.plugins.module_utils.findings import FindingError
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed
from ansible_collections.specdec.serving.plugins.plugin_utils import basewheels, controller

BASE = {"name": "engine", "version": "0.5.23+cpu"}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a wheel of another Python and platform than this controller's, and no index beside it."""
    for name, value in {"UV_OFFLINE": "1", "UV_CACHE_DIR": str(tmp_path / "uv")}.items():
        monkeypatch.setenv(name, value)
    directory = tmp_path / "wheels"
    directory.mkdir()
    wheel = directory / "engine-0.5.23+cpu-cp311-cp311-manylinux_2_35_aarch64.whl"
    info = "engine-0.5.23+cpu.dist-info/"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("engine/spec_info.py", "S = 1\n")
        archive.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: engine\nVersion: 0.5.23+cpu\nRequires-Dist: torch\n")
        archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-manylinux_2_35_aarch64\n")
        archive.writestr(info + "RECORD", "")
    return directory


def fetch(cache: Path, index: Path, python: str = "3.11", hashes: tuple[str, ...] = ()) -> Path:
    return basewheels.fetch(cache, controller.run, BASE, python, "aarch64", hashes, [index], uv.find_uv_bin())


def test_a_package_is_fetched_once_for_the_hosts_python_and_machine(tmp_path: Path, index: Path) -> None:
    cache = tmp_path / "cache"
    directory = fetch(cache, index)
    read = basewheels.reader(directory)
    assert read("engine/spec_info.py") == b"S = 1\n"
    assert read("engine/none.py") is read("engine") is None
    modified = directory.stat().st_ctime_ns
    assert fetch(cache, index) == directory
    assert directory.stat().st_ctime_ns == modified
    assert os.listdir(cache) == [directory.name]


def test_scripts_and_data_are_no_part_of_the_package(tmp_path: Path, index: Path) -> None:
    """An install into a plain directory lays them beside it, an environment does not."""
    (wheel,) = index.iterdir()
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("engine-0.5.23+cpu.dist-info/entry_points.txt", "[console_scripts]\nengine = engine:main\n")
        archive.writestr("engine-0.5.23+cpu.data/scripts/kill-engine", "#!/bin/sh\n")
        archive.writestr("engine-0.5.23+cpu.data/data/share/engine.txt", "x")
    directory = fetch(tmp_path / "cache", index)
    assert (directory / "bin/kill-engine").is_file()
    assert basewheels.package(directory, "engine").packages() == {"engine"}


def test_what_cannot_be_fetched_is_a_finding_and_leaves_nothing(tmp_path: Path, index: Path) -> None:
    for arguments in ({"python": "3.12"}, {"hashes": ("0" * 64,)}):
        with pytest.raises(FindingError) as caught:
            fetch(tmp_path / "cache", index, **arguments)
        assert caught.value.finding.id == "overlay.base"
        assert caught.value.finding.subject == "engine==0.5.23+cpu"
        assert caught.value.finding.evidence
        assert os.listdir(tmp_path / "cache") == []


def test_a_package_with_the_locked_hash_is_taken(tmp_path: Path, index: Path) -> None:
    (wheel,) = index.iterdir()
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert (fetch(tmp_path / "cache", index, hashes=(sha256,)) / "engine/spec_info.py").is_file()


def test_a_wheel_that_was_built_anew_is_another_package(tmp_path: Path, index: Path) -> None:
    first = fetch(tmp_path / "cache", index)
    (wheel,) = index.iterdir()
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("engine/more.py", "")
    second = fetch(tmp_path / "cache", index)
    assert [(directory / "engine/more.py").exists() for directory in (first, second)] == [False, True]


def test_credentials_in_uvs_words_are_masked(tmp_path: Path) -> None:
    def refusing(*_arguments: object, **_options: object) -> Completed:
        return Completed(1, "", "error: https://me:secret@index.example/simple refused")

    with pytest.raises(FindingError) as caught:
        basewheels.fetch(tmp_path, refusing, BASE, "3.11", "x86_64", uv="uv")
    assert "secret" not in caught.value.finding.text()
