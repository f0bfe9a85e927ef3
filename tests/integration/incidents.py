# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host like those of the incidents: eight GPUs by a double of the driver, an instance that serves a client, and
wheels that are parts of the real ones: what the checks read of them, under their own names and versions."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
import threading
import time
import typing as t
import urllib.request
from pathlib import Path

import flow
import realwheels
import switchhost
import yaml

from ansible_collections.specdec.serving.plugins.module_utils import abi, checks, locks, stacks
from ansible_collections.specdec.serving.plugins.plugin_utils import hosttools
from ansible_collections.specdec.serving.plugins.plugin_utils.processes import run

NVML = flow.CHECKOUT / "tests" / "doubles" / "nvml"
DRIVER = "580.95.05"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
PORT = 30000
RUN = ("import.", "algorithm.", "arguments.")
PACKAGES = ("torch", "sgl-kernel", "sglang-kernel", "flashinfer-python", "flashinfer-cubin")

#: Per engine version what its environment is made of besides the engine.
PINS = {
    "0.5.9": {
        "torch": "2.9.1",
        "sgl-kernel": "0.3.21",
        "flashinfer": "0.6.3",
        "nvidia-cuda-runtime-cu12": "12.8.90",
        "nvidia-cuda-nvrtc-cu12": "12.8.93",
    },
    "0.5.11": {
        "torch": "2.11.0",
        "sglang-kernel": "0.4.2",
        "flashinfer": "0.6.8.post1",
        "nvidia-cuda-runtime": "13.0.96",
        "nvidia-cuda-nvrtc": "13.0.88",
    },
}


class Parts:
    """The wheels, in a directory that ``specdec_wheel_directories`` names."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def make(self) -> None:
        """All of them."""
        for engine, flashinfer in (("0.5.9", "0.6.3"), ("0.5.11", "0.6.8.post1")):
            self.plain("sglang", engine)
            self.plain("flashinfer-python", flashinfer)
            self.metadata_alone("flashinfer-cubin", flashinfer)
        self.metadata_alone("flashinfer-python", "0.6.4")
        self.metadata_alone("vllm", "0.16.0")
        self.cuda("nvidia-cuda-runtime-cu12", "12.8.90", "nvidia/cuda_runtime/lib/libcudart.so.12")
        self.cuda("nvidia-cuda-nvrtc-cu12", "12.8.93", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
        self.cuda("nvidia-cuda-runtime", "13.0.96", "nvidia/cu13/lib/libcudart.so.13")
        self.cuda("nvidia-cuda-nvrtc", "13.0.88", "nvidia/cu13/lib/libnvrtc.so.13")
        for version in ("2.9.1", "2.10.0"):
            self.torch(version, "cu128", "nvidia-cuda-runtime-cu12==12.8.90", "nvidia-cuda-nvrtc-cu12==12.8.93")
        self.torch("2.11.0", "cu130", "nvidia-cuda-runtime==13.0.96", "nvidia-cuda-nvrtc==13.0.88")
        self.kernel("sgl-kernel", "0.3.21")
        self.kernel("sglang-kernel", "0.4.2")
        # No index that can be reached has it.
        self.standin("flashinfer-jit-cache", "0.6.4+cu128", {"flashinfer_jit_cache/__init__.py": b'__version__ = "0.6.4+cu128"\n'})

    def plain(self, name: str, version: str) -> None:
        """A small wheel, whole."""
        wheel = realwheels.Wheel(name, version)
        self._write(name, version, wheel.whole(), wheel.metadata())

    def metadata_alone(self, name: str, version: str) -> None:
        """What a resolver, and parity, reads of a wheel."""
        self._write(name, version, {}, realwheels.Wheel(name, version).metadata())

    def torch(self, version: str, lane: str, *cuda: str, more: t.Sequence[str] = ()) -> None:
        """What compiled packages take from torch; ``more`` of its libraries."""
        wheel = realwheels.Wheel("torch", version)
        names = ("libc10.so", "libc10_cuda.so", "libtorch.so", "libtorch_cpu.so", "libtorch_cuda.so", "libtorch_global_deps.so")
        files = wheel.excerpts(*("torch/lib/" + name for name in (*names, *more)), rename=_here)
        files["torch/version.py"] = b"__version__ = '%s+%s'\n" % (version.encode(), lane.encode())
        self._write("torch", version, files, wheel.metadata(), cuda)

    def kernel(self, name: str, version: str) -> None:
        """What takes symbols from torch, and what does and does not break with it."""
        wheel = realwheels.Wheel(name, version)
        files = wheel.excerpts(*("sgl_kernel/" + one for one in ("flashmla_ops.abi3.so", "spatial_ops.abi3.so")), rename=_here)
        files.update(wheel.sources("sgl_kernel/"))
        self._write(name, version, files, wheel.metadata())

    def cuda(self, name: str, version: str, *members: str) -> None:
        """A package of PINS's with some of its libraries."""
        wheel = realwheels.Wheel(name, version)
        self._write(name, version, wheel.excerpts(*members, rename=_here), wheel.metadata())

    def standin(self, name: str, version: str, files: t.Mapping[str, bytes]) -> None:
        """A package that no index that can be reached has."""
        self._write(name, version, files, b"Metadata-Version: 2.1\nName: %s\nVersion: %s\n" % (name.encode(), version.encode()))

    def _write(self, name: str, version: str, files: t.Mapping[str, bytes], metadata: bytes, also: t.Sequence[str] = ()) -> None:
        """A wheel that requires only what is here, and what ``also`` says."""
        kept = []
        for line in metadata.decode().partition("\n\n")[0].splitlines():
            required = re.match(r"Requires-Dist: ([A-Za-z0-9._-]+)", line)
            if not required or (re.sub(r"[-_.]+", "-", required[1]).lower() in PACKAGES and "extra ==" not in line):
                kept.append(line)
        kept += ["Requires-Dist: " + one for one in also]
        realwheels.write(self.directory, name, version, files, "\n".join([*kept, "", ""]).encode())


