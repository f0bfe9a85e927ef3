# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""DDTREE's editor on a small package that has the places it looks for."""

from __future__ import annotations

import os
import pathlib
import runpy
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[3] / "demo" / "ddtree" / "install.py"
ENGINE = {
    "speculative/spec_info.py": """
class SpeculativeAlgorithm:
    NGRAM = auto()
    NONE = auto()

    def is_ngram(self):
        return self == SpeculativeAlgorithm.NGRAM

    def handle_server_args(self, server_args):
        if self.is_dflash():
            dflash(server_args)
        elif self.is_ngram():
            ngram(server_args)

    def create_worker(self):
        if self.is_dflash():
            return DFlash
        raise ValueError
""",
    "arg_groups/fields/spec.py": """
class Spec:
    speculative_num_draft_tokens: A[
        Optional[int],
        "Width of the draft.",
    ] = None
    last: int = 0
""",
    "mem_cache/allocation_sizing.py": """
def get_req_to_token_extra_context_len():
    if spec_algorithm is not None:
        if page_size > 1 or spec_algo.is_uno():
            extra = 1
    return extra
""",
}


@pytest.fixture
def site_packages(tmp_path: pathlib.Path) -> pathlib.Path:
    for name, text in ENGINE.items():
        path = tmp_path / "sglang" / "srt" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return tmp_path


def run(site_packages: pathlib.Path) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, SCRIPT, site_packages], text=True, capture_output=True, check=False)


def test_lines_go_to_their_places(site_packages: pathlib.Path) -> None:
    assert run(site_packages).returncode == 0
    engine = site_packages / "sglang" / "srt"
    info = (engine / "speculative/spec_info.py").read_text()
    assert "    NGRAM = auto()\n    DDTREE = auto()\n    NONE = auto()\n" in info
    assert "            return True\n        return self == SpeculativeAlgorithm.NGRAM\n" in info
    assert "            handle_ddtree(server_args)\n            return\n        if self.is_dflash():\n            dflash" in info
    assert "            return DDTreeWorker\n        if self.is_dflash():\n            return DFlash" in info
    assert "    ] = None\n    speculative_ddtree_budget: A[\n        Optional[int],\n" in (engine / "arg_groups/fields/spec.py").read_text()
    assert "            extra = max(extra" in (engine / "mem_cache/allocation_sizing.py").read_text()
    for name in ("ddtree_utils.py", "ddtree_worker.py"):
        assert (engine / "speculative" / name).read_bytes() == (SCRIPT.parent / name).read_bytes()


def test_second_run_changes_nothing(site_packages: pathlib.Path) -> None:
    first = run(site_packages).stdout.splitlines()
    assert len(first) == 5
    assert all(line.startswith("changed ") for line in first)
    second = run(site_packages).stdout.splitlines()
    assert second == [line.replace("changed", "unchanged", 1) for line in first]


def test_a_linked_copy_is_not_touched(site_packages: pathlib.Path) -> None:
    path = site_packages / "sglang/srt/speculative/spec_info.py"
    path.chmod(0o640)
    os.link(path, site_packages / "cached")
    run(site_packages)
    assert (site_packages / "cached").read_text() == ENGINE["speculative/spec_info.py"]
    assert "DDTREE" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o640


def test_nothing_is_written_where_a_place_is_missing(site_packages: pathlib.Path) -> None:
    sizing = site_packages / "sglang/srt/mem_cache/allocation_sizing.py"
    sizing.write_text("def get_req_to_token_extra_context_len():\n    return 4\n")
    done = run(site_packages)
    assert done.returncode == 1
    assert "allocation_sizing.py: 0 statements of get_req_to_token_extra_context_len begin with" in done.stderr
    assert "Traceback" not in done.stderr
    assert (site_packages / "sglang/srt/speculative/spec_info.py").read_text() == ENGINE["speculative/spec_info.py"]
    assert not (site_packages / "sglang/srt/speculative/ddtree_worker.py").exists()


def test_line_ends_stay(site_packages: pathlib.Path) -> None:
    insert, edits = (runpy.run_path(str(SCRIPT))[name] for name in ("insert", "INSERTIONS"))
    text = ENGINE["speculative/spec_info.py"].replace("\n", "\r\n")
    edited = insert(text, edits[0])
    assert "    DDTREE = auto()\r\n" in edited
    assert edited.count("\n") == edited.count("\r\n")
