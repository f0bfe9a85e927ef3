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


def test_names_of_kernel_packages_that_the_base_does_not_take_are_needed() -> None:
    base = {"engine/a.py": b"from flashinfer.sampling import top_k\n"}
    files = {
        "engine/a.py": base["engine/a.py"] + b"from flashinfer import tree\nimport sgl_kernel\ndef f():\n    sgl_kernel.verify_tree()\n",
        "engine/b.py": b"try:\n    from flashinfer import guarded\nexcept ImportError:\n    pass\n",
        "engine/c.py": b"not python ( flashinfer",
        "engine/d.txt": b"from flashinfer import prose\n",
    }
    assert additions.needs(files, base.get) == {"flashinfer": ["flashinfer.tree"], "sgl_kernel": ["sgl_kernel.verify_tree"]}


def test_what_an_overlay_needs_is_a_note(tmp_path: Path) -> None:
    reference = overlaid.edited(tmp_path)
    (reference / "engine/tree/more.py").write_bytes(b"from flashinfer.tree import build\n")
    bundle = captures.capture(reference, "engine").bundle
    described = additions.described(bundle, overlaid.ENGINE.get)
    assert described.manifest["needs"] == {"flashinfer": ["flashinfer.tree.build"]}
    assert described.digest == bundle.digest == bundles.manifest_digest(described.manifest)
    directory = tmp_path / "kept"
    for one in (bundle, described, bundle):
        bundles.write_bundle(directory, one)
    assert bundles.read_bundle(directory).manifest == described.manifest
