# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host needs to build an environment with an overlay, without an index: as artifacts that the collection's ``push`` sends.

python tests/integration/overlayhost.py DIRECTORY      writes them and DIRECTORY/artifacts.json
"""

from __future__ import annotations

import json
import platform
import sys
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils import artifacts, bundles, captures, layout
from ansible_collections.specdec.serving.plugins.plugin_utils import controller, hosttools
from tests.unit.module_utils import wheels

HERE = Path(__file__).resolve().parent
ROOT = "/opt/specdec"
PLACE = layout.Layout(ROOT)
DRIVER = ROOT + "/overlays_under_fire.py"
INPUTS = ROOT + "/overlays_under_fire.json"

#: A package whose overlay touches many files: most changed, some new, one gone.
ENGINE = {"engine/__init__.py": b"", **{"engine/part%d/m%d.py" % (n % 5, n): b"M = %d\n" % n for n in range(60)}}
OTHER = {"other/__init__.py": b"O = 1\n", "other/data.json": b"{}\n"}


def edit(site: Path) -> None:
    """What an engineer made of the engine."""
    for number in range(40):
        path = site / ("engine/part%d/m%d.py" % (number % 5, number))
        path.write_bytes(path.read_bytes() + b"EDITED = True\n")
    (site / "engine/tree").mkdir()
    for number in range(8):
        (site / ("engine/tree/t%d.py" % number)).write_bytes(b"#!/usr/bin/python3\n" if number == 0 else b"T = %d\n" % number)
    (site / "engine/part4/m59.py").unlink()


def prepare(directory: Path) -> list[dict[str, str]]:
    """Make everything below a directory; the artifacts, as ``push`` takes them."""
    reference = wheels.venv(directory / "reference")
    wheels.install(reference, "engine", "1.0", ENGINE)
    edit(reference)
    bundle = captures.capture(reference, "engine").bundle
    bundles.write_bundle(directory / "bundle", bundle)
    found: list[artifacts.Artifact] = []
    inputs: dict[str, t.Any] = {
        "lock": "# specdec: {}\n",
        "wheels": [],
        "overlays": [bundle.digest],
        "files": len(bundle.manifest["files"]),
    }
    for name, files in (("engine", ENGINE), ("other", OTHER)):
        wheel = wheels.make(directory, name, "1.0", files)
        sha256 = artifacts.file_digest(wheel)
        inputs["wheels"].append({"name": name, "version": "1.0", "filename": wheel.name, "sha256": sha256})
        inputs["lock"] += "%s==1.0 --hash=sha256:%s\n" % (name, sha256)
        found.append(artifacts.Artifact(str(wheel), str(PLACE.wheels / sha256 / wheel.name), sha256))
    place = directory / "bundle"
    found.append(artifacts.Artifact(str(place), str(PLACE.overlays / bundle.digest), artifacts.tree_digest(place)))
    for name, tool in hosttools.tools(controller.cache_directory(), controller.run, platform.machine()).items():
        found.append(artifacts.Artifact(tool["path"], str(PLACE.bin / name), tool["digest"], "0755"))
    (directory / "inputs.json").write_text(json.dumps(inputs), encoding="utf-8")
    for source, dest in ((HERE / "overlaydriver.py", DRIVER), (directory / "inputs.json", INPUTS)):
        found.append(artifacts.Artifact(str(source), dest, artifacts.file_digest(source)))
    return [one.as_dict() for one in found]


if __name__ == "__main__":
    top = Path(sys.argv[1])
    top.mkdir(parents=True)
    (top / "artifacts.json").write_text(json.dumps(prepare(top)), encoding="utf-8")
