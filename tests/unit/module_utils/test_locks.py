# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Locks: their text and id, and what is refused."""

from __future__ import annotations

import dataclasses
import zipfile

import index
import pytest

from ansible_collections.specdec.serving.plugins.module_utils import locks, stacks
from ansible_collections.specdec.serving.plugins.module_utils.findings import COULD_NOT_CHECK, ERROR, NOT_APPLICABLE, OK, FindingError

PARTS = ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache")

STACK = stacks.Stack(
    engine="sglang",
    version="0.5.9",
    lane="cu128",
    machine="x86_64",
    python="3.12",
    platform="x86_64-manylinux_2_36",
    requirements=("sglang==0.5.9",),
    overrides=(),
    excludes=(),
    builds=(),
    indexes=(),
    torch="2.9.1",
    torch_builds={"2.9.1": "cu128", "2.11.0": "cu130"},
    flashinfer="0.6.3",
    parts=PARTS,
    kernel=("sgl-kernel", "0.3.21"),
    kernels=("sgl-kernel", "sglang-kernel"),
    lacks=(),
    package="sglang",
    label="cu128",
)
GOOD = {
    "sglang": "0.5.9",
    "torch": "2.9.1",
    "flashinfer-python": "0.6.3",
    "flashinfer-cubin": "0.6.3",
    "sgl-kernel": "0.3.21",
    "nvidia-nccl-cu12": "2.27.5",
}


def inputs(**changes):
    exclude_newer = changes.pop("exclude_newer", "")
    changes.setdefault("label", changes.get("lane", STACK.lane))
    return locks.inputs(dataclasses.replace(STACK, **changes), exclude_newer)


def lock_of(versions, wanted=None):
    packages = tuple(locks.Package(name, version, ("0" * 64,)) for name, version in sorted(versions.items()))
    return locks.Lock(packages, locks.identity(wanted or inputs()))


def verdicts(versions, **changes):
    wanted = inputs(**changes)
    return {one.id: one for one in locks.check(lock_of(versions, wanted), wanted)}


def wheel(directory, name, version, tag="py3-none-any"):
    """Write a stand-in wheel."""
    directory.mkdir(parents=True, exist_ok=True)
    filename, content = index.wheel(name, version, tag=tag)
    (directory / filename).write_bytes(content)
    return directory / filename


def finding_of(call, *arguments, **options):
    with pytest.raises(FindingError) as caught:
        call(*arguments, **options)
    return caught.value.finding


class TestText:
    def test_is_read_back_the_same(self):
        lock = dataclasses.replace(lock_of(GOOD), wheels=({"name": "torch", "version": "2.9.1", "filename": "t.whl", "sha256": "0" * 64},))
        assert locks.parse(lock.text()) == lock

    def test_is_what_pip_reads_with_hashes(self):
        lines = lock_of({"a": "1+cpu"}).text().splitlines()
        assert lines[0].startswith("# specdec: {")
        assert lines[1:] == ["a==1+cpu \\", "    --hash=sha256:" + "0" * 64]

    def test_names_and_hashes_are_put_in_order(self):
        header = lock_of({}).text().splitlines()[0]
        text = "B_b==2 --hash=sha256:%s \\\n  --hash=sha256:%s\na==1 \\\n    --hash=sha256:%s\n" % ("f" * 64, "1" * 64, "2" * 64)
        expected = (locks.Package("a", "1", ("2" * 64,)), locks.Package("b-b", "2", ("1" * 64, "f" * 64)))
        lock = locks.Lock(expected, locks.identity(inputs()))
        assert locks.parse(header.replace(lock_of({}).id, lock.id) + "\n" + text) == lock

    @pytest.mark.parametrize("line", ["a>=1 --hash=sha256:" + "0" * 64, "a==1", "--index-url x", "a @ file:///a.whl", "a==1 --hash=md5:00"])
    def test_anything_else_is_no_lock(self, line):
        header = lock_of({}).text().splitlines()[0]
        assert finding_of(locks.parse, header + "\n" + line + "\n").id == "lock.unreadable"

    @pytest.mark.parametrize("header", ["", "# made by hand", "# specdec: {", '# specdec: {"id": "x"}'])
    def test_without_its_first_line_it_is_no_lock(self, header):
        assert finding_of(locks.parse, header + "\na==1 --hash=sha256:%s\n" % ("0" * 64)).id == "lock.unreadable"

    def test_a_change_by_hand_is_named(self):
        text = lock_of(GOOD).text().replace("torch==2.9.1", "torch==2.10.0")
        assert finding_of(locks.parse, text, "x.txt").id == "lock.edited"


