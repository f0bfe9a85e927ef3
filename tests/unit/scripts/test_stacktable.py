# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of stacks against an index: what is equal, what drifted, what cannot be reached; and a release more."""

from __future__ import annotations

import contextlib
import io
import typing as t
import zipfile

import index as double
import pytest
import stacktable
import yaml
from packageindex import Index, Unreachable

LINUX = tuple("manylinux_2_%s_%s" % (glibc, machine) for machine in ("x86_64", "aarch64") for glibc in ("28",))

TABLE = """\
---
# The machines.
machines: [x86_64, aarch64]
newest_cubin: "0.6.3" # read by hand
torch:
  # built for
  "2.9.1": {x86_64: cu128, aarch64: cpu}
lanes:
  cpu:
    lacks: [flashinfer, kernel, cuda]
    indexes:
      - {name: torch-cpu, url: "%(extra)s", packages: [torch]}
  cu128:
    indexes: []
  cu130:
    indexes:
      - {name: kernel, url: "%(extra)s", packages: [sgl-kernel]}
engines:
  sglang:
    kernels: [sgl-kernel, sglang-kernel]
    algorithms_in: {file: sglang/spec_info.py, class: SpeculativeAlgorithm, aliases: [NEXTN]}
    since:
      "0.5.9":
        # the first
        python: ">=3.10"
        glibc: "2.28"
        lanes: [cu128, cpu]
        native: cu128
        kernel_name: sgl-kernel
        cubin: true
        algorithms: [EAGLE, NEXTN]
      "0.5.20":
        python: ">=3.12"
    # what the lane cpu leaves out
    cpu:
      excludes: [torchaudio]
    releases:
      "0.5.9": {torch: "2.9.1", flashinfer: "0.6.3", kernel: "0.3.21", source: metadata, read: "2026-11-30"}
      "0.5.20": {torch: "2.9.1", flashinfer: "0.6.3", kernel: "0.3.21", source: metadata, read: "2026-11-30"}
"""

ENUM = b"class SpeculativeAlgorithm(Enum):\n    NONE = 0\n%s\n"


class Upstream(double.Index):
    """An index that may keep the metadata of its wheels inside them."""

    beside = True

    def page(self, name: str, as_json: bool) -> bytes:
        text = super().page(name, as_json)
        return text if self.beside else text.replace(b"core-metadata", b"x-metadata")

    def release(
        self, version: str, requires: t.Sequence[str], python: str = ">=3.10", tags: t.Sequence[str] = ("py3-none-any",), known: bytes = b""
    ) -> None:
        """A release of the engine."""
        files = {"sglang/spec_info.py": ENUM % (b"    EAGLE = 1\n" + known)}
        for tag in tags:
            name, content = double.wheel("sglang", version, requires, files, tag)
            self.put("sglang", name, requiring(content, python))

    def compiled(self, name: str, version: str, requires: t.Sequence[str] = (), machines: t.Sequence[str] = LINUX) -> None:
        """A package of which there is a wheel a machine."""
        for machine in machines:
            self.add(name, version, requires, tag="cp312-cp312-" + machine)


