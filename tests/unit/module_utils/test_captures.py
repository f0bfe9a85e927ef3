# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Captured: what was changed by hand, and what is left alone."""

from __future__ import annotations

import errno
import json
import os
import sys
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import bundles, captures, overlays, records

from . import overlaid, wheels


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return overlaid.lay(tmp_path / "clean")


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    return overlaid.edited(tmp_path / "reference")


@pytest.fixture
def bundle(tmp_path: Path) -> bundles.Bundle:
    return captures.capture(overlaid.edited(tmp_path / "reference"), "engine").bundle


def test_changed_added_and_deleted_files_are_captured_and_nothing_else(bundle: bundles.Bundle) -> None:
    assert [(entry["path"], entry["action"], entry["mode"]) for entry in bundle.manifest["files"]] == [
        ("engine/old/gone.py", "delete", "0644"),
        ("engine/server_args.py", "change", "0644"),
        ("engine/spec_info.py", "change", "0644"),
        ("engine/tree/utils.py", "add", "0755"),
    ]
    hashes = {entry["path"]: (entry["base"], entry["result"]) for entry in bundle.manifest["files"]}
    assert hashes["engine/spec_info.py"] == (
        wheels.sha256(overlaid.SPEC_INFO),
        wheels.sha256(overlaid.SPEC_INFO + b"    DDTREE = auto()\n"),
    )
    assert hashes["engine/old/gone.py"] == (wheels.sha256(b"G = 1\n"), None)
    assert hashes["engine/tree/utils.py"][0] is None
    assert bundle.files["engine/tree/utils.py"] == b"#!/usr/bin/python3\r\nT = 1\r\n"
    assert bundle.manifest["base"] == {"name": "engine", "version": "0.5.23"}
    assert bundle.manifest["python"] == "%d.%d" % sys.version_info[:2]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("engine/.core.py.swp", "backup"),
        ("engine/core.py~", "backup"),
        ("engine/core.py.orig", "backup"),
        ("engine/#core.py#", "backup"),
        ("engine/.git/HEAD", "version control"),
        ("engine/.mypy_cache/x.json", "cache"),
        ("engine/core.pyc", "bytecode outside __pycache__"),
        ("engine/nohup.out", "made by a run"),
        ("engine/torchinductor_root/x.py", "made by a run"),
        ("engine/server.log", "made by a run"),
        ("engine/new.so", "compiled, and not named"),
    ],
)
def test_leftovers_are_reported_and_never_captured(clean: Path, path: str, reason: str) -> None:
    (clean / path).parent.mkdir(exist_ok=True)
    (clean / path).write_bytes(b"\x7fELF" if path.endswith(".so") else b"x")
    captured = captures.capture(clean, "engine")
    assert captured.bundle.manifest["files"] == []
    assert captured.ignored == ({"path": path, "package": "engine", "reason": reason},)


def test_a_named_binary_is_captured_and_accepted(clean: Path, tmp_path: Path) -> None:
    (clean / "engine/kernel.so").write_bytes(b"\x7fELF-mine")
    assert captures.capture(clean, "engine").bundle.files == {}
    bundle = captures.capture(clean, "engine", binaries=["engine/kernel.so"]).bundle
    assert bundle.manifest["binaries"] == ["engine/kernel.so"]
    assert overlays.apply(bundle, overlaid.lay(tmp_path / "target")) == ["engine/kernel.so"]


def test_each_package_has_an_overlay_of_its_own(clean: Path, tmp_path: Path) -> None:
    (clean / "engine/core.py").write_bytes(b"C = 1\n")
    (clean / "other/a.py").write_bytes(b"x = 2\n")
    taken = [captures.capture(clean, package).bundle for package in ("engine", "other")]
    assert [[entry["path"] for entry in one.manifest["files"]] for one in taken] == [["engine/core.py"], ["other/a.py"]]
    target = overlaid.lay(tmp_path / "target")
    for one in taken:
        overlays.apply(one, target)
    manifests = [one.manifest for one in taken]
    assert overlaid.content(target) == overlaid.content(clean)
    assert [finding.verdict for finding in overlays.audit(manifests, target)] == ["ok", "ok"]
    assert overlays.layering(manifests) == []


def test_a_mode_alone_is_reported_and_not_captured(clean: Path) -> None:
    (clean / "engine/spec_info.py").chmod(0o666)
    # wheels carry executable files, with and without reason
    (clean / "engine/crlf.py").chmod(0o755)
    captured = captures.capture(clean, "engine")
    assert captured.bundle.manifest["files"] == []
    assert captured.ignored == ({"path": "engine/spec_info.py", "package": "engine", "reason": "mode only"},)


def test_hand_edits_in_other_distributions_are_reported(clean: Path) -> None:
    (clean / "other/a.py").write_bytes(b"x = 2\n")
    captured = captures.capture(clean, "engine")
    assert captured.ignored == ({"path": "other/a.py", "package": "other", "reason": "hand edit in another distribution"},)


