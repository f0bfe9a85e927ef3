# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compiled packages against torch, Python and machine: real ELF files, and the real loader as the judge."""

from __future__ import annotations

import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import abi, fatbins, libraries, mangling, records
from ansible_collections.specdec.serving.plugins.module_utils.findings import COULD_NOT_CHECK, ERROR, NOT_APPLICABLE, OK, WARNING, Finding

from . import compiled, wheels

MISSING = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib"
TAG = "cpython-311"
LOAD = "import ctypes, os, sys\nfor path in sys.argv[1:]: ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_GLOBAL)\n"


class Site:
    """A site-packages with a torch and packages that were compiled against it."""

    def __init__(self, directory: Path) -> None:
        self.path = wheels.venv(directory / "venv")
        self.directory = directory

    def library(self, name: str, source: str = "", *needed: str) -> bytes:
        return compiled.build(self.directory / "build" / name, source, *needed)

    def own(self, dist: str, **files: bytes) -> None:
        self.install(dist, files)

    def install(self, dist: str, files: t.Mapping[str, bytes]) -> None:
        wheels.install(self.path, dist, "1", files)

    def torch(self, source: str, *, cuda: bool = True, needed: t.Sequence[str] = ()) -> None:
        files = {"torch/lib/libc10.so": self.library("libc10.so", source, *needed)}
        if cuda:
            files["torch/lib/libtorch_cuda.so"] = self.library("libtorch_cuda.so")
        self.install("torch", files)

    def kernel(self, source: str = compiled.KERNEL, path: str = "sgl_kernel/ops.abi3.so", needed: t.Sequence[str] = ("libc10.so",)) -> None:
        self.install("sgl-kernel", {path: self.library("ops.so", source, *needed)})

    def findings(self, machine: t.Optional[str] = "", tag: str = TAG) -> dict[str, Finding]:
        found = abi.read(self.path, records.distributions(self.path))
        own = libraries.dynamic(Path(sys.executable).resolve())
        judged = abi.findings(found, {"sgl_kernel", "torch"}, own.machine if machine == "" and own else machine, tag)
        return {one.id: one for one in judged}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


# Symbols


@pytest.mark.parametrize(("torch", "verdict"), [(compiled.OLD, OK), (compiled.NEW, ERROR)])
def test_verdict_is_the_loader_s(site: Site, torch: str, verdict: str) -> None:
    site.torch(torch)
    site.kernel()
    finding = site.findings()["abi.undefined-symbol"]
    paths = [str(site.path / path) for path in ("torch/lib/libc10.so", "sgl_kernel/ops.abi3.so")]
    loaded = subprocess.run([sys.executable, "-c", LOAD, *paths], capture_output=True, text=True, check=False)
    assert finding.verdict == verdict
    assert (loaded.returncode == 0) == (verdict == OK)
    if verdict == ERROR:
        assert "undefined symbol: " + MISSING in loaded.stderr
        assert MISSING in finding.message


def test_near_miss_is_named(site: Site) -> None:
    site.torch(compiled.NEW)
    site.kernel()
    finding = site.findings()["abi.undefined-symbol"]
    assert finding.subject == "sgl-kernel"
    assert finding.found.splitlines() == [
        "wanted:    c10::cuda::c10_cuda_check_implementation(int, char const*, char const*, int, bool)",
        "torch has: c10::cuda::c10_cuda_check_implementation(int, char const*, char const*, unsigned int, bool)",
    ]
    assert "sgl_kernel/ops.abi3.so" in finding.evidence and finding.cause and finding.fix


def test_symbol_without_a_near_miss_is_named_too(site: Site) -> None:
    site.torch("namespace c10 { void other() {} }")
    site.kernel()
    assert site.findings()["abi.undefined-symbol"].found.startswith("nothing of the name of c10::cuda::c10_cuda_check")


def test_symbol_that_the_package_brings_itself_is_not_missed(site: Site) -> None:
    site.torch(compiled.NEW)
    site.kernel()
    site.install(
        "sgl-kernel",
        {"sgl_kernel/ops.so": site.library("ops.so", compiled.KERNEL), "sgl_kernel/libold.so": site.library("libold.so", compiled.OLD)},
    )
    assert site.findings()["abi.undefined-symbol"].verdict == OK


def test_weak_symbols_may_be_missing(site: Site) -> None:
    site.torch(compiled.NEW)
    source = 'namespace c10 { void __attribute__((weak)) maybe(); void there(); }\nextern "C" void go() { if (c10::maybe) c10::maybe(); }\n'
    site.kernel(source)
    assert site.findings()["abi.undefined-symbol"].verdict == NOT_APPLICABLE


