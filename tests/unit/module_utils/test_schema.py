# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a user may write, and what is said when it is wrong."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import schema

GOOD: dict[str, t.Any] = {
    "name": "main",
    "engine": {"name": "sglang", "version": "0.5.23", "lane": "cpu"},
    "model": {"path": "/srv/model"},
    "speculative": {"algorithm": "NGRAM", "num_draft_tokens": 5},
    "port": 30000,
}


def check(*wanted: t.Any, defaults: t.Any = None) -> tuple[list[dict[str, t.Any]], list[t.Any]]:
    return schema.instances("ct200", list(wanted), {} if defaults is None else defaults)


def only(*wanted: t.Any, defaults: t.Any = None) -> t.Any:
    merged, findings = check(*wanted, defaults=defaults)
    assert merged == []
    assert len(findings) == 1, [one.text() for one in findings]
    return findings[0]


def test_a_good_instance_has_no_finding_and_its_defaults() -> None:
    merged, findings = check({"name": "main"}, defaults={k: v for k, v in GOOD.items() if k != "name"})
    assert findings == []
    assert merged == [GOOD]


def test_mappings_merge_and_lists_replace() -> None:
    assert schema.merge({"a": {"x": 1, "y": 2}, "l": [1]}, {"a": {"y": 3}, "l": [2]}) == {"a": {"x": 1, "y": 3}, "l": [2]}


@pytest.mark.parametrize(
    ("change", "subject", "expected", "fix"),
    [
        ({"engine": {"name": "sglangg"}}, "specdec_instances[main].engine.name on ct200", "sglang, vllm", "use one of: sglang, vllm"),
        (
            {"port": "30000"},
            "specdec_instances[main].port on ct200",
            "a whole number",
            "give specdec_instances[main].port as a whole number",
        ),
        ({"port": True}, "specdec_instances[main].port on ct200", "a whole number", "give specdec_instances[main].port as a whole number"),
        ({"port": 70000}, "specdec_instances[main].port on ct200", "1 to 65535", "use a value of 1 to 65535"),
        ({"tensor_paralel": 8}, "specdec_instances[main].tensor_paralel on ct200", "tensor_parallel", "write tensor_parallel; known are: "),
        ({"model": {"path": "srv/model"}}, "specdec_instances[main].model.path on ct200", "an absolute path on the host", "give "),
        ({"model": {}}, "specdec_instances[main].model on ct200", "one of repo, path, directory", "set exactly one of"),
        ({"model": {"repo": "org/name"}}, "specdec_instances[main].model.revision on ct200", "a commit", "name the commit to serve"),
        ({"gpus": "GPU-1"}, "specdec_instances[main].gpus on ct200", "all, none, or a list", 'write it as a list: ["GPU-1"]'),
        ({"gpus": [0, "cuda:1"]}, "specdec_instances[main].gpus on ct200", "all, none, or a list", "use nvidia-smi -L"),
        ({"gpus": []}, "specdec_instances[main].gpus on ct200", "all, none, or a list", "use nvidia-smi -L"),
        ({"gpus": [0, "0"]}, "specdec_instances[main].gpus on ct200", "all, none, or a list", "name each once"),
        ({"service": {"memory_max": "64 GB"}}, "specdec_instances[main].service.memory_max on ct200", "a size as systemd", "give "),
        ({"name": "Main"}, "specdec_instances[Main].name on ct200", "lower-case letters", "give "),
        ({"host": "0.0.0.0"}, "specdec_instances[main].api_key on ct200", "16 characters", "set specdec_instances[main].api_key"),
        ({"api_key": "short"}, "specdec_instances[main].api_key on ct200", "16 or more", "use a longer random key"),
        (
            {"overlays": [{"reference": "ct129", "directory": "/patches"}]},
            "specdec_instances[main].overlays[0] on ct200",
            "one of reference, directory",
            "set exactly one of",
        ),
        (
            {"overlays": [{"package": "sglang"}]},
            "specdec_instances[main].overlays[0] on ct200",
            "one of reference, directory",
            "set exactly one of",
        ),
        (
            {"overlays": [{"referenc": "ct129"}]},
            "specdec_instances[main].overlays[0].referenc on ct200",
            "reference",
            "write reference; known are",
        ),
    ],
)
def test_one_thing_wrong_names_variable_host_and_way_out(change: dict[str, t.Any], subject: str, expected: str, fix: str) -> None:
    findings = check({**GOOD, **change})[1]
    finding = next(one for one in findings if one.subject == subject)
    assert finding.verdict == "error"
    assert expected in finding.expected
    assert fix in finding.fix


def test_a_key_is_never_repeated_in_a_message() -> None:
    assert "tiny-secret" not in only({**GOOD, "api_key": "tiny-secret"}).text()


def test_a_hosts_own_defaults_are_over_its_groups_and_below_the_instance() -> None:
    group = {**GOOD, "environment": {"A": "group", "B": "group", "C": "group"}}
    merged, findings = schema.instances(
        "ct200", [{"name": "main", "environment": {"C": "instance"}}], group, {"environment": {"B": "host", "C": "host"}}
    )
    assert findings == []
    assert merged[0]["environment"] == {"A": "group", "B": "host", "C": "instance"}
    merged, findings = schema.instances("ct200", [GOOD], {}, ["x"])
    assert (merged, [one.subject for one in findings]) == ([], ["specdec_host_defaults on ct200"])


