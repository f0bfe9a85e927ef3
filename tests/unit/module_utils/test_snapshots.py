# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An environment that somebody made by hand: what is told of it, what is found in it, and that nothing of it moves."""

from __future__ import annotations

import os
import shutil
import subprocess
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import audits, checks, snapshots
from ansible_collections.specdec.serving.plugins.module_utils.findings import (
    COULD_NOT_CHECK,
    ERROR,
    NOT_APPLICABLE,
    OK,
    Finding,
    FindingError,
)
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed

from . import compiled
from .proving import DISTRIBUTIONS, ENGINES, World

PROBE = [check.id for check in checks.CHECKS if check.group == "probe"]

REQUIRES = "Requires-Dist: torch==2.9.1\nRequires-Dist: flashinfer-python==0.6.3\nRequires-Dist: sgl-kernel==0.3.21\n"
UNIT = "[Service]\nExecStart=%s/bin/python -m sglang.launch_server\n"


class ByHand:
    """A virtual environment of a small engine, and the unit that starts it."""

    def __init__(self, directory: Path) -> None:
        self.world = World(directory)
        self.world.marker = False
        self.world.loader_cache += "".join(
            "\t%s (libc6,x86-64) => /lib/x\n" % name for name in ("libstdc++.so.6", "libm.so.6", "libgcc_s.so.1")
        )
        self.venv = self.world.directory / "venv"
        self.units = directory / "units"
        self.units.mkdir()
        (self.units / "sglang.service").write_text(UNIT % self.venv)
        self.shown = "Id=sglang.service\nActiveState=active\nEnvironment=HF_HUB_OFFLINE=1 HF_TOKEN=t0p\n"
        self.declare(REQUIRES)

    def declare(self, requirements: str) -> None:
        """What the engine's metadata requires."""
        info = "sglang-0.5.23.dist-info/METADATA"
        self.world.install("sglang", "0.5.23", {**DISTRIBUTIONS["sglang"][1], info: "Name: sglang\nVersion: 0.5.23\n" + requirements})

    def __call__(self, argv: t.Sequence[str], **options: t.Any) -> Completed:
        if argv[0] == str(self.venv / "bin" / "python"):
            if not os.path.exists(argv[0]):
                return Completed(127, "", "no such file")
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            return Completed(done.returncode, done.stdout, done.stderr)
        if argv[0] == "systemctl":
            return Completed(0, self.shown, "")
        return self.world(argv, **options)

    def open(self) -> snapshots.Environment:
        return snapshots.open_environment(self.venv, ENGINES, self, str(self.world.layout.root), self.units)

    def findings(self, declared: t.Collection[str] = ()) -> dict[str, Finding]:
        environment = self.open()
        found = snapshots.findings(environment, self, snapshots.verified(environment.installed), declared)
        return {one.id: one for one in found if one.verdict not in (OK, NOT_APPLICABLE)}


@pytest.fixture
def hand(tmp_path: Path) -> ByHand:
    return ByHand(tmp_path)


