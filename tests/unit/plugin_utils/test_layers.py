# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Layers made on the controller, over a package that the real uv fetches from a directory."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest
import uv

from ansible_collections.specdec.serving.plugins.module_utils import bundles
from ansible_collections.specdec.serving.plugins.plugin_utils import controller, hosttools, layers

BASE = {"name": "engine", "version": "1.0"}


def test_a_directory_becomes_a_bundle_that_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"UV_OFFLINE": "1", "UV_CACHE_DIR": str(tmp_path / "uv")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(hosttools, "find_uv", uv.find_uv_bin)
    wheel = tmp_path / "engine-1.0-py3-none-any.whl"
    info = "engine-1.0.dist-info/"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("engine/a.py", "a = 1\n")
        archive.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: engine\nVersion: 1.0\n")
        archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        hashed = "sha256=y3i9ihf3t1H-DUZjNm3LwlcgQDPvfd1ksfKWlXO1suI"
        archive.writestr(info + "RECORD", "engine/a.py,%s,6\n%sMETADATA,,\n%sWHEEL,,\n%sRECORD,,\n" % (hashed, info, info, info))
    (tmp_path / "patches/engine").mkdir(parents=True)
    (tmp_path / "patches/engine/a.py").write_text("a = 2\n")
    make = layers.Layers(tmp_path / "pins/overlays", tmp_path / "cache", controller.run, "x86_64", [tmp_path])
    hashes = [hashlib.sha256(wheel.read_bytes()).hexdigest()]
    manifest, place = make(str(tmp_path / "patches"), BASE, hashes, "3.11", [], [])
    assert place == tmp_path / "pins/overlays" / manifest["digest"]
    assert bundles.read_bundle(place).manifest == manifest
    assert [entry["base"] for entry in manifest["files"]] == [hashlib.sha256(b"a = 1\n").hexdigest()]
    assert make(str(tmp_path / "patches"), BASE, hashes, "3.11", [], []) == (manifest, place)
    assert make.record(BASE, hashes, "3.11")["engine/a.py"].digest == hashlib.sha256(b"a = 1\n").hexdigest()
    assert make.record({**BASE, "version": "2.0"}, hashes, "3.11") == {}
