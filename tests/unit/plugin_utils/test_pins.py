# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pins directory: what is not as it was kept is refused by name."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import bundles
from ansible_collections.specdec.serving.plugins.module_utils.findings import Finding, FindingError
from ansible_collections.specdec.serving.plugins.plugin_utils.pins import Pins

PATH = "engine/tree.py"
MANIFEST = {
    "base": {"name": "engine", "version": "0.5.23"},
    "python": "3.11",
    "files": [bundles.entry(PATH, "add", None, b"T = 1\n")],
    "adds": {"algorithms": [], "arguments": []},
    "reference_versions": {},
}


@pytest.fixture
def pins(tmp_path: Path) -> Pins:
    return Pins(tmp_path)


@pytest.fixture
def digest(pins: Pins) -> str:
    bundle = bundles.seal(MANIFEST, {PATH: b"T = 1\n"})
    bundles.write_bundle(pins.bundle(bundle.digest), bundle)
    return bundle.digest


def refusal(call: t.Callable[[str], t.Any], digest: str) -> Finding:
    with pytest.raises(FindingError) as caught:
        call(digest)
    return caught.value.finding


def test_a_kept_bundle_is_read_and_one_that_is_not_there_is_none(pins: Pins, digest: str) -> None:
    manifest = pins.manifest(digest)
    assert manifest and manifest["files"] == MANIFEST["files"]
    pins.verify(digest)
    assert pins.manifest("0" * 16) is None


def test_a_file_of_a_bundle_that_was_edited_by_hand_is_named_with_a_way_out(pins: Pins, digest: str) -> None:
    (pins.bundle(digest) / "files" / PATH).write_bytes(b"T = 2\n")
    finding = refusal(pins.verify, digest)
    assert (finding.id, finding.subject, finding.evidence) == ("overlay.digest", str(pins.bundle(digest)), PATH)
    assert "restore the bundle from version control" in finding.fix


@pytest.mark.parametrize("edit", ['{"x": ', "[]", "{}", "base", "digest"])
def test_a_manifest_that_was_edited_by_hand_is_refused(pins: Pins, digest: str, edit: str) -> None:
    place = pins.bundle(digest) / "manifest.json"
    manifest = json.loads(place.read_text("utf-8"))
    if edit == "base":
        manifest["base"]["version"] = "0.5.24"
        edit = json.dumps(manifest)
    elif edit == "digest":
        manifest["python"] = "3.12"
        edit = json.dumps({**manifest, "digest": bundles.manifest_digest(manifest)})
    place.write_text(edit, "utf-8")
    finding = refusal(pins.manifest, digest)
    assert (finding.id, finding.subject, finding.expected) == ("overlay.digest", str(place.parent), digest)
