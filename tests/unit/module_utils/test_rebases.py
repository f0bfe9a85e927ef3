# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Overlays carried over to another version of their base, against git itself."""

from __future__ import annotations

import os
import subprocess
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import bundles, overlays, rebases, records
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed
from ansible_collections.specdec.serving.plugins.plugin_utils.processes import run

from . import overlaid, wheels

LINES = b"".join(b"line %d\n" % number for number in range(30))
#: path → what the old version, the overlay and the new version have.
FILES: dict[str, tuple[t.Optional[bytes], t.Optional[bytes], t.Optional[bytes]]] = {
    "engine/same.py": (b"a\n", b"b\n", b"a\n"),
    "engine/clean.py": (LINES, LINES.replace(b"line 2\n", b"mine\n"), LINES.replace(b"line 28\n", b"theirs\n")),
    "engine/clash.py": (
        LINES,
        LINES.replace(b"e 2\n", b"mine\n").replace(b"e 19\n", b"m\n"),
        LINES.replace(b"e 2\n", b"theirs\n").replace(b"e 19\n", b"t\n"),
    ),
    "engine/crlf.py": (b"a\r\nb\r\nc\r\nd\r\n", b"A\r\nb\r\nc\r\nd\r\n", b"a\r\nb\r\nc\r\nD\r\n"),
    "engine/latin.py": (b"\xe9\n1\n2\n3\n4\n", b"\xe9\n1\n2\n3\n5\n", b"\xe8\n1\n2\n3\n4\n"),
    "engine/unended.py": (b"x\ny\nz", b"x\ny\nz2", b"x2\ny\nz"),
    "engine/upstreamed.py": (b"a\n", b"b\n", b"b\n"),
    "engine/gone.py": (b"a\n", b"b\n", None),
    "engine/new.py": (None, b"n\n", None),
    "engine/new_too.py": (None, b"mine\n", b"theirs\n"),
    "engine/dropped.py": (b"a\n", None, b"a\n"),
    "engine/dropped_too.py": (b"a\n", None, None),
    "engine/dropped_changed.py": (b"a\n", None, b"b\n"),
    "engine/data.bin": (b"\0\1", b"\0\2", b"\0\3"),
}
VERDICTS = {
    "engine/same.py": rebases.UNCHANGED,
    "engine/clean.py": rebases.MERGED,
    "engine/clash.py": rebases.CONFLICT,
    "engine/crlf.py": rebases.MERGED,
    "engine/latin.py": rebases.MERGED,
    "engine/unended.py": rebases.MERGED,
    "engine/upstreamed.py": rebases.SAME,
    "engine/gone.py": rebases.GONE,
    "engine/new.py": rebases.UNCHANGED,
    "engine/new_too.py": rebases.CONFLICT,
    "engine/dropped.py": rebases.UNCHANGED,
    "engine/dropped_too.py": rebases.SAME,
    "engine/dropped_changed.py": rebases.DELETED,
    "engine/data.bin": rebases.UNMERGEABLE,
}


def version(number: int) -> dict[str, bytes]:
    return {path: texts[number] for path, texts in FILES.items() if texts[number] is not None}


def overlay() -> bundles.Bundle:
    old, mine = version(0), version(1)
    entries = []
    for path in sorted({*old, *mine}):
        action = "delete" if path not in mine else "change" if path in old else "add"
        entries.append(bundles.entry(path, action, wheels.sha256(old[path]) if path in old else None, mine.get(path)))
    manifest = {"base": {"name": "engine", "version": "0.5.12"}, "python": "3.11", "files": entries, "adds": {}, "reference_versions": {}}
    return bundles.seal(manifest, mine)


@pytest.fixture
def made(tmp_path: Path) -> rebases.Rebase:
    (tmp_path / "scratch").mkdir()
    return rebases.rebase(overlay(), version(0).get, version(2).get, "0.5.23", run, tmp_path / "scratch")


def by_git(directory: Path, path: str) -> tuple[int, bytes]:
    """What git merge-file itself makes of a file: exit status and merged bytes."""
    names = {"overlay": FILES[path][1], "engine 0.5.12": FILES[path][0], "engine 0.5.23": FILES[path][2]}
    for name, data in names.items():
        (directory / name).write_bytes(data or b"")
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    order = ["overlay", "engine 0.5.12", "engine 0.5.23"]
    done = subprocess.run(["git", "merge-file", "-p", *order], cwd=directory, env=environment, capture_output=True, check=False)
    return done.returncode, done.stdout


