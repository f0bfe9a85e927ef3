# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A snapshot against pins, a lock, and another host's."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import comparisons
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, NOT_APPLICABLE, OK, WARNING, FindingError

PACKAGES = {
    "sglang": "0.5.9",
    "torch": "2.9.1+cu130",
    "flashinfer-python": "0.6.3",
    "flashinfer-cubin": "0.6.3",
    "sgl-kernel": "0.3.21+cu130",
    "nvidia-nccl-cu13": "2.28",
    "requests": "2.32",
}


def snapshot(gpus: t.Sequence[str] = ("B200",), edits: t.Any = (), **packages: t.Any) -> dict[str, t.Any]:
    changed = {name.replace("_", "-"): version for name, version in packages.items()}
    installed = {name: version for name, version in {**PACKAGES, **changed}.items() if version}
    return {
        "path": "/opt/venv",
        "engine": {"name": "sglang", "version": "0.5.9"},
        "python": {"version": "3.12.3"},
        "kernels": ["sgl-kernel", "sglang-kernel"],
        "lacks": [],
        "packages": installed,
        "torch": "cu130",
        "edits": None if edits is None else dict(edits),
        "gpus": list(gpus),
    }


def verdicts(one: t.Mapping[str, t.Any], wanted: t.Mapping[str, t.Any]) -> dict[str, str]:
    return {it.id: it.verdict for it in comparisons.findings(one, wanted)}


#: id → what it is compared with and what it says; for each the good case is that of the unchanged snapshot.
CASES: dict[str, tuple[dict[str, t.Any], dict[str, t.Any], str]] = {
    "lock.pins": (snapshot(), {"pins": {"torch": "2.10.0"}}, ERROR),
    "parity.hosts": (snapshot(), {"snapshot": snapshot(torch="2.10.0+cu130")}, ERROR),
    "parity.packages": (snapshot(), {"snapshot": snapshot(requests="2.31")}, WARNING),
    "parity.source": (snapshot(), {"snapshot": snapshot(edits={"sglang/x.py": "0" * 64})}, ERROR),
    "lock.satisfied": (snapshot(), {"lock": "torch==2.10.0\n"}, ERROR),
    "lock.engine-version": (snapshot(), {"engine": {"name": "sglang", "version": "0.5.10"}}, ERROR),
}


def test_what_is_nothing_to_compare_with_is_told() -> None:
    with pytest.raises(FindingError) as caught:
        comparisons.findings(snapshot(), {"lokc": "", "pins": {}})
    finding = caught.value.finding
    assert (finding.id, finding.verdict, finding.subject) == ("parity.wanted", ERROR, "lokc")
    assert finding.message == "nothing that a snapshot is compared with" and "pins" in finding.fix


@pytest.mark.parametrize("id_", list(CASES))
def test_each_comparison_speaks_up_and_is_silent_otherwise(id_: str) -> None:
    one, wanted, verdict = CASES[id_]
    if id_ == "lock.satisfied":
        wanted = {"lock": lock({**PACKAGES, "torch": "2.10.0"})}
        assert verdicts(one, {"lock": lock(PACKAGES)})[id_] == OK
    assert verdicts(one, wanted)[id_] == verdict
    good = {"pins": {"torch": "2.9.1", "flashinfer": ">=0.6"}, "engine": one["engine"], "snapshot": snapshot()}
    assert set(verdicts(one, good).values()) == {OK}
    assert id_ not in verdicts(one, {})


def lock(packages: t.Mapping[str, str]) -> str:
    from ansible_collections.specdec.serving.plugins.module_utils import locks

    return locks.Lock(tuple(locks.Package(name, version, ("0" * 64,)) for name, version in sorted(packages.items())), {}).text()


def test_another_gpu_may_have_another_lane_and_no_other_version() -> None:
    lane = {"torch": "2.9.1+cu128", "sgl_kernel": "0.3.21+cu128"}
    assert verdicts(snapshot(), {"snapshot": snapshot(("RTX PRO 6000",), **lane)})["parity.hosts"] == OK
    assert verdicts(snapshot(), {"snapshot": snapshot(**lane)})["parity.hosts"] == WARNING
    assert verdicts(snapshot(), {"snapshot": snapshot(("RTX PRO 6000",), sgl_kernel="0.3.20+cu128")})["parity.hosts"] == ERROR


def test_the_kernel_package_is_one_under_both_of_its_names() -> None:
    renamed = snapshot(sgl_kernel=None, sglang_kernel="0.3.21+cu130")
    assert verdicts(snapshot(), {"snapshot": renamed})["parity.hosts"] == OK


def test_a_part_that_a_lane_does_not_have_is_no_difference() -> None:
    without = {**snapshot(flashinfer_python=None, flashinfer_cubin=None), "lacks": ["flashinfer"]}
    assert verdicts(without, {"snapshot": snapshot()})["parity.hosts"] == OK
    assert verdicts({**without, "lacks": []}, {"snapshot": snapshot()})["parity.hosts"] == ERROR


def test_a_source_tree_cannot_be_compared() -> None:
    assert verdicts(snapshot(), {"snapshot": snapshot(edits=None)})["parity.source"] == NOT_APPLICABLE


@pytest.mark.parametrize(
    ("pins", "verdict"),
    [
        ({"flashinfer": "0.6.3"}, OK),
        ({"flashinfer": "0.6.4"}, ERROR),
        ({"quack-kernels": "0.3.2"}, ERROR),
        ({"torch": "2.9.1+cu130"}, OK),
        ({"torch": {"version": "2.9.1", "index": "https://example.invalid"}}, OK),
        ({"sgl_kernel": {"git": "https://example.invalid/x", "commit": "0" * 40}}, OK),
        ({"torch": "not a version"}, ERROR),
    ],
)
def test_pins(pins: dict[str, t.Any], verdict: str) -> None:
    assert verdicts(snapshot(), {"pins": pins})["lock.pins"] == verdict
