# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files and trees arrive whole, as announced, below the root, or not at all."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import artifacts
from ansible_collections.specdec.serving.plugins.module_utils.layout import MARKER


def wanted(tmp_path: Path) -> tuple[Path, list[dict[str, str]]]:
    root = tmp_path / "root"
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "with space").write_bytes(b"one")
    (tmp_path / "tool").write_bytes(b"#!/bin/sh\n")
    return root, [
        artifacts.Artifact(str(tmp_path / "tool"), str(root / "bin" / "tool"), artifacts.file_digest(tmp_path / "tool"), "0755").as_dict(),
        artifacts.Artifact(str(tree), str(root / "models" / "tree"), artifacts.tree_digest(tree)).as_dict(),
    ]


def test_files_and_trees_arrive_and_the_second_time_nothing_is_new(tmp_path: Path) -> None:
    root, items = wanted(tmp_path)
    archive = tmp_path / "a.tar"
    assert artifacts.pack(items, archive) == archive.stat().st_size
    assert artifacts.place(archive, items, root) == [items[0]["dest"], items[1]["dest"]]
    assert os.stat(root / "bin" / "tool").st_mode & 0o777 == 0o755
    assert (root / "models" / "tree" / "sub" / "with space").read_bytes() == b"one"
    assert (root / "models" / "tree" / MARKER).read_text() == items[1]["digest"]
    assert artifacts.placed_digest(root / "bin" / "tool") == items[0]["digest"]
    assert artifacts.place(archive, items, root) == []
    assert sorted(p.name for p in root.iterdir()) == ["bin", "models"]


def test_other_content_than_announced_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    root, items = wanted(tmp_path)
    archive = tmp_path / "a.tar"
    artifacts.pack(items, archive)
    items[0]["digest"] = "0" * 64
    with pytest.raises(artifacts.Refused, match="announced was 000"):
        artifacts.place(archive, items, root)
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("dest", ["/etc/passwd", "{root}/../escape", "{root}"])
def test_a_destination_outside_the_root_is_refused(tmp_path: Path, dest: str) -> None:
    root, items = wanted(tmp_path)
    archive = tmp_path / "a.tar"
    artifacts.pack(items, archive)
    items[0]["dest"] = dest.format(root=root)
    with pytest.raises(artifacts.Refused, match="lies outside"):
        artifacts.place(archive, items, root)
    assert not root.exists()


@pytest.mark.parametrize("name", ["../escape", "/absolute", "0/link"])
def test_an_archive_that_would_leave_its_directory_is_refused(tmp_path: Path, name: str) -> None:
    root, items = wanted(tmp_path)
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        member = tarfile.TarInfo(name)
        if name.endswith("link"):
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member, io.BytesIO())
    with pytest.raises(artifacts.Refused, match="no plain file"):
        artifacts.place(archive, items, root)
    assert list(root.iterdir()) == []


def test_a_tree_with_a_link_has_no_digest(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(artifacts.Refused, match="symbolic link"):
        artifacts.tree_digest(tmp_path)


def test_half_a_tree_without_its_marker_is_replaced(tmp_path: Path) -> None:
    root, items = wanted(tmp_path)
    archive = tmp_path / "a.tar"
    artifacts.pack(items, archive)
    half = root / "models" / "tree"
    half.mkdir(parents=True)
    (half / "torn").write_bytes(b"")
    assert items[1]["dest"] in artifacts.place(archive, items, root)
    assert not (half / "torn").exists()


def neighbours(tmp_path: Path) -> tuple[Path, dict[str, object]]:
    """A host with one tree, and another one that shares a large file with it."""
    root = tmp_path / "root"
    for name in ("first", "second"):
        (tmp_path / name / "files").mkdir(parents=True)
        (tmp_path / name / "files" / "large").write_bytes(b"x" * 100000)
        (tmp_path / name / "files" / "own").write_bytes(name.encode())
    first, second = (tmp_path / name for name in ("first", "second"))
    item = artifacts.Artifact(str(first), str(root / "cache" / "first"), artifacts.tree_digest(first)).as_dict()
    artifacts.pack([item], tmp_path / "a.tar")
    artifacts.place(tmp_path / "a.tar", [item], root)
    held = {"files/large": str(root / "cache" / "first" / "files" / "large")}
    return root, artifacts.Artifact(str(second), str(root / "cache" / "second"), artifacts.tree_digest(second), held=held).as_dict()


def test_what_the_host_holds_does_not_travel(tmp_path: Path) -> None:
    root, item = neighbours(tmp_path)
    assert artifacts.pack([item], tmp_path / "b.tar") < 20000
    assert artifacts.place(tmp_path / "b.tar", [item], root) == [item["dest"]]
    assert artifacts.tree_digest(root / "cache" / "second") == item["digest"]
    inode = (root / "cache" / "first" / "files" / "large").stat().st_ino
    assert (root / "cache" / "second" / "files" / "large").stat().st_ino != inode


def test_what_the_host_holds_and_is_damaged_is_taken_away_so_that_it_is_sent(tmp_path: Path) -> None:
    root, item = neighbours(tmp_path)
    (root / "cache" / "first" / "files" / "large").write_bytes(b"damaged")
    artifacts.pack([item], tmp_path / "b.tar")
    with pytest.raises(artifacts.Refused, match="taken away"):
        artifacts.place(tmp_path / "b.tar", [item], root)
    assert list((root / "cache").iterdir()) == []
    with pytest.raises(artifacts.Refused, match="outside"):
        artifacts.place(tmp_path / "b.tar", [{**item, "held": {"files/large": "/etc/passwd"}}], root)


def test_what_is_large_goes_in_parts_and_nothing_is_left_out(tmp_path: Path) -> None:
    items = []
    for number, size in enumerate((40, 40, 40, 500, 10)):
        (tmp_path / str(number)).write_bytes(b"x" * size)
        items.append({"source": str(tmp_path / str(number))})
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_bytes(b"x" * 95)
    items.append({"source": str(tree)})
    parts = artifacts.batches(items, 100)
    assert [len(part) for part in parts] == [2, 1, 1, 1, 1]
    assert [one for part in parts for one in part] == items
    assert artifacts.batches([], 100) == []
