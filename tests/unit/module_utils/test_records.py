# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installed files against their RECORDs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import records
from ansible_collections.specdec.serving.plugins.module_utils.findings import COULD_NOT_CHECK, ERROR, OK, WARNING

from . import wheels

ENGINE = {"engine/__init__.py": b"", "engine/core.py": b"VALUE = 1\n", "engine/data/table.json": b"{}\r\n"}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site_packages = wheels.venv(tmp_path / "venv")
    wheels.install(site_packages, "my-engine", "1.0+cu130", ENGINE)
    wheels.install(site_packages, "other", "2.0", {"other.py": b"x = 1\n"})
    return site_packages


def verdicts(site: Path, **options: object) -> dict[str, str]:
    return {finding.id: finding.evidence for finding in records.findings(records.verify(site, **options)) if finding.verdict == ERROR}


def test_distributions_know_their_version_with_its_label(site: Path) -> None:
    assert [(dist.name, dist.version) for dist in records.distributions(site)] == [("my-engine", "1.0+cu130"), ("other", "2.0")]
    assert records.find(records.distributions(site), "My_Engine").packages() == {"engine"}


def test_untouched_files_are_ok_and_counted(site: Path) -> None:
    state = records.verify(site)
    found = records.findings(state)
    assert {finding.verdict for finding in found} == {OK} and len(found) == 6
    assert {finding.found for finding in found} == {"8 files against RECORD"}
    nothing = records.State({}, {}, (), {}, {}, (), 0)
    assert [finding.verdict for finding in records.findings(nothing)] == [COULD_NOT_CHECK]
    assert state.files == 3 + 1 + 2 * 2


def test_every_difference_is_named(site: Path) -> None:
    (site / "engine/core.py").write_bytes(b"VALUE = 2\n")
    (site / "engine/data/table.json").unlink()
    (site / "engine/extra.py").write_bytes(b"")
    (site / "stray").mkdir()
    (site / "stray/x.py").write_bytes(b"")
    state = records.verify(site)
    assert state.changed == {"engine/core.py": "my-engine"}
    assert state.missing == {"engine/data/table.json": "my-engine"}
    assert state.foreign == ("engine/extra.py", "stray/x.py")
    assert verdicts(site) == {
        "record.changed": "engine/core.py",
        "record.missing": "engine/data/table.json",
        "record.foreign": "engine/extra.py\nstray/x.py",
    }


def test_bytecode_of_the_interpreter_is_no_difference_but_loose_bytecode_is(site: Path) -> None:
    (site / "engine/__pycache__").mkdir()
    (site / "engine/__pycache__/core.cpython-312.pyc").write_bytes(b"x")
    (site / "_virtualenv.py").write_bytes(b"")
    assert verdicts(site) == {}
    (site / "engine/hidden.pyc").write_bytes(b"x")
    assert verdicts(site) == {"record.foreign": "engine/hidden.pyc"}


def test_a_file_known_to_another_distribution_is_not_foreign(site: Path) -> None:
    wheels.install(site, "plugin", "1", {"engine/plugin.py": b""})
    assert verdicts(site) == {}


def test_scripts_outside_site_packages_are_verified(site: Path) -> None:
    script = site.parents[2] / "bin" / "engine"
    script.write_bytes(b"#!/bin/sh\n")
    record = site / "my_engine-1.0+cu130.dist-info/RECORD"
    record.write_text(record.read_text("utf-8") + "../../../bin/engine,sha256=%s,10\n" % wheels.b64(b"#!/bin/sh\n"), "utf-8")
    assert verdicts(site) == {}
    script.write_bytes(b"#!/bin/no\n")
    assert verdicts(site) == {"record.changed": "../../../bin/engine"}


@pytest.mark.parametrize("row", ["../../../../secret", "engine/../../../../../secret", "/etc/passwd"])
def test_rows_that_leave_the_environment_are_refused_unread(site: Path, row: str) -> None:
    record = site / "other-2.0.dist-info/RECORD"
    record.write_text(record.read_text("utf-8") + "%s,sha256=%s,1\n" % (row, wheels.b64(b"x")), "utf-8")
    assert list(verdicts(site)) == ["record.outside"]


def test_two_owners_of_different_bytes_conflict_but_equal_bytes_do_not(site: Path) -> None:
    wheels.install(site, "rival", "1", {"engine/__init__.py": b"", "engine/core.py": b"VALUE = 3\n"})
    state = records.verify(site)
    assert state.conflicts == {"engine/core.py": ("my-engine", "rival")}
    assert verdicts(site) == {"record.doubly-owned": "engine/core.py"}
    assert [(f.id, f.verdict) for f in records.findings(state, critical=["torch"]) if f.verdict != OK] == [("record.doubly-owned", WARNING)]


def test_a_build_script_that_two_wheels_bring_forbids_nothing(site: Path) -> None:
    for name in ("flashinfer-python", "torch-c-dlpack-ext"):
        wheels.install(site, name, "1", {"build_backend.py": name.encode()})
    found = records.findings(records.verify(site), critical=["flashinfer-python", "torch"])
    assert [(f.id, f.verdict, f.evidence) for f in found if f.verdict != OK] == [("record.doubly-owned", WARNING, "build_backend.py")]
    wheels.install(site, "rival", "1", {"engine/core.py": b"VALUE = 3\n"})
    worse = records.findings(records.verify(site), critical=["my-engine"])
    assert [(f.subject, f.verdict) for f in worse if f.verdict == ERROR] == [("my-engine and rival", ERROR)]


def test_an_overlay_stands_above_the_record_and_is_itself_verified(site: Path) -> None:
    (site / "engine/core.py").write_bytes(b"VALUE = 2\n")
    (site / "engine/new.py").write_bytes(b"N = 1\n")
    (site / "engine/data/table.json").unlink()
    overlay = {"engine/core.py": wheels.sha256(b"VALUE = 2\n"), "engine/new.py": wheels.sha256(b"N = 1\n"), "engine/data/table.json": None}
    assert verdicts(site, overlay=overlay) == {}
    (site / "engine/core.py").write_bytes(ENGINE["engine/core.py"])
    (site / "engine/data/table.json").write_bytes(b"{}\r\n")
    assert verdicts(site, overlay=overlay) == {"record.changed": "engine/core.py", "record.foreign": "engine/data/table.json"}


def test_a_distribution_without_record_is_named_once(site: Path) -> None:
    (site / "other-2.0.dist-info/RECORD").unlink()
    assert verdicts(site)["record.unreadable"] == ""
    assert verdicts(site)["record.foreign"] == "other.py"


def test_long_lists_are_cut_and_say_so() -> None:
    assert records.listing("abc", 2) == "a\nb\nand 1 more"
    assert records.listing("ab", 2) == "a\nb"


def test_large_files_are_hashed_in_pieces(tmp_path: Path) -> None:
    data = b"0123456789abcdef" * (200 * 1024)
    (tmp_path / "large").write_bytes(data)
    assert records.hash_files({"a": (str(tmp_path / "large"), "sha256"), "b": (str(tmp_path / "none"), "sha256")}) == {
        "a": wheels.sha256(data),
        "b": None,
    }
