# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bundles on disk and under way."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import bundles, captures

from . import overlaid, wheels


@pytest.fixture
def bundle(tmp_path: Path) -> bundles.Bundle:
    return captures.capture(overlaid.edited(tmp_path / "reference"), "engine").bundle


def test_a_bundle_survives_disk_and_archive(bundle: bundles.Bundle, tmp_path: Path) -> None:
    directory = tmp_path / "pins" / bundle.digest
    assert bundles.write_bundle(directory, bundle)
    assert not bundles.write_bundle(directory, bundle)
    assert bundles.read_bundle(directory) == bundle
    assert bundles.unpack(bundles.pack(bundle)) == bundle
    assert bundles.pack(bundles.read_bundle(directory)) == bundles.pack(bundle)
    assert os.listdir(directory.parent) == [bundle.digest]


def test_a_bundle_that_was_touched_is_refused(bundle: bundles.Bundle, tmp_path: Path) -> None:
    directory = tmp_path / bundle.digest
    bundles.write_bundle(directory, bundle)
    file = directory / "files/engine/spec_info.py"
    original = file.read_bytes()

    file.write_bytes(b"evil = 1\n")
    assert overlaid.refused(bundles.read_bundle, directory).id == "overlay.digest"
    file.unlink()
    assert "engine/spec_info.py" in overlaid.refused(bundles.read_bundle, directory).evidence
    file.symlink_to("/etc/passwd")
    assert overlaid.refused(bundles.read_bundle, directory).id == "overlay.path"
    file.unlink()
    file.write_bytes(original)
    (directory / "files/engine/more.py").write_bytes(b"")
    assert overlaid.refused(bundles.read_bundle, directory).id == "overlay.digest"
    (directory / "files/engine/more.py").unlink()
    manifest = json.loads((directory / "manifest.json").read_bytes())
    manifest["base"]["version"] = "9"
    (directory / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    assert overlaid.refused(bundles.read_bundle, directory).id == "overlay.digest"
    (directory / "manifest.json").write_text("[]", "utf-8")
    assert overlaid.refused(bundles.read_bundle, directory).id == "overlay.digest"


@pytest.mark.parametrize(
    "path", ["/etc/x.py", "../x.py", "engine/../../x.py", "engine//x.py", "x.py", "engine\\..\\x.py", "engine/a\nb.py"]
)
def test_paths_that_escape_are_refused(path: str) -> None:
    manifest = {
        "schema": 1,
        "base": {"name": "engine", "version": "0.5.23"},
        "python": "3.12",
        "files": [{"path": path, "action": "add", "base": None, "result": wheels.sha256(b""), "mode": "0644"}],
    }
    manifest["digest"] = bundles.manifest_digest(manifest)
    assert overlaid.refused(bundles.verify_bundle, bundles.Bundle(manifest, {path: b""}), "x").id == "overlay.path"


def test_a_note_that_was_missing_is_filled_in_and_nothing_else_changes(bundle: bundles.Bundle, tmp_path: Path) -> None:
    directory = tmp_path / bundle.digest
    bundles.write_bundle(directory, bundle)
    adds = {"algorithms": ["DDTREE"], "arguments": []}
    described = bundles.Bundle({**bundle.manifest, "adds": adds, "reference_versions": {"torch": "1"}}, bundle.files)
    assert not bundles.write_bundle(directory, described)
    assert bundles.read_bundle(directory).manifest == {**bundle.manifest, "adds": adds}
    assert not bundles.write_bundle(directory, bundle)
    assert bundles.read_bundle(directory).manifest["adds"] == adds
    assert sorted(os.listdir(directory)) == ["files", "manifest.json"]
