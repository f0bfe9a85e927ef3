# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a model is spread over GPUs, and the ports of an instance."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.specdec.serving.plugins.module_utils import architectures, gpufindings, placements
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, WARNING, Finding

TABLE: dict[str, t.Any] = yaml.safe_load((Path(architectures.__file__).parent / "data" / "architectures.yml").read_text())


def host(count: int = 8, sockets: int = 2) -> dict[str, t.Any]:
    """GPUs that are shared out evenly over sockets."""
    each = count // sockets
    paths = [[None if one == two else "NODE" if one // each == two // each else "SYS" for two in range(count)] for one in range(count)]
    devices = [{"index": number, "uuid": "GPU-%d" % number, "mig": None} for number in range(count)]
    return {"devices": devices, "topology": {"paths": paths, "p2p": None}}


def spread(config: dict[str, t.Any], gpus: t.Any = "all", engine: str = "sglang") -> list[Finding]:
    return placements.spread(architectures.degrees(TABLE, engine, config), gpufindings.used(host(), gpus), "ct200: tensor_parallel")


def test_as_many_gpus_as_the_model_is_spread_over() -> None:
    assert spread({"tp-size": 8}) == spread({"tp-size": 2, "dp-size": 2}, [0, 1, 2, 3]) == spread({"tp-size": 8}, "none") == []


def test_more_gpus_than_there_are_is_refused() -> None:
    [one] = spread({"tp-size": 4, "dp-size": 2}, [0, 1, 2, 3])
    assert (one.id, one.verdict, one.found) == ("parallel.gpus", ERROR, "8 GPUs (tensor 4 x data 2)")
    assert "4 at most" in one.fix


def test_gpus_without_work_are_told() -> None:
    [one] = spread({})
    assert (one.id, one.verdict, one.found) == ("parallel.idle", WARNING, "1 of 8 used (tensor 1)")


def divides(config: dict[str, t.Any], model: dict[str, t.Any], draft: t.Optional[dict[str, t.Any]] = None) -> list[Finding]:
    known = {"model": {"config": model}, **({"draft": {"config": draft}} if draft else {})}
    return placements.divides(known, architectures.degrees(TABLE, "sglang", config), lambda option: "ct200: main." + option)


@pytest.mark.parametrize(
    ("config", "model"),
    [
        ({"tp-size": 8}, {"num_attention_heads": 32, "num_key_value_heads": 8}),
        # heads of keys and values are repeated where there are fewer than GPUs
        ({"tp-size": 8}, {"num_attention_heads": 32, "num_key_value_heads": 2}),
        ({"tp-size": 8, "dp-size": 8, "enable-dp-attention": True}, {"num_attention_heads": 3}),
        ({"tp-size": 8, "ep-size": 8}, {"num_attention_heads": 64, "num_experts": 128}),
        ({"tp-size": 8}, {}),
    ],
)
def test_what_can_be_shared_out(config: dict[str, t.Any], model: dict[str, t.Any]) -> None:
    assert divides(config, model) == []


@pytest.mark.parametrize(
    ("config", "model", "found", "subject"),
    [
        ({"tp-size": 8}, {"num_attention_heads": 28}, "28 attention heads over 8 GPUs", "tensor_parallel"),
        ({"tp-size": 4}, {"num_attention_heads": 32, "num_key_value_heads": 6}, "6 key and value heads over 4 GPUs", "tensor_parallel"),
        ({"tp-size": 8, "ep-size": 8}, {"text_config": {"num_experts": 60}}, "60 experts over 8 GPUs", "expert_parallel"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(config: t.Any, model: t.Any, found: str, subject: str) -> None:
    [one] = divides(config, model)
    assert (one.id, one.verdict, one.found, one.subject) == ("parallel.heads", ERROR, found, "ct200: main." + subject)


def test_the_heads_of_the_draft_count_and_what_fits_is_named() -> None:
    [one] = divides({"tp-size": 8}, {"num_attention_heads": 32}, {"num_attention_heads": 12})
    assert "of the draft" in one.message and one.fix == "use one of: 1, 2, 3, 4, 6, 12"


def test_attention_that_cannot_be_data_parallel_is_refused() -> None:
    assert [one.id for one in divides({"tp-size": 8, "attn-dp-size": 3}, {})] == ["parallel.attention"]


def near(gpus: t.Any, taken: t.Container[str] = (), sockets: int = 2) -> list[Finding]:
    facts = host(sockets=sockets)
    return placements.near(facts, gpufindings.used(facts, gpus), len(gpus), taken, "ct200: gpus")


def test_gpus_of_several_sockets_where_one_would_do() -> None:
    [one] = near([0, 4])
    assert (one.id, one.verdict, one.fix) == ("parallel.numa", WARNING, "set gpus: [0, 1]")
    [one] = near([0, 4], {"GPU-1", "GPU-2", "GPU-3"})
    assert one.fix == "set gpus: [4, 5]"


def test_where_there_is_no_nearer_set_nothing_is_said() -> None:
    assert near([0, 1, 2, 3]) == near(list(range(8))) == near([0, 1, 2, 3, 4, 5]) == near([0, 4], sockets=1) == []
    assert near([3, 4], {"GPU-%d" % number for number in (0, 1, 2, 5, 6, 7)}) == []


def ports(port: int = 30000, engine: str = "sglang", **config: t.Any) -> dict[int, str]:
    return placements.ports(TABLE["ports"][engine], port, {name.replace("_", "-"): value for name, value in config.items()})


def test_the_ports_that_an_instance_takes() -> None:
    assert ports() == {30000: "port"}
    assert sorted(ports(enable_dp_attention=True)) == [30000, *range(30233, 30239)]
    assert sorted(ports(enable_dp_attention=True, dist_init_addr="10.0.0.1:5000")) == [30000]
    assert ports(nccl_port=29500) == {30000: "port", 29500: "nccl-port"}
    assert ports(disaggregation_mode="prefill")[8998] == "disaggregation-bootstrap-port"
    assert sorted(ports(disaggregation_mode="prefill", disaggregation_bootstrap_port=9000)) == [9000, 30000]
    assert sorted(ports(8000, "vllm", data_parallel_rpc_port=29550)) == [8000, 29550]


def clashes(**taken: dict[int, str]) -> list[Finding]:
    return placements.clashes(taken, lambda name: "ct200: %s.port" % name)


def test_a_derived_port_that_another_instance_takes_is_refused() -> None:
    [one] = clashes(one=ports(enable_dp_attention=True), two=ports(30235))
    assert (one.id, one.verdict, one.subject) == ("port.twice", ERROR, "ct200: two.port")
    assert one.found == "30235: port of two, data-parallel attention of one"
    assert clashes(one=ports(enable_dp_attention=True), two=ports(30001, enable_dp_attention=True)) != []
    assert clashes(one=ports(enable_dp_attention=True), two=ports(31000, enable_dp_attention=True)) == []


def test_a_derived_port_that_there_is_not_is_refused() -> None:
    [one] = clashes(one=ports(65400, enable_dp_attention=True))
    assert (one.id, one.found, one.fix) == ("port.range", "65638 (data-parallel attention)", "use a port of 65297 or less")
