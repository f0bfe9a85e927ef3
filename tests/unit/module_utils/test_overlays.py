# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Overlays: captured from hand edits, kept, carried and applied elsewhere."""

from __future__ import annotations

import json
import os
import sys
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import overlays, records
from ansible_collections.specdec.serving.plugins.module_utils.findings import FindingError

from . import wheels

SPEC_INFO = b"class SpeculativeAlgorithm(Enum):\n    NGRAM = auto()\n"
ENGINE = {
    "engine/__init__.py": b"",
    "engine/spec_info.py": SPEC_INFO,
    "engine/server_args.py": b"class ServerArgs:\n    port: int = 1\n",
    "engine/old/gone.py": b"G = 1\n",
    "engine/kernel.so": b"\x7fELF-base",
    "engine/crlf.py": b"a = 1\r\n",
}


def lay(directory: Path) -> Path:
    site_packages = wheels.venv(directory)
    wheels.install(site_packages, "engine", "0.5.23", ENGINE)
    wheels.install(site_packages, "other", "2.0", {"other/a.py": b"x = 1\n"})
    return site_packages


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return lay(tmp_path / "clean")


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    site = lay(tmp_path / "reference")
    (site / "engine/spec_info.py").write_bytes(SPEC_INFO + b"    DDTREE = auto()\n")
    (site / "engine/server_args.py").write_bytes(ENGINE["engine/server_args.py"] + b"    speculative_ddtree_budget: int = 8\n")
    (site / "engine/tree").mkdir()
    (site / "engine/tree/utils.py").write_bytes(b"#!/usr/bin/python3\r\nT = 1\r\n")
    (site / "engine/tree/utils.py").chmod(0o755)
    (site / "engine/old/gone.py").unlink()
    return site


@pytest.fixture
def bundle(reference: Path) -> overlays.Bundle:
    return overlays.capture(reference, "engine").bundle


def sealed(bundle: overlays.Bundle, **changes: t.Any) -> overlays.Bundle:
    manifest = {**bundle.manifest, **changes}
    return overlays.Bundle({**manifest, "digest": overlays.manifest_digest(manifest)}, bundle.files)


def content(site: Path) -> dict[str, bytes]:
    return {path: (site / path).read_bytes() for path in records.tree(site)}


def refused(call: t.Callable[..., t.Any], *arguments: t.Any) -> t.Any:
    with pytest.raises(FindingError) as caught:
        call(*arguments)
    return caught.value.finding


# Capture


def test_changed_added_and_deleted_files_are_captured_and_nothing_else(bundle: overlays.Bundle) -> None:
    assert [(entry["path"], entry["action"], entry["mode"]) for entry in bundle.manifest["files"]] == [
        ("engine/old/gone.py", "delete", "0644"),
        ("engine/server_args.py", "change", "0644"),
        ("engine/spec_info.py", "change", "0644"),
        ("engine/tree/utils.py", "add", "0755"),
    ]
    hashes = {entry["path"]: (entry["base"], entry["result"]) for entry in bundle.manifest["files"]}
    assert hashes["engine/spec_info.py"] == (wheels.sha256(SPEC_INFO), wheels.sha256(SPEC_INFO + b"    DDTREE = auto()\n"))
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
        ("engine/new.so", "compiled, and not named"),
    ],
)
def test_leftovers_are_reported_and_never_captured(clean: Path, path: str, reason: str) -> None:
    (clean / path).parent.mkdir(exist_ok=True)
    (clean / path).write_bytes(b"\x7fELF" if path.endswith(".so") else b"x")
    captured = overlays.capture(clean, "engine")
    assert captured.bundle.manifest["files"] == []
    assert captured.ignored == ({"path": path, "package": "engine", "reason": reason},)


def test_a_named_binary_is_captured_and_accepted(clean: Path, tmp_path: Path) -> None:
    (clean / "engine/kernel.so").write_bytes(b"\x7fELF-mine")
    assert overlays.capture(clean, "engine").bundle.files == {}
    bundle = overlays.capture(clean, "engine", binaries=["engine/kernel.so"]).bundle
    assert bundle.manifest["binaries"] == ["engine/kernel.so"]
    assert overlays.apply(bundle, lay(tmp_path / "target")) == ["engine/kernel.so"]


