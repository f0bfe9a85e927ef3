# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Overlays applied and audited."""

from __future__ import annotations

import errno
import os
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
def bundle(reference: Path) -> bundles.Bundle:
    return captures.capture(reference, "engine").bundle


def test_applying_gives_the_reference_and_again_changes_nothing(bundle: bundles.Bundle, reference: Path, clean: Path) -> None:
    changed = overlays.apply(bundle, clean)
    assert changed == [entry["path"] for entry in bundle.manifest["files"]]
    assert overlaid.content(clean) == overlaid.content(reference)
    assert not (clean / "engine/old").exists()
    assert (clean / "engine/tree/utils.py").stat().st_mode & 0o777 == 0o755
    assert overlays.apply(bundle, clean) == []
    assert [one.verdict for one in overlays.audit([bundle.manifest], clean)] == ["ok"]
    assert records.verify(clean, overlay=overlays.expected([bundle.manifest])).foreign == ()


def test_whoever_shares_a_file_keeps_it(bundle: bundles.Bundle, clean: Path, tmp_path: Path) -> None:
    shared = tmp_path / "cached.py"
    os.link(clean / "engine/spec_info.py", shared)
    overlays.apply(bundle, clean)
    assert shared.read_bytes() == overlaid.SPEC_INFO


def test_stale_bytecode_goes(bundle: bundles.Bundle, clean: Path) -> None:
    cache = clean / "engine/__pycache__"
    cache.mkdir()
    kept = ["spec_info.other.cpython-312.pyc", "spec_info_other.cpython-312.pyc"]
    for name in ("spec_info.cpython-312.pyc", "spec_info.cpython-311.opt-2.pyc", *kept):
        (cache / name).write_bytes(b"")
    overlays.apply(bundle, clean)
    assert sorted(os.listdir(cache)) == kept


def untouched(clean: Path, bundle: bundles.Bundle) -> str:
    """The id of the finding that refuses a bundle, which must leave every file alone."""
    before = overlaid.content(clean)
    finding = overlaid.refused(overlays.apply, bundle, clean)
    assert overlaid.content(clean) == before
    return finding.id


def test_another_base_version_is_refused(bundle: bundles.Bundle, clean: Path) -> None:
    assert untouched(clean, overlaid.sealed(bundle, base={"name": "engine", "version": "0.5.22"})) == "overlay.base-version"
    assert untouched(clean, overlaid.sealed(bundle, base={"name": "absent", "version": "1"})) == "overlay.base-version"


def test_another_base_file_is_refused_by_name(bundle: bundles.Bundle, clean: Path) -> None:
    (clean / "engine/server_args.py").write_bytes(b"mine = 1\n")
    (clean / "engine/tree").mkdir()
    (clean / "engine/tree/utils.py").write_bytes(b"theirs = 1\n")
    before = overlaid.content(clean)
    [finding] = overlays.check(bundle, clean)
    assert finding.id == "overlay.base-hash"
    assert "engine/server_args.py" in finding.found
    assert "engine/tree/utils.py" in finding.found
    assert "engine/spec_info.py" not in finding.found
    overlaid.refused(overlays.apply, bundle, clean)
    assert overlaid.content(clean) == before


def test_a_digest_that_does_not_fit_is_refused(bundle: bundles.Bundle, clean: Path) -> None:
    assert untouched(clean, bundles.Bundle({**bundle.manifest, "python": "3.11"}, bundle.files)) == "overlay.digest"


def test_files_outside_the_package_are_refused(bundle: bundles.Bundle, clean: Path) -> None:
    stray = {"path": "other/a.py", "action": "change", "base": wheels.sha256(b"x = 1\n"), "result": wheels.sha256(b""), "mode": "0644"}
    assert untouched(clean, overlaid.sealed(bundles.Bundle(bundle.manifest, {"other/a.py": b""}), files=[stray])) == "overlay.path"


