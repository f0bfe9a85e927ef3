# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an overlay adds to its base for a user."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils import additions, bundles, captures

from . import overlaid


def test_algorithms_and_arguments_are_told_from_the_base(tmp_path: Path) -> None:
    bundle = captures.capture(overlaid.edited(tmp_path), "engine").bundle
    assert bundle.manifest["adds"] == additions.nothing()
    described = additions.described(bundle, overlaid.ENGINE.get)
    assert described.manifest["adds"] == {"algorithms": ["DDTREE"], "arguments": ["speculative_ddtree_budget"]}
    assert described.digest == bundle.digest == bundles.manifest_digest(described.manifest)
    bundles.verify_bundle(described, "x")


def test_fields_of_argument_groups_count_whatever_their_class() -> None:
    files = {
        "engine/arg_groups/spec.py": b"class Spec:\n    budget: int = 1\n    _own: int = 2\n",
        "engine/x.py": b"class ServerArgs:\n    y: int\n",
    }
    assert additions.additions(files, lambda path: None) == {"algorithms": [], "arguments": ["budget"]}
    assert additions.additions({"engine/server_args.py": b"not python ("}, lambda path: None) == additions.nothing()


def test_another_build_of_the_base_tells_nothing(tmp_path: Path) -> None:
    bundle = captures.capture(overlaid.edited(tmp_path), "engine").bundle
    finding = overlaid.refused(additions.described, bundle, {**overlaid.ENGINE, "engine/spec_info.py": b"# rebuilt\n"}.get)
    assert (finding.id, finding.evidence) == ("overlay.base", "engine/spec_info.py")
