# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every source of a pin in one environment, from the pin to the installed file, with the real uv and git."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
import uv
from index import Index
from index import wheel as stand_in

from ansible_collections.specdec.serving.plugins.module_utils import environments, locks, stacks, wheelbuilds, wheelsources
from ansible_collections.specdec.serving.plugins.module_utils.layout import SCHEMA, Layout
from ansible_collections.specdec.serving.plugins.plugin_utils import controller, fetching, hosttools
from ansible_collections.specdec.serving.plugins.plugin_utils import processes as real
from ansible_collections.specdec.serving.plugins.plugin_utils.pins import Pins

PYTHON = "%d.%d" % sys.version_info[:2]
MACHINE = platform.machine()
GLIBC = platform.libc_ver()[1]
PLATFORM = "%s-manylinux_%s" % (MACHINE, GLIBC.replace(".", "_"))

PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n[project]\nname = "from-git"\nversion = "1.0"\n'
BACKEND = """
import os, pathlib, zipfile
def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = "from_git-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(directory, name), "w") as wheel:
        wheel.writestr("from_git.py", "SOURCE = 'git, %s'\\n" % os.environ["ARCHITECTURES"])
        wheel.writestr("from_git-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: from-git\\nVersion: 1.0\\n")
        wheel.writestr("from_git-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        listed = "".join("from_git-1.0.dist-info/%s,,\\n" % one for one in ("METADATA", "WHEEL", "RECORD"))
        wheel.writestr("from_git-1.0.dist-info/RECORD", "from_git.py,,\\n" + listed)
    return name
"""


def says(name: str, source: str) -> dict[str, bytes]:
    """A module that says where it comes from."""
    return {name.replace("-", "_") + ".py": b"SOURCE = %r\n" % source}


@pytest.fixture
def default() -> t.Iterator[Index]:
    made = Index()
    yield made
    made.close()


@pytest.fixture
def named() -> t.Iterator[Index]:
    made = Index()
    yield made
    made.close()


