# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The unit as data: its text, the sandbox it repeats, and what the lint finds."""

from __future__ import annotations

import dataclasses
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import releases, units
from ansible_collections.specdec.serving.plugins.module_utils.units import Unit

RELEASE = {
    **releases._DEFAULTS,
    "instance": "main",
    "environment": "abc",
    "engine": {"name": "sglang", "version": "1"},
    "environment_variables": {
        "HOME": "/opt/specdec/state/main/abc",
        "TRITON_CACHE_DIR": "/opt/specdec/state/main/abc/cache/triton",
        "PATH": "/opt/specdec/environments/abc/venv/bin:/usr/bin",
        "ODD": 'a "b" 100% \\c',
    },
    "secrets": {"api_key": {"option": "api-key", "version": "v1"}},
    "host": "127.0.0.1",
    "start_timeout": 600,
    "stop_timeout": 60,
    "sandbox": "strict",
    "gpus": False,
    "clients": [],
}


def unit(**facts: t.Any) -> Unit:
    return units.service_unit("/opt/specdec", {**RELEASE, **facts})


def changed(original: Unit, drop: t.Sequence[str] = (), add: t.Sequence[tuple[str, str]] = ()) -> Unit:
    """The unit without some directives of any section, and with others in [Service]."""
    sections = []
    for name, pairs in original.sections:
        kept = tuple(pair for pair in pairs if pair[0] not in drop)
        sections.append((name, kept + tuple(add) if name == "Service" else kept))
    return dataclasses.replace(original, sections=tuple(sections))


def verdicts(of: Unit) -> dict[str, str]:
    return {finding.id: finding.verdict for finding in units.lint(of)}


def test_text_and_parse_are_each_other_s_reverse() -> None:
    made = unit()
    assert units.parse(made.name, made.text()) == made
    assert "100%%" in made.text()
    assert made.environment()["ODD"] == 'a "b" 100% \\c'


def test_secret_is_named_by_file_only() -> None:
    assert unit().values("LoadCredential") == ["api_key:/opt/specdec/instances/main/secrets/v1"]


def test_start_limit_outlasts_three_slow_crashes() -> None:
    assert units.seconds(unit(start_timeout=900).value("StartLimitIntervalSec")) > 3 * 900


def test_start_limit_of_a_model_whose_size_is_not_known_is_that_of_a_large_one() -> None:
    assert units.seconds(unit(start_timeout=900, start_timeout_by_size=True).value("StartLimitIntervalSec")) == 4 * 3600


def test_how_it_ends_is_the_engines() -> None:
    made = unit(service={"kill_mode": "mixed", "restart": "always", "success_exit_status": "SIGKILL"})
    assert (made.value("Restart"), made.value("SuccessExitStatus")) == ("always", "SIGKILL")
    assert unit().value("SuccessExitStatus") is None
    assert not any(word.startswith("SuccessExitStatus") for word in made.run_properties())


def test_limits_are_told_and_where_nothing_enforces_them() -> None:
    limited = unit(memory_max="64G")
    assert limited.value("MemoryMax") == "64G"
    assert units.limits(limited, ["memory", "pids"]) == units.limits(limited, None) == "TasksMax=32768, MemoryMax=64G"
    assert units.limits(unit(), ["hugetlb"]) == "TasksMax=32768 (not enforced here: no controller pids)"


def test_parse_reads_a_unit_written_by_hand() -> None:
    read = units.parse("x.service", "# c\n[Service]\nExecStart=/bin/a \\\n   --b\n; c\nEnvironment=A=1 B=2\n")
    assert read.value("ExecStart") == "/bin/a  --b"
    assert read.environment() == {"A": "1", "B": "2"}