def listing(directory: Path) -> list[tuple[str, int, int, int]]:
    """Every path with inode, size and time of its last change."""
    found = []
    for parent, directories, files in os.walk(directory):
        for name in (*directories, *files):
            path = os.path.join(parent, name)
            stat = os.lstat(path)
            found.append((path, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return sorted(found)


def test_a_snapshot_names_what_is_installed(hand: ByHand) -> None:
    environment = hand.open()
    seen = snapshots.take(environment, hand, snapshots.verified(environment.installed))
    assert seen["engine"] == {"name": "sglang", "version": "0.5.23"}
    assert seen["packages"]["flashinfer-cubin"] == "0.6.3"
    assert (seen["torch"], seen["kernels"], seen["lacks"]) == ("cu128", ["sgl-kernel", "sglang-kernel"], [])
    assert seen["python"]["path"] == str(hand.venv / "bin" / "python") and seen["python"]["version"].startswith("3.")
    assert seen["services"] == [{"name": "sglang.service", "active": "active"}]
    assert seen["records"]["counts"] == {"changed": 0, "missing": 0, "outside": 0, "foreign": 0, "doubly_owned": 0}
    assert seen["edits"] == {} and seen["overlays"] == [] and seen["driver"] is None


def test_a_good_environment_has_no_finding_and_is_not_touched(hand: ByHand, tmp_path: Path) -> None:
    before = listing(tmp_path)
    assert hand.findings() == {}
    snapshots.take(hand.open(), hand)
    assert listing(tmp_path) == before


def test_edits_are_named_by_file_and_are_those_that_an_overlay_would_hold(hand: ByHand) -> None:
    hand.world.write("sglang/srt/server_args.py", "# by hand\n")
    hand.world.write("torch/__init__.py", "# by hand\n")
    found = hand.findings()
    assert set(found) == {"record.changed"}
    environment = hand.open()
    state = snapshots.verified(environment.installed)
    assert sorted(state.changed) == ["sglang/srt/server_args.py", "torch/__init__.py"]
    assert list(snapshots.take(environment, hand, state)["edits"]) == ["sglang/srt/server_args.py"]


def versions(**packages: str) -> t.Callable[[ByHand], None]:
    """Other versions of some packages, by hand."""

    def do(hand: ByHand) -> None:
        for name, version in packages.items():
            name = name.replace("_", "-")
            old, files = DISTRIBUTIONS[name]
            shutil.rmtree(hand.world.site / ("%s-%s.dist-info" % (name.replace("-", "_"), old)))
            hand.world.install(name, version, files)

    return do


def kernel(hand: ByHand, source: str, *needed: str) -> None:
    build = hand.world.layout.root / "build"
    torch = {"torch/lib/libc10.so": compiled.build(build / "libc10.so", compiled.NEW, "libc.so.6")}
    hand.world.install("torch", "2.9.1", {**DISTRIBUTIONS["torch"][1], **torch})
    library = compiled.build(build / "ops.abi3.so", source, *needed)
    hand.world.install("sgl-kernel", "0.3.21", {"sgl_kernel/__init__.py": "", "sgl_kernel/ops.abi3.so": library})
    hand.shown += "Environment=LD_LIBRARY_PATH=%s\n" % (hand.world.site / "torch" / "lib")


def unregistered(hand: ByHand) -> None:
    library = compiled.build(hand.world.layout.root / "build" / "libnvrtc.so.12", "", "libc.so.6")
    hand.world.install("nvidia-cuda-nvrtc-cu12", "12.8.93", {"nvidia/cuda_nvrtc/lib/libnvrtc.so.12": library})
    kernel(hand, "", "libnvrtc.so.12")


def bypassed(hand: ByHand) -> None:
    hand.shown = "Id=sglang.service\nActiveState=active\nEnvironment=FLASHINFER_DISABLE_VERSION_CHECK=1\n"


def bypassed_by_file(hand: ByHand) -> None:
    file = hand.units / "environment"
    file.write_text("# made by hand\nFLASHINFER_DISABLE_VERSION_CHECK='1'\n")
    hand.shown = "Id=sglang.service\nEnvironment=\nEnvironmentFiles=%s (ignore_errors=no)\n" % file


#: (what was done, the one finding, its subject or a word of it)
BROKEN: dict[str, tuple[t.Callable[[ByHand], t.Any], str, str]] = {
    "one part of flashinfer moved": (versions(flashinfer_python="0.6.4"), "parity.flashinfer", "flashinfer"),
    "a nightly torch without a look at what needs it": (versions(torch="2.12.0.dev20260301"), "lock.unsatisfiable", "torch"),
    "a name that is not there": (
        lambda hand: hand.world.write("sglang/srt/fp8.py", "from flashinfer import mm_mxfp8\n"),
        "api.missing-name",
        "flashinfer.mm_mxfp8",
    ),
    "a kernel for another torch": (lambda hand: kernel(hand, compiled.KERNEL, "libc10.so"), "abi.undefined-symbol", "sgl-kernel"),
    "a library where nobody looks": (unregistered, "libraries.missing", "libnvrtc.so.12"),
    "both kernel packages": (
        lambda hand: hand.world.install("sglang-kernel", "0.4.1", {"sgl_kernel/__init__.py": "# newer\n"}),
        "parity.kernel",
        "sgl-kernel and sglang-kernel",
    ),
    "a check switched off": (bypassed, "unit.bypass", "sglang.service"),
    "a check switched off in a file": (bypassed_by_file, "unit.bypass", "sglang.service"),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_what_a_resolver_or_a_start_would_refuse_is_one_finding(hand: ByHand, name: str) -> None:
    do, id_, subject = BROKEN[name]
    do(hand)
    folded = {one.id: one for one in audits.folding.fold(list(hand.findings().values()))}
    # the foreign file is how the name came in
    folded.pop("record.foreign", None)
    assert list(folded) == [id_], folded
    assert (folded[id_].verdict, folded[id_].subject) == (ERROR, subject)
    assert folded[id_].fix and (folded[id_].cause or id_ == "api.missing-name")


def test_an_override_that_is_declared_is_no_finding(hand: ByHand) -> None:
    versions(torch="2.12.0")(hand)
    assert "torch==2.9.1" in hand.findings()["lock.unsatisfiable"].expected
    assert hand.findings(["torch"]) == {}


def test_an_environment_file_that_cannot_be_read_proves_nothing(hand: ByHand) -> None:
    hand.shown = "Id=sglang.service\nEnvironmentFiles=/no/such/file (ignore_errors=no)\n"
    assert hand.findings()["unit.bypass"].verdict == COULD_NOT_CHECK
    hand.shown = "Id=sglang.service\nEnvironmentFiles=/no/such/file (ignore_errors=yes)\n"
    assert hand.findings() == {}


def test_secrets_of_the_unit_are_not_taken_along(hand: ByHand) -> None:
    assert snapshots.variables(hand.open()) == {"HF_HUB_OFFLINE": "1"}


def test_an_engine_that_is_a_source_tree(hand: ByHand, tmp_path: Path) -> None:
    tree = tmp_path / "checkout" / "python" / "sglang"
    tree.mkdir(parents=True)
    (tree / "__init__.py").write_text("from flashinfer import mm_mxfp8\n")
    hand.world.write(
        "sglang-0.5.23.dist-info/direct_url.json", '{"url": "file://%s", "dir_info": {"editable": true}}' % (tmp_path / "checkout")
    )
    found = hand.findings()
    assert found["api.missing-name"].subject == "flashinfer.mm_mxfp8"
    assert snapshots.take(hand.open(), hand)["edits"] is None


@pytest.mark.parametrize(
    ("break_it", "why"),
    [
        (lambda hand: (hand.venv / "pyvenv.cfg").unlink(), "no pyvenv.cfg"),
        (lambda hand: shutil.rmtree(hand.venv / "lib"), "no site-packages"),
        (lambda hand: shutil.rmtree(hand.venv), "no such directory"),
    ],
)
def test_what_is_no_environment_is_said(hand: ByHand, tmp_path: Path, break_it: t.Callable[[ByHand], t.Any], why: str) -> None:
    break_it(hand)
    before = listing(tmp_path)
    with pytest.raises(FindingError) as caught:
        hand.open()
    finding = caught.value.finding
    assert (finding.id, finding.message, finding.found) == (
        "environment.complete",
        "this is no virtual environment, or only half of one",
        why,
    )
    assert finding.fix and listing(tmp_path) == before


def test_what_may_not_be_read_is_not_judged(hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path) -> t.Any:
        raise PermissionError(13, "Permission denied", str(hand.venv))

    monkeypatch.setattr(snapshots.records, "distributions", refuse)
    with pytest.raises(FindingError) as caught:
        hand.open()
    finding = caught.value.finding
    assert (finding.id, finding.verdict, finding.message) == ("environment.complete", COULD_NOT_CHECK, "it may not be read")
    assert "Permission denied" in finding.found and "become" in finding.fix


def test_half_an_environment_tells_the_rest(hand: ByHand, tmp_path: Path) -> None:
    for python in (hand.venv / "bin").glob("python*"):
        python.unlink()
    hand.world.write("torch/__init__.py", "# by hand\n")
    before = listing(tmp_path)
    found = hand.findings()
    assert listing(tmp_path) == before
    assert {"environment.complete", "record.changed"} <= set(found)
    assert "does not start" in found["environment.complete"].message


#: What a RECORD may hold: paths that leave the environment, are absolute, too long, empty, or no text.
ROWS = b"/etc/passwd,sha256=x,1\n../../../../../../etc/shadow,,\ntorch/\x00.py,,\n,,\n" + b"a" * 5000 + b",,\n"
NO_ELF = b"\x7fELF\x02\x01\x01" + b"\xff" * 80
NO_RECORD = "there is no readable RECORD, so nothing about its files is known"


@pytest.mark.parametrize(
    ("path", "content", "id_", "message", "evidence"),
    [
        ("torch-2.9.1.dist-info/RECORD", b"\xff\xfe\x00 no,csv\n", "record.unreadable", NO_RECORD, ""),
        ("torch-2.9.1.dist-info/RECORD", b"", "record.unreadable", NO_RECORD, ""),
        (
            "torch-2.9.1.dist-info/RECORD",
            ROWS,
            "record.outside",
            "2 row(s) of RECORD point out of the environment",
            "../../../../../../etc/shadow\n/etc/passwd",
        ),
        (
            "sglang-0.5.23.dist-info/METADATA",
            b"Name: sglang\nVersion: 0.5.23\nRequires-Dist: \xff!!\n",
            "record.changed",
            "1 installed file(s) differ from what was installed",
            "sglang-0.5.23.dist-info/METADATA",
        ),
        (
            "sglang-0.5.23.dist-info/direct_url.json",
            b"[]",
            "record.foreign",
            "1 file(s) belong to no distribution and no overlay",
            "sglang-0.5.23.dist-info/direct_url.json",
        ),
        (
            "sglang/srt/latin.py",
            b"# \xe9\nfrom flashinfer import mm_mxfp8\n",
            "api.missing-name",
            "flashinfer does not define what the engine imports from it",
            "flashinfer.mm_mxfp8  sglang/srt/latin.py:2",
        ),
        ("sgl_kernel/ops.so", NO_ELF, "abi.unreadable", "1 compiled file(s) cannot be read", "sgl_kernel/ops.so"),
    ],
)
def test_strange_content_is_a_finding_and_is_left_as_it_is(
    hand: ByHand, tmp_path: Path, path: str, content: bytes, id_: str, message: str, evidence: str
) -> None:
    if path.endswith(".so"):
        hand.world.install("sgl-kernel", "0.3.21", {"sgl_kernel/__init__.py": b"", path: content})
    else:
        hand.world.write(path, content)
    before = listing(tmp_path)
    found = hand.findings()
    assert listing(tmp_path) == before
    assert (found[id_].message, evidence in found[id_].evidence) == (message, True), found
    assert found[id_].fix and "prove.completed" not in found


def test_without_the_libraries_the_rest_is_still_told(hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_arguments: t.Any) -> t.Any:
        raise ImportError("No module named 'elftools'")

    monkeypatch.setattr(checks.abi, "read", absent)
    hand.world.write("torch/__init__.py", "# by hand\n")
    found = hand.findings()
    assert found["prove.completed"].verdict == COULD_NOT_CHECK and "elftools" in found["prove.completed"].found
    assert "record.changed" in found


# What the modules return


PARAMETERS = {"path": "", "root": "/nowhere", "program": "", "without_program": False, "engines": ENGINES, "checks": True}
PARAMETERS.update(declared=[], instances=True)


def test_a_host_without_an_environment_proves_nothing(hand: ByHand) -> None:
    result = audits.snapshot({**PARAMETERS, "imports": False, "path": "/no/such/venv"}, hand)
    assert (result["verdict"], result["program"]) == (ERROR, False)
    assert result["findings"][0]["found"] == "no such directory"


def test_libraries_that_are_missing_are_asked_for_once(hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audits.hostlibraries, "provide", lambda *_: ["elftools"])
    asked = {**PARAMETERS, "imports": False, "path": str(hand.venv)}
    assert audits.snapshot(asked, hand) == {"changed": False, "program_missing": True, "program": False}
    assert audits.snapshot({**asked, "without_program": True}, hand)["environments"]


def test_imports_of_an_environment_are_one_chain(hand: ByHand) -> None:
    versions(flashinfer_python="0.6.4")(hand)
    said = "raise RuntimeError('flashinfer-cubin version (0.6.3) does not match flashinfer version (0.6.4)')\n"
    hand.world.write("flashinfer/__init__.py", said + "def bmm_mxfp8(): ...\n")
    parameters = {**PARAMETERS, "path": str(hand.venv), "root": str(hand.world.layout.root)}
    broken = {one["id"]: one for one in audits.snapshot({**parameters, "imports": True}, hand)["findings"] if one["verdict"] == ERROR}
    assert set(broken) == {"parity.flashinfer", "record.changed"}
    assert "from which follows: import.flashinfer" in broken["parity.flashinfer"]["evidence"]
    alone = audits.imports({**parameters, **audits.DEFAULTS}, hand)
    assert [one["id"] for one in alone["findings"] if one["verdict"] == ERROR] == ["import.flashinfer"]
    assert alone["environments"][0]["stages"]["torch"]["ok"]


def test_what_an_instance_serves_from_is_left_to_the_program_where_that_is(hand: ByHand) -> None:
    hand.world.marker = True
    hand.world.prove(PROBE)
    layout = hand.world.layout
    (release,) = (layout.instance("main") / "releases").iterdir()
    (layout.instance("main") / "current").symlink_to(release)
    hand.world.write("torch/__init__.py", "# by hand\n")
    parameters = {**PARAMETERS, "imports": False, "root": str(layout.root), "path": str(hand.venv)}

    def look(**change: t.Any) -> tuple[list[str], bool]:
        seen = audits.snapshot({**parameters, **change}, hand)
        return [one["id"] for one in seen["findings"] if one["verdict"] == ERROR], "snapshot" in seen["environments"][0]

    assert look() == look(instances=False) == (["record.changed"], True)
    layout.bin.mkdir()
    layout.specdec.write_text("")
    assert look(instances=False) == ([], True)
    assert look() == (["record.changed"], True)


@pytest.mark.parametrize(
    ("rc", "said"), [(226, "Failed to set up mount namespacing"), (127, "systemd-run: not found"), (1, "not been booted")]
)
def test_a_host_that_allows_no_sandbox_says_nothing_of_the_environment(hand: ByHand, rc: int, said: str) -> None:
    hand.world.transient = Completed(rc, "", said)
    parameters = {**PARAMETERS, "path": str(hand.venv), "root": str(hand.world.layout.root), **audits.DEFAULTS}
    result = audits.imports(parameters, hand)
    assert [(one["id"], one["verdict"]) for one in result["findings"]] == [("import.sandbox", COULD_NOT_CHECK)]
    assert "sandbox: false" in result["findings"][0]["fix"]


def test_imports_without_a_transient_unit(hand: ByHand) -> None:
    asked: list[list[str]] = []

    def runner(argv: t.Sequence[str], **options: t.Any) -> Completed:
        if argv[-1:] == ["-"]:
            asked.append(list(argv))
            done = subprocess.run(argv[-2:], input=options["stdin"], env=dict(options["env"]), capture_output=True, text=True, check=False)
            return Completed(done.returncode, done.stdout, done.stderr)
        return hand(argv, **options)

    parameters = {**PARAMETERS, "path": str(hand.venv), "root": str(hand.world.layout.root), **audits.DEFAULTS}
    result = audits.imports({**parameters, "sandbox": False, "user": "nobody"}, runner)
    assert result["verdict"] == OK, result["findings"]
    assert asked == [["runuser", "-u", "nobody", "--", str(hand.venv / "bin" / "python"), "-"]]
