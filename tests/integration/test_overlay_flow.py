# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Overlays through whole deploys: the same one captured from a host that has it, patched files above it, edits found."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from flow import FILES, ROOT, Fleet, variables

SPEC_INFO = "sglang/srt/speculative/spec_info.py"
SERVER_ARGS = "sglang/srt/server_args.py"


@pytest.fixture(scope="module")
def served(fleet: Fleet) -> Fleet:
    """ct200 serves with the overlay of ct129, whatever went before."""
    fleet.hosts("start", "ct129")
    run = fleet.deploy()
    assert run.rc == 0, run.why
    return fleet


def digest(pins: Path, reference: str) -> str:
    return json.loads((pins / "references" / (reference + ".json")).read_text())["overlays"]["sglang"]


def site(fleet: Fleet) -> str:
    """Where the engine of ct200 lies."""
    return fleet.sh("ct200", "echo %s/environments/%s/venv/lib/python3*/site-packages" % (ROOT, fleet.release()["environment"]))


def test_captured_again_from_the_host_it_was_applied_to_it_is_the_same(served: Fleet, tmp_path: Path) -> None:
    wanted = {**variables(overlays=[{"reference": "ct200"}]), "specdec_pins_dir": str(tmp_path), "specdec_reference": {}}
    run = served.deploy(playbook="playbooks/capture.yml", limit="ct201", variables=wanted)
    assert digest(tmp_path, "ct200") == digest(served.state / "pins", "ct129"), run.why


def test_check_mode_shows_what_would_be_captured_and_keeps_nothing(served: Fleet, tmp_path: Path) -> None:
    wanted = {**variables(), "specdec_pins_dir": str(tmp_path / "pins")}
    before = served.sh("ct129", FILES)
    run = served.deploy("--check", "--diff", playbook="playbooks/capture.yml", variables=wanted)
    assert run.rc == 0, run.why
    assert "overlay %s on sglang 0.5.23:" % digest(served.state / "pins", "ct129") in run.text
    assert "  change %s" % SPEC_INFO in run.text and "+++ after: %s (overlay)" % SPEC_INFO in run.text
    assert not (tmp_path / "pins").exists()
    assert served.sh("ct129", FILES) == before


def test_an_edit_in_place_is_shown_against_overlay_and_wheel(served: Fleet) -> None:
    path = "%s/%s" % (site(served), SPEC_INFO)
    served.sh("ct200", "cp -a %s /root/kept.py && echo '# by hand' >> %s" % (path, path))
    try:
        said = served.sh("ct200", "%s/bin/specdec verify --diff main || true" % ROOT)
        audited = served.deploy("--diff", playbook="playbooks/verify.yml")
    finally:
        served.sh("ct200", "mv /root/kept.py %s" % path)
    assert "1 file(s) are not as the overlay left them" in said
    assert "%s: other bytes" % SPEC_INFO in said
    assert "+# by hand" in said
    assert "+++ %s (host)" % SPEC_INFO in said
    assert audited.rc != 0
    assert "+++ %s (host)" % SPEC_INFO in audited.text
    assert "+# by hand" in audited.text


def test_patched_files_of_a_directory_are_laid_over_the_captured_overlay(served: Fleet, tmp_path: Path) -> None:
    before = served.release()["environment"]
    captured = served.state / "pins" / "overlays" / digest(served.state / "pins", "ct129")
    for path, original in (
        (SPEC_INFO, (captured / "files" / SPEC_INFO).read_text()),
        (SERVER_ARGS, served.sh("ct200", "cat %s/%s" % (site(served), SERVER_ARGS)) + "\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(original + "# patched\n")
    wanted = variables(overlays=[{"reference": "ct129"}, {"directory": str(tmp_path)}])
    run = served.deploy(variables=wanted)
    assert run.rc == 0, run.why
    assert served.release()["environment"] != before
    applied: list[dict[str, t.Any]] = json.loads(
        served.sh("ct200", "cat %s/environments/%s/overlay.json" % (ROOT, served.release()["environment"]))
    )
    assert [one["digest"] for one in applied][:1] == [captured.name]
    assert "%s: overlay %s replaces what %s left: " % (SPEC_INFO, applied[1]["digest"], captured.name) in run.text
    assert "%s: overlay %s replaces what sglang 0.5.23 left: " % (SERVER_ARGS, applied[1]["digest"]) in run.text
    assert served.sh("ct200", "tail -qn1 %s/%s %s/%s" % (site(served), SPEC_INFO, site(served), SERVER_ARGS)) == "# patched\n# patched"
    assert len(served.complete("import os\n")) > 5
    again = served.deploy(variables=wanted)
    assert (again.rc, again.recap("ct200")["changed"]) == (0, 0), again.why
    assert max(again.calls.values()) <= 2
