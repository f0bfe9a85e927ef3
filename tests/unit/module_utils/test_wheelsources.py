# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pins that name where their package comes from: their form, what is at hand, what is to be made, what is refused."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.specdec.serving.plugins.module_utils import plans, schema, stacks, wheelsources
from ansible_collections.specdec.serving.plugins.module_utils.findings import Finding

TABLES = yaml.safe_load((Path(plans.__file__).parent / "data" / "stacks.yml").read_text())
FACTS = {
    "os": {"machine": "x86_64", "glibc": "2.36"},
    "gpus": {"source": "nvml", "driver": "580.95.05", "devices": [{"compute_capability": "12.0"}]},
    "pythons": [{"version": "3.12.3", "implementation": "cpython", "headers": True}],
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
WHEEL = "flashinfer_jit_cache-0.6.5+cu130-cp39-abi3-manylinux_2_28_x86_64.whl"
URL = {"url": "https://host.example/" + WHEEL.replace("+", "%2B"), "sha256": "a" * 64}
GIT = {"git": "https://git.example/x.git", "commit": COMMIT, "build_host": "ct201", "environment": {"TORCH_CUDA_ARCH_LIST": "12.0"}}
INDEX = {"version": "1.2", "index": "https://wheels.example/simple"}


def settings(**pins: t.Any) -> list[Finding]:
    """What is wrong with these pins; ``_`` in a name stands for ``-``."""
    whole = {name: {} if option.kind is dict else [] if option.kind is list else "/x" for name, option in schema.SETTINGS.items()}
    whole["pins"] = {name.replace("_", "-"): pin for name, pin in pins.items()}
    return schema.check_settings("ct200", whole, ["ct129", "ct200", "ct201"])


def stack(lane: str = "cu130", version: str = "0.5.23") -> stacks.Stack:
    found, wrong = stacks.resolve(TABLES, FACTS, {"name": "sglang", "version": version, "lane": lane})
    assert found, [one.text() for one in wrong]
    return found


class Pins:
    """Built wheels in memory, their files in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.built: dict[str, dict[str, t.Any]] = {}

    def wheel(self, key: str) -> t.Optional[dict[str, t.Any]]:
        return self.built.get(key)

    def wheel_file(self, record: t.Mapping[str, t.Any]) -> Path:
        return self.directory / record["filename"]

    def keep(self, source: t.Mapping[str, t.Any], glibc: str = "2.36") -> Path:
        record = {"filename": "sgl_kernel-0.4-cp312-cp312-linux_x86_64.whl", "sha256": "b" * 64, "glibc": glibc, "built_on": "ct201"}
        self.built[wheelsources.build_key(source, "3.12", "x86_64")] = record
        self.wheel_file(record).touch()
        return self.wheel_file(record)


def find(tmp_path: Path, pins: t.Optional[Pins] = None, update: bool = False, **sources: t.Mapping[str, t.Any]) -> t.Any:
    named = {name.replace("_", "-"): source for name, source in sources.items()}
    return wheelsources.find(named, stack(), pins or Pins(tmp_path), "ct200", "2.36", tmp_path / "cache", update)


class TestForm:
    def test_every_source_is_fine(self) -> None:
        assert settings(a="1.2", b=">=1", c=3, d=INDEX, e=URL, f={**GIT, "subdirectory": "sgl-kernel"}) == []
        for place in ("http://127.0.0.1:8080/x.whl", "http://localhost/x.whl", "file:///srv/x.whl"):
            assert settings(a={"url": place, "sha256": "a" * 64}) == []
        for place in ("git@git.example:x/y.git", "ssh://git@git.example/x", "file:///srv/x"):
            assert settings(a={**GIT, "git": place}) == []

    @pytest.mark.parametrize(
        ("pin", "where", "message"),
        [
            ({"url": URL["url"]}, ".sha256", "is not set"),
            ({**URL, "sha256": "A" * 64}, ".sha256", "is not a sha256 of 64 hexadecimal digits"),
            (
                {**URL, "url": "http://host.example/x.whl"},
                ".url",
                "is not an https address without credentials (or one of this machine alone)",
            ),
            (
                {**URL, "url": "https://u:secret@host.example/x.whl"},
                ".url",
                "is not an https address without credentials (or one of this machine alone)",
            ),
            (
                {**INDEX, "index": "https://u:p@wheels.example/x"},
                ".index",
                "is not an https address without credentials (or one of this machine alone)",
            ),
            ({"index": INDEX["index"]}, ".version", "is not set"),
            ({**GIT, "commit": "main"}, ".commit", "is not a commit of 40 hexadecimal digits"),
            ({**GIT, "commit": COMMIT[:12]}, ".commit", "is not a commit of 40 hexadecimal digits"),
            ({"git": GIT["git"], "build_host": "ct201"}, ".commit", "is not set"),
            ({"git": GIT["git"], "commit": COMMIT}, ".build_host", "is not set"),
            ({**GIT, "git": "https://u:p@git.example/x"}, ".git", "is not the address of a repository, without a password"),
            ({**GIT, "build_host": "ct299"}, ".build_host", "is no host of the inventory"),
            ({**GIT, "subdirectory": "../x"}, ".subdirectory", "is not a path inside the repository"),
            ({**GIT, **URL}, "", "needs one source"),
            ({"version": "1"}, "", "needs one source"),
            ({**URL, "version": "1"}, ".version", "does not go with url"),
            ({**URL, "sha": "a"}, ".sha", "is no option"),
            (2.1, "", "is not text"),
            ([], "", "is not text or a whole number or a mapping"),
        ],
    )
    def test_what_is_refused_names_the_variable_and_a_way_out(self, pin: t.Any, where: str, message: str) -> None:
        [one] = settings(some_package=pin)
        assert (one.subject, one.message) == ("specdec_pins.some-package%s on ct200" % where, message)
        assert one.fix

    def test_an_unknown_build_host_names_the_nearest(self) -> None:
        [one] = settings(a={**GIT, "build_host": "ct20l"})
        assert one.fix.startswith("write ct20")


def test_pins_are_told_from_sources() -> None:
    versions, sources = wheelsources.split({"torch": "2.9", "Some_Package": INDEX, "b": URL})
    assert versions == {"torch": "2.9", "Some_Package": "1.2"}
    assert sources == {"some-package": INDEX, "b": URL}


def test_nothing_is_built_for_a_lane_or_an_engine_that_does_not_take_it() -> None:
    sources = {"sgl-kernel": GIT, "sglang-kernel": GIT, "flashinfer-jit-cache": URL, "other": URL}
    assert set(wheelsources.needed(sources, stack(), TABLES)) == {"sglang-kernel", "flashinfer-jit-cache", "other"}
    assert set(wheelsources.needed(sources, stack(version="0.5.9"), TABLES)) == {"sgl-kernel", "flashinfer-jit-cache", "other"}
    assert set(wheelsources.needed(sources, stack("cpu"), TABLES)) == {"other"}
    vllm, _found = stacks.resolve(TABLES, FACTS, {"name": "vllm"})
    assert vllm
    assert set(wheelsources.needed(sources, vllm, TABLES)) == {"flashinfer-jit-cache", "other"}


def test_the_key_of_a_build_is_over_what_decides_it() -> None:
    key = wheelsources.build_key(GIT, "3.12", "x86_64")
    assert wheelsources.build_key({**GIT, "build_host": "ct200"}, "3.12", "x86_64") == key
    for change in ({"commit": "1" * 40}, {"environment": {"TORCH_CUDA_ARCH_LIST": "10.0"}}, {"subdirectory": "x"}):
        assert wheelsources.build_key({**GIT, **change}, "3.12", "x86_64") != key
    assert wheelsources.build_key(GIT, "3.13", "x86_64") != key
    assert wheelsources.build_key(GIT, "3.12", "aarch64") != key


def fetch(tmp_path: Path, pins: t.Optional[Pins] = None, **sources: t.Mapping[str, t.Any]) -> t.Any:
    given, _missing, _refused = find(tmp_path, pins, **sources)
    named = {name.replace("_", "-"): source for name, source in sources.items()}
    return wheelsources.fetch(named, stack(), given.values(), "ct200")


class TestFind:
    def test_what_was_not_built_is_to_be_built_before_anything_else_is_known(self, tmp_path: Path) -> None:
        given, missing, found = find(tmp_path, sglang_kernel=GIT, other=INDEX)
        assert (given, found) == ({}, [])
        assert [(one["kind"], one["package"], one["python"], one["machine"]) for one in missing] == [
            ("wheel", "sglang-kernel", "3.12", "x86_64"),
        ]
        assert missing[0]["name"] == "the wheel of sglang-kernel: https://git.example/x.git at 0123456789ab, built on ct201"

    def test_a_wheel_by_address_is_known_before_it_is_fetched(self, tmp_path: Path) -> None:
        given, missing, found = find(tmp_path, flashinfer_jit_cache=URL)
        assert (missing, found) == ([], [])
        one = given["flashinfer-jit-cache"]
        place = tmp_path / "cache" / "wheels" / ("a" * 64) / WHEEL
        assert (one.version, one.sha256, one.place) == ("0.6.5+cu130", "a" * 64, place)
        missing, gone = fetch(tmp_path, flashinfer_jit_cache=URL)
        assert ([(one["package"], one["source"]) for one in missing], gone) == ([("flashinfer-jit-cache", URL)], [])
        place.parent.mkdir(parents=True)
        place.touch()
        assert fetch(tmp_path, flashinfer_jit_cache=URL) == ([], [])

    def test_what_was_built_is_given_and_built_anew_when_told(self, tmp_path: Path) -> None:
        pins = Pins(tmp_path)
        built = pins.keep(GIT)
        given, missing, found = find(tmp_path, pins, sgl_kernel=GIT)
        assert (missing, found) == ([], [])
        assert [(one.version, one.sha256, one.place) for one in given.values()] == [("0.4", "b" * 64, built)]
        assert fetch(tmp_path, pins, sgl_kernel=GIT) == ([], [])
        again, missing, _found = find(tmp_path, pins, update=True, flashinfer_jit_cache=URL, sgl_kernel=GIT)
        assert set(again) == {"flashinfer-jit-cache"}, "an address gives the same file however often it is asked"
        assert [one["replace"] for one in missing] == [True]

    @pytest.mark.parametrize(
        ("filename", "name", "message"),
        [
            (WHEEL.replace("x86_64", "aarch64"), "wheel.platform", "this wheel is for another Python or platform"),
            (WHEEL.replace("cp39-abi3", "cp311-cp311"), "wheel.platform", "this wheel is for another Python or platform"),
            (WHEEL.replace("2_28", "2_39"), "wheel.platform", "this wheel is for another Python or platform"),
            ("torch-2.9.1-py3-none-any.whl", "wheel.name", "this is the wheel of another package"),
            ("flashinfer-0.6.5.tar.gz", "wheel.name", "this is no wheel"),
        ],
    )
    def test_a_wheel_that_does_not_fit_is_refused_before_it_is_fetched(
        self, tmp_path: Path, filename: str, name: str, message: str
    ) -> None:
        source = {**URL, "url": "https://host.example/" + filename}
        given, missing, [one] = find(tmp_path, flashinfer_jit_cache=source)
        assert (given, missing) == ({}, [])
        assert (one.id, one.subject, one.message, one.found) == (name, "ct200: specdec_pins.flashinfer-jit-cache.url", message, filename)

    def test_a_build_host_with_a_newer_glibc(self, tmp_path: Path) -> None:
        pins = Pins(tmp_path)
        pins.keep(GIT, glibc="2.39")
        _given, _missing, [one] = find(tmp_path, pins, sgl_kernel=GIT)
        assert (one.id, one.found) == ("wheel.glibc", "glibc 2.36, ct201 has 2.39")
        pins.keep(GIT, glibc="")
        assert find(tmp_path, pins, sgl_kernel=GIT)[2] == []

    def test_a_built_wheel_that_is_gone(self, tmp_path: Path) -> None:
        pins = Pins(tmp_path)
        pins.keep(GIT).unlink()
        missing, [one] = fetch(tmp_path, pins, sgl_kernel=GIT)
        assert (missing, one.id, one.subject) == ([], "wheel.gone", "ct200: specdec_pins.sgl-kernel")
        assert "specdec_pins_update: [wheel]" in one.fix


def test_a_stack_takes_packages_from_their_own_places(tmp_path: Path) -> None:
    wheel = wheelsources.Given("b", "1", "b-1-py3-none-any.whl", "a" * 64, tmp_path)
    made = wheelsources.applied(stack(), {"a": INDEX, "b": URL}, {"b": wheel})
    assert made.sources == {"a": {"index": INDEX["index"]}, "b": {"filename": "b-1-py3-none-any.whl", "sha256": "a" * 64}}
    assert [index.packages for index in made.indexes if index.url == INDEX["index"]] == [("a",)]