def test_a_mode_alone_is_reported_and_not_captured(clean: Path) -> None:
    (clean / "engine/spec_info.py").chmod(0o666)
    # wheels carry executable files, with and without reason
    (clean / "engine/crlf.py").chmod(0o755)
    captured = overlays.capture(clean, "engine")
    assert captured.bundle.manifest["files"] == []
    assert captured.ignored == ({"path": "engine/spec_info.py", "package": "engine", "reason": "mode only"},)


def test_hand_edits_in_other_distributions_are_reported(clean: Path) -> None:
    (clean / "other/a.py").write_bytes(b"x = 2\n")
    captured = overlays.capture(clean, "engine")
    assert captured.ignored == ({"path": "other/a.py", "package": "other", "reason": "hand edit in another distribution"},)


def test_what_is_no_plain_file_is_reported(clean: Path, tmp_path: Path) -> None:
    (clean / "engine/linked").symlink_to(tmp_path)
    os.mkfifo(clean / "engine/pipe")
    assert [(one["path"], one["reason"]) for one in overlays.capture(clean, "engine").ignored] == [
        ("engine/linked", "a link to a directory"),
        ("engine/pipe", "not a plain file"),
    ]


def test_a_file_another_distribution_owns_is_not_added(clean: Path) -> None:
    wheels.install(clean, "plugin", "1", {"engine/plugin.py": b""})
    assert overlays.capture(clean, "engine").bundle.manifest["files"] == []