def test_hidden_symbols_are_not_exported(site: Site) -> None:
    site.torch(compiled.OLD.replace("void c10_", '__attribute__((visibility("hidden"))) void c10_'))
    site.kernel()
    assert site.findings()["abi.undefined-symbol"].verdict == ERROR


def test_package_that_serving_does_not_depend_on_only_warns(site: Site) -> None:
    site.torch(compiled.NEW)
    site.install("extra", {"extra/ops.so": site.library("ops.so", compiled.KERNEL, "libc10.so")})
    assert site.findings()["abi.undefined-symbol"].verdict == WARNING


def test_environment_without_compiled_code_is_not_applicable(site: Site) -> None:
    site.install("torch", {"torch/__init__.py": b""})
    verdicts = {id_: one.verdict for id_, one in site.findings().items()}
    assert set(verdicts.values()) == {NOT_APPLICABLE}
    assert all(one.evidence for one in site.findings().values())


# torch for the CPU


def test_kernel_for_cuda_beside_a_torch_without_is_one_finding(site: Site) -> None:
    site.torch(compiled.NEW, cuda=False)
    site.kernel(needed=("libc10.so", "libtorch_cuda.so"))
    found = site.findings()
    assert found["abi.cpu-torch"].verdict == ERROR
    assert found["abi.cpu-torch"].found == "torch without libtorch_cuda.so"
    assert found["abi.undefined-symbol"].verdict == NOT_APPLICABLE


def test_torch_for_the_cpu_alone_is_well(site: Site) -> None:
    site.torch(compiled.OLD, cuda=False)
    site.kernel()
    site.install("extra", {"extra/ops.so": site.library("extra.so", "", "libtorch_cuda.so")})
    finding = site.findings()["abi.cpu-torch"]
    assert finding.verdict == OK
    assert "extra does" in finding.evidence


# CUDA's major version


@pytest.mark.parametrize(("kernel", "verdict"), [("libcudart.so.13", OK), ("libcudart.so.12", ERROR), ("libcublas.so.12", OK)])
def test_kernel_for_another_cuda_than_torch_s(site: Site, kernel: str, verdict: str) -> None:
    site.torch(compiled.OLD, needed=("libcudart.so.13",))
    site.kernel(needed=("libc10.so", kernel))
    finding = site.findings()["abi.cuda-major"]
    assert finding.verdict == verdict
    assert verdict == OK or (finding.found, finding.expected) == ("libcudart.so.12", "libcudart.so.13")


# Device code and the driver


def judged(site: Site, *capabilities: tuple[int, int]) -> Finding:
    found = abi.read(site.path, records.distributions(site.path))
    (finding,) = abi.gpu_architectures(found, {"sgl-kernel", "torch"}, capabilities)
    return finding


SM, PTX = fatbins.CUBIN, fatbins.PTX


@pytest.mark.parametrize(
    ("pieces", "capability", "verdict"),
    [
        ([(SM, 120, False)], (12, 0), OK),
        ([(SM, 120, True)], (12, 0), OK),
        ([(SM, 80, False)], (8, 9), OK),
        ([(SM, 89, False)], (8, 0), ERROR),
        ([(SM, 90, False), (SM, 100, True)], (12, 0), ERROR),
        ([(SM, 90, False), (PTX, 90, False)], (12, 0), OK),
        ([(PTX, 90, True)], (12, 0), ERROR),
        ([(PTX, 120, False)], (9, 0), ERROR),
        # for one GPU or for its family: the mark is the same
        ([(SM, 120, True)], (12, 1), WARNING),
        ([], (12, 0), NOT_APPLICABLE),
    ],
)
def test_device_code_for_the_host_s_gpu(site: Site, pieces: list[tuple[int, int, bool]], capability: tuple[int, int], verdict: str) -> None:
    site.kernel(compiled.device_code(*pieces) if pieces else "")
    finding = judged(site, capability)
    assert finding.verdict == verdict, finding
    if verdict == ERROR:
        assert finding.subject == "sgl-kernel"
        assert "%d.%d" % capability in finding.message and "sm_%d%d" % capability in finding.expected
        assert all(str(architecture) in finding.found for _kind, architecture, _specific in pieces)
        assert "no kernel image" in finding.cause and finding.fix


