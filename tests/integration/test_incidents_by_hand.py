# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The states that incidents left behind, made by hand on a host that knows nothing of this collection: the audit shows what a deploy
would have refused, under the same id, and leaves no trace."""

from __future__ import annotations

import dataclasses
import json
import typing as t
import zipfile
from pathlib import Path

import flow
import index
import pytest
import realwheels
import switchhost
import yaml
from incidents import Parts

from ansible_collections.specdec.serving.plugins.module_utils import diagnosis, locks, stacks
from ansible_collections.specdec.serving.plugins.plugin_utils import hosttools
from ansible_collections.specdec.serving.plugins.plugin_utils.processes import run

VENV = "/opt/engine/venv"
SITE_PACKAGES = VENV + "/lib/python3.11/site-packages"
PROGRAM = "/root/specdec"  # copied there by somebody at night
TABLES = yaml.safe_load((Path(locks.__file__).parent / "data" / "stacks.yml").read_text())
#: What a deploy would gather of such a server.
SERVER = {
    "os": {"machine": "x86_64", "glibc": "2.36"},
    "gpus": {"source": "nvml", "driver": "580.95.05", "devices": [{"compute_capability": "12.0"}]},
    "pythons": [{"version": "3.11.2", "implementation": "cpython", "headers": True, "path": "/usr/bin/python3"}],
}
#: Files, and what else a run could leave; the first login and sudo change their user's home.
UNTOUCHED = "(%s) | grep -v '^/home/engineer[ /]'; systemctl list-units --all --no-legend --plain 'specdec*'" % flow.FILES.strip("; ")

#: A double of the engine: it talks and dies as vLLM does; the error that it dies of is flashinfer's own.
VLLM = """import os
import subprocess
import sys
import traceback


def say(who, stamp, text):
    for line in text.rstrip().splitlines():
        print("(%s pid=%d) %s %s" % (who, os.getpid(), stamp, line), file=sys.stderr, flush=True)


def worker_main():
    reason = "SymmMemCommunicator: Device capability 12.0 not supported, communicator is not available."
    say("Worker_TP0", "WARNING 02-27 11:02:03 [symm_mem.py:67]", reason)
    say("Worker_TP0", "WARNING 02-27 11:02:03 [importing.py:44]", "Triton is not installed. Using dummy decorators.")
    try:
        import flashinfer
    except Exception:
        say("Worker_TP0", "ERROR 02-27 11:02:04 [multiproc_executor.py:787]", "WorkerProc failed to start.")
        say("Worker_TP0", "ERROR 02-27 11:02:04 [multiproc_executor.py:787]", traceback.format_exc())
        sys.exit(1)


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        worker_main()
    elif subprocess.call([sys.executable, "-m", "vllm.server", "worker"]):
        raise RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")
"""
UNIT = (
    """[Service]
