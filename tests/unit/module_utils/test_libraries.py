# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Libraries the loader does not find: real ELF files, and the real loader as the judge."""

from __future__ import annotations

import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import libraries, records
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, OK, WARNING, worst

from . import wheels

CACHE = "2 libs found in cache\n\tlibc.so.6 (libc6,x86-64) => /lib/x/libc.so.6\n\tlibc.so.6 (libc6,AArch64) => /lib/a/libc.so.6\n"


class Site:
    """A site-packages with compiled libraries whose RECORDs own them."""

    def __init__(self, directory: Path) -> None:
        self.path = wheels.venv(directory)
        self.build = directory / "build"
        self.build.mkdir()

    def library(self, path: str, *needed: str, runpath: str = "", call: str = "") -> str:
        """Compile a library that needs others by soname; return its path."""
        target = self.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        name = target.name.split(".")[0].replace("-", "_")
        source = "#include <dlfcn.h>\nint %s(void) { return %s; }\n" % (name, call or "1")
        argv = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(target), "-Wl,-soname," + target.name, "-Wl,--no-as-needed"]
        for soname in needed:
            stub = self.build / soname
            if not stub.exists():
                self._stub(stub)
            argv.append("-l:" + soname)
        argv += ["-L" + str(self.build)] + (["-Wl,-rpath," + runpath, "-Wl,--enable-new-dtags"] if runpath else [])
        subprocess.run(argv, input=source, check=True, text=True)
        return path

    @staticmethod
    def _stub(path: Path) -> None:
        argv = ["cc", "-shared", "-x", "c", "-", "-o", str(path), "-Wl,-soname," + path.name]
        subprocess.run(argv, input="", check=True, text=True)

    def own(self, name: str, *paths: str) -> None:
        """Give files to a distribution."""
        wheels.install(self.path, name, "1", {path: (self.path / path).read_bytes() for path in paths})

    def compute(self, *names: str, cache: str = CACHE, without: t.Optional[Path] = None) -> libraries.Libraries:
        return libraries.compute(self.path, records.distributions(self.path), names, cache, without)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path / "venv")
    torch = site.library("torch/lib/libtorch_python.so", "libcudart.so.13", runpath="$ORIGIN/../../nvidia/cu13/lib")
    cudart = site.library("nvidia/cu13/lib/libcudart.so.13")
    site.own("torch", torch)
    site.own("nvidia-cuda-runtime", cudart)
    return site


def test_needs_that_the_loader_finds_are_not_linked(site: Site) -> None:
    own = site.library("kernel/libown.so.1")
    kernel = site.library("kernel/ops.so", "libcudart.so.13", "libown.so.1", "libcuda.so.1", "libtorch_python.so", runpath="$ORIGIN")
    site.own("kernel", own, kernel)
    found = site.compute("kernel")
    assert (found.links, found.missing) == ({}, {})
    assert worst(libraries.findings(found)) == OK