def test_each_source_is_installed_and_nothing_else(tmp_path: Path, default: Index, named: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["from-index", "from-named-index", "from-address", "from-directory", "from-git"]
    default.add("engine", "1.0", names, files={"engine/__init__.py": b""})
    for name in names:
        # what somebody else put under the same names and versions on the default index
        default.add(name, "1.0", files=says(name, "index"))
        default.add(name, "9.9", files=says(name, "a newer one that nobody asked for"))
        named.add(name, "1.0", files=says(name, "named index"))
    served = default.put("elsewhere", *stand_in("from-address", "1.0", files=says("from-address", "address")))
    filename, content = stand_in("from-directory", "1.0", files=says("from-directory", "directory"))
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / filename).write_bytes(content)
    git = {"git": repository(tmp_path / "repository"), "build_host": "ct201", "environment": {"ARCHITECTURES": "12.0"}}
    git["commit"] = subprocess.run(
        ["git", "-C", str(tmp_path / "repository"), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    written = {
        "from-index": "1.0",
        "from-named-index": {"version": "1.0", "index": named.url},
        "from-address": {"url": default.link(served), "sha256": served.sha256},
        "from-directory": "1.0",
        "from-git": git,
    }

    # what the playbook does: bring the wheels, lock, send, build
    layout, pins, cache = Layout(tmp_path / "root"), Pins(tmp_path / "pins"), tmp_path / "cache"
    layout.bin.mkdir(parents=True)
    layout.uv.symlink_to(uv.find_uv_bin())
    monkeypatch.setenv("UV_DEFAULT_INDEX", default.url)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    versions, sources = wheelsources.split(written)
    stack = stack_of(versions)
    _given, missing, refused = wheelsources.find(sources, stack, pins, "ct200", GLIBC, cache, False)
    assert ([one["package"] for one in missing], refused) == (["from-git"], [])
    asked = fetching.Wanted(default.link(served), served.sha256, None, wheelsources.downloaded(cache, sources["from-address"]))
    fetching.fetch(asked, fetching.Client({}), lambda _count: None)
    job = {"root": str(layout.root), "package": "from-git", "python": sys.executable, **git}
    built = wheelbuilds.build(job, real.run, lambda *_words, **_data: None)["wheel"]
    key = wheelsources.build_key(git, PYTHON, MACHINE)
    pins.keep_wheel(key, {**built, "source": git, "built_on": "ct201"}, Path(built["path"]))
    given, missing, refused = wheelsources.find(sources, stack, pins, "ct200", GLIBC, cache, False)
    assert (missing, refused) == ([], [])
    stack = wheelsources.applied(stack_of({**versions, **{name: one.version for name, one in given.items()}}), sources, given)
    wanted = locks.inputs(stack)
    directories = [tmp_path / "wheels", *(one.place.parent for one in given.values())]
    lock = locks.lock(wanted, controller.run, hosttools.find_uv(), directories)
    assert {one["name"] for one in lock.wheels} == {"from-address", "from-directory", "from-git"}

    places, absent = locks.locate(lock, directories)
    assert absent == []
    for wheel in lock.wheels:
        place = layout.wheels / wheel["sha256"] / wheel["filename"]
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(places[wheel["sha256"]], place)
    python = {"implementation": sys.implementation.name, "version": platform.python_version(), "build": sys.version, "path": sys.executable}
    environment = {
        "schema": SCHEMA,
        "lock": lock.id,
        "overlays": [],
        "python": python,
        "engine": {"name": "engine", "version": "1.0"},
        "lane": "cpu",
        "wheels": [dict(one) for one in lock.wheels],
    }
    environment["id"] = environments.environment_id(environment)
    pages = locks.pages(wanted, {one["name"] for one in lock.wheels}, lock.versions)
    spec = {"root": str(layout.root), "environment": environment, "lock": lock.text(), "python": sys.executable, "pages": pages}
    result = environments.build({**spec, "uv_env": {}}, real.run, lambda *_words, **_data: None)
    assert result["changed"]

    venv = layout.environment(environment["id"]) / "venv"
    script = "import importlib; print([importlib.import_module(name.replace('-', '_')).SOURCE for name in %r])" % names
    said = subprocess.run([str(venv / "bin" / "python"), "-I", "-c", script], check=True, capture_output=True, text=True).stdout.strip()
    assert said == "['index', 'named index', 'address', 'directory', 'git, 12.0']"
    assert named.asked() == {"from-named-index"}
    assert {one.name: one.hashes for one in lock.packages}["from-git"] == (hashlib.sha256(Path(built["path"]).read_bytes()).hexdigest(),)


def stack_of(versions: t.Mapping[str, str]) -> stacks.Stack:
    """The engine of this test, with these pins."""
    stack = stacks.Stack(
        engine="engine",
        version="1.0",
        lane="cpu",
        machine=MACHINE,
        python=PYTHON,
        platform=PLATFORM,
        requirements=("engine==1.0",),
        overrides=(),
        excludes=(),
        builds=(),
        indexes=(),
        torch="",
        torch_builds={},
        flashinfer=None,
        parts=(),
        kernel=None,
        kernels=(),
        lacks=(),
        package="engine",
        label="cpu",
    )
    return dataclasses.replace(stack, overrides=tuple("%s==%s" % item for item in sorted(versions.items())))


def repository(directory: Path) -> str:
    """A repository with a package that builds itself."""
    directory.mkdir()
    (directory / "pyproject.toml").write_text(PROJECT)
    (directory / "backend.py").write_text(BACKEND)
    identity = {"GIT_%s_%s" % (who, what): "tester@example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "package"]):
        subprocess.run(["git", "-C", str(directory), *words], env={**os.environ, **identity}, check=True)
    return directory.as_uri()
