# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host program and uv for hosts, made from the real sources with a runner that installs stand-ins."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils.findings import FindingError
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed
from ansible_collections.specdec.serving.plugins.plugin_utils import hosttools

CORE = "ansible_collections/specdec/serving/plugins/module_utils/"


class Installer:
    """Stands for ``uv pip install --target``; counts how often it is asked."""

    def __init__(self, rc=0):
        self.rc = rc
        self.calls = []

    def __call__(self, argv, *, stdin=None, env=None, timeout=None, on_line=None):
        self.calls.append((list(argv), stdin, dict(env)))
        target = Path(argv[argv.index("--target") + 1])
        files = {
            "packaging/version.py": "",
            "pynvml.py": "",
            "packaging-1.dist-info/METADATA": "m",
            "packaging-1.dist-info/licenses/LICENSE": "l",
        }
        # What differs between two installations, and what is no part of a program.
        files.update({"packaging-1.dist-info/RECORD": str(len(self.calls)), "bin/readelf.py": "", "bin/uv": "uv of %s" % argv, ".lock": ""})
        for name, content in files.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_text(content, encoding="utf-8")
        return Completed(self.rc, "", "error: Failed to fetch: https://user:secret@index.example/simple/uv/")


def test_the_host_program_holds_the_core_its_own_package_and_the_libraries(tmp_path):
    path, value = hosttools.zipapp(tmp_path, Installer(), "uv")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        assert names == sorted(names)
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert {CORE + "findings.py", CORE + "__init__.py", "ansible_collections/__init__.py", "__main__.py"} <= set(names)
    assert {"specdec/main.py", "packaging/version.py", "pynvml.py", "packaging-1.dist-info/licenses/LICENSE"} <= set(names)
    assert not [name for name in names if name.endswith(("RECORD", ".yml", ".lock")) or name.startswith("bin/")]
    assert path.stat().st_mode & 0o777 == 0o755
    assert len(value) == 64


def test_the_host_program_starts_alone(tmp_path):
    path, _value = hosttools.zipapp(tmp_path, Installer(), "uv")
    done = subprocess.run([str(path), "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "status" in done.stdout


def test_two_controllers_make_the_same_bytes(tmp_path):
    installer = Installer()
    one, other = (hosttools.zipapp(tmp_path / name, installer, "uv") for name in ("one", "other"))
    assert one[1] == other[1]
    assert one[0].read_bytes() == other[0].read_bytes()


def test_the_second_time_nothing_is_started(tmp_path):
    installer = Installer()
    first = hosttools.tools(tmp_path, installer, "x86_64", "uv")
    assert len(installer.calls) == 2
    assert hosttools.tools(tmp_path, installer, "x86_64", "uv") == first
    assert len(installer.calls) == 2
    assert sorted(first) == ["specdec", "uv"]


def test_uv_is_fetched_for_the_hosts_machine_with_hashes_only(tmp_path):
    installer = Installer()
    paths = {machine: hosttools.host_uv(tmp_path, installer, "uv", machine) for machine in ("x86_64", "aarch64")}
    assert paths["x86_64"][1] != paths["aarch64"][1]
    assert re.fullmatch(r"\d+\.\d+\.\d+", paths["x86_64"][2])
    for (argv, stdin, env), machine in zip(installer.calls, paths):
        assert argv[argv.index("--python-platform") + 1] == machine + "-manylinux_2_17"
        assert "--require-hashes" in argv
        assert stdin.startswith("uv==")
        assert "packaging" not in stdin
        assert env["UV_PYTHON_DOWNLOADS"] == "never"


def test_the_libraries_are_locked_for_the_oldest_python_of_hosts(tmp_path):
    text = hosttools.REQUIREMENTS.read_text(encoding="utf-8")
    names = re.findall(r"(?m)^([a-z-]+)==[^\s;]+ \\$", text)
    assert sorted(names) == sorted({*hosttools.LIBRARIES, "uv"}), "each once: a marker would choose by the controller's Python"
    assert "://" not in text


def test_many_at_once_leave_one(tmp_path):
    installer, results = Installer(), []
    threads = [
        threading.Thread(target=lambda: results.append(hosttools.host_uv(tmp_path, installer, "uv", "x86_64"))) for _number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert len({path for path, _value, _version in results}) == 1
    assert [path.name for path in tmp_path.iterdir()] == [results[0][0].parent.name]


def test_what_cannot_be_fetched_is_said_and_leaves_nothing(tmp_path):
    with pytest.raises(FindingError) as caught:
        hosttools.host_uv(tmp_path, Installer(rc=2), "uv", "x86_64")
    assert caught.value.finding.id == "network.unreachable"
    assert "index.example" in caught.value.finding.evidence
    assert "secret" not in caught.value.finding.text()
    assert list(tmp_path.iterdir()) == []


def test_what_fails_for_another_reason_than_the_network_is_told_in_uvs_words(tmp_path):
    def broken(_argv, **_options):
        return Completed(2, "", "error: Failed to write to the target: Permission denied")

    with pytest.raises(FindingError) as caught:
        hosttools.host_uv(tmp_path, broken, "uv", "x86_64")
    finding = caught.value.finding
    assert (finding.id, finding.verdict, finding.subject) == ("tools.fetch", "error", "controller")
    assert finding.message.startswith("uv==") and "Permission denied" in finding.evidence and finding.fix


def test_uv_is_found_on_the_path_then_beside_python(tmp_path, monkeypatch):
    for name in ("path", "beside"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "uv").write_text("#!/bin/sh\n", encoding="utf-8")
        (tmp_path / name / "uv").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "beside" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert hosttools.find_uv() == str(tmp_path / "path" / "uv")
    assert hosttools.find_uv(str(tmp_path / "beside" / "uv")) == str(tmp_path / "beside" / "uv")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert hosttools.find_uv() == str(tmp_path / "beside" / "uv")


def test_no_uv_is_said_with_the_way_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setitem(sys.modules, "uv", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    for named in (None, "/nowhere/uv"):
        with pytest.raises(FindingError) as caught:
            hosttools.find_uv(named)
        assert caught.value.finding.id == "tools.uv"
        assert "pip install uv" in caught.value.finding.fix