ExecStart=%s/bin/python -m vllm.server
Restart=always
RestartSec=2
[Unit]
StartLimitIntervalSec=0
"""
    % VENV
)


@dataclasses.dataclass(frozen=True)
class State:
    """What was installed, what was asked for, and what is wrong with that.

    :param engine: name, version and lane.
    :param packages: what is installed besides.
    :param make: writes the wheels.
    :param found: id, subject, and what is said of it: a piece of ``found``, of ``cause`` and of ``fix`` each.
    """

    engine: t.Mapping[str, str]
    packages: t.Mapping[str, str]
    make: t.Callable[[Parts, t.Mapping[str, str]], None]
    found: tuple[str, str, str, str, str]
    pins: t.Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def installed(self) -> dict[str, str]:
        """All of it."""
        return {self.engine["name"]: self.engine["version"], **self.packages}


def standins(parts: Parts, packages: t.Mapping[str, str]) -> None:
    """No index that can be reached has these."""
    parts.directory.mkdir(parents=True, exist_ok=True)
    for name, version in packages.items():
        file, content = index.wheel(name, version)
        (parts.directory / file).write_bytes(content)


def pulled_back(parts: Parts, packages: t.Mapping[str, str]) -> None:
    """torch as the default index has it, for another CUDA than everything around it."""
    standins(parts, {name: version for name, version in packages.items() if name != "torch"})
    parts.standin("torch", packages["torch"], {"torch/__init__.py": b"", "torch/version.py": b"__version__ = '2.10.0+cu128'\n"})


def real(parts: Parts, packages: t.Mapping[str, str]) -> None:
    """What the checks read of the real ones."""
    parts.metadata_alone("sglang", packages["sglang"])
    parts.metadata_alone("flashinfer-python", packages["flashinfer-python"])
    parts.metadata_alone("flashinfer-cubin", packages["flashinfer-cubin"])
    parts.torch(packages["torch"], "cu128", more=["libtorch_python.so"])  # an import loads it, and with it what it needs
    parts.kernel("sgl-kernel", packages["sgl-kernel"])
    parts.cuda("nvidia-cuda-runtime-cu12", packages["nvidia-cuda-runtime-cu12"], "nvidia/cuda_runtime/lib/libcudart.so.12")
    parts.cuda("nvidia-cuda-nvrtc-cu12", packages["nvidia-cuda-nvrtc-cu12"], "nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
    standins(parts, {name: version for name, version in packages.items() if name == "flashinfer-jit-cache"})


def crashing(parts: Parts, packages: t.Mapping[str, str]) -> None:
    """The real flashinfer, and enough around it to come as far as its own error."""
    parts.plain("flashinfer-python", packages["flashinfer-python"])
    cubin = realwheels.Wheel("flashinfer-cubin", packages["flashinfer-cubin"])
    files = {name: cubin.read(name) for name in ("flashinfer_cubin/__init__.py", "flashinfer_cubin/_build_meta.py")}
    realwheels.write(parts.directory, cubin.name, cubin.version, files, cubin.metadata())
    engine = realwheels.Wheel("vllm", packages["vllm"])
    files = {"vllm/__init__.py": b"", "vllm/server.py": VLLM.encode()}
    realwheels.write(parts.directory, engine.name, engine.version, files, engine.metadata())
    standins(parts, {"torch": packages["torch"]})
    parts.standin("apache-tvm-ffi", "0.1.9", {"tvm_ffi/__init__.py": b""})
    parts.standin("filelock", "3.20.0", {"filelock/__init__.py": b"class FileLock:\n    pass\n"})


NIGHTLY = {"name": "sglang", "version": "0.5.10.dev20260228", "lane": "nightly-cu130"}
TORCH = "2.12.0.dev20260228+cu130"
NIGHTLY_PINS = {"torch": TORCH, "flashinfer": "0.6.5", "sglang-kernel": "0.4.1+cu130"}
NIGHTLY_PARTS = {"sglang-kernel": "0.4.1+cu130", "flashinfer-python": "0.6.5", "flashinfer-cubin": "0.6.5"}
RELEASE = {"name": "sglang", "version": "0.5.9"}
RELEASE_PARTS = {
    "sgl-kernel": "0.3.21",
    "flashinfer-python": "0.6.3",
    "flashinfer-cubin": "0.6.3",
    "nvidia-cuda-runtime-cu12": "12.8.90",
    "nvidia-cuda-nvrtc-cu12": "12.8.93",
}
MOVED_ALONE = ("One part was moved alone", "specdec_pins: {flashinfer: VERSION}")

STATES = {
    "2: torch is pulled back": State(
        NIGHTLY,
        {**NIGHTLY_PARTS, "torch": "2.10.0", "flashinfer-jit-cache": "0.6.5+cu130"},
        pulled_back,
        ("lock.pins", "ct220:" + VENV, "torch 2.10.0, pinned is %s" % TORCH, "something was installed into it", "Deploy again"),
        pins=NIGHTLY_PINS,
    ),
    "2: the compiled kernels of flashinfer stay behind": State(
        NIGHTLY,
        {**NIGHTLY_PARTS, "torch": TORCH, "flashinfer-jit-cache": "0.6.4+cu130"},
        standins,
        ("parity.flashinfer", "flashinfer", "flashinfer-jit-cache 0.6.4+cu130, flashinfer-python 0.6.5", *MOVED_ALONE),
        pins=NIGHTLY_PINS,
    ),
    "4: flashinfer is pulled back": State(
        RELEASE,
        {**RELEASE_PARTS, "torch": "2.9.1", "flashinfer-jit-cache": "0.6.4+cu128"},
        real,
        ("parity.flashinfer", "flashinfer", "flashinfer-jit-cache 0.6.4+cu128, flashinfer-python 0.6.3", *MOVED_ALONE),
    ),
    "4: the kernels were built against another torch": State(
        RELEASE,
        {**RELEASE_PARTS, "torch": "2.10.0"},
        real,
        (
            "abi.undefined-symbol",
            "sgl-kernel",
            "c10_cuda_check_implementation(int, char const*, char const*, unsigned int, bool)",
            "built against another version of torch",
            "torch",
        ),
        pins={"torch": "2.10.0"},
    ),
}
HALF_MOVED = State(
    {"name": "vllm", "version": "0.16.0"},
    {"torch": "2.9.1+cu128", "flashinfer-python": "0.6.4", "flashinfer-cubin": "0.6.3"},
    crashing,
    ("parity.flashinfer", "flashinfer", "flashinfer-cubin 0.6.3, flashinfer-python 0.6.4", *MOVED_ALONE),
    pins={"flashinfer-python": "0.6.4", "flashinfer-cubin": "0.6.3"},
)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[switchhost.Host]:
    """A host that has nothing but an interpreter."""
    made = switchhost.Host(tmp_path_factory.mktemp("by-hand"), "ct220", "specdec-byhand", "10.89.68")
    try:
        made.hosts("up", made.name)
        # The engineer of the fourth incident had done that.
        made.put({"/etc/ld.so.conf.d/cuda.conf": (("%s/nvidia/cuda_nvrtc/lib\n" % SITE_PACKAGES).encode(), 0o644)})
        yield made
    finally:
        made.down()


def install(host: switchhost.Host, state: State, scratch: Path) -> Path:
    """Make the environment; the same site-packages here."""
    parts = Parts(scratch / "wheels")
    state.make(parts, state.installed)
    for wheel in parts.directory.iterdir():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(scratch / "site-packages")
    host.sh("sh", "-c", "rm -rf %s; python3 -m venv --without-pip %s" % (VENV, VENV))
    found = {
        path.relative_to(scratch / "site-packages"): path.read_bytes() for path in scratch.rglob("site-packages/**/*") if path.is_file()
    }
    host.put({"%s/%s" % (SITE_PACKAGES, path): (content, 0o644) for path, content in found.items()})
    host.sh("ldconfig")
    return scratch / "site-packages"


def refused(state: State, site_packages: Path) -> list[str]:
    """For what a deploy of the same refuses: the lock, or the proof of what would have been built."""
    stack, found = stacks.resolve(TABLES, SERVER, state.engine, state.pins)
    assert stack, found
    wanted = locks.inputs(stack)
    packages = tuple(locks.Package(name, version, ("0" * 64,)) for name, version in sorted(state.installed.items()))
    judged = [*locks.check(locks.Lock(packages, locks.identity(wanted)), wanted), *realwheels.judge(site_packages).values()]
    return [one.id for one in judged if one.verdict == "error"]


def audited(host: switchhost.Host, directory: Path, state: State, imports: bool) -> dict[str, str]:
    """The one thing that the audit says is wrong."""
    variables = {"specdec_reference": {"venv": VENV}, "specdec_pins": dict(state.pins), "specdec_verify_imports": imports}
    done = host.playbook("verify", specdec_verify_report=str(directory), **variables)
    report = directory / (host.name + ".json")
    assert report.exists(), done.stdout[-4000:]
    assert done.returncode == 2
    found = [one for one in json.loads(report.read_text())["findings"] if one["verdict"] == "error"]
    id_, subject, *said = state.found
    assert [(one["id"], one["subject"]) for one in found] == [(id_, subject)], found
    for piece, field in zip(said, ("found", "cause", "fix")):
        assert piece in found[0][field]
    return found[0]


@pytest.mark.parametrize("name", list(STATES))
def test_what_a_deploy_refuses_the_audit_finds_under_the_same_id(host: switchhost.Host, tmp_path: Path, name: str) -> None:
    state = STATES[name]
    would = refused(state, install(host, state, tmp_path))
    before = host.sh("sh", "-c", UNTOUCHED)
    # These hold parts alone, so nothing in them can be imported.
    found = audited(host, tmp_path, state, imports=False)
    assert host.sh("sh", "-c", UNTOUCHED) == before
    assert would == [found["id"]]


def test_a_unit_in_a_restart_loop_is_reduced_to_its_cause(host: switchhost.Host, tmp_path: Path) -> None:
    would = refused(HALF_MOVED, install(host, HALF_MOVED, tmp_path))
    program, _digest = hosttools.zipapp(tmp_path / "tools", run)
    host.put({PROGRAM: (program.read_bytes(), 0o755), "/etc/systemd/system/vllm.service": (UNIT.encode(), 0o644)})
    try:
        host.sh("sh", "-c", "systemctl daemon-reload; systemctl start vllm")
        host.sh("timeout", "60", "sh", "-c", "until [ $(systemctl show -P NRestarts vllm) -ge 2 ]; do sleep 0.2; done")
        before = host.sh("sh", "-c", UNTOUCHED)
        told = host.sh("python3", PROGRAM, "diagnose", "vllm.service", check=False)
        found = audited(host, tmp_path, HALF_MOVED, imports=True)
        assert host.sh("sh", "-c", UNTOUCHED) == before
        assert host.show("vllm", "SubState") in ("auto-restart", "running")
        journal = host.sh("journalctl", "--unit=vllm", "--output=short-iso")
    finally:
        host.sh("sh", "-c", "systemctl stop vllm; rm /etc/systemd/system/vllm.service %s; systemctl daemon-reload" % PROGRAM)
    reason = "RuntimeError: flashinfer-cubin version (0.6.3) does not match flashinfer version (0.6.4)"
    assert would == [found["id"]]
    assert "from which follows: import.flashinfer: flashinfer: " + reason in found["evidence"]
    assert journal.index("SymmMemCommunicator") < journal.index(reason) < journal.index("See root cause above")
    assert diagnosis.diagnose(journal).finding.id == "failure.flashinfer-parts"
    assert told.startswith("ERROR: vllm.service: " + reason) and told.count("ERROR: ") == 1, told
    assert "The parts of flashinfer have different versions." in told and "specdec_pins: {flashinfer: VERSION}" in told
    assert "%s/bin/python -c 'import flashinfer'" % VENV in told
    assert "SymmMem" not in told and "Triton" not in told