def test_what_must_be_there_is_named() -> None:
    without = {k: v for k, v in GOOD.items() if k != "model"}
    finding = only(without)
    assert (finding.id, finding.subject) == ("variable.missing", "specdec_instances[main].model on ct200")


def test_a_list_is_wanted() -> None:
    merged, findings = schema.instances("ct200", {"name": "main"}, {})
    assert merged == []
    assert [(one.id, one.subject) for one in findings] == [("variable.type", "specdec_instances on ct200")]
    assert findings[0].expected == "a list"


def test_two_instances_share_neither_name_nor_port() -> None:
    assert only(GOOD, {**GOOD, "port": 30001}).subject == "specdec_instances[main].name on ct200"
    assert only(GOOD, {**GOOD, "name": "other"}).subject == "specdec_instances[other].port on ct200"


def test_a_misspelt_variable_is_told_the_nearest_name() -> None:
    findings = schema.check_names("ct200", ["specdec_instnaces", "specdec_root", "specdec_demo_state", "other"])
    said = [(one.id, one.subject, one.fix.partition(";")[0]) for one in findings]
    assert said == [("variable.unknown", "specdec_instnaces on ct200", "write specdec_instances")]


def test_secrets_are_taken_out_by_instance() -> None:
    assert schema.secrets([{**GOOD, "api_key": "k" * 20}, {**GOOD, "name": "open"}]) == {"main": {"api_key": "k" * 20}}


@pytest.mark.parametrize(
    ("hub", "subject"),
    [
        ("hf_secretValue", "specdec_hub"),
        ({"token": "hf_secretValue with a blank"}, "specdec_hub.token"),
        ({"token": ["hf_secretValue"]}, "specdec_hub.token"),
        ({"endpoint": "https://me:hf_secretValue@hub.example"}, "specdec_hub.endpoint"),
    ],
    ids=["no mapping", "blank", "list", "credentials"],
)
def test_a_wrong_hub_is_named_without_its_secrets(hub: t.Any, subject: str) -> None:
    plain: dict[t.Any, t.Any] = {str: "/plain", list: [], dict: {}}
    kinds = {name: option.kind[0] if isinstance(option.kind, tuple) else option.kind for name, option in schema.SETTINGS.items()}
    (finding,) = schema.check_settings("ct200", {**{name: plain[kind] for name, kind in kinds.items()}, "hub": hub})
    assert finding.subject == subject + " on ct200" and finding.fix
    assert "hf_secretValue" not in finding.text()


def test_an_api_key_of_another_type_is_not_shown() -> None:
    assert "1234567812345678" not in only({**GOOD, "api_key": 1234567812345678}).text()


@pytest.mark.parametrize("revision", ["../../etc", "a/../../b", "/etc", ".hidden"])
def test_a_revision_cannot_lead_out_of_the_models(revision: str) -> None:
    assert only({**GOOD, "model": {"repo": "org/name", "revision": revision}}).subject == "specdec_instances[main].model.revision on ct200"


KEY = "0123456789abcdefSecret"


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ({"admin_api_key": KEY}, "specdec_instances[main].api_key on ct200"),
        ({"api_key": KEY, "admin_api_key": "short"}, "specdec_instances[main].admin_api_key on ct200"),
        ({"extra_args": {"api_key": KEY}}, "specdec_instances[main].extra_args.api_key on ct200"),
        ({"extra_args": {"admin-api-key": KEY}}, "specdec_instances[main].extra_args.admin-api-key on ct200"),
        ({"environment": {"VLLM_API_KEY": KEY}}, "specdec_instances[main].environment.VLLM_API_KEY on ct200"),
        ({"environment": {"HF_TOKEN": KEY}}, "specdec_instances[main].environment.HF_TOKEN on ct200"),
    ],
)
def test_a_secret_where_it_would_show_is_refused_and_not_shown(change: dict[str, t.Any], subject: str) -> None:
    finding = only({**GOOD, **change})
    assert finding.subject == subject
    assert KEY not in finding.text()


def test_both_keys_are_fine_and_so_are_harmless_names() -> None:
    _merged, findings = check({**GOOD, "api_key": KEY, "admin_api_key": KEY + "2", "environment": {"TOKENIZERS_PARALLELISM": "false"}})
    assert findings == []


@pytest.mark.parametrize("name", ["job", "recover"])
def test_a_name_whose_unit_is_there_already_is_refused(name: str) -> None:
    assert only({**GOOD, "name": name}).id == "variable.value"


def test_each_option_knows_the_variable_that_says_it_last() -> None:
    defaults = {"dtype": "float32", "extra_args": {"a": 1, "b": 1}, "speculative": {"algorithm": "NGRAM"}}
    own = {"name": "main", "extra_args": {"b": 2}}
    found = schema.origins([own], defaults, {"dtype": "bfloat16"})["main"]
    assert found["dtype"] == "specdec_host_defaults"
    assert (found["extra_args.a"], found["extra_args.b"]) == ("specdec_instance_defaults", "instance")
    assert found["speculative.algorithm"] == "specdec_instance_defaults"
    assert schema.origins([own], {}) == {"main": {"name": "instance", "extra_args": "instance", "extra_args.b": "instance"}}