def test_a_linked_directory_is_not_written_through(bundle: bundles.Bundle, clean: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (clean / "engine/tree").symlink_to(tmp_path / "elsewhere")
    assert overlaid.refused(overlays.apply, bundle, clean).id == "overlay.path"
    assert (clean / "engine/spec_info.py").read_bytes() == overlaid.SPEC_INFO
    assert os.listdir(tmp_path / "elsewhere") == []


def test_binaries_that_nobody_named_are_refused(bundle: bundles.Bundle, clean: Path) -> None:
    entry = {"path": "engine/x.so", "action": "add", "base": None, "result": wheels.sha256(b"\x7fELF"), "mode": "0644"}
    assert (
        untouched(clean, overlaid.sealed(bundles.Bundle(bundle.manifest, {"engine/x.so": b"\x7fELF"}), files=[entry])) == "overlay.binary"
    )


def test_what_is_not_python_is_told_of_the_overlay_whose_file_it_is(bundle: bundles.Bundle) -> None:
    later = layer(bundle, "engine/spec_info.py", b"later = 1\n")
    manifests = [bundle.manifest, later.manifest]
    assert overlays.not_python(manifests, {}) == []
    [first, second] = overlays.not_python(manifests, {"engine/tree/utils.py": "invalid syntax", "engine/spec_info.py": "never closed"})
    assert (first.id, first.evidence, bundle.digest in first.subject) == (
        "overlay.not-python",
        "engine/tree/utils.py: invalid syntax",
        True,
    )
    assert (second.evidence, later.digest in second.subject) == ("engine/spec_info.py: never closed", True)


def test_audit_names_what_changed_after_applying(bundle: bundles.Bundle, clean: Path) -> None:
    overlays.apply(bundle, clean)
    (clean / "engine/spec_info.py").write_bytes(overlaid.SPEC_INFO)
    (clean / "engine/server_args.py").chmod(0o600)
    (clean / "engine/tree/utils.py").unlink()
    (clean / "engine/old").mkdir()
    (clean / "engine/old/gone.py").write_bytes(b"G = 1\n")
    [finding] = overlays.audit([bundle.manifest], clean)
    assert finding.id == "overlay.applied"
    assert finding.evidence.splitlines() == [
        "engine/old/gone.py: other bytes",
        "engine/server_args.py: mode 0600 instead of 0644",
        "engine/spec_info.py: other bytes",
        "engine/tree/utils.py: missing",
    ]


def test_an_overlay_for_a_version_whose_files_moved_names_them(bundle: bundles.Bundle, tmp_path: Path) -> None:
    site = wheels.venv(tmp_path / "newer")
    moved = {**overlaid.ENGINE, "engine/tree/utils.py": b"", "engine/spec_info.py": b"# rewritten\n"}
    del moved["engine/old/gone.py"]
    wheels.install(site, "engine", "0.6.0", moved)
    [finding] = overlays.check(bundle, site)
    assert (finding.id, finding.found, finding.expected) == ("overlay.base-version", "engine 0.6.0", "engine 0.5.23")
    assert finding.evidence.splitlines() == [
        "engine/old/gone.py: upstream has it",  # deleted there too
        "engine/spec_info.py: is changed",
        "engine/tree/utils.py: is in the package there",
    ]
    assert "3 of its 4 files" in finding.message


def test_what_a_newer_package_has_is_told_when_the_overlay_is_refused_and_when_it_is_applied(
    bundle: bundles.Bundle, clean: Path, tmp_path: Path
) -> None:
    has = {**overlaid.ENGINE, "engine/spec_info.py": bundle.files["engine/spec_info.py"]}
    del has["engine/old/gone.py"]
    site = wheels.venv(tmp_path / "newer")
    wheels.install(site, "engine", "0.6.0", has)
    [refused] = overlays.check(bundle, site)
    assert refused.evidence.splitlines() == ["engine/old/gone.py: upstream has it", "engine/spec_info.py: upstream has it"]
    rebuilt = wheels.venv(tmp_path / "rebuilt")
    wheels.install(rebuilt, "engine", "0.5.23", has)
    [told] = overlays.upstream(bundle.manifest, overlays.apply(bundle, rebuilt))
    assert (told.id, told.verdict) == ("overlay.upstream", "warning")
    assert told.evidence.splitlines() == ["engine/old/gone.py", "engine/spec_info.py"]
    assert "2 of its 4 files" in told.message
    assert overlays.upstream(bundle.manifest, overlays.apply(bundle, clean)) == []


def layer(bundle: bundles.Bundle, path: str, data: bytes) -> bundles.Bundle:
    base = {entry["path"]: entry["result"] for entry in bundle.manifest["files"]}[path]
    manifest = {key: bundle.manifest[key] for key in ("base", "python", "adds", "reference_versions")}
    return bundles.seal({**manifest, "files": [bundles.entry(path, "change", base, data)]}, {path: data})


def test_a_later_layer_replaces_and_the_audit_asks_it_alone(bundle: bundles.Bundle, clean: Path) -> None:
    later = layer(bundle, "engine/spec_info.py", b"later = 1\n")
    assert overlays.check(later, clean)[0].id == "overlay.base-hash"
    for one in (bundle, later):
        overlays.apply(one, clean)
    manifests = [bundle.manifest, later.manifest]
    assert [finding.verdict for finding in overlays.audit(manifests, clean)] == ["ok", "ok"]
    assert overlays.layering(manifests) == [
        {
            "path": "engine/spec_info.py",
            "layer": later.digest,
            "result": wheels.sha256(b"later = 1\n"),
            "replaces": bundle.digest,
            "replaced": wheels.sha256(overlaid.SPEC_INFO + b"    DDTREE = auto()\n"),
        }
    ]
    (clean / "engine/spec_info.py").write_bytes(b"foreign = 1\n")
    verdicts = overlays.audit(manifests, clean)
    assert [finding.verdict for finding in verdicts] == ["ok", "error"]
    assert verdicts[1].evidence == "engine/spec_info.py: other bytes"
    assert overlays.layering([bundle.manifest]) == []


def test_a_target_that_cannot_be_written_is_left_as_it_was(bundle: bundles.Bundle, clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(descriptor: int, mode: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    before = overlaid.content(clean)
    (clean / "engine/old/gone.py").unlink()  # what comes first is done already
    monkeypatch.setattr(os, "fchmod", read_only)
    with pytest.raises(OSError, match="Read-only"):
        overlays.apply(bundle, clean)
    assert overlaid.content(clean) == {path: data for path, data in before.items() if path != "engine/old/gone.py"}


def test_a_linked_file_is_replaced_and_not_written_through(bundle: bundles.Bundle, clean: Path, tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_bytes(overlaid.SPEC_INFO)
    (clean / "engine/spec_info.py").unlink()
    (clean / "engine/spec_info.py").symlink_to(tmp_path / "shared.py")
    overlays.apply(bundle, clean)
    assert (tmp_path / "shared.py").read_bytes() == overlaid.SPEC_INFO
    assert not (clean / "engine/spec_info.py").is_symlink()