def test_run_properties_repeat_the_sandbox_and_leave_the_service_alone() -> None:
    words = unit().run_properties()
    assert words[::2] == ["-p"] * (len(words) // 2)
    properties = words[1::2]
    assert {"User=specdec-main", "PrivateTmp=yes", "CapabilityBoundingSet=", "ReadWritePaths=/opt/specdec/state/main/abc"} <= set(
        properties
    )
    names = {one.partition("=")[0] for one in properties}
    assert not names & {"ExecStart", "RuntimeDirectory", "LoadCredential", "Restart", "Type"}
    assert not names & {"WantedBy", "After", "StartLimitBurst"}


@pytest.mark.parametrize("directive", ["PrivateTmp", "PrivateUsers", "ProtectSystem", "ProtectProc", "ReadWritePaths", "PrivateDevices"])
def test_container_level_needs_no_namespace(directive: str) -> None:
    assert unit().value(directive)
    assert unit(sandbox="container").value(directive) is None
    assert unit(sandbox="container").value("NoNewPrivileges") == "yes"


def test_unknown_sandbox_is_refused() -> None:
    with pytest.raises(ValueError, match="loose"):
        unit(sandbox="loose")


def test_gpus_are_reached_and_nothing_else() -> None:
    with_gpus = unit(gpus=True)
    assert with_gpus.values("DeviceAllow") == ["char-nvidia* rw"]
    assert with_gpus.value("PrivateDevices") == "no" and with_gpus.value("DevicePolicy") == "closed"
    assert with_gpus.value("MemoryDenyWriteExecute") is None
    assert unit().values("DeviceAllow") == [] and unit().value("MemoryDenyWriteExecute") == "yes"


@pytest.mark.parametrize(
    ("host", "clients", "allowed"),
    [
        ("127.0.0.1", [], "localhost"),
        ("::1", ["10.0.0.0/8"], "localhost"),
        ("0.0.0.0", ["10.0.0.0/8"], "localhost 10.0.0.0/8"),
        ("0.0.0.0", [], None),
    ],
)
def test_addresses_follow_the_listener(host: str, clients: list[str], allowed: t.Optional[str]) -> None:
    made = unit(host=host, clients=clients)
    assert made.value("IPAddressAllow") == allowed
    assert made.value("IPAddressDeny") == (allowed and "any")


def test_recovery_runs_before_instances_and_only_when_needed() -> None:
    recover = units.recover_unit("/opt/specdec")
    assert recover.name in unit().value("After").split()
    assert recover.value("ConditionPathExistsGlob") == "/opt/specdec/instances/*/transaction.json"
    assert recover.value("ExecStart") == "/usr/bin/python3 -I -B /opt/specdec/bin/specdec recover --boot"


@pytest.mark.parametrize("facts", [{}, {"gpus": True}, {"sandbox": "container"}])
def test_own_unit_is_without_fault(facts: dict[str, t.Any]) -> None:
    assert set(verdicts(unit(**facts)).values()) == {"ok"}


@pytest.mark.parametrize(
    ("rule", "drop", "add"),
    [
        ("unit.secret", ["ExecStart"], [("ExecStart", "/bin/x --api-key abc")]),
        ("unit.secret", [], [("Environment", "HF_TOKEN=abc")]),
        ("unit.start-limit", ["StartLimitBurst"], []),
        ("unit.start-limit", ["StartLimitIntervalSec"], [("StartLimitIntervalSec", "0")]),
        ("unit.kill-mode", ["KillMode"], []),
        ("unit.kill-mode", ["KillMode"], [("KillMode", "process")]),
        ("unit.stop-timeout", ["TimeoutStopSec"], [("TimeoutStopSec", "infinity")]),
        ("unit.open-files", ["LimitNOFILE"], []),
        ("unit.open-files", ["LimitNOFILE"], [("LimitNOFILE", "1024:1048576")]),
        ("unit.caches", [], [("Environment", "VLLM_CACHE_ROOT=/var/cache/vllm")]),
        ("unit.caches", ["Environment"], []),
        ("unit.path", [], [("Environment", "PATH=/usr/bin")]),
        ("unit.bypass", [], [("Environment", "FLASHINFER_DISABLE_VERSION_CHECK=1")]),
        ("unit.user", ["User"], []),
    ],
)
def test_each_rule_finds_its_fault(rule: str, drop: list[str], add: list[tuple[str, str]]) -> None:
    found = verdicts(changed(unit(), drop, add))
    assert found[rule] == "error"


def test_file_with_a_secret_is_no_secret() -> None:
    assert verdicts(changed(unit(), [], [("Environment", "HF_TOKEN_PATH=/run/x")]))["unit.secret"] == "ok"


def test_secret_s_value_is_not_in_the_finding() -> None:
    found = units.lint(changed(unit(), ["ExecStart"], [("ExecStart", "/bin/x --api-key=hunter2")]))
    assert not any("hunter2" in finding.text() for finding in found)


@pytest.mark.parametrize(
    ("written", "seconds"), [("90", 90), ("1min 30s", 90), ("infinity", None), (None, None), ("1h", 3600), ("500ms", 0.5)]
)
def test_seconds(written: t.Optional[str], seconds: t.Optional[float]) -> None:
    assert units.seconds(written) == seconds