class TestIds:
    def test_the_id_is_over_packages_alone(self):
        lock = lock_of(GOOD)
        assert dataclasses.replace(lock, inputs={}, wheels=({"name": "x"},)).id == lock.id
        assert lock_of({**GOOD, "torch": "2.9.2"}).id != lock.id

    def test_the_name_tells_the_stack_and_moves_with_what_decides_the_resolution(self):
        name = locks.file_name(inputs())
        assert name.startswith("sglang-0.5.9-cu128-cp312-x86_64-manylinux_2_36-")
        assert name.endswith(".txt")
        for change in (
            {"overrides": ("a==1",)},
            {"excludes": ("a",)},
            {"requirements": ("a",)},
            {"builds": ("a",)},
            {"exclude_newer": "2026-03-01"},
        ):
            assert locks.file_name(inputs(**change)) != name, change

    def test_the_name_does_not_move_with_addresses_or_expectations(self):
        one = inputs(indexes=(stacks.Index("extra", "https://one.example/simple", ("a",)),))
        other = inputs(indexes=(stacks.Index("extra", "https://u:p@two.example/simple", ("a",)),), torch_builds={}, kernels=())
        assert locks.file_name(one) == locks.file_name(other)
        assert "example" not in dataclasses.replace(lock_of({}), inputs=locks.identity(other)).text()


def test_diff_names_what_moved():
    old, new = lock_of({"a": "1", "b": "1", "c": "1", "d": "1"}), lock_of({"b": "2", "c": "1", "d": "1", "e": "1"})
    new = dataclasses.replace(new, packages=(*new.packages[:1], locks.Package("c", "1", ("1" * 64,)), *new.packages[2:]))
    assert locks.diff(old, new) == {"added": {"e": "1"}, "removed": {"a": "1"}, "changed": {"b": ["1", "2"]}, "rehashed": ["c"]}


class TestCheck:
    def test_a_good_lock(self):
        found = verdicts(GOOD)
        assert {one.verdict for one in found.values()} == {OK}
        assert set(found) == {"lock.pins", "lock.torch", "parity.flashinfer", "parity.kernel", "parity.torch-labels", "parity.cuda-major"}

    def test_another_version_of_the_engine(self):
        one = verdicts({**GOOD, "sglang": "0.5.10"})["lock.pins"]
        assert (one.verdict, one.found, one.expected) == (ERROR, "sglang 0.5.10", "sglang 0.5.9")

    def test_half_of_flashinfer_is_refused_with_the_pin_that_moves_all(self):
        one = verdicts({**GOOD, "flashinfer-python": "0.6.8.post1"}, flashinfer="0.6.8.post1")["parity.flashinfer"]
        assert one.verdict == ERROR
        assert one.fix == 'Pin all its parts at once: specdec_pins: {flashinfer: "0.6.8.post1"}'

    def test_a_jit_cache_that_only_begins_like_the_version_is_refused(self):
        assert verdicts({**GOOD, "flashinfer-jit-cache": "0.6.30+cu128"})["parity.flashinfer"].verdict == ERROR

    def test_both_kernel_packages(self):
        assert verdicts({**GOOD, "sglang-kernel": "0.4.1"})["parity.kernel"].verdict == ERROR

    def test_no_kernel_package(self):
        without = {name: version for name, version in GOOD.items() if name != "sgl-kernel"}
        assert verdicts(without)["parity.kernel"].verdict == ERROR
        assert verdicts(without)["lock.pins"].found == "sgl-kernel missing"

    @pytest.mark.parametrize("version", ["2.9.1+cpu", "2.9.1+cu130", "2.11.0"])
    def test_a_torch_of_another_lane(self, version):
        one = verdicts({**GOOD, "torch": version}, torch=version)["lock.torch"]
        assert one.verdict == ERROR
        assert one.fix.endswith('{torch: "%s+cu128"}' % version.partition("+")[0])

    def test_a_torch_of_unknown_make_is_never_ok(self):
        assert verdicts({**GOOD, "torch": "2.9.9"}, torch="2.9.9")["lock.torch"].verdict == COULD_NOT_CHECK

    def test_cuda_libraries_of_another_lane(self):
        assert verdicts({**GOOD, "nvidia-nccl-cu13": "2.28.9"})["parity.cuda-major"].verdict == ERROR

    def test_a_lane_without_parts_is_not_applicable_only_where_they_are_absent(self):
        cpu = {"lane": "cpu", "lacks": ("flashinfer", "kernel", "cuda"), "torch": "2.9.1+cpu", "flashinfer": None, "kernel": None}
        found = verdicts({"sglang": "0.5.9", "torch": "2.9.1+cpu"}, **cpu)
        absent = {one.id for one in found.values() if one.verdict == NOT_APPLICABLE}
        assert absent == {"parity.flashinfer", "parity.kernel", "parity.cuda-major"}
        assert verdicts({"sglang": "0.5.9", "torch": "2.9.1"}, **{**cpu, "torch": "2.9.1"})["lock.torch"].verdict == ERROR

    def test_a_torch_of_another_version_is_told_once(self):
        found = verdicts({**GOOD, "torch": "2.10.0+cu130"})
        assert found["lock.pins"].subject == "torch"
        assert "lock.torch" not in found