def test_a_library_without_a_way_to_it_is_linked_with_what_it_needs_itself(site: Site, tmp_path: Path) -> None:
    needed = site.library("nvidia/cu13/lib/libnvjit.so.13")
    nvrtc = site.library("nvidia/cu13/lib/libnvrtc.so.13", "libnvjit.so.13", runpath="$ORIGIN")
    builtins = site.library("nvidia/cu13/lib/libnvrtc-builtins.so.13.0")
    site.own("nvidia-cuda-nvrtc", needed, nvrtc, builtins)
    site.own("kernel", site.library("kernel/ops.so", "libnvrtc.so.13"))
    found = site.compute("kernel")
    assert found.links == {name: "nvidia/cu13/lib/" + name for name in ("libnvjit.so.13", "libnvrtc-builtins.so.13.0", "libnvrtc.so.13")}

    lib = tmp_path / "lib"
    libraries.write_links(lib, found, site.path)
    load = [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", str(site.path / "kernel/ops.so")]
    without = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    assert "libnvrtc.so.13" in subprocess.run(load, env=without, capture_output=True, text=True, check=False).stderr
    subprocess.run(load, env={**without, "LD_LIBRARY_PATH": str(lib)}, check=True)


def test_another_major_version_is_named(site: Site) -> None:
    site.own("nvidia-cublas", site.library("nvidia/cu13/lib/libcublas.so.13"))
    site.own("kernel", site.library("kernel/ops.so", "libcublas.so.12", "libnuma.so.1"))
    found = site.compute("kernel")
    assert found.missing == {"libcublas.so.12": ("kernel/ops.so",), "libnuma.so.1": ("kernel/ops.so",)}
    cublas, numa = libraries.findings(found)
    assert (cublas.found, "CUDA major" in cublas.fix) == ("libcublas.so.13", True)
    assert (numa.found, "system's package" in numa.fix) == ("no version of it", True)


def test_the_system_counts_but_not_for_another_machine_nor_from_another_environment(site: Site) -> None:
    site.own("kernel", site.library("kernel/ops.so", "libnuma.so.1"))
    machine = libraries.dynamic(site.path / "kernel/ops.so").machine
    flag, other = ("x86-64", "AArch64") if machine == "EM_X86_64" else ("AArch64", "x86-64")
    line = "\tlibnuma.so.1 (libc6,%s) => /opt/specdec/environments/a/lib/libnuma.so.1\n"
    assert site.compute("kernel", cache=CACHE + line % flag).missing == {}
    assert list(site.compute("kernel", cache=CACHE + line % other).missing) == ["libnuma.so.1"]
    assert list(site.compute("kernel", cache=CACHE + line % flag, without=Path("/opt/specdec")).missing) == ["libnuma.so.1"]


def test_modules_of_another_python_and_of_other_distributions_are_left_out(site: Site) -> None:
    site.own("kernel", site.library("kernel/ops.cpython-310-x86_64-linux-gnu.so", "libnone.so.1"))
    site.own("other", site.library("other/ops.so", "libnone.so.1"))
    assert site.compute("kernel").missing == {}


def test_what_is_no_elf_file_is_left_alone(site: Site) -> None:
    (site.path / "kernel").mkdir()
    (site.path / "kernel/script.so").write_bytes(b"/* GNU ld script */")
    (site.path / "kernel/cut.so").write_bytes(b"\x7fELF\x02")
    site.own("kernel", "kernel/script.so", "kernel/cut.so")
    assert site.compute("kernel").missing == {}


def test_what_only_a_library_s_plugin_needs_is_a_warning(site: Site) -> None:
    nvshmem = site.library("nvidia/nvshmem/lib/libnvshmem.so.3")
    plugin = site.library("nvidia/nvshmem/lib/libnvshmem_mpi.so.3", "libmpi.so.40")
    site.own("nvidia-nvshmem", nvshmem, plugin)
    site.own("kernel", site.library("kernel/ops.so", "libnvshmem.so.3"))
    found = site.compute("kernel")
    assert found.missing == {"libmpi.so.40": (plugin,)}
    assert [one.verdict for one in libraries.findings(found, {"kernel/ops.so"})] == [WARNING]
    assert [one.verdict for one in libraries.findings(found)] == [ERROR]


def test_links_that_the_service_does_not_get_are_told(site: Site, tmp_path: Path) -> None:
    site.own("nvidia-cuda-nvrtc", site.library("nvidia/cu13/lib/libnvrtc.so.13"))
    site.own("kernel", site.library("kernel/ops.so", "libnvrtc.so.13"))
    found, lib = site.compute("kernel"), tmp_path / "lib"
    assert "links to libraries are not there" in libraries.unreachable(found, lib, str(lib))[0].message
    libraries.write_links(lib, found, site.path)
    assert "not given the directory" in libraries.unreachable(found, lib, "/usr/lib")[0].message
    assert libraries.unreachable(found, lib, "%s:/usr/lib" % lib) == []