def test_files_that_change_once_are_read_again_and_those_that_keep_changing_refused(
    reference: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan, calls = overlays._scan, []

    def busy(times: int) -> None:
        def scanned(*arguments: t.Any) -> t.Any:
            calls.append(1)
            if len(calls) <= times:
                (reference / "engine/spec_info.py").write_bytes(b"v = %d\n" % len(calls))
            return scan(*arguments)

        calls.clear()
        monkeypatch.setattr(overlays, "_scan", scanned)

    busy(2)
    assert overlays.capture(reference, "engine").bundle.files["engine/spec_info.py"] == b"v = 2\n"
    busy(100)
    assert refused(overlays.capture, reference, "engine").id == "overlay.unstable"


def test_absent_and_editable_packages_are_refused(clean: Path) -> None:
    assert refused(overlays.capture, clean, "nothing").id == "overlay.absent"
    direct = {"url": "file:///src/engine", "dir_info": {"editable": True}}
    (clean / "engine-0.5.23.dist-info/direct_url.json").write_text(json.dumps(direct), "utf-8")
    finding = refused(overlays.capture, clean, "engine")
    assert (finding.id, "file:///src/engine" in finding.found) == ("overlay.editable", True)


def test_additions_are_told_from_the_base_wheel(reference: Path, tmp_path: Path) -> None:
    assert overlays.capture(reference, "engine").bundle.manifest["adds"] == {"algorithms": [], "arguments": []}
    base = overlays.wheel_reader(wheels.make(tmp_path, "engine", "0.5.23", ENGINE))
    captured = overlays.capture(reference, "engine", base=base, critical=["other", "torch"])
    assert captured.bundle.manifest["adds"] == {"algorithms": ["DDTREE"], "arguments": ["speculative_ddtree_budget"]}
    assert captured.bundle.manifest["reference_versions"] == {"other": "2.0"}


def test_the_digest_is_over_the_content_and_not_over_the_reference(reference: Path) -> None:
    digests = {overlays.capture(reference, "engine", critical=critical).bundle.digest for critical in ((), ("other",))}
    assert len(digests) == 1
    (reference / "engine/tree/utils.py").write_bytes(b"T = 2\n")
    assert overlays.capture(reference, "engine").bundle.digest not in digests


# On disk and under way


def test_a_bundle_survives_disk_and_archive(bundle: overlays.Bundle, tmp_path: Path) -> None:
    directory = tmp_path / "pins" / bundle.digest
    assert overlays.write_bundle(directory, bundle)
    assert not overlays.write_bundle(directory, bundle)
    assert overlays.read_bundle(directory) == bundle
    assert overlays.unpack(overlays.pack(bundle)) == bundle
    assert overlays.pack(overlays.read_bundle(directory)) == overlays.pack(bundle)
    assert os.listdir(directory.parent) == [bundle.digest]


def test_a_bundle_that_was_touched_is_refused(bundle: overlays.Bundle, tmp_path: Path) -> None:
    directory = tmp_path / bundle.digest
    overlays.write_bundle(directory, bundle)
    file = directory / "files/engine/spec_info.py"
    original = file.read_bytes()

    file.write_bytes(b"evil = 1\n")
    assert refused(overlays.read_bundle, directory).id == "overlay.digest"
    file.unlink()
    assert "engine/spec_info.py" in refused(overlays.read_bundle, directory).evidence
    file.symlink_to("/etc/passwd")
    assert refused(overlays.read_bundle, directory).id == "overlay.path"
    file.unlink()
    file.write_bytes(original)
    (directory / "files/engine/more.py").write_bytes(b"")
    assert refused(overlays.read_bundle, directory).id == "overlay.digest"
    (directory / "files/engine/more.py").unlink()
    manifest = json.loads((directory / "manifest.json").read_bytes())
    manifest["base"]["version"] = "9"
    (directory / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    assert refused(overlays.read_bundle, directory).id == "overlay.digest"
    (directory / "manifest.json").write_text("[]", "utf-8")
    assert refused(overlays.read_bundle, directory).id == "overlay.digest"


@pytest.mark.parametrize(
    "path", ["/etc/x.py", "../x.py", "engine/../../x.py", "engine//x.py", "x.py", "engine\\..\\x.py", "engine/a\nb.py"]
)
def test_paths_that_escape_are_refused(path: str) -> None:
    manifest = {
        "schema": 1,
        "base": {"name": "engine", "version": "0.5.23"},
        "python": "3.12",
        "files": [{"path": path, "action": "add", "base": None, "result": wheels.sha256(b""), "mode": "0644"}],
    }
    manifest["digest"] = overlays.manifest_digest(manifest)
    assert refused(overlays.verify_bundle, overlays.Bundle(manifest, {path: b""}), "x").id == "overlay.path"


# Apply


def test_applying_gives_the_reference_and_again_changes_nothing(bundle: overlays.Bundle, reference: Path, clean: Path) -> None:
    changed = overlays.apply(bundle, clean)
    assert changed == [entry["path"] for entry in bundle.manifest["files"]]
    assert content(clean) == content(reference)
    assert not (clean / "engine/old").exists()
    assert (clean / "engine/tree/utils.py").stat().st_mode & 0o777 == 0o755
    assert overlays.apply(bundle, clean) == []
    assert overlays.audit(bundle, clean) == []
    assert records.verify(clean, overlay=overlays.expected([bundle.manifest])).foreign == ()


def test_whoever_shares_a_file_keeps_it(bundle: overlays.Bundle, clean: Path, tmp_path: Path) -> None:
    shared = tmp_path / "cached.py"
    os.link(clean / "engine/spec_info.py", shared)
    overlays.apply(bundle, clean)
    assert shared.read_bytes() == SPEC_INFO


def test_stale_bytecode_goes(bundle: overlays.Bundle, clean: Path) -> None:
    cache = clean / "engine/__pycache__"
    cache.mkdir()
    for name in ("spec_info.cpython-312.pyc", "spec_info_other.cpython-312.pyc"):
        (cache / name).write_bytes(b"")
    overlays.apply(bundle, clean)
    assert os.listdir(cache) == ["spec_info_other.cpython-312.pyc"]


def untouched(clean: Path, bundle: overlays.Bundle) -> str:
    """The id of the finding that refuses a bundle, which must leave every file alone."""
    before = content(clean)
    finding = refused(overlays.apply, bundle, clean)
    assert content(clean) == before
    return finding.id


def test_another_base_version_is_refused(bundle: overlays.Bundle, clean: Path) -> None:
    assert untouched(clean, sealed(bundle, base={"name": "engine", "version": "0.5.22"})) == "overlay.base-version"
    assert untouched(clean, sealed(bundle, base={"name": "absent", "version": "1"})) == "overlay.base-version"


def test_another_base_file_is_refused_by_name(bundle: overlays.Bundle, clean: Path) -> None:
    (clean / "engine/server_args.py").write_bytes(b"mine = 1\n")
    (clean / "engine/tree").mkdir()
    (clean / "engine/tree/utils.py").write_bytes(b"theirs = 1\n")
    before = content(clean)
    [finding] = overlays.check(bundle, clean)
    assert finding.id == "overlay.base-hash"
    assert "engine/server_args.py" in finding.found
    assert "engine/tree/utils.py" in finding.found
    assert "engine/spec_info.py" not in finding.found
    refused(overlays.apply, bundle, clean)
    assert content(clean) == before


def test_a_digest_that_does_not_fit_is_refused(bundle: overlays.Bundle, clean: Path) -> None:
    assert untouched(clean, overlays.Bundle({**bundle.manifest, "python": "3.11"}, bundle.files)) == "overlay.digest"


def test_files_outside_the_package_are_refused(bundle: overlays.Bundle, clean: Path) -> None:
    stray = {"path": "other/a.py", "action": "change", "base": wheels.sha256(b"x = 1\n"), "result": wheels.sha256(b""), "mode": "0644"}
    assert untouched(clean, sealed(overlays.Bundle(bundle.manifest, {"other/a.py": b""}), files=[stray])) == "overlay.path"


def test_a_linked_directory_is_not_written_through(bundle: overlays.Bundle, clean: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (clean / "engine/tree").symlink_to(tmp_path / "elsewhere")
    assert refused(overlays.apply, bundle, clean).id == "overlay.path"
    assert (clean / "engine/spec_info.py").read_bytes() == SPEC_INFO
    assert os.listdir(tmp_path / "elsewhere") == []


def test_binaries_that_nobody_named_are_refused(bundle: overlays.Bundle, clean: Path) -> None:
    entry = {"path": "engine/x.so", "action": "add", "base": None, "result": wheels.sha256(b"\x7fELF"), "mode": "0644"}
    assert untouched(clean, sealed(overlays.Bundle(bundle.manifest, {"engine/x.so": b"\x7fELF"}), files=[entry])) == "overlay.binary"


def test_what_is_not_python_is_refused(reference: Path, clean: Path) -> None:
    (reference / "engine/tree/utils.py").write_bytes(b"def broken(:\n")
    bundle = overlays.capture(reference, "engine").bundle
    assert untouched(clean, bundle) == "overlay.not-python"
    assert overlays.check(bundle, clean, syntax=lambda sources: {}) == []
    # an interpreter older than the engine's does not judge
    assert overlays.check(sealed(bundle, python="99.0"), clean) == []


def test_audit_names_what_changed_after_applying(bundle: overlays.Bundle, clean: Path) -> None:
    overlays.apply(bundle, clean)
    (clean / "engine/spec_info.py").write_bytes(SPEC_INFO)
    (clean / "engine/server_args.py").chmod(0o600)
    (clean / "engine/tree/utils.py").unlink()
    (clean / "engine/old").mkdir()
    (clean / "engine/old/gone.py").write_bytes(b"G = 1\n")
    [finding] = overlays.audit(bundle, clean)
    assert finding.id == "overlay.applied"
    assert finding.evidence.splitlines() == [
        "engine/old/gone.py: other bytes",
        "engine/server_args.py: mode 0600 instead of 0644",
        "engine/spec_info.py: other bytes",
        "engine/tree/utils.py: missing",
    ]
