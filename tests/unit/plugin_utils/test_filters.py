# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters that compare snapshots and select findings, as playbooks use them."""

from __future__ import annotations

import typing as t

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.specdec.serving.plugins.filter import findings as findings_filter
from ansible_collections.specdec.serving.plugins.filter import parity as parity_filter
from ansible_collections.specdec.serving.plugins.module_utils.findings import COULD_NOT_CHECK, ERROR, OK, WARNING, Finding

from ..module_utils.test_comparisons import snapshot


def seen(*snapshots: dict[str, t.Any]) -> dict[str, t.Any]:
    return {"environments": [{"snapshot": one, "findings": []} for one in snapshots], "findings": []}


def test_results_are_compared_by_engine() -> None:
    filter_ = parity_filter.FilterModule().filters()["parity"]
    other = {**snapshot(torch="2.10.0"), "engine": {"name": "vllm", "version": "0.16.0"}}
    found = filter_(seen(snapshot()), seen(other, snapshot()), "ct200")
    assert {one["id"]: one["verdict"] for one in found}["parity.hosts"] == OK
    assert found[-1]["subject"] == "ct200:/opt/venv against /opt/venv"
    alone = filter_(seen(snapshot()), {"snapshot": seen(other)})
    assert {one["id"]: one["verdict"] for one in alone}["parity.hosts"] == COULD_NOT_CHECK
    gone = filter_(seen(snapshot()), {"snapshot": {"environments": [], "msg": "Failed to connect to the host via ssh"}})
    assert "ssh" in next(one["found"] for one in gone if one["id"] == "parity.hosts")


def test_all_that_is_known_of_a_host_is_one_finding_for_each_root_cause() -> None:
    label = finding("parity.torch-labels", ERROR)
    here = {"path": "/opt/venv", "snapshot": snapshot(), "findings": [label, finding("record.changed", OK)]}
    ours = {"path": "/opt/specdec/environments/e1/venv", "snapshot": snapshot(), "findings": []}
    broken = {"path": "/opt/other", "findings": [finding("environment.complete", ERROR)]}
    seen = {"environments": [here, ours, broken], "findings": []}
    instances = {
        "main": {"environment": "e1", "release": "r1", "findings": [finding("abi.undefined-symbol", ERROR)]},
        "never": {"release": None, "findings": [finding("instance.unknown", COULD_NOT_CHECK)]},
    }
    good = parity_filter.parity(seen, {"pins": {"torch": "2.9.1"}}, "ct200", whole=True, instances=instances)
    assert [(one["id"], one["verdict"]) for one in good] == [
        ("parity.torch-labels", ERROR),
        ("record.changed", OK),
        ("lock.pins", OK),
        ("abi.undefined-symbol", ERROR),
        ("lock.pins", OK),
        ("environment.complete", ERROR),
        ("instance.unknown", COULD_NOT_CHECK),
    ]
    pulled = parity_filter.parity(seen, {"pins": {"torch": "2.12.0"}}, "ct200", whole=True, instances=instances)
    assert [one["id"] for one in pulled if one["verdict"] == ERROR] == ["lock.pins", "lock.pins", "environment.complete"]
    roots = [one["evidence"].partition("from which follows: ")[2] for one in pulled if one["id"] == "lock.pins"]
    assert [one.partition(":")[0] for one in roots] == ["parity.torch-labels", "abi.undefined-symbol"]


@pytest.mark.parametrize(("data", "wanted"), [(None, {}), ({"x": 1}, {}), ({"packages": {}}, {"lokc": ""})])
def test_what_is_no_snapshot_is_said(data: t.Any, wanted: dict[str, t.Any]) -> None:
    with pytest.raises(AnsibleFilterError, match=r"env_snapshot|Give a snapshot"):
        parity_filter.parity(data, wanted)


def finding(id_: str, verdict: str) -> dict[str, str]:
    return Finding(id_, verdict, "it", "it is so", fix="do").as_dict()


def test_findings_are_found_wherever_they_are_and_the_worst_comes_first() -> None:
    filter_ = findings_filter.FilterModule().filters()["findings"]
    one, two, three = finding("record.changed", OK), finding("record.missing", ERROR), finding("recording.x", WARNING)
    results = {"results": [{"findings": [one]}, {"result": {"findings": [two]}}, {"skipped": True}], "changed": False}
    assert filter_([results, three]) == [two, three, one]
    assert filter_(results, ["error"]) == [two]
    assert filter_([results, three], id="record") == [two, one]
    assert filter_([results], format="verdict") == ERROR
    assert filter_([results], ["warning"], format="verdict") == OK
    assert filter_([], format="verdict") == COULD_NOT_CHECK
    assert filter_(two, format="text").startswith("ERROR: it: it is so")


@pytest.mark.parametrize("arguments", [{"verdicts": ["bad"]}, {"format": "html"}])
def test_a_misspelt_argument_is_said(arguments: dict[str, t.Any]) -> None:
    with pytest.raises(AnsibleFilterError, match="none of"):
        findings_filter.findings([], **arguments)
    with pytest.raises(AnsibleFilterError, match="takes findings"):
        findings_filter.findings("text")
