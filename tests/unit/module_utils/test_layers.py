# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Single patched files over a package and the overlays before them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import bundles, captures, layers, overlays, records

from . import overlaid, wheels

PATCH = overlaid.SPEC_INFO + b"    DDTREE = auto()\n    PATCHED = auto()\n"


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return overlaid.lay(tmp_path / "clean")


@pytest.fixture
def below(tmp_path: Path) -> bundles.Bundle:
    return captures.capture(overlaid.edited(tmp_path / "reference"), "engine").bundle


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    directory = tmp_path / "patches"
    (directory / "engine/tree").mkdir(parents=True)
    (directory / "engine/spec_info.py").write_bytes(PATCH)
    (directory / "engine/server_args.py").write_bytes(
        overlaid.ENGINE["engine/server_args.py"] + b"    speculative_ddtree_budget: int = 8\n"
    )
    (directory / "engine/crlf.py").write_bytes(b"a = 2\r\n")
    (directory / "engine/tree/more.py").write_bytes(b"#!/usr/bin/python3\n")
    (directory / "engine/tree/more.py").chmod(0o700)
    (directory / "engine/old").mkdir()
    (directory / "engine/old/gone.py").write_bytes(b"G = 2\n")
    (directory / "engine/spec_info.py~").write_bytes(b"")
    return directory


def layer(directory: Path, clean: Path, *below: bundles.Bundle, binaries: tuple[str, ...] = ()) -> bundles.Bundle:
    package = records.find(records.distributions(clean), "engine")
    assert package
    return layers.bundle(directory, package, overlaid.ENGINE.get, "3.11", [one.manifest for one in below], binaries)


def test_the_base_of_a_file_is_what_the_layer_before_left(patches: Path, clean: Path, below: bundles.Bundle) -> None:
    made = layer(patches, clean, below)
    before = {entry["path"]: entry["result"] for entry in below.manifest["files"]}
    assert [(entry["path"], entry["action"], entry["base"], entry["mode"]) for entry in made.manifest["files"]] == [
        ("engine/crlf.py", "change", wheels.sha256(b"a = 1\r\n"), "0644"),
        ("engine/old/gone.py", "add", None, "0644"),
        # server_args.py is what the layer before left, so it is none of this one's
        ("engine/spec_info.py", "change", before["engine/spec_info.py"], "0644"),
        ("engine/tree/more.py", "add", None, "0755"),
    ]
    assert made.manifest["base"] == {"name": "engine", "version": "0.5.23"}
    assert made.manifest["adds"] == {"algorithms": ["DDTREE", "PATCHED"], "arguments": []}
    assert layer(patches, clean, below) == made
    assert layer(patches, clean).digest != made.digest


def test_layers_applied_in_order_give_the_winners_files(patches: Path, clean: Path, below: bundles.Bundle) -> None:
    made = layer(patches, clean, below)
    for one in (below, made):
        overlays.apply(one, clean)
    assert (clean / "engine/spec_info.py").read_bytes() == PATCH
    assert (clean / "engine/old/gone.py").read_bytes() == b"G = 2\n"
    manifests = [below.manifest, made.manifest]
    assert records.verify(clean, overlay=overlays.expected(manifests)).changed == {}
    assert {one["path"]: one["replaced"] for one in overlays.layering(manifests)} == {
        "engine/crlf.py": wheels.sha256(b"a = 1\r\n"),
        "engine/old/gone.py": None,
        "engine/spec_info.py": wheels.sha256(overlaid.SPEC_INFO + b"    DDTREE = auto()\n"),
    }


def finding(directory: Path, clean: Path) -> tuple[str, str]:
    found = overlaid.refused(layer, directory, clean)
    assert found.id == "overlay.layer"
    return found.message, found.evidence


def test_what_no_layer_may_hold_is_refused_by_name(clean: Path, tmp_path: Path) -> None:
    directory = tmp_path / "patches"
    assert finding(directory, clean)[0] == "is no directory"
    (directory / "engine").mkdir(parents=True)
    assert finding(directory, clean)[0] == "holds no file that differs from what is there already"
    (directory / "engine/crlf.py").write_bytes(overlaid.ENGINE["engine/crlf.py"])
    assert finding(directory, clean)[0] == "holds no file that differs from what is there already"
    (directory / "other").mkdir()
    (directory / "other/a.py").write_bytes(b"")
    (directory / "spec_info.py").write_bytes(b"")
    (directory / "engine/kernel.so").write_bytes(b"\x7fELF")
    (directory / "engine/linked.py").symlink_to("/etc/passwd")
    (directory / "engine/two\nlines.py").write_bytes(b"")
    message, evidence = finding(directory, clean)
    assert message == "5 file(s) cannot be laid over engine"
    assert evidence.splitlines() == [
        "engine/kernel.so is compiled, and not named in binaries",
        "engine/linked.py is no plain file",
        "engine/two\\nlines.py has a name that no bundle holds, or lies above the package's directory",
        "other/a.py lies outside the package",
        "spec_info.py has a name that no bundle holds, or lies above the package's directory",
    ]


def test_a_named_binary_is_laid(clean: Path, tmp_path: Path) -> None:
    (tmp_path / "patches/engine").mkdir(parents=True)
    (tmp_path / "patches/engine/kernel.so").write_bytes(b"\x7fELF-mine")
    assert layer(tmp_path / "patches", clean, binaries=("engine/kernel.so",)).manifest["binaries"] == ["engine/kernel.so"]


def test_a_directory_that_is_a_bundle_is_taken_as_it_is(clean: Path, below: bundles.Bundle, tmp_path: Path) -> None:
    bundles.write_bundle(tmp_path / "proposal", below)
    assert layer(tmp_path / "proposal", clean) == below
    (tmp_path / "proposal/files/engine/spec_info.py").write_bytes(b"by hand\n")
    assert overlaid.refused(layer, tmp_path / "proposal", clean).id == "overlay.digest"
