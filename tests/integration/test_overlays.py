# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Overlays on the engine's own packages, from the index: refused by another version, carried over, layered. No host is needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import typing as t
from pathlib import Path

import pytest
from flow import Fleet, variables

from ansible_collections.specdec.serving.plugins.module_utils import bundles, captures, overlays, rebases, records
from ansible_collections.specdec.serving.plugins.plugin_utils import basewheels, controller
from ansible_collections.specdec.serving.plugins.plugin_utils.layers import Layers
from ansible_collections.specdec.serving.plugins.plugin_utils.pins import Pins

OLD, NEW = ({"name": "sglang", "version": version} for version in ("0.5.12", "0.5.23"))
SPECULATIVE = "sglang/srt/speculative/"
SPEC_INFO, SERVER_ARGS = SPECULATIVE + "spec_info.py", "sglang/srt/server_args.py"
WORKER = b"from sglang.srt.speculative.dflash_worker import DFlashWorker\n\n\nclass DDTreeWorker(DFlashWorker):\n    pass\n"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def old(cache: Path) -> Path:
    return basewheels.fetch(cache, controller.run, OLD, "3.11", "x86_64")


@pytest.fixture(scope="module")
def new(cache: Path) -> Path:
    return basewheels.fetch(cache, controller.run, NEW, "3.11", "x86_64")


def edit(site: Path, path: str, data: bytes) -> None:
    """Give a file new content; its old one may be shared."""
    (site / path).unlink(missing_ok=True)
    (site / path).write_bytes(data)


def reference(directory: Path, package: Path) -> Path:
    """An environment with the package, as an installer leaves it."""
    site = directory / "lib" / "python3.11" / "site-packages"
    shutil.copytree(package, site)
    return site


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory, old: Path) -> bundles.Bundle:
    """As an engineer wrote it into 0.5.12: a worker over the one that 0.5.14 took away, and edits in every file around."""
    site = reference(tmp_path_factory.mktemp("reference"), old)
    for file in sorted((site / SPECULATIVE).glob("*.py")):
        lines = file.read_bytes().splitlines(True)
        middle = len(lines) // 2
        edit(site, SPECULATIVE + file.name, b"".join([b"# ours\n", *lines[:middle], b"# ours too\n", *lines[middle:]]))
    source = (site / SERVER_ARGS).read_bytes()
    edit(site, SERVER_ARGS, source.replace(b"class ServerArgs:\n", b"class ServerArgs:\n    speculative_ddtree_budget: int = 16\n", 1))
    edit(site, SPECULATIVE + "ddtree_worker.py", WORKER)
    (site / "sglang/compile_deep_gemm.py").unlink()
    return captures.capture(site, "sglang").bundle


def test_an_overlay_for_0_5_12_offered_to_0_5_23_is_refused_with_the_files_that_moved(overlay: bundles.Bundle, new: Path) -> None:
    before = records.hash_files({path: (str(new / path), "sha256") for path in records.tree(new)})
    (finding,) = overlays.check(overlay, new)
    assert (finding.id, finding.found, finding.expected) == ("overlay.base-version", "sglang 0.5.23", "sglang 0.5.12")
    assert SPECULATIVE + "dflash_worker.py: is gone" in overlays.moved(overlay.manifest, records.distributions(new)[0].rows)
    assert SPEC_INFO + ": is changed" in overlays.moved(overlay.manifest, records.distributions(new)[0].rows)
    assert "playbooks/rebase.yml" in finding.fix
    assert records.hash_files({path: (str(new / path), "sha256") for path in records.tree(new)}) == before


def by_git(directory: Path, names: t.Sequence[str], texts: t.Sequence[bytes]) -> tuple[int, bytes]:
    """What git merge-file itself makes of a file: exit status and merged bytes."""
    for name, data in zip(names, texts):
        (directory / name).write_bytes(data)
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    done = subprocess.run(["git", "merge-file", "-p", *names], cwd=directory, env=environment, capture_output=True, check=False)
    return done.returncode, done.stdout