class TestLocalWheels:
    def test_directories_are_searched_in_order_and_only_where_they_exist(self, tmp_path):
        for name in ("configured", "uv", "pip one", "pip"):
            (tmp_path / name).mkdir()
        environ = {
            "UV_FIND_LINKS": "https://wheels.example/x,%s,%s" % (tmp_path / "pip one", tmp_path / "uv"),
            "PIP_FIND_LINKS": "%s %s" % ((tmp_path / "pip").as_uri(), tmp_path / "uv"),
        }
        found = locks.wheel_directories([str(tmp_path / "configured"), str(tmp_path / "absent")], environ)
        assert [path.name for path in found] == ["configured", "pip one", "uv", "pip"]

    @pytest.mark.parametrize(
        ("tag", "fits"),
        [
            ("py3-none-any", True),
            ("cp312-cp312-manylinux_2_28_x86_64", True),
            ("cp310-abi3-manylinux2014_x86_64", True),
            ("cp311-cp311-manylinux_2_28_x86_64", False),
            ("cp313-abi3-manylinux_2_28_x86_64", False),
            ("cp312-cp312-manylinux_2_28_aarch64", False),
        ],
    )
    def test_a_wheel_has_to_fit_python_and_machine(self, tmp_path, tag, fits):
        path = wheel(tmp_path, "a-b", "1.0+cpu", tag=tag)
        (tmp_path / "not-a-wheel.whl").touch()
        assert locks.local_wheel([tmp_path], "a-b", "1.0+cpu", "3.12", "x86_64") == (path if fits else None)
        assert locks.local_wheel([tmp_path], "a-b", "1.0", "3.12", "x86_64") is None

    def test_a_wheel_that_is_gone_or_built_anew_is_named(self, tmp_path):
        path = wheel(tmp_path, "a", "1")
        record = {"name": "a", "version": "1", "filename": path.name, "sha256": "1" * 64}
        lock = dataclasses.replace(lock_of({"a": "1"}), wheels=(record, {**record, "filename": "b.whl"}))
        places, found = locks.locate(lock, [tmp_path])
        assert places == {}
        assert [one.id for one in found] == ["lock.local-wheel"] * 2
        assert "built anew" in found[0].message

    @pytest.mark.parametrize(("damage", "why"), [("cut", "not a zip file"), ("empty", "not a zip file"), ("other", "no METADATA")])
    def test_a_wheel_that_is_cut_off_is_named_before_anything_is_resolved(self, tmp_path, damage, why):
        path = wheel(tmp_path, "sgl-kernel", "0.3.21")
        if damage == "other":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("sgl_kernel/__init__.py", "")
        else:
            path.write_bytes(path.read_bytes()[:-40] if damage == "cut" else b"")
        before = path.read_bytes()
        asked = []
        wanted = inputs(overrides=("sgl-kernel==0.3.21",))
        finding = finding_of(locks.lock, wanted, lambda *argv, **_options: asked.append(argv), "uv", [tmp_path])
        assert (finding.id, finding.subject, finding.message) == ("lock.local-wheel", path.name, "a local wheel is cut off or damaged")
        assert finding.found == "%s, %d bytes" % (path, len(before))
        assert why in finding.evidence and "Copy or build the wheel again" in finding.fix
        assert asked == [] and path.read_bytes() == before
