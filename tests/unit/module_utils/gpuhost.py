# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts with GPUs, made from tests/doubles/nvml/hosts: a tree of files, and a driver that is a double.

The probe is a real process with the real nvidia-ml-py; only the driver's libraries under it are not.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils import gpus
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed
from ansible_collections.specdec.serving.plugins.plugin_utils import processes as runner

DOUBLE = Path(__file__).resolve().parents[2] / "doubles" / "nvml"
HOSTS = {path.stem: json.loads(path.read_text()) for path in sorted((DOUBLE / "hosts").glob("*.json"))}

_FLAVOURS = {
    "open": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build  (dvs-builder@U22)  Tue Sep 23 11:29:07 UTC 2025",
    "proprietary": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  %s  Thu Feb 22 01:44:30 UTC 2024",
}
_INFORMATION = "Model: \t\t %s\nIRQ:   \t\t 107\nGPU UUID: \t %s\nBus Location: \t %s\nGPU Firmware: \t %s\nGPU Excluded:\t No\n"


@functools.cache
def _library(directory: Path) -> Path:
    path = directory / "double.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(path), str(DOUBLE / "nvml.c")], check=True)
    return path


class GpuHost:
    """One host; change ``data`` and ``answers`` before :meth:`gather`, and files with :meth:`write`.

    ``answers``: by program name what a process says instead of "not there".
    """

    def __init__(self, name: str, directory: Path, shared: Path) -> None:
        self.data = json.loads(json.dumps(HOSTS[name]))
        self.files = directory / "files"
        self.libraries = directory / "lib"
        self.root = directory / "specdec"
        self.double = _library(shared)
        self.answers: dict[str, t.Union[Completed, t.Callable[[t.Sequence[str]], Completed]]] = {}
        self.started: list[list[str]] = []
        self.environment: dict[str, str] = {}
        self.directory = directory
        self.files.mkdir(parents=True)
        self.libraries.mkdir()
        if self.data["driver"]:
            self._install()

    def _install(self) -> None:
        driver, library = self.data["driver"], self.data.get("library", self.data["driver"])
        self.write("proc/driver/nvidia/version", _FLAVOURS[self.data["flavour"]] % driver + "\nGCC version:  gcc version 12.3.0\n")
        self.write("proc/sys/kernel/osrelease", "6.8.0-85-generic\n")
        for compiler in ("gcc", "g++"):
            self.write("usr/bin/" + compiler, "#!/bin/sh\necho 12.2.0\n", 0o755)
        for index, device in enumerate(self.data["devices"]):
            bus = device["bus_id"][-12:].lower()
            self.write("proc/driver/nvidia/gpus/%s/information" % bus, _INFORMATION % (device["name"], device["uuid"], bus, driver))
            self.pci(bus, "nvidia")
            self.write("dev/nvidia%d" % index)
        self.write("dev/nvidiactl")
        self.write("dev/nvidia-uvm")
        for name in ("libnvidia-ml", "libcuda"):
            shutil.copy(self.double, self.libraries / ("%s.so.%s" % (name, library)))
            (self.libraries / (name + ".so.1")).symlink_to("%s.so.%s" % (name, library))

    def write(self, path: str, text: str = "", mode: int = 0o666) -> None:
        """A file of the host."""
        target = self.files / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)

    def pci(self, bus: str, driver: str = "") -> None:
        """A GPU on PCI, and the kernel driver that holds it."""
        self.write("sys/bus/pci/devices/%s/vendor" % bus, "0x10de\n")
        self.write("sys/bus/pci/devices/%s/class" % bus, "0x030200\n")
        if driver:
            link = self.files / "sys/bus/pci/devices" / bus / "driver"
            link.unlink(missing_ok=True)
            link.symlink_to("../../../../bus/pci/drivers/" + driver)

    def behind(self, bus: str, bridges: str, numa: str) -> None:
        """Put a GPU behind bridges, as the kernel shows it: ``pci0000:00/0000:00:01.0``."""
        flat = self.files / "sys/bus/pci/devices" / bus
        place = self.files / "sys/devices" / bridges / bus
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(flat, place)
        flat.symlink_to(place)
        (place / "numa_node").write_text(numa + "\n")

    def remove(self, path: str) -> None:
        """Take a file or a tree away."""
        target = self.files / path
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink()

    def container(self, kind: str, nesting: bool = True) -> None:
        """Say that the host is a container; LXC shows a second procfs where it nests."""
        if kind == "lxc" and nesting:
            self.write("dev/.lxc/proc/version")
        self.answers["systemd-detect-virt"] = Completed(0, kind + "\n", "")

    def run(self, argv: t.Sequence[str], **options: t.Any) -> Completed:
        """The host's runner: its own files and the probe are started, the rest is in ``answers``."""
        self.started.append(list(argv))
        name = Path(argv[0]).name
        if name in self.answers:
            answer = self.answers[name]
            return answer if isinstance(answer, Completed) else answer(argv)
        if argv[0] == sys.executable or Path(argv[0]).is_relative_to(self.files):
            path = self.directory / "nvml.json"
            path.write_text(json.dumps(self.data))
            driver = {"LD_LIBRARY_PATH": str(self.libraries), "NVML_DOUBLE": str(path), **self.environment}
            return runner.run(argv, **{**options, "env": {**driver, **(options.get("env") or {})}})
        return Completed(127, "", "%s: not there" % name)

    def gather(self) -> dict[str, t.Any]:
        """The facts as the collection sees them."""
        return gpus.gather(str(self.root), self.run, self.files)
