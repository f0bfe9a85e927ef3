# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a reference has its engine, and that what was deployed there is captured as what it came from."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import uv

from ansible_collections.specdec.serving.plugins.module_utils import bundles, captures, overlays, references
from ansible_collections.specdec.serving.plugins.module_utils.layout import MARKER, Layout
from ansible_collections.specdec.serving.plugins.plugin_utils.processes import run

from . import overlaid, wheels


@dataclasses.dataclass
class Reference:
    """A host's units and root directory."""

    units: Path
    root: Path

    def unit(self, name: str, program: Path) -> None:
        (self.units / (name + ".service")).write_text("[Service]\nExecStart=%s -m engine\n" % program, encoding="utf-8")

    def deploy(self, instance: str, environment: str) -> None:
        """A current release that serves from an environment, the way a switch leaves it."""
        layout = Layout(self.root)
        release = layout.release(instance, "r1")
        release.mkdir(parents=True)
        (release / "release.json").write_text(json.dumps({"environment": environment}), encoding="utf-8")
        (layout.instance(instance) / "current").symlink_to("releases/r1")
        self.unit("specdec-" + instance, Path("/usr/bin/python3"))

    def refusal(self) -> str:
        finding = overlaid.refused(references.find, "engine", self.root, self.units)
        assert (finding.id, finding.verdict, finding.subject) == ("capture.environment", "error", "specdec_reference.venv")
        assert "specdec_reference" in finding.fix
        return str(finding.found)


@pytest.fixture
def host(tmp_path: Path) -> Reference:
    (tmp_path / "units").mkdir()
    return Reference(tmp_path / "units", tmp_path / "root")


def test_an_environment_that_a_unit_starts_is_found(host: Reference, tmp_path: Path) -> None:
    assert "has no instance" in host.refusal()
    overlaid.lay(tmp_path / "venv")
    host.unit("sglang", tmp_path / "venv/bin/python")
    assert references.find("engine", host.root, host.units) == tmp_path / "venv"


def test_the_environment_of_the_current_release_is_found(host: Reference, tmp_path: Path) -> None:
    directory = Layout(host.root).environment("e1")
    overlaid.lay(directory / "venv")
    host.deploy("main", "e1")
    assert "has no instance" in host.refusal()  # no marker: it does not exist
    (directory / MARKER).touch()
    host.deploy("second", "e1")
    assert references.find("engine", host.root, host.units) == directory / "venv"
    overlaid.lay(tmp_path / "venv")
    host.unit("sglang", tmp_path / "venv/bin/python")
    assert host.refusal() == "%s, %s" % (tmp_path / "venv", directory / "venv")


def test_a_capture_from_a_host_that_was_deployed_to_has_the_digest_of_the_reference(host: Reference, tmp_path: Path) -> None:
    """With virtual environments and installs of uv: real links, RECORDs and bytecode."""
    wheel = wheels.make(tmp_path, "engine", "0.5.23", {**overlaid.ENGINE, "engine/kernel.so": b"\x7fELF"})
    environment = {**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache"), "UV_OFFLINE": "1", "UV_NO_CONFIG": "1"}

    def made(venv: Path) -> Path:
        for argv in (
            ["venv", "--quiet", "--python", sys.executable, str(venv)],
            ["pip", "install", "--quiet", "--python", str(venv), str(wheel)],
        ):
            subprocess.run([uv.find_uv_bin(), *argv], env=environment, check=True)
        found = references.site_packages(venv)
        assert found is not None
        return found

    reference, directory = made(tmp_path / "venv"), Layout(host.root).environment("e1")
    shutil.copy(reference / "engine/spec_info.py", tmp_path / "own.py")
    (tmp_path / "own.py").replace(reference / "engine/spec_info.py")
    (reference / "engine/spec_info.py").write_bytes(overlaid.SPEC_INFO + b"    DDTREE = auto()\n")
    (reference / "engine/tree.py").write_bytes(b"#!/usr/bin/env python3\n")
    (reference / "engine/tree.py").chmod(0o775)
    (reference / "engine/old/gone.py").unlink()
    first = references.capture(str(tmp_path / "venv"), "engine", str(tmp_path / "first.tar"), str(host.root), run)
    bundle = bundles.unpack((tmp_path / "first.tar").read_bytes())
    assert len(bundle.manifest["files"]) == 3
    assert first["packages"] == {"engine": "0.5.23"}

    deployed = made(directory / "venv")
    overlays.apply(bundle, deployed)
    subprocess.run([str(directory / "venv/bin/python"), "-m", "compileall", "-q", str(deployed)], check=False)
    (directory / MARKER).touch()
    host.deploy("main", "e1")
    venv = references.find("engine", host.root, host.units)
    second = references.capture(str(venv), "engine", None, str(host.root), run)
    assert second["digest"] == first["digest"]
    assert second["ignored"] == []
    assert captures.capture(reference, "engine").bundle == bundle


def test_an_environment_without_the_package_is_refused(host: Reference, tmp_path: Path) -> None:
    wheels.venv(tmp_path / "venv")
    finding = overlaid.refused(references.capture, str(tmp_path / "venv"), "engine", None, str(host.root), run)
    assert finding.id == "capture.no-package"


def test_the_summary_names_what_was_captured_added_and_left(tmp_path: Path) -> None:
    manifest = {
        **captures.capture(overlaid.edited(tmp_path), "engine").bundle.manifest,
        "adds": {"algorithms": ["DDTREE"], "arguments": []},
    }
    lines = references.summary(manifest, [{"path": "engine/a.py~", "package": "engine", "reason": "backup"}])
    assert lines[0] == "overlay %s on engine 0.5.23:" % manifest["digest"]
    assert "  add    engine/tree/utils.py" in lines
    assert lines[-2:] == ["  adds algorithms: DDTREE", "  not captured: engine/a.py~ (backup)"]