def test_files_for_single_generations_beside_each_other_are_one_package(site: Site) -> None:
    files = {"sgl_kernel/sm%d/ops.so" % sm: site.library("ops%d.so" % sm, compiled.device_code((SM, sm, True))) for sm in (90, 120)}
    site.install("sgl-kernel", files)
    finding = judged(site, (9, 0), (12, 0))
    assert (finding.verdict, finding.evidence) == (OK, "sgl-kernel: sm_90a, sm_120a")


def test_every_gpu_of_the_host_counts(site: Site) -> None:
    site.kernel(compiled.device_code((SM, 90, False)))
    assert judged(site, (9, 0), (12, 0)).message.startswith("carries no code that GPUs of compute capability 12.0 run")


def test_host_whose_gpus_do_not_say_what_they_are_is_not_judged(site: Site) -> None:
    site.kernel(compiled.device_code((SM, 90, False)))
    assert judged(site).verdict == COULD_NOT_CHECK


def test_device_code_that_is_cut_off_is_not_judged(site: Site) -> None:
    whole = site.library("ops.so", compiled.device_code((SM, 90, False)))
    length = whole.index(fatbins.MAGIC) + 8
    site.install("sgl-kernel", {"sgl_kernel/ops.so": whole[:length] + b"\xff" * 8 + whole[length + 8 :]})
    finding = judged(site, (9, 0))
    assert (finding.verdict, finding.found) == (COULD_NOT_CHECK, "a container of device code ends behind its section")


@pytest.mark.parametrize(("driver", "verdict"), [(compiled.DRIVER, OK), (compiled.OLD_DRIVER, ERROR), (None, COULD_NOT_CHECK)])
def test_functions_of_the_host_s_driver(site: Site, driver: t.Optional[str], verdict: str) -> None:
    site.kernel(compiled.DRIVEN, needed=("libcuda.so.1",))
    path = site.directory / "build" / "libcuda.so.1"
    if driver:
        site.library(path.name, driver)
    found = abi.read(site.path, records.distributions(site.path))
    (finding,) = abi.driver_symbols(found, {"sgl-kernel"}, path if driver else None, "550.54.14")
    assert finding.verdict == verdict, finding
    if verdict == ERROR:
        assert finding.message == "takes 1 function(s) from the driver that it does not have, the first: cuGreenCtxStreamCreate"
        assert finding.found.startswith("driver 550.54.14") and "older than the CUDA" in finding.cause
        assert finding.evidence == "sgl_kernel/ops.abi3.so"


def test_function_of_another_library_with_such_a_name_is_not_the_driver_s(site: Site) -> None:
    site.kernel(compiled.DRIVEN.replace("cuGreenCtxStreamCreate", "cuFileRead"), needed=("libcuda.so.1",))
    site.own("cufile", **{"libcufile.so": site.library("libcufile.so", 'extern "C" void cuFileRead() {}')})
    path = site.directory / "build" / "libcuda.so.1"
    site.library(path.name, compiled.OLD_DRIVER)
    found = abi.read(site.path, records.distributions(site.path))
    assert [one.verdict for one in abi.driver_symbols(found, {"sgl-kernel"}, path, "")] == [OK]


def test_package_that_does_not_use_the_driver(site: Site) -> None:
    site.kernel()
    found = abi.read(site.path, records.distributions(site.path))
    assert [one.verdict for one in abi.driver_symbols(found, {"sgl-kernel"}, None, "")] == [NOT_APPLICABLE]


# Python and machine


@pytest.mark.parametrize(
    ("paths", "verdict"),
    [
        (["k/ops.cpython-311-x86_64-linux-gnu.so"], OK),
        (["k/ops.abi3.so"], NOT_APPLICABLE),
        (["k/ops.cpython-310-x86_64-linux-gnu.so"], ERROR),
        (["k/ops.cpython-311t-x86_64-linux-gnu.so"], ERROR),
        (["k/ops.pypy39-pp73-x86_64-linux-gnu.so"], ERROR),
        # a part that is lost, of a package that is not
        (["k/ops.abi3.so", "k/more.cpython-310-x86_64-linux-gnu.so"], WARNING),
        # the same module for several Pythons
        (["k/ops.cpython-310-x86_64-linux-gnu.so", "k/ops.cpython-311-x86_64-linux-gnu.so"], OK),
    ],
)
def test_extension_modules_of_another_python(site: Site, paths: list[str], verdict: str) -> None:
    site.install("sgl-kernel", dict.fromkeys(paths, site.library("ops.so")))
    finding = site.findings()["abi.other-python"]
    assert finding.verdict == verdict
    assert verdict not in (ERROR, WARNING) or (finding.subject == "sgl-kernel" and finding.evidence in paths)