def _here(soname: str) -> t.Optional[str]:
    """What these parts and the system have; what else a library needs is left out of its excerpt."""
    ours = r"lib(cudart|nvrtc|torch|torch_cpu|torch_cuda|c10|c10_cuda|cuda|c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so|ld-linux"
    return soname if re.match(ours, soname) else None


@dataclasses.dataclass
class Client:
    """Asks a server all the time; when each question was answered, and what went wrong."""

    url: str
    key: str
    answers: list[float] = dataclasses.field(default_factory=list)
    failures: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> Client:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end.set()
        self._thread.join()

    def _ask(self) -> None:
        body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 8}).encode()
        headers = {"Content-Type": "application/json", "Authorization": "Bearer " + self.key}
        while not self._end.wait(0.05):
            try:
                with urllib.request.urlopen(urllib.request.Request(self.url, body, headers), timeout=10) as answer:
                    assert json.loads(answer.read())["choices"][0]["text"]
                self.answers.append(time.monotonic())
            except Exception as error:
                self.failures.append("%.1f: %r" % (time.monotonic(), error))


class Scene:
    """ct200 as it was before each incident: it has GPUs, and an instance serves on it."""

    def __init__(self, state: Path, prefix: str, subnet: str) -> None:
        self.fleet = flow.Fleet(state, prefix, subnet)
        # A user's deploy has none of the settings that molecule gives its own playbooks, such as colours.
        for name in set(self.fleet.environment) - {"ANSIBLE_INVENTORY", "ANSIBLE_NOCOLOR", "ANSIBLE_SSH_CONTROL_PATH_DIR"}:
            if name.startswith("ANSIBLE_"):
                del self.fleet.environment[name]
        self.host = switchhost.Host(state, "ct200", prefix, subnet)
        self.parts = Parts(state / "parts")
        self.state = state
        self.url = "http://%s:%d/v1/completions" % (self.host.address, PORT)

    def up(self) -> None:
        """Parts, driver, service."""
        self.fleet.must("demo/prepare")
        shutil.rmtree(self.state / "pins", ignore_errors=True)
        self.parts.make()
        self.host.up()
        program, _digest = hosttools.zipapp(self.state / "tools", run)
        self._send("/", {switchhost.ROOT + "/bin/specdec": program.read_bytes()}, 0o755)
        self._driver()
        release = self.host.release("main", host="0.0.0.0", port=PORT)
        assert self.host.switch(release)["committed"]
        self.served = self.serving()

    def serving(self) -> tuple[str, ...]:
        """Which release serves, as which process, since when, and what instances and units hold."""
        found = self.host.describe("main")
        assert found["healthy"], found
        return (
            found["release"],
            found["running"],
            self.host.show("specdec-main", "MainPID"),
            self.host.sh("sh", "-c", "readlink /opt/specdec/instances/main/current; cat /etc/systemd/system/specdec-main.service"),
            self.host.sh("sh", "-c", "cat /opt/specdec/instances/main/history; ls /etc/ld.so.conf.d /opt/specdec/environments/*/.complete"),
        )

    def _driver(self) -> None:
        """The double of the driver: its libraries, what the kernel would show of it, and every function that the parts take from it."""
        data = json.loads((NVML / "hosts" / "rtx-pro-6000.json").read_text())
        data["devices"][0]["processes"] = []
        functions = sorted(one for path in self._compiled() for one in abi.symbols(path).wanted if re.match("cu[A-Z]", one))
        with tempfile.TemporaryDirectory() as scratch:
            more = Path(scratch, "more.c")
            more.write_text("".join("__attribute__((weak)) int %s(void) { return 0; }\n" % one for one in dict.fromkeys(functions)))
            files = {"/etc/nvml-double.json": json.dumps(data).encode()}
            for name in ("libnvidia-ml.so", "libcuda.so"):
                library = Path(scratch, name)
                options = ("-shared", "-fPIC", "-Wl,-soname,%s.1" % name)
                subprocess.run(["gcc", *options, "-o", str(library), str(NVML / "nvml.c"), str(more)], check=True)
                files["%s/%s.%s" % (LIBRARIES, name, DRIVER)] = library.read_bytes()
        version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build\nGCC version:  gcc version 12.2.0\n" % DRIVER
        shown = {"nvidia/version": version.encode()}
        for device in data["devices"]:
            bus = device["bus_id"][-12:].lower()
            lines = ("Model: \t\t %s" % device["name"], "GPU UUID: \t %s" % device["uuid"], "Bus Location: \t %s" % bus, "")
            shown["nvidia/gpus/%s/information" % bus] = "\n".join(lines).encode()
        self.host.sh("mount", "-t", "tmpfs", "tmpfs", "/proc/driver")
        self._send("/", files)
        self._send("/proc/driver", shown)
        nodes = " ".join("/dev/nvidia%s" % one for one in ("ctl", "-uvm", *range(len(data["devices"]))))
        self.host.sh("sh", "-c", "touch %s && chmod 666 %s && ldconfig" % (nodes, nodes))

    def _compiled(self) -> t.Iterator[Path]:
        for member in ("sgl_kernel__flashmla_ops.abi3.so.excerpt", "sgl_kernel__spatial_ops.abi3.so.excerpt"):
            yield realwheels.Wheel("sgl-kernel", "0.3.21").kept / member

    def _send(self, directory: str, files: t.Mapping[str, bytes], mode: int = 0o644) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for path, content in files.items():
                entry = tarfile.TarInfo(path.lstrip("/"))
                entry.size, entry.mode = len(content), mode
                archive.addfile(entry, io.BytesIO(content))
        self.host.sh("tar", "-x", "-C", directory, stdin=buffer.getvalue())

    def deploy(self, *arguments: str, **change: t.Any) -> flow.Run:
        """A deploy of something else to ``main``; options of the instance, and variables by their whole name."""
        whole = {name: change.pop(name) for name in list(change) if name.startswith("specdec_")}
        instance = {
            "engine": {"name": "sglang", "version": "0.5.9"},
            "model": {"directory": str(flow.CHECKOUT / "demo" / "models" / "target")},
            "served_model_name": "tiny",
            # These environments hold parts, so nothing in them can be imported.
            "skip_checks": [check.id for check in checks.CHECKS if check.group == "probe" and check.id.startswith(RUN)],
            **change,
        }
        pins = self.state / "pins"
        variables = {
            "specdec_instance_defaults": instance,
            "specdec_instances": [{"name": "main", "gpus": "all", "port": PORT}],
            "specdec_pins": {},
            "specdec_extra_packages": [],
            "specdec_wheel_directories": [str(self.parts.directory)],
            "specdec_pins_dir": str(pins),
            **whole,
        }
        # Every wheel that an environment of these may get is pinned, so that it is taken from the directory.
        variables["specdec_pins"] = {**PINS.get(instance["engine"]["version"], {}), **variables["specdec_pins"]}
        return self.fleet.deploy(*arguments, variables=variables, timeout=600)

    def lock_that_pulls_torch_back(self, engine: t.Mapping[str, str], pins: t.Mapping[str, str]) -> None:
        """Put the lock of a nightly stack into the pins as a resolver makes it that nobody told to leave torch alone.

        Which torch flashinfer-python pulls in, says the index as it was then.
        """
        package = "ansible_collections.specdec.serving.plugins"
        code = (
            "import json, sys; sys.path.insert(0, '%s/bin/specdec'); "
            "from %s.plugin_utils.processes import run; from %s.module_utils import hoststate, layout; "
            "print(json.dumps(hoststate.hardware(layout.Layout('%s'), run)))"
        ) % (switchhost.ROOT, package, package, switchhost.ROOT)
        facts = json.loads(self.host.sh("python3", "-I", "-B", "-c", code))
        data = Path(locks.__file__).parent / "data"
        tables = yaml.safe_load((data / "stacks.yml").read_text())
        stack, found = stacks.resolve(tables, facts, engine, pins)
        assert stack, found
        wanted = locks.inputs(stack)
        alone = {"requirements": ["flashinfer-python==" + pins["flashinfer"]], "overrides": [], "indexes": []}
        then = {**wanted, **alone, "exclude_newer": "2026-03-05"}
        resolved = locks.lock(then, run, hosttools.find_uv())
        pulled = next(one for one in resolved.packages if one.name == "torch")
        versions = {"sglang": engine["version"], "sglang-kernel": pins["sglang-kernel"]}
        versions.update(dict.fromkeys(("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache"), pins["flashinfer"]))
        packages = [locks.Package(name, version, ("0" * 64,)) for name, version in versions.items()]
        lock = locks.Lock(tuple(sorted([*packages, pulled], key=lambda one: one.name)), locks.identity(wanted))
        path = self.state / "pins" / "locks" / locks.file_name(wanted)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(lock.text())

    def proof(self) -> list[dict[str, t.Any]]:
        """What the last proof on the host found."""
        newest = "ls -t /run/specdec/jobs/*/result.json | head -1"
        return json.loads(self.host.sh("sh", "-c", "cat $(%s)" % newest))["findings"]

    @contextlib.contextmanager
    def untouched(self) -> t.Iterator[None]:
        """Nothing that serves is changed, and the client loses nothing."""
        with Client(self.url, switchhost.KEY) as client:
            yield
            count = len(client.answers)
        assert client.failures == []
        assert count > 10 and len(client.answers) >= count
        assert self.serving()[:4] == self.served[:4]