def test_what_is_no_plain_file_is_reported(clean: Path, tmp_path: Path) -> None:
    (clean / "engine/linked").symlink_to(tmp_path)
    os.mkfifo(clean / "engine/pipe")
    assert [(one["path"], one["reason"]) for one in captures.capture(clean, "engine").ignored] == [
        ("engine/linked", "a link to a directory"),
        ("engine/pipe", "not a plain file"),
    ]


def test_a_file_another_distribution_owns_is_not_added(clean: Path) -> None:
    wheels.install(clean, "plugin", "1", {"engine/plugin.py": b""})
    assert captures.capture(clean, "engine").bundle.manifest["files"] == []


def test_files_that_change_once_are_read_again_and_those_that_keep_changing_refused(
    reference: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan, calls = captures._scan, []

    def busy(times: int) -> None:
        def scanned(*arguments: t.Any) -> t.Any:
            calls.append(1)
            if len(calls) <= times:
                (reference / "engine/spec_info.py").write_bytes(b"v = %d\n" % len(calls))
            return scan(*arguments)

        calls.clear()
        monkeypatch.setattr(captures, "_scan", scanned)

    busy(2)
    assert captures.capture(reference, "engine").bundle.files["engine/spec_info.py"] == b"v = 2\n"
    busy(100)
    assert overlaid.refused(captures.capture, reference, "engine").id == "overlay.unstable"


def test_absent_packages_and_those_without_a_record_are_refused(clean: Path) -> None:
    assert overlaid.refused(captures.capture, clean, "nothing").id == "overlay.absent"
    (clean / "engine-0.5.23.dist-info/RECORD").unlink()
    assert overlaid.refused(captures.capture, clean, "engine").id == "overlay.editable"


def test_a_script_of_which_only_the_executable_bit_was_changed_is_told_from_the_wheel(tmp_path: Path) -> None:
    """On the reference nothing tells what the wheel gave it; where the wheel is at hand, it is."""
    files = {"engine/run.sh": b"#!/bin/sh\n", "engine/tool.py": b"#!/usr/bin/python3\n", "engine/data.txt": b"x"}
    sites = []
    for name in ("wheel", "reference", "target"):
        site = wheels.venv(tmp_path / name)
        wheels.install(site, "engine", "1", files)
        (site / "engine/run.sh").chmod(0o755)
        sites.append(site)
    wheel, reference, target = sites
    package = records.distributions(wheel)[0]
    captured = captures.capture(reference, "engine")
    assert captures.with_modes(captured.bundle, captured.executable, package, wheel) == captured.bundle
    for path, mode in (("engine/run.sh", 0o644), ("engine/tool.py", 0o755), ("engine/data.txt", 0o755)):
        (reference / path).chmod(mode)
    captured = captures.capture(reference, "engine")
    assert captured.executable == ("engine/tool.py",)
    bundle = captures.with_modes(captured.bundle, captured.executable, package, wheel)
    assert [(entry["path"], entry["mode"]) for entry in bundle.manifest["files"]] == [("engine/run.sh", "0644"), ("engine/tool.py", "0755")]
    bundles.verify_bundle(bundle, "x")
    assert overlays.apply(bundle, target) == ["engine/run.sh", "engine/tool.py"]
    assert [(target / path).stat().st_mode & 0o777 for path in ("engine/run.sh", "engine/tool.py")] == [0o644, 0o755]
    assert overlays.apply(bundle, target) == []
    again = captures.capture(target, "engine")
    assert captures.with_modes(again.bundle, again.executable, package, wheel).digest == bundle.digest


def test_the_versions_of_critical_packages_are_noted(reference: Path) -> None:
    manifest = captures.capture(reference, "engine", critical=["other", "torch"]).bundle.manifest
    assert manifest["reference_versions"] == {"other": "2.0"}


def test_the_digest_is_over_the_content_and_not_over_the_reference(reference: Path) -> None:
    digests = {captures.capture(reference, "engine", critical=critical).bundle.digest for critical in ((), ("other",))}
    assert len(digests) == 1
    (reference / "engine/tree/utils.py").write_bytes(b"T = 2\n")
    assert captures.capture(reference, "engine").bundle.digest not in digests


def test_an_added_file_that_changes_between_two_reads_is_read_again(reference: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, added, seen = Path.read_bytes, reference / "engine/tree/utils.py", []

    def racing(path: Path) -> bytes:
        if path == added and not seen:
            seen.append(read(path))
            return b"half wri"  # what an editor had written at this moment
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", racing)
    assert captures.capture(reference, "engine").bundle.files["engine/tree/utils.py"] == seen[0]


def test_a_file_that_is_gone_once_it_was_read_is_looked_for_again(reference: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, added = Path.read_bytes, reference / "engine/tree/utils.py"

    def vanishing(path: Path) -> bytes:
        data = read(path)
        if path == added:
            added.unlink()  # as an editor that renames does for a moment, or for good
        return data

    monkeypatch.setattr(Path, "read_bytes", vanishing)
    bundle = captures.capture(reference, "engine").bundle
    assert "engine/tree/utils.py" not in {entry["path"] for entry in bundle.manifest["files"]}


@pytest.mark.parametrize("name", ["with space.py", 'it\'s "quoted".py', "größe.py", "$(touch x);.py"])
def test_names_that_shells_stumble_over_are_captured_and_applied(clean: Path, tmp_path: Path, name: str) -> None:
    (clean / "engine" / name).write_bytes(b"x = 1\n")
    bundle = bundles.unpack(bundles.pack(captures.capture(clean, "engine").bundle))
    bundles.write_bundle(tmp_path / "kept", bundle)
    target = overlaid.lay(tmp_path / "target")
    assert overlays.apply(bundles.read_bundle(tmp_path / "kept"), target) == ["engine/" + name]
    assert overlaid.content(target) == overlaid.content(clean)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"latin\xe9.py", "engine/latin\\udce9.py"),
        (b"two\nlines.py", "engine/two\\nlines.py"),
        (b"back\\slash.py", "engine/back\\slash.py"),
    ],
)
def test_names_that_no_bundle_holds_are_named_and_left_alone(clean: Path, name: bytes, shown: str) -> None:
    with open(os.path.join(os.fsencode(clean / "engine"), name), "wb"):
        captured = captures.capture(clean, "engine")
    assert captured.bundle.files == {}
    assert captured.ignored == ({"path": shown, "package": "engine", "reason": "its name holds characters that no bundle holds"},)
    json.dumps(captured.ignored, ensure_ascii=False).encode()


