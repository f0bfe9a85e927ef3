# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every check of prove: silent on a good release, loud on its bad one, and off when it is switched off."""

from __future__ import annotations

import hashlib
import re
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import checks
from ansible_collections.specdec.serving.plugins.module_utils.findings import COULD_NOT_CHECK, ERROR, NOT_APPLICABLE, OK, WARNING
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed

from . import compiled, reports, test_comparisons, test_finding_ids
from .proving import DISTRIBUTIONS, World

PROBE = [check.id for check in checks.CHECKS if check.group == "probe"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def verdicts(result: dict[str, t.Any]) -> dict[str, str]:
    return {one["id"]: one["verdict"] for one in result["findings"]}


def bad(result: dict[str, t.Any]) -> dict[str, dict[str, str]]:
    return {one["id"]: one for one in result["findings"] if one["verdict"] not in (OK, NOT_APPLICABLE)}


def without_evidence(result: dict[str, t.Any]) -> list[str]:
    """What is called good, or absent, and nothing says where that was seen."""
    return [one["id"] for one in result["findings"] if not (one["found"] or one["evidence"])]


def listen(world: World) -> None:
    header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    row = "   0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1\n"
    (world.proc / "net" / "tcp").write_text(header + row)
    process = world.proc / "77"
    (process / "fd").mkdir(parents=True)
    (process / "fd" / "3").symlink_to("socket:[4711]")
    (process / "cmdline").write_text("python3\0-m\0http.server\0")
    (process / "cgroup").write_text("0::/system.slice/other.service\n")
    (process / "stat").write_text("77 (python3) S 1 %s\n" % " ".join(["0"] * 40))


def unit(world: World, old: str, new: str) -> None:
    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    world.edit_unit = edit


def full(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(checks, name, 1 << 60)


#: The small torch has no CUDA to ask.
SILENT = {"import.cuda-context"}

HALF = "raise RuntimeError('flashinfer-cubin version (0.6.3) does not match flashinfer version (0.6.4).')\n"
RENAMED = "def load_plugins(): raise ImportError(\"cannot import name 'mm_mxfp8' from 'flashinfer'\")\n"
CRASH = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
CONTEXT = "class cuda:\n    is_initialized = staticmethod(lambda: True)\n"
STRAY = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"

#: id → what makes it speak; the second argument is pytest's monkeypatch.
CASES: dict[str, t.Callable[[World, pytest.MonkeyPatch], t.Any]] = {
    "environment.complete": lambda world, _m: setattr(world, "marker", False),
    "lock.unreadable": lambda world, _m: setattr(world, "edit_lock", lambda text: text.partition("\n")[2]),
    "lock.edited": lambda world, _m: setattr(world, "edit_lock", lambda text: text.replace("2.9.1", "2.9.0")),
    "lock.satisfied": lambda world, _m: world.lock.update(requests="2.0"),
    "lock.engine-version": lambda world, _m: world.wanted.update(version="0.5.9"),
    "record.changed": lambda world, _m: world.write("torch/__init__.py", "# by hand\n"),
    "record.missing": lambda world, _m: (world.site / "torch/__init__.py").unlink(),
    "record.foreign": lambda world, _m: world.write("torch/left.py", ""),
    "record.doubly-owned": lambda world, _m: world.install("other", "1", {"torch/__init__.py": "# other\n"}),
    "record.outside": lambda world, _m: record(world, "../../../../../../passwd,,"),
    "record.unreadable": lambda world, _m: (world.site / "torch-2.9.1.dist-info/RECORD").unlink(),
    "overlay.applied": lambda world, _m: overlay(world, "# by hand\n"),
    "parity.flashinfer": lambda world, _m: world.install("flashinfer-jit-cache", "0.6.4+cu128", {}),
    "parity.kernel": lambda world, _m: world.install("sglang-kernel", "0.4.1", {}),
    "parity.torch-labels": lambda world, _m: world.install("torchvision", "0.24.1+cu130", {}),
    "parity.cuda-major": lambda world, _m: world.install("nvidia-nccl-cu13", "2.28.9", {}),
    "api.missing-name": lambda world, _m: world.reinstall("sglang", **{"srt.fp8": "from flashinfer import mm_mxfp8\n"}),
    "libraries.missing": lambda world, _m: alone(world, "libnuma.so.1"),
    "abi.undefined-symbol": lambda world, _m: kernel(world, compiled.KERNEL, "libc10.so"),
    "abi.cpu-torch": lambda world, _m: kernel(world, compiled.KERNEL, "libtorch_cuda.so"),
    "abi.cuda-major": lambda world, _m: kernel(world, "", "libcudart.so.12"),
    "abi.other-python": lambda world, _m: kernel(world, "", name="ops.cpython-27m.so"),
    "abi.other-machine": lambda world, _m: world.install("sgl-kernel", "0.3.21", {"sgl_kernel/ops.so": NARROW}),
    "abi.gpu-architecture": lambda world, m: gpu(world, m, compiled.device_code((2, 90, False))),
    "abi.driver-symbol": lambda world, m: gpu(world, m, compiled.DRIVEN, "libcuda.so.1"),
    "abi.unreadable": lambda world, _m: world.install("sgl-kernel", "0.3.21", {"sgl_kernel/ops.so": "no library"}),
    "unit.verify": lambda world, _m: world.analyze.update(verify=Completed(1, "", "specdec-main.service:3: Missing '='.\n")),
    "unit.sandbox": lambda world, _m: world.analyze.update(security=Completed(0, "Overall exposure level for x.service: 9.6 UNSAFE", "")),
    "unit.secret": lambda world, _m: unit(world, "launch.py", "launch.py --api-key=x"),
    "unit.start-limit": lambda world, _m: unit(world, "StartLimitBurst=3", "StartLimitBurst=0"),
    "unit.kill-mode": lambda world, _m: unit(world, "KillMode=mixed", "KillMode=process"),
    "unit.stop-timeout": lambda world, _m: unit(world, "TimeoutStopSec=60", "TimeoutStopSec=infinity"),
    "unit.open-files": lambda world, _m: unit(world, "LimitNOFILE=1048576", "LimitNOFILE=1024"),
    "unit.caches": lambda world, _m: unit(world, "HOME=", "HOME=/nowhere"),
    "unit.path": lambda world, _m: unit(world, "PATH=", "PATH=/usr/bin:"),
    "unit.bypass": lambda world, _m: world.facts["environment_variables"].update(FLASHINFER_DISABLE_VERSION_CHECK="1"),
    "unit.user": lambda world, _m: unit(world, "User=specdec-main", "User=root"),
    "host.port": lambda world, _m: listen(world),
    "host.disk": lambda _world, m: full(m, "FREE_DISK"),
    "host.shm": lambda _world, m: full(m, "FREE_SHM"),
    "host.model-readable": lambda world, _m: world.facts["models"].append("/no/such/model"),
    "import.sandbox": lambda world, _m: setattr(world, "transient", Completed(226, "", "Failed to set up mount namespacing")),
    "import.engine": lambda world, _m: world.reinstall("sglang", __init__="import absent_package\n"),
    "import.torch": lambda world, _m: world.reinstall(
        "torch", __init__="raise OSError('libcudart.so.13: cannot open shared object file')\n"
    ),
    "import.kernel": lambda world, _m: world.reinstall("sgl-kernel", __init__="raise ImportError('x.so: undefined symbol: c10')\n"),
    "import.flashinfer": lambda world, _m: world.reinstall("flashinfer-python", __init__=HALF),
    "import.plugins": lambda world, _m: world.reinstall("sglang", **{"srt.plugins.__init__": RENAMED}),
    "import.outside": lambda world, _m: (world.layout.root / "torch.py").write_text(""),
    "import.died": lambda world, _m: world.reinstall("torch", __init__=CRASH),
    "import.hang": lambda world, _m: world.reinstall("torch", __init__="import threading\nthreading.Event().wait()\n"),
    "import.stray": lambda world, _m: world.reinstall("torch", __init__=STRAY),
    "import.cuda-context": lambda world, _m: world.reinstall("torch", __init__=CONTEXT),
    "algorithm.recognised": lambda world, _m: world.config.update({"speculative-algorithm": "NOSUCH"}),
    "arguments.accepted": lambda world, _m: world.config.update({"speculative-algorithm": "DFLASH"}),
    "prove.completed": lambda world, _m: world.analyze.pop("verify"),
}


#: The head of a 32-bit file.
NARROW = b"\x7fELF\x01\x01\x01" + bytes(9) + b"\x03\x00\x03\x00" + bytes(60)


def kernel(world: World, source: str, *needed: str, name: str = "ops.abi3.so") -> None:
    """A compiled kernel package beside a small torch for the CPU that was changed since."""
    build = world.layout.root / "build"
    torch = {"torch/lib/libc10.so": compiled.build(build / "libc10.so", compiled.NEW, "libcudart.so.13", "libc.so.6")}
    world.install("torch", "2.9.1", {**DISTRIBUTIONS["torch"][1], **torch})
    world.install(
        "sgl-kernel", "0.3.21", {"sgl_kernel/__init__.py": "", "sgl_kernel/" + name: compiled.build(build / name, source, *needed)}
    )


def alone(world: World, library: str) -> None:
    """A kernel that needs a library which is nowhere, on a host that has all others."""
    for name in ("libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libcudart.so.13"):
        world.loader_cache += "\t%s (libc6,x86-64) => /lib/%s\n" % (name, name)
    kernel(world, "", library)


def gpu(world: World, monkeypatch: pytest.MonkeyPatch, source: str, *needed: str) -> None:
    """A kernel on a host whose GPU is of compute capability 12.0 and whose driver is old."""
    kernel(world, source, *needed)
    answer = {"devices": [{"compute_capability": "12.0"}], "driver": "550.54.14"}
    monkeypatch.setattr(checks.gpus, "gather", lambda _root, _runner: answer)
    world.facts["gpus"] = True
    libcuda = world.layout.root / "build" / "libcuda.so.1"
    compiled.build(libcuda, compiled.OLD_DRIVER)
    world.loader_cache += "\tlibcuda.so.1 (libc6,x86-64) => %s\n" % libcuda


def overlay(world: World, text: str) -> None:
    """An overlay that says what torch is, and what is there."""
    wanted = hashlib.sha256(b"# from the overlay\n").hexdigest()
    files = [{"path": "torch/__init__.py", "action": "change", "base": "", "result": wanted, "mode": "0644"}]
    base = {"name": "torch", "version": "2.9.1"}
    world.overlay = [{"digest": "d1", "base": base, "files": files, "reference_versions": {"flashinfer-python": "0.6.8.post1"}}]
    world.write("torch/__init__.py", text)
    (world.site / "torch/__init__.py").chmod(0o644)


def record(world: World, row: str) -> None:
    path = world.site / "torch-2.9.1.dist-info/RECORD"
    path.write_text(path.read_text() + row + "\n")


def test_every_check_is_documented_once_and_has_a_bad_case() -> None:
    assert list(CASES) == [check.id for check in checks.CHECKS]
    assert all(check.text.endswith(".") for check in checks.CHECKS)


def test_every_id_that_the_page_names_under_prove_has_a_bad_case() -> None:
    page = reports.PAGE.read_text(encoding="utf-8")
    part = page[page.index("## Prove") : page.index("## An audit")]
    # told while an environment is built (test_environments.py), not of one that is there
    building = {one for one in test_finding_ids.ids() if one.startswith("environment.")}
    assert set(re.findall(r"`([a-z]+\.[a-z-]+)`", part)) == set(CASES) | building
    audited = page[page.index("## An audit") : page.index("## Switch and after")]
    compared = {one for one in test_comparisons.CASES if one.startswith("parity.")}
    assert set(re.findall(r"`(parity\.[a-z-]+)`", audited)) == compared | {"parity.wanted"}
    assert list(reports.PROVED) == list(CASES)


def test_a_good_release_is_ok_throughout_and_only_with_known_ids(world: World) -> None:
    result = world.prove()
    assert bad(result) == {}
    assert set(verdicts(result)) == {check.id for check in checks.CHECKS} - SILENT
    assert verdicts(result)["arguments.accepted"] == OK
    assert without_evidence(result) == []
    assert {"record", "probe", "probe.engine"} <= set(result["timings"])


@pytest.mark.parametrize("check", list(CASES))
def test_each_check_finds_its_bad_case_and_not_when_it_is_off(world: World, monkeypatch: pytest.MonkeyPatch, check: str) -> None:
    CASES[check](world, monkeypatch)
    deadline = 1 if check == "import.hang" else 60
    others = [] if check in PROBE else PROBE
    finding = bad(world.prove(others, deadline)).get(check)
    assert finding, check
    row = reports.PROVED[check]
    assert row.cause and (finding["cause"], finding["fix"]) == (row.cause, row.fix)
    off = world.prove([*others, check], deadline)
    assert check not in verdicts(off)
    assert check in off["skipped"]


def test_a_skip_of_a_check_that_does_not_exist_is_told(world: World) -> None:
    assert "parity.flshinfer" in bad(world.prove(["parity.flshinfer", *PROBE]))["prove.completed"]["subject"]


def test_the_hand_edit_of_an_overlay_is_no_change(world: World) -> None:
    overlay(world, "# from the overlay\n")
    result = world.prove(PROBE)
    assert bad(result) == {}
    assert verdicts(result)["overlay.applied"] == OK
    world.reinstall("sglang", **{"srt.fp8": "from flashinfer import mm_mxfp8\n"})
    assert bad(world.prove(PROBE))["api.missing-name"]["expected"] == "flashinfer-python 0.6.8.post1"


def test_an_edit_of_what_the_overlay_owns_is_told_once_and_by_name(world: World) -> None:
    overlay(world, "# by hand\n")
    found = bad(world.prove(PROBE))
    assert list(found) == ["overlay.applied"]
    assert found["overlay.applied"]["evidence"] == "torch/__init__.py: other bytes"
    (world.site / "torch/__init__.py").unlink()
    found = bad(world.prove(PROBE))
    assert found["overlay.applied"]["evidence"] == "torch/__init__.py: missing"
    assert "record.missing" not in found


def test_a_lane_without_flashinfer_and_kernel(world: World) -> None:
    import shutil

    for name in ("flashinfer", "flashinfer_cubin", "sgl_kernel", "nvidia"):
        shutil.rmtree(world.site / name)
    for name in ("flashinfer-python", "flashinfer-cubin", "sgl-kernel", "nvidia-nccl-cu12"):
        shutil.rmtree(world.site / ("%s-%s.dist-info" % (name.replace("-", "_"), world.lock.pop(name))))
    world.reinstall("sglang", __init__="import torch\n", **{"srt.speculative.__init__": ""})
    world.reinstall("torch", version="__version__ = '2.9.1+cpu'\n")
    world.lacks = ["flashinfer", "kernel", "cuda"]
    result = world.prove()
    assert bad(result) == {}
    assert without_evidence(result) == []
    for check in ("parity.flashinfer", "parity.kernel", "parity.cuda-major", "api.missing-name", "import.flashinfer", "import.kernel"):
        assert verdicts(result)[check] == NOT_APPLICABLE
    world.lacks = []
    missing = bad(world.prove())
    assert {one: missing[one]["verdict"] for one in ("parity.flashinfer", "api.missing-name", "import.flashinfer")} == {
        "parity.flashinfer": ERROR,
        "api.missing-name": COULD_NOT_CHECK,
        "import.flashinfer": ERROR,
    }


def test_a_release_is_noted_as_proven_until_it_fails(world: World) -> None:
    note = world.layout.instance("main") / "proven"
    result = world.prove(PROBE)
    assert result["ok"]
    assert len(list(note.iterdir())) == 1
    world.write("torch/__init__.py", "# by hand\n")
    result = world.prove(PROBE)
    assert not result["ok"]
    assert list(note.iterdir()) == []


@pytest.mark.parametrize(
    ("installed", "verdict"),
    [({"a": "1.0"}, OK), ({"a": "1"}, OK), ({"a": "1.0+cpu"}, ERROR), ({"a": "2"}, ERROR), ({}, ERROR), ({"a": "1", "b": "1"}, ERROR)],
)
def test_installed_against_locked(installed: dict[str, str], verdict: str) -> None:
    assert checks.lock_satisfied({"a": "1.0"}, installed).verdict == verdict


def test_a_lock_that_names_nothing_proves_nothing() -> None:
    assert checks.lock_satisfied({}, {}).verdict == COULD_NOT_CHECK


def test_systemd_complaints_about_other_units_and_without_the_tool() -> None:
    assert checks.unit_verified("a.service", 0, "b.service:1: Unknown key name\n").verdict == OK
    assert checks.unit_verified("a.service", 0, "/x/a.service:1: Unknown key name, ignoring.\n").verdict == WARNING
    assert checks.unit_verified("a.service", 127, "").verdict == COULD_NOT_CHECK
    assert checks.unit_exposure("a.service", "unrecognized option '--offline'", 1.5).verdict == NOT_APPLICABLE


def test_the_instances_own_listener_is_fine(world: World) -> None:
    listen(world)
    (world.proc / "77" / "cgroup").write_text("0::/system.slice/specdec-main.service\n")
    result = world.prove(PROBE)
    assert verdicts(result)["host.port"] == OK
