# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Texts side by side."""

from __future__ import annotations

import json
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils import bundles, captures, differences, overlays
from ansible_collections.specdec.serving.plugins.module_utils.layout import MARKER, Layout

from . import overlaid


def test_a_capture_shows_each_text_before_and_after(tmp_path: Path) -> None:
    reference = overlaid.edited(tmp_path)
    (reference / "engine/table.bin").write_bytes(b"\xff\xfe")
    shown = differences.captured(captures.capture(reference, "engine").bundle, overlaid.ENGINE.get)
    assert [(one["before_header"], one["before"] == "", one["after"] == "") for one in shown] == [
        ("engine/old/gone.py (wheel)", False, True),
        ("engine/server_args.py (wheel)", False, False),
        ("engine/spec_info.py (wheel)", False, False),
        ("engine/tree/utils.py (wheel)", True, False),
    ]


def test_a_foreign_edit_is_shown_against_overlay_and_wheel(tmp_path: Path) -> None:
    bundle = captures.capture(overlaid.edited(tmp_path / "reference"), "engine").bundle
    host = overlaid.lay(tmp_path / "host")
    overlays.apply(bundle, host)
    paths = [entry["path"] for entry in bundle.manifest["files"]]
    assert differences.foreign(bundle, paths, host, overlaid.ENGINE.get) == []
    (host / "engine/spec_info.py").write_bytes(overlaid.SPEC_INFO + b"    MINE = auto()\n")
    (host / "engine/tree/utils.py").write_bytes(b"\xff")
    lines = differences.foreign(bundle, paths, host, lambda path: overlaid.SPEC_INFO if path == "engine/spec_info.py" else None)
    assert [line for line in lines if line.startswith(("---", "+++", "+ ", "- ", "engine"))] == [
        "--- engine/spec_info.py (wheel)",
        "+++ engine/spec_info.py (overlay)",
        "+    DDTREE = auto()",
        "--- engine/spec_info.py (overlay)",
        "+++ engine/spec_info.py (host)",
        "-    DDTREE = auto()",
        "+    MINE = auto()",
        "engine/tree/utils.py: overlay and host differ, and are no text",
    ]


def test_edits_on_a_host_are_shown_against_the_texts_it_has(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "root")
    bundle = captures.capture(overlaid.edited(tmp_path / "reference"), "engine").bundle
    site = overlaid.lay(layout.environment("e1") / "venv")
    overlays.apply(bundle, site)
    (layout.environment("e1") / "overlay.json").write_text(json.dumps([bundle.manifest]), encoding="utf-8")
    assert differences.edits(layout, "e1") == ["overlay %s: its texts are no longer on this host" % bundle.digest]
    bundles.write_bundle(layout.overlays / bundle.digest, bundle)
    assert differences.edits(layout, "e1") == []
    (site / "engine/spec_info.py").write_bytes(b"mine = 1\n")
    without = differences.edits(layout, "e1")
    assert [line for line in without if line.startswith(("---", "+++"))] == [
        "--- engine/spec_info.py (overlay)",
        "+++ engine/spec_info.py (host)",
    ]
    overlaid.lay(layout.environment("e2") / "venv")
    assert differences.edits(layout, "e1") == without  # an environment that is not complete is no witness
    (layout.environment("e2") / MARKER).touch()
    shown = differences.edits(layout, "e1")
    assert shown[:2] == ["--- engine/spec_info.py (wheel)", "+++ engine/spec_info.py (overlay)"]
    assert "+    DDTREE = auto()" in shown
    assert shown[-len(without) :] == without
