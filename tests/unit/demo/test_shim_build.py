# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The demo's wheels: the same bytes every time, and those that the reference's lock names."""

from __future__ import annotations

import hashlib
import pathlib
import re
import subprocess
import sys
import zipfile

DEMO = pathlib.Path(__file__).parents[3] / "demo"


def build(target: pathlib.Path) -> dict[str, str]:
    """Wheel file name → sha256."""
    subprocess.run([sys.executable, DEMO / "shim" / "build.py", target], check=True, capture_output=True)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in target.iterdir()}


def test_same_bytes_every_time(tmp_path: pathlib.Path) -> None:
    first, second = build(tmp_path / "a"), build(tmp_path / "b")
    assert len(first) == 4
    assert first == second


def test_the_lock_of_the_reference_names_them(tmp_path: pathlib.Path) -> None:
    lock = (DEMO / "reference" / "requirements.txt").read_text()
    for name, digest in build(tmp_path).items():
        project, version = name.split("-")[:2]
        pinned = re.search(r"(?m)^%s==%s \\\n    --hash=sha256:(\S+)" % (project.replace("_", "-"), re.escape(version)), lock)
        assert pinned, f"{name} is not in the lock: run demo/reference/lock"
        assert pinned[1] == digest, f"{name} changed: run demo/reference/lock"


def test_record_matches_the_content(tmp_path: pathlib.Path) -> None:
    for name in build(tmp_path):
        with zipfile.ZipFile(tmp_path / name) as wheel:
            record = next(path for path in wheel.namelist() if path.endswith(".dist-info/RECORD"))
            listed = [line.split(",")[0] for line in wheel.read(record).decode().splitlines()]
            assert sorted(listed) == sorted(wheel.namelist())


def test_an_outdated_wheel_goes(tmp_path: pathlib.Path) -> None:
    (tmp_path / "triton-3.7.0-py3-none-any.whl").touch()
    (tmp_path / "torch-2.13.0-py3-none-any.whl").touch()
    assert "triton-3.7.0-py3-none-any.whl" not in build(tmp_path)
    assert (tmp_path / "torch-2.13.0-py3-none-any.whl").exists()