def test_line_ends_are_kept_as_they_are(clean: Path, tmp_path: Path) -> None:
    (clean / "engine/crlf.py").write_bytes(b"a = 2\r\nb = 3\n")
    bundle = captures.capture(clean, "engine").bundle
    target = overlaid.lay(tmp_path / "target")
    overlays.apply(bundle, target)
    assert (target / "engine/crlf.py").read_bytes() == b"a = 2\r\nb = 3\n"


@pytest.mark.parametrize("path", ["engine/spec_info.py", "engine/tree/utils.py"])
def test_what_cannot_be_read_forbids_a_capture(reference: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    read = Path.read_bytes

    def failing(file: Path) -> bytes:
        if file == reference / path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(file)

    monkeypatch.setattr(Path, "read_bytes", failing)
    finding = overlaid.refused(captures.capture, reference, "engine")
    assert (finding.id, finding.evidence) == ("overlay.unreadable", "%s: Input/output error" % path)


def test_a_link_in_place_of_a_file_is_captured_as_what_it_shows(clean: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_bytes(b"mine = 1\n")
    (clean / "engine/spec_info.py").unlink()
    (clean / "engine/spec_info.py").symlink_to(tmp_path / "mine.py")
    (clean / "engine/dangling.py").symlink_to(tmp_path / "gone.py")
    captured = captures.capture(clean, "engine")
    assert captured.bundle.files == {"engine/spec_info.py": b"mine = 1\n"}
    assert [(one["path"], one["reason"]) for one in captured.ignored] == [("engine/dangling.py", "not a plain file")]


def test_a_data_file_of_200_mb_is_left_alone_and_carried_once_it_is_named(clean: Path, tmp_path: Path) -> None:
    with open(clean / "engine/table.bin", "wb") as stream:
        stream.truncate(200 << 20)
    captured = captures.capture(clean, "engine")
    assert captured.bundle.files == {}
    assert [(one["path"], one["reason"]) for one in captured.ignored] == [("engine/table.bin", "larger than 64 MiB, and not named")]
    bundle = captures.capture(clean, "engine", binaries=["engine/table.bin"]).bundle
    bundles.write_bundle(tmp_path / "kept", bundles.unpack(bundles.pack(bundle)))
    target = overlaid.lay(tmp_path / "target")
    assert overlays.apply(bundles.read_bundle(tmp_path / "kept"), target) == ["engine/table.bin"]
    assert (target / "engine/table.bin").stat().st_size == 200 << 20


def test_20000_files_are_carried_in_one_archive_and_applied_once(tmp_path: Path) -> None:
    files = {"engine/d%d/f%d.py" % (number % 100, number): b"N = %d\n" % number for number in range(20000)}
    edited = {path: data + b"edited = True\n" for path, data in files.items()}
    sites = []
    for name, content in (("reference", edited), ("target", files)):
        site = wheels.venv(tmp_path / name)
        wheels.install(site, "engine", "1", files)
        for path in content if content is not files else ():
            (site / path).write_bytes(content[path])
        sites.append(site)
    reference, target = sites
    archive = bundles.pack(captures.capture(reference, "engine").bundle)
    bundle = bundles.unpack(archive)
    assert bundle.files == edited
    assert len(overlays.apply(bundle, target)) == 20000
    assert overlaid.content(target) == overlaid.content(reference)
    assert overlays.apply(bundle, target) == []