def test_each_file_is_what_git_merge_file_makes_of_it(made: rebases.Rebase, tmp_path: Path) -> None:
    (tmp_path / "git").mkdir()
    merged = [file for file in made.files if file.verdict in (rebases.MERGED, rebases.CONFLICT)]
    assert len(merged) == 6
    for file in merged:
        assert (file.conflicts, made.bundle.files[file.path]) == by_git(tmp_path / "git", file.path), file.path
    assert by_git(tmp_path / "git", "engine/data.bin")[0] == 255


def test_every_file_has_its_verdict(made: rebases.Rebase) -> None:
    assert {file.path: file.verdict for file in made.files} == VERDICTS
    assert next(file for file in made.files if file.path == "engine/clash.py").conflicts == 2
    assert not made.clean
    assert "conflict       engine/clash.py: 2 hunk(s)\n" in made.report()
    assert "look through the files above in /p/bundle/files, then put {directory: /p/bundle/files} into overlays" in made.advice("/p")


def test_the_proposal_is_a_whole_bundle_over_the_new_version(made: rebases.Rebase, tmp_path: Path) -> None:
    bundles.verify_bundle(made.bundle, "proposal")
    site = wheels.venv(tmp_path / "newer")
    wheels.install(site, "engine", "0.5.23", version(2))
    with pytest.raises(SyntaxError):  # the markers
        compile(made.bundle.files["engine/clash.py"], "clash.py", "exec")
    overlays.apply(made.bundle, site)
    state = records.verify(site, overlay=overlays.expected([made.bundle.manifest]))
    assert (state.changed, state.missing, state.foreign) == ({}, {}, ())
    assert {path for path, verdict in VERDICTS.items() if verdict in rebases.PROPOSED} == {
        one["path"] for one in made.bundle.manifest["files"]
    }
    assert not (site / "engine/dropped.py").exists()
    assert (site / "engine/dropped_changed.py").read_bytes() == b"b\n"


def test_a_proposal_is_written_whole_and_never_over_one_that_was_worked_on(made: rebases.Rebase, tmp_path: Path) -> None:
    directory = tmp_path / "proposals/one"
    assert rebases.write(directory, made)
    assert bundles.read_bundle(directory / "bundle") == made.bundle
    assert (directory / "report.txt").read_text().splitlines()[1:] == made.report().splitlines()
    assert not rebases.write(directory, made)
    assert os.listdir(directory.parent) == ["one"]
    (directory / "report.txt").write_text("resolved by hand")
    assert overlaid.refused(rebases.write, directory, made).id == "rebase.directory"


def test_an_overlay_over_the_same_files_is_clean(tmp_path: Path) -> None:
    made = rebases.rebase(overlay(), version(0).get, version(0).get, "0.5.12.post1", run, tmp_path)
    assert made.clean
    assert "put {directory: /p/bundle} into overlays" in made.advice("/p")
    assert {file.verdict for file in made.files} == {rebases.UNCHANGED}
    assert made.bundle.files == overlay().files


def test_without_git_or_with_another_base_nothing_is_proposed(tmp_path: Path) -> None:
    def absent(*_arguments: object, **_options: object) -> Completed:
        return Completed(127, "", "[Errno 2] No such file or directory: 'git'")

    arguments = [overlay(), version(0).get, version(2).get, "0.5.23"]
    assert overlaid.refused(rebases.rebase, *arguments, absent, tmp_path).id == "rebase.git"
    arguments[1] = version(2).get
    assert overlaid.refused(rebases.rebase, *arguments, run, tmp_path).id == "overlay.base"


def test_a_file_that_imports_what_is_gone_is_not_clean(tmp_path: Path) -> None:
    old = {"engine/worker.py": b"W = 1\n", "engine/kept.py": b"", "engine/moved/__init__.py": b""}
    source = b"from engine.worker import W\nfrom engine import moved, kept\nimport engine.mine as mine\nimport engine.nowhere.x\n"
    mine = {"engine/tree.py": source, "engine/mine.py": b""}
    entries = [bundles.entry(path, "add", None, data) for path, data in mine.items()]
    manifest = {"base": {"name": "engine", "version": "1"}, "python": "3.11", "files": entries, "adds": {}, "reference_versions": {}}
    made = rebases.rebase(bundles.seal(manifest, mine), old.get, {"engine/kept.py": b""}.get, "2", run, tmp_path)
    assert [(file.path, file.verdict, file.lacking) for file in made.files] == [
        ("engine/tree.py", rebases.UNCHANGED, ("engine.moved", "engine.worker")),
        ("engine/mine.py", rebases.UNCHANGED, ()),
    ]
    assert not made.clean
    line = "base unchanged engine/tree.py: imports engine.moved, which is gone upstream; imports engine.worker, which is gone upstream\n"
    assert line in made.report()