def requiring(content: bytes, python: str) -> bytes:
    """A wheel whose metadata says which Python it requires."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            head, _newline, rest = data.partition(b"\n")
            new.writestr(name, head + b"\nRequires-Python: " + python.encode() + b"\n" + rest if name.endswith("METADATA") else data)
    return made.getvalue()


OLD = ["torch==2.9.1", "flashinfer_python==0.6.3", "flashinfer_cubin==0.6.3", "sgl-kernel==0.3.21"]
CUDA12 = ['nvidia-cuda-runtime-cu12==12.8.90; platform_system == "Linux" and platform_machine == "x86_64"']
CUDA13 = ['cuda-toolkit[cudart]==13.0.2; platform_system == "Linux"']


@pytest.fixture
def upstream() -> t.Iterator[Upstream]:
    with contextlib.closing(Upstream()) as made:
        made.release("0.5.9", OLD)
        made.release("0.5.20", OLD, ">=3.12")
        made.compiled("torch", "2.9.1", CUDA12)
        made.compiled("sgl-kernel", "0.3.21")
        for name in ("flashinfer-python", "flashinfer-cubin"):
            made.add(name, "0.6.3")
        made.add("flashinfer-cubin", "0.6.4rc1")
        yield made


@pytest.fixture
def extra() -> t.Iterator[Upstream]:
    with contextlib.closing(Upstream()) as made:
        made.add("torch", "2.9.1+cpu")
        made.add("sgl-kernel", "0.3.21+cu130")
        yield made


def lines(upstream: Upstream, extra: Upstream, text: str = TABLE) -> dict[str, tuple[str, str]]:
    tables = yaml.safe_load(text % {"extra": extra.url})
    return {line.row: (line.verdict, line.words) for line in stacktable.check(Index(upstream.url), tables)}


@pytest.mark.parametrize("beside", [True, False], ids=["metadata beside the wheels", "metadata inside the wheels"])
def test_a_table_that_is_true(upstream: Upstream, extra: Upstream, beside: bool) -> None:
    upstream.beside = beside
    assert lines(upstream, extra) == dict.fromkeys(
        [
            "sglang 0.5.9",
            "sglang 0.5.20",
            "torch 2.9.1",
            "newest_cubin",
            "lane cpu, torch-cpu: torch",
            "lane cu130, kernel: sgl-kernel",
        ],
        ("equal", ""),
    )


@pytest.mark.parametrize(
    ("old", "new", "row", "words"),
    [
        ('kernel: "0.3.21", source', 'kernel: "0.3.20", source', "sglang 0.5.9", 'kernel: the table says "0.3.20", the index "0.3.21"'),
        ("cubin: true", "cubin: false", "sglang 0.5.9", "cubin: the table says nothing, the index true"),
        ('python: ">=3.10"', 'python: ">=3.11"', "sglang 0.5.9", 'python: the table says ">=3.11", the index ">=3.10"'),
        ('glibc: "2.28"', 'glibc: "2.17"', "sglang 0.5.9", 'glibc: the table says "2.17", the index "2.28"'),
        ("[EAGLE, NEXTN]", "[EAGLE]", "sglang 0.5.20", "algorithms: the table says [EAGLE], the index [EAGLE, NEXTN]"),
        ("aarch64: cpu}", "aarch64: cu128}", "torch 2.9.1", "the index {x86_64: cu128, aarch64: cpu}"),
        ('newest_cubin: "0.6.3"', 'newest_cubin: "0.6.2"', "newest_cubin", "the table says 0.6.2, the index 0.6.3"),
    ],
)
def test_drift_is_named_with_both_sides(upstream: Upstream, extra: Upstream, old: str, new: str, row: str, words: str) -> None:
    assert TABLE.count(old) >= 1
    verdict, said = lines(upstream, extra, TABLE.replace(old, new, 1))[row]
    assert verdict == "drift" and words in said


def test_a_release_that_was_withdrawn_is_drift(upstream: Upstream, extra: Upstream) -> None:
    upstream.packages["sglang"] = upstream.packages["sglang"][:1]
    assert lines(upstream, extra)["sglang 0.5.20"] == ("drift", "the index holds no wheel of sglang 0.5.20")


def test_an_index_that_lacks_a_version_of_its_lane_is_drift(upstream: Upstream, extra: Upstream) -> None:
    extra.packages["torch"] = []
    extra.add("torch", "2.9.0+cpu")
    assert lines(upstream, extra)["lane cpu, torch-cpu: torch"] == ("drift", "holds no 2.9.1+cpu")


def test_what_cannot_be_reached_is_neither(upstream: Upstream, extra: Upstream) -> None:
    extra.close()
    said = lines(upstream, extra)
    assert said["sglang 0.5.9"][0] == "equal"
    assert said["lane cpu, torch-cpu: torch"][0] == "not reachable"
    upstream.fault = "garbage"
    verdict, words = lines(upstream, extra)["sglang 0.5.9"]
    assert verdict == "not reachable" and "this is no page of an index" in words


def test_credentials_of_an_index_are_shown_to_it_and_to_nobody(upstream: Upstream) -> None:
    with contextlib.closing(Upstream(login="reader:s3cret")) as private:
        private.release("0.5.9", OLD)
        address = private.url.replace("://", "://reader:s3cret@")
        (wheel,) = Index(address).wheels("sglang")
        assert Index(address).metadata(wheel)["Requires-Python"] == ">=3.10"
        with pytest.raises(Unreachable) as refused:
            Index(address.replace("s3cret", "s3cre")).wheels("sglang")
        assert "s3cre" not in str(refused.value) and "401" in str(refused.value) + repr(refused.value.__cause__)


# A release more


def added(upstream: Upstream, version: str, text: str = TABLE) -> str:
    return stacktable.add(Index(upstream.url), text % {"extra": "https://extra.example"}, "sglang", version, "2026-12-01")


def test_a_release_like_the_one_before_is_one_line(upstream: Upstream) -> None:
    upstream.release("0.5.10", OLD)
    before = (TABLE % {"extra": "https://extra.example"}).splitlines()
    after = added(upstream, "0.5.10").splitlines()
    row = '      "0.5.10": {torch: "2.9.1", flashinfer: "0.6.3", kernel: "0.3.21", source: metadata, read: "2026-12-01"}'
    at = next(number for number, line in enumerate(before) if line.startswith('      "0.5.9": {'))
    assert after == [*before[: at + 1], row, *before[at + 1 :]]


def test_what_a_release_changes_holds_since_it_and_the_next_one_keeps_what_it_had(upstream: Upstream, extra: Upstream) -> None:
    requires = ["torch==2.11.0", "flashinfer_python[cu13]==0.6.3", "sglang-kernel==0.4.2"]
    tags = ["cp312-cp312-manylinux_2_34_%s" % machine for machine in ("x86_64", "aarch64")]
    upstream.release("0.5.11", requires, ">=3.11", tags, b"    DFLASH = 2\n")
    upstream.compiled("torch", "2.11.0", CUDA13)
    upstream.compiled("sglang-kernel", "0.4.2")
    text = added(upstream, "0.5.11", TABLE)
    tables = yaml.safe_load(text)
    assert tables["torch"]["2.11.0"] == {"x86_64": "cu130", "aarch64": "cu130"}
    assert list(tables["engines"]["sglang"]["since"]) == ["0.5.9", "0.5.11", "0.5.20"]
    assert tables["engines"]["sglang"]["since"]["0.5.11"] == {
        "python": ">=3.11",
        "wheels": ["3.12"],
        "glibc": "2.34",
        "lanes": ["cu130", "cpu"],
        "native": "cu130",
        "kernel_name": "sglang-kernel",
        "cubin": False,
        "algorithms": ["DFLASH", "EAGLE", "NEXTN"],
        "extras": {"flashinfer-python": "cu13"},
    }
    assert [line for line in (TABLE % {"extra": "https://extra.example"}).splitlines() if line not in text.splitlines()] == []
    for version in ("0.5.9", "0.5.11", "0.5.20"):
        row = stacktable.stacks.release(tables, "sglang", version)
        assert stacktable.differences(row, stacktable.published(Index(upstream.url), tables, "sglang", version)) == []


@pytest.mark.parametrize(
    ("engine", "version", "words"),
    [
        ("sglang", "0.5.9", "the table has sglang 0.5.9 already"),
        ("sglang", "0.5.99", "the index holds no wheel of sglang 0.5.99"),
        ("sglang", "latest", "latest is no version"),
        ("sgl", "0.5.9", "there is no engine sgl; known are sglang"),
    ],
)
def test_what_cannot_be_added(upstream: Upstream, engine: str, version: str, words: str) -> None:
    with pytest.raises(stacktable.Refused, match=words):
        stacktable.add(Index(upstream.url), TABLE, engine, version, "2026-12-01")