def test_the_rebase_report_is_git_merge_file_for_each_file(overlay: bundles.Bundle, old: Path, new: Path, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    base, now = basewheels.reader(old), basewheels.reader(new)
    made = rebases.rebase(overlay, base, now, "0.5.23", controller.run, tmp_path / "scratch")
    names = ("overlay", "sglang 0.5.12", "sglang 0.5.23")
    told = {file.path: file for file in made.files}
    assert set(told) == {entry["path"] for entry in overlay.manifest["files"]}
    merged = 0
    for path, file in told.items():
        mine, before, after = overlay.files.get(path), base(path), now(path)
        if after is None:
            assert file.verdict == (rebases.GONE if before is not None else rebases.UNCHANGED), path
        elif mine is None:
            assert file.verdict == rebases.DELETED, path
        elif after == before:
            assert (file.verdict, made.bundle.files[path]) == (rebases.UNCHANGED, mine), path
        else:
            status, result = by_git(tmp_path, names, (mine, before or b"", after))
            assert (file.conflicts, made.bundle.files[path]) == (status, result), path
            assert file.verdict == (rebases.CONFLICT if status else rebases.MERGED), path
            merged += 1
    assert merged > 10
    assert {file.verdict for file in made.files} >= {rebases.MERGED, rebases.CONFLICT, rebases.GONE, rebases.DELETED}
    assert told[SPECULATIVE + "ddtree_worker.py"].lacking == ("sglang.srt.speculative.dflash_worker",)
    assert not made.clean


def test_patched_files_of_a_directory_over_a_captured_package(new: Path, cache: Path, tmp_path: Path) -> None:
    site = reference(tmp_path, new)
    original = {path: (new / path).read_bytes() for path in (SPEC_INFO, SERVER_ARGS)}
    edit(site, SPEC_INFO, original[SPEC_INFO].replace(b"    NGRAM = auto()\n", b"    NGRAM = auto()\n    DDTREE = auto()\n"))
    edit(site, SPECULATIVE + "ddtree_worker.py", b"W = 1\n")
    captured = captures.capture(site, "sglang").bundle
    patches = tmp_path / "patches"
    (patches / SPECULATIVE).mkdir(parents=True)
    (patches / SPEC_INFO).write_bytes(captured.files[SPEC_INFO] + b"# patched\n")
    (patches / SERVER_ARGS).write_bytes(original[SERVER_ARGS] + b"# patched\n")
    make = Layers(tmp_path / "kept", cache, controller.run, "x86_64", [])
    manifest, place = make(str(patches), NEW, (), "3.11", [captured.manifest], ())

    results = {one["path"]: (one["base"], one["result"]) for one in manifest["files"]}
    overlaid = {one["path"]: one["result"] for one in captured.manifest["files"]}
    assert manifest["base"] == NEW
    assert set(results) == {SPEC_INFO, SERVER_ARGS}
    assert results[SPEC_INFO][0] == overlaid[SPEC_INFO]
    report = {one["path"]: one for one in overlays.layering([captured.manifest, manifest])}
    digest, (before, after) = manifest["digest"], results[SPEC_INFO]
    wanted = {"path": SPEC_INFO, "layer": digest, "result": after, "replaces": captured.digest, "replaced": before}
    assert report[SPEC_INFO] == wanted
    before, after = results[SERVER_ARGS]
    assert report[SERVER_ARGS] == {"path": SERVER_ARGS, "layer": digest, "result": after, "replaces": "sglang 0.5.23", "replaced": before}
    said = "%s: overlay %s replaces what sglang 0.5.23 left: %s → %s" % (SERVER_ARGS, digest, before[:12], after[:12])
    assert overlays.layering_text(report[SERVER_ARGS]) == said

    target = reference(tmp_path / "target", new)
    for one in (captured, bundles.read_bundle(place)):
        overlays.apply(one, target)
    assert (target / SPEC_INFO).read_bytes() == (patches / SPEC_INFO).read_bytes()
    assert (target / SERVER_ARGS).read_bytes() == (patches / SERVER_ARGS).read_bytes()
    assert records.verify(target, overlay=overlays.expected([captured.manifest, manifest])).changed == {}


def test_the_playbook_proposes_for_the_wanted_version_without_asking_a_host(overlay: bundles.Bundle, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    for secret in ("api_key", "sudo_password"):
        (tmp_path / secret).write_text("k" * 32)
    pins = Pins(tmp_path / "pins")
    bundles.write_bundle(pins.bundle(overlay.digest), overlay)
    pins.keep_reference("ct129", "sglang", overlay.digest, {"captured_from": "/opt/sglang/venv", "versions": {}})
    run = fleet.deploy(playbook="playbooks/rebase.yml", variables=variables())
    assert run.rc == 0, run.why
    assert run.calls == {}
    proposal = pins.directory / "proposals" / ("%s-0.5.23" % overlay.digest)
    report = (proposal / "report.txt").read_text()
    assert [path for path in overlay.files if path not in report or path not in run.text] == []
    made = bundles.read_bundle(proposal / "bundle")
    assert made.manifest["base"] == NEW
    assert pins.reference("ct129")["overlays"] == {"sglang": overlay.digest}
    again = fleet.deploy(playbook="playbooks/rebase.yml", variables=variables())
    assert (again.rc, again.recap("ct200")["changed"]) == (0, 0), again.why