def test_file_of_another_machine(site: Site) -> None:
    site.kernel()
    foreign = bytearray(site.library("other.so"))
    foreign[18:20] = (243).to_bytes(2, "little")
    site.install("sgl-kernel", {"sgl_kernel/ops.so": bytes(foreign)})
    finding = site.findings()["abi.other-machine"]
    assert (finding.verdict, finding.found, finding.evidence) == (ERROR, "EM_RISCV", "sgl_kernel/ops.so")


def test_narrow_file_is_of_another_machine(site: Site) -> None:
    site.install("sgl-kernel", {"sgl_kernel/ops.so": b"\x7fELF\x01\x01\x01" + bytes(9) + b"\x03\x00\x03\x00" + bytes(60)})
    assert site.findings()["abi.other-machine"].found == "EM_386"


def test_interpreter_that_cannot_be_read(site: Site) -> None:
    site.kernel()
    assert site.findings(machine=None)["abi.other-machine"].verdict == COULD_NOT_CHECK


# Bad input


@pytest.mark.parametrize("content", [b"", b"not one", b"\x7fELF", b"\x7fELF\x02\x01\x01" + b"\xff" * 200, "cut", "noise"])
def test_broken_file_is_named_and_breaks_nothing(site: Site, content: t.Union[bytes, str]) -> None:
    site.torch(compiled.OLD)
    whole = site.library("ops.so", compiled.KERNEL, "libc10.so")
    if content == "cut":
        content = whole[: len(whole) // 3]
    elif content == "noise":
        content = whole[:64] + bytes(255 - byte for byte in whole[64:])
    assert isinstance(content, bytes)
    site.install("sgl-kernel", {"sgl_kernel/ops.so": content})
    found = site.findings()
    assert "sgl_kernel/ops.so" in found["abi.unreadable"].evidence or found["abi.undefined-symbol"].verdict == COULD_NOT_CHECK


def test_file_that_is_gone_is_named(site: Site) -> None:
    site.kernel()
    (site.path / "sgl_kernel/ops.abi3.so").unlink()
    assert "No such file" in site.findings()["abi.unreadable"].evidence


# Names

SOURCE = """
#include <string>
#include <vector>
#include <map>
#include <memory>
#include <ostream>
namespace at { struct Tensor { Tensor(int, const char*); ~Tensor(); Tensor& operator=(const Tensor&); bool operator==(Tensor) const; }; }
namespace c10 {
template <class T> struct ArrayRef { T* data; };
template <class T, unsigned N> struct Small { void grow(unsigned long) const; };
enum class Kind : char { A };
void plain(int, unsigned, long, unsigned long long, bool, char, signed char, float, double) {}
void strings(std::string, const std::string&, std::vector<int>, std::map<std::string, std::vector<at::Tensor>>&) {}
void again(at::Tensor*, at::Tensor**, at::Tensor&, const at::Tensor&, at::Tensor&&, ArrayRef<at::Tensor>, ArrayRef<const long>) {}
void call(void (*)(int, at::Tensor const*), int (&)[3], Kind, std::shared_ptr<at::Tensor>) {}
void none() {}
template <class T, int N> T shape(T, T*) { return T(); }
template long shape<long, -3>(long, long*);
template <class T, unsigned N> void Small<T, N>::grow(unsigned long) const {}
template struct Small<std::string, 6>;
const int value = 1;
int counter = 0;
}
at::Tensor::Tensor(int, const char*) {}
at::Tensor::~Tensor() {}
at::Tensor& at::Tensor::operator=(const at::Tensor&) { return *this; }
bool at::Tensor::operator==(at::Tensor) const { return true; }
"""


def test_names_read_as_binutils_reads_them(site: Site) -> None:
    site.library("names.so", SOURCE)
    exported = abi.symbols(site.directory / "build/names.so").exported
    names = sorted(one for one in exported if "c10" in one or "2at" in one)
    answer = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    # the type of a template's result is left out here
    expected = [line.replace("long c10::shape", "c10::shape").replace("void c10::shape", "c10::shape") for line in answer]
    assert len(names) >= 12
    assert [mangling.demangle(one) for one in names] == expected


@pytest.mark.parametrize(
    "symbol", ["", "PyList_New", "_Z", "_ZN", "_ZN3c10", "_ZN9999999c10E", "_Z1fIXsr1TE1vEEvv", "_ZN1aS9_E", "_Z1f" + "P" * 5000]
)
def test_what_is_not_understood_stays_as_it_is(symbol: str) -> None:
    assert mangling.demangle(symbol) == symbol
