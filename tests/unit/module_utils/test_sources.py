# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages that were not installed from a wheel: real checkouts, installed by the real uv, against the wheel of their release."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
import uv

from ansible_collections.specdec.serving.plugins.module_utils import bundles, captures, overlays, records, references, sources
from ansible_collections.specdec.serving.plugins.plugin_utils.processes import run

from . import overlaid, wheels

#: What the repository has at its tag. Its wheel leaves the tests out and has a file that only a build makes.
TREE = {
    "engine/__init__.py": b"",
    "engine/core.py": b"C = 1\n",
    "engine/spec_info.py": overlaid.SPEC_INFO,
    "engine/old.py": b"O = 1\n",
    "engine/tests/test_core.py": b"T = 1\n",
    "engine/version_of_the_build.py": b"V = 'not built'\n",
}
WHEEL = {**TREE, "engine/made.py": b"M = 1\n", "engine/version_of_the_build.py": b"V = '0.5.12'\n"}
del WHEEL["engine/tests/test_core.py"]

#: A build backend beside the source, so that nothing is fetched to build it.
BACKEND = """
import base64, hashlib, os, zipfile
VERSION = "0.5.12.post1.dev2+gabcdef"
def wheel(directory, files):
    name, info = "engine-%s-py3-none-any.whl" % VERSION, "engine-%s.dist-info/" % VERSION
    files[info + "METADATA"] = b"Metadata-Version: 2.1\\nName: engine\\nVersion: " + VERSION.encode() + b"\\n"
    files[info + "WHEEL"] = b"Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    digest = lambda data: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    rows = ["%s,sha256=%s,%d\\n" % (path, digest(data), len(data)) for path, data in files.items()]
    files[info + "RECORD"] = ("".join(rows) + info + "RECORD,,\\n").encode()
    with zipfile.ZipFile(os.path.join(directory, name), "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return name
def build_editable(directory, settings=None, metadata=None):
    return wheel(directory, {"__editable__.engine.pth": os.getcwd().encode() + b"\\n"})
def build_wheel(directory, settings=None, metadata=None):
    found = [os.path.join(top, name) for top, _dirs, names in os.walk("engine") for name in names if "tests" not in top]
    return wheel(directory, {path: open(path, "rb").read() for path in found})
"""
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def git(place: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=me", "-c", "user.email=me@example.com", "-C", str(place), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def write(place: Path, files: t.Mapping[str, bytes]) -> None:
    for path, data in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(data)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Two commits after the tag, and what nobody has committed yet; made by somebody else than who captures."""
    place = tmp_path / "src"
    write(place, {**TREE, "backend.py": BACKEND.encode(), "pyproject.toml": PROJECT.encode()})
    git(tmp_path, "init", "--quiet", str(place))
    git(place, "add", "-A")
    git(place, "commit", "--quiet", "-m", "release")
    git(place, "tag", "v0.5.12")
    write(place, {"engine/core.py": b"C = 2\n", "engine/tree.py": b"TREE = 1\n"})
    (place / "engine/old.py").unlink()
    git(place, "add", "-A")
    git(place, "commit", "--quiet", "-m", "ours")
    write(place, {"engine/spec_info.py": overlaid.SPEC_INFO + b"    DDTREE = auto()\n", "engine/mine.py": b"#!/usr/bin/python3\n"})
    (place / "engine/mine.py").chmod(0o755)
    return place


def install(directory: Path, *words: str) -> Path:
    """A virtual environment and what uv makes of it."""
    environment = {**os.environ, "UV_CACHE_DIR": str(directory / "cache"), "UV_OFFLINE": "1", "UV_NO_CONFIG": "1"}
    for argv in (["venv", "--quiet", "--python", sys.executable, str(directory / "venv")], ["pip", "install", "--quiet", *words]):
        subprocess.run([uv.find_uv_bin(), *argv], env={**environment, "VIRTUAL_ENV": str(directory / "venv")}, check=True)
    return directory / "venv"


def capture(venv: Path, archive: t.Optional[Path] = None) -> dict[str, t.Any]:
    """Both calls, as the controller makes them: what is wanted, then the capture against the wheel of it."""
    answer = references.capture(str(venv), "engine", None, "/nowhere", run)
    assert "digest" not in answer
    assert (answer["wanted"]["name"], answer["wanted"]["version"]) == ("engine", "0.5.12")
    base = {"version": "0.5.12", "files": {path: wheels.sha256(data) for path, data in WHEEL.items()}}
    return references.capture(str(venv), "engine", str(archive) if archive else None, "/nowhere", run, base=base)


def test_an_editable_checkout_is_compared_with_its_tag_and_the_wheel_of_that_release(checkout: Path, tmp_path: Path) -> None:
    venv = install(tmp_path, "--editable", str(checkout))
    answer = capture(venv, tmp_path / "overlay.tar")
    bundle = bundles.unpack((tmp_path / "overlay.tar").read_bytes())
    assert bundle.manifest["base"] == {"name": "engine", "version": "0.5.12"}
    assert [(entry["path"], entry["action"], entry["base"], entry["mode"]) for entry in bundle.manifest["files"]] == [
        ("engine/core.py", "change", wheels.sha256(b"C = 1\n"), "0644"),
        ("engine/mine.py", "add", None, "0755"),
        ("engine/old.py", "delete", wheels.sha256(b"O = 1\n"), "0644"),
        ("engine/spec_info.py", "change", wheels.sha256(overlaid.SPEC_INFO), "0644"),
        ("engine/tree.py", "add", None, "0644"),
    ]
    assert answer["uncommitted"] == ["engine/mine.py", "engine/spec_info.py"]
    left = {one["path"] for one in answer["ignored"] if "as in the release's source" in one["reason"]}
    assert left == {"engine/made.py", "engine/tests/test_core.py", "engine/version_of_the_build.py"}
    commit = git(checkout, "rev-parse", "HEAD")
    assert answer["source"] == {"kind": "editable", "url": checkout.as_uri(), "commit": commit, "tag": "v0.5.12"}
    said = references.summary(answer["manifest"], answer["ignored"], answer["source"], answer["uncommitted"])
    assert "  from %s, commit %s, after v0.5.12" % (checkout.as_uri(), commit) in said
    assert "  in no commit: engine/mine.py" in said

    target = wheels.venv(tmp_path / "target")
    wheels.install(target, "engine", "0.5.12", WHEEL)
    overlays.apply(bundle, target)
    assert (target / "engine/tree.py").read_bytes() == b"TREE = 1\n"
    assert captures.capture(target, "engine").bundle.digest == bundle.digest


def test_an_install_of_a_commit_is_compared_with_the_wheel_and_tells_hand_edits_from_the_commit(checkout: Path, tmp_path: Path) -> None:
    git(checkout, "stash", "--quiet", "--include-untracked")
    venv = install(tmp_path, "engine @ git+%s" % checkout.as_uri())
    site = references.site_packages(venv)
    assert site
    own = site / "engine/core.py"
    own.unlink()
    own.write_bytes(b"C = 3\n")
    direct = next(site.glob("engine-*.dist-info")) / "direct_url.json"
    assert json.loads(direct.read_text("utf-8"))["vcs_info"]["commit_id"] == git(checkout, "rev-parse", "HEAD")
    finding = overlaid.refused(references.capture, str(venv), "engine", None, "/nowhere", run)
    assert (finding.id, "0.5.12.post1.dev2+gabcdef" in finding.found) == ("overlay.editable", True)

    dist = records.find(records.distributions(site), "engine")
    assert dist
    source = sources.find(site, dist, run)
    assert source and (source.kind, source.commit) == (sources.COMMIT, git(checkout, "rev-parse", "HEAD"))
    rows = {path: records.Row(path, "sha256", wheels.sha256(data), None) for path, data in WHEEL.items()}
    release = captures.Release(records.Distribution("engine", "0.5.12", "", rows), source)
    captured = captures.capture(site, "engine", release=release)
    assert {(entry["path"], entry["action"]) for entry in captured.bundle.manifest["files"]} == {
        ("engine/core.py", "change"),
        ("engine/made.py", "delete"),
        ("engine/old.py", "delete"),
        ("engine/tree.py", "add"),
        ("engine/version_of_the_build.py", "change"),
    }
    assert captured.uncommitted == ("engine/core.py",)


def test_a_checkout_without_a_tag_needs_a_version_that_is_a_release(checkout: Path, tmp_path: Path) -> None:
    git(checkout, "tag", "--delete", "v0.5.12")
    venv = install(tmp_path, "--editable", str(checkout))
    finding = overlaid.refused(references.capture, str(venv), "engine", None, "/nowhere", run)
    assert (finding.id, "git fetch --tags" in finding.fix) == ("overlay.editable", True)
    dist = records.Distribution("engine", "0.5.12.post1", "", {})
    assert sources.release(dist, sources.Source(sources.EDITABLE, checkout, "file:///x")) == "0.5.12.post1"
    # what the wheel has and an untold source lacks may have been made while the wheel was built
    rows = {path: records.Row(path, "sha256", wheels.sha256(data), None) for path, data in WHEEL.items()}
    untold = captures.Release(records.Distribution("engine", "0.5.12", "", rows), sources.Source(sources.EDITABLE, checkout, "file:///x"))
    site = references.site_packages(venv)
    assert site
    captured = captures.capture(site, "engine", release=untold)
    assert [entry["path"] for entry in captured.bundle.manifest["files"] if entry["action"] == "delete"] == []
    assert {one["path"] for one in captured.ignored if "no repository tells" in one["reason"]} == {"engine/made.py", "engine/old.py"}
    checkout.rename(tmp_path / "moved")
    assert "is not there" in overlaid.refused(references.capture, str(venv), "engine", None, "/nowhere", run).message
