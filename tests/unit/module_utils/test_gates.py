# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gate, against a double of the engine that really listens."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.specdec.serving.plugins.module_utils import gates
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed

ENGINE = Path(__file__).resolve().parents[2] / "doubles" / "engine.py"
UNIT = "specdec-main.service"
KEY = "hunter2-hunter2"
FALLBACKS = yaml.safe_load((Path(gates.__file__).parent / "data" / "engines.yml").read_text())["sglang"]["gate"]["fallbacks"]
COUNTERS = {
    "generated": "sglang:generation_tokens_total",
    "requests": "sglang:num_requests_total",
    "verify": "sglang:spec_verify_calls_total",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Engine:
    """The double in a process of its own, and the /proc entry that makes it the unit's."""

    def __init__(self, directory: Path, **config: t.Any) -> None:
        self.port = free_port()
        path = directory / "config.json"
        whole = {"host": "127.0.0.1", "port": self.port, "api-key": KEY, "double-acceptance": 2.5, **config}
        path.write_text(json.dumps(whole), encoding="utf-8")
        self.process = subprocess.Popen(
            [sys.executable, str(ENGINE), "--config", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def state(self) -> dict[str, str]:
        """As systemd tells it."""
        if self.process.poll() is None:
            return {"ActiveState": "active", "SubState": "running", "NRestarts": "0"}
        return {"ActiveState": "failed", "SubState": "failed", "Result": "exit-code", "ExecMainStatus": "1", "NRestarts": "0"}


@pytest.fixture
def engine(tmp_path: Path) -> t.Iterator[t.Callable[..., Engine]]:
    started: list[Engine] = []

    def start(**config: t.Any) -> Engine:
        started.append(Engine(tmp_path, **config))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


def proc_of(directory: Path, engine: Engine, cgroup: str = "/system.slice/" + UNIT, started: int = 500) -> Path:
    """A /proc in which the double belongs to a control group; its sockets are the real ones."""
    proc = directory / "proc"
    (proc / "net").mkdir(parents=True)
    for name in ("tcp", "tcp6"):
        (proc / "net" / name).symlink_to("/proc/net/" + name)
    own = proc / str(engine.process.pid)
    own.mkdir()
    (own / "fd").symlink_to("/proc/%d/fd" % engine.process.pid)
    (own / "cmdline").write_text("python\0engine.py\0", encoding="utf-8")
    (own / "cgroup").write_text("1:name=systemd:%s\n0::/\n" % cgroup, encoding="utf-8")
    (own / "stat").write_text("1 (a ) b) S " + " ".join(["0"] * 18) + " %d 0\n" % started, encoding="utf-8")
    return proc


def gate(
    directory: Path,
    engine: Engine,
    ticks: float = 400,
    restarts: int = 0,
    release: t.Optional[dict[str, t.Any]] = None,
    said: str = "",
    **facts: t.Any,
) -> gates.Outcome:
    def runner(argv: t.Sequence[str], **_options: t.Any) -> Completed:
        if argv[0] == "journalctl":
            return Completed(0, said + "last words, key %s\n" % KEY, "")
        return Completed(0, "".join("%s=%s\n" % item for item in engine.state().items()), "")

    whole = {
        "instance": "main",
        "host": "127.0.0.1",
        "port": engine.port,
        "start_timeout": 5,
        "secrets": {},
        "gate": {
            "served_model": "tiny",
            "speculative": True,
            "acceptance_floor": 1.05,
            "floor_enforced": True,
            "max_tokens": 41,
            "prompts": ["a", "b"],
            "formula": "sglang",
            "counters": COUNTERS,
            "health": "/health",
            "timeout": 5,
            **facts,
        },
        **(release or {}),
    }
    proc = directory / "proc" if (directory / "proc").exists() else proc_of(directory, engine)
    return gates.Gate(
        whole, runner, lambda *_a, **_k: None, since=0, ticks=ticks, restarts=restarts, key=KEY, secrets=[KEY], proc=proc
    ).pass_through()


def verdicts(outcome: gates.Outcome) -> dict[str, str]:
    return {finding.id: finding.verdict for finding in outcome.findings}


def test_fallbacks_in_the_log_are_warnings_each_told_once(tmp_path: Path, engine: t.Callable[..., Engine]) -> None:
    said = "\n".join(
        [
            "[2026-11-30 10:00:00 TP0] attention backend fa9 is not there. Falling back to flashinfer.",
            "[2026-11-30 10:00:01 TP1] attention backend fa9 is not there. Falling back to flashinfer.",
            "server_args=ServerArgs(disable_fallback=False)",
            "Using fallback token IDs for yes/no (9693/2152)",
            "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs.",
            "",
        ]
    )
    outcome = gate(tmp_path, engine(), said=said, fallbacks=FALLBACKS)
    assert outcome.ok
    told = [(one.verdict, one.found) for one in outcome.findings if one.id == "gate.fallback"]
    assert told == [
        ("warning", "attention backend fa9 is not there. Falling back to flashinfer."),
        ("warning", "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs."),
    ]
    assert "gate.fallback" not in verdicts(gate(tmp_path, engine(), fallbacks=FALLBACKS))


def test_good_engine_passes(tmp_path: Path, engine: t.Callable[..., Engine]) -> None:
    outcome = gate(tmp_path, engine())
    assert outcome.ok
    assert verdicts(outcome) == {"gate.health": "ok", "gate.generation": "ok", "gate.acceptance-floor": "ok"}
    assert outcome.measured["acceptance"] == pytest.approx(2.5, abs=0.001)
    assert set(outcome.times) == {"ready", "gate"}


@pytest.mark.parametrize("mode", ["error", "garbage", "empty"])
def test_bad_generation_shuts_the_gate(tmp_path: Path, engine: t.Callable[..., Engine], mode: str) -> None:
    outcome = gate(tmp_path, engine(**{"double-mode": mode}))
    assert not outcome.ok and verdicts(outcome)["gate.generation"] == "error"


@pytest.mark.parametrize(
    ("mode", "finding"), [("crash", "gate.unit-died"), ("dies", "gate.unit-died"), ("unhealthy", "gate.health"), ("wedge", "gate.timeout")]
)
def test_engine_that_does_not_serve_shuts_the_gate(tmp_path: Path, engine: t.Callable[..., Engine], mode: str, finding: str) -> None:
    outcome = gate(tmp_path, engine(**{"double-mode": mode}), release={"start_timeout": 2} if mode == "unhealthy" else None, timeout=2)
    assert not outcome.ok and outcome.findings[-1].id == finding
    assert "last words, key ***" in outcome.findings[-1].evidence


def test_death_at_start_does_not_wait_for_the_timeout(tmp_path: Path, engine: t.Callable[..., Engine]) -> None:
    dead = engine(**{"double-mode": "crash"})
    dead.process.wait()
    outcome = gate(tmp_path, dead, release={"start_timeout": 1000})
    assert [finding.id for finding in outcome.findings] == ["gate.unit-died"]


@pytest.mark.parametrize(
    ("acceptance", "enforced", "expected"),
    [
        (1.0, True, ("gate.draft-does-nothing", "error")),
        (1.0, False, ("gate.draft-does-nothing", "warning")),
        (0, True, ("gate.draft-does-nothing", "error")),
        (1.02, True, ("gate.acceptance-floor", "error")),
        (1.02, False, ("gate.acceptance-floor", "warning")),
    ],
)
def test_draft_must_earn_something(
    tmp_path: Path, engine: t.Callable[..., Engine], acceptance: float, enforced: bool, expected: tuple[str, str]
) -> None:
    outcome = gate(tmp_path, engine(**{"double-acceptance": acceptance}), floor_enforced=enforced)
    assert (outcome.findings[-1].id, outcome.findings[-1].verdict) == expected
    assert outcome.ok is not enforced


def test_without_speculation_nothing_may_be_verified(tmp_path: Path, engine: t.Callable[..., Engine]) -> None:
    assert verdicts(gate(tmp_path, engine(**{"double-acceptance": 0}), speculative=False))["gate.acceptance-floor"] == "not applicable"


def test_unwanted_speculation_is_found(tmp_path: Path, engine: t.Callable[..., Engine]) -> None:
    assert gate(tmp_path, engine(), speculative=False).findings[-1].id == "gate.unwanted-speculation"


@pytest.mark.parametrize(("enforced", "verdict"), [(True, "error"), (False, "warning")])
def test_missing_counter_is_never_ok(tmp_path: Path, engine: t.Callable[..., Engine], enforced: bool, verdict: str) -> None:
    outcome = gate(tmp_path, engine(), counters={**COUNTERS, "verify": "gone_total"}, floor_enforced=enforced)
    assert verdicts(outcome)["gate.acceptance-floor"] == verdict and "gone_total" in outcome.findings[-1].found


def test_acceptance_from_each_response(tmp_path: Path, engine: t.Callable[..., Engine]) -> None:
    outcome = gate(tmp_path, engine(), formula="sglang-responses", counters={})
    assert outcome.measured["acceptance"] == pytest.approx(2.5)


def test_death_is_explained_by_the_journal_s_root(tmp_path: Path, engine: t.Callable[..., Engine]) -> None:
    root = "ImportError: libnuma.so.1: cannot open shared object file: key %s" % KEY
    said = 'Scheduler hit an exception: Traceback (most recent call last):\n  File "/e/w.py", line 1, in run\n%s\n' % root
    outcome = gate(tmp_path, engine(**{"double-mode": "crash"}), said=said + "Received sigquit from a child process.\n" * 100)
    finding = outcome.findings[-1]
    assert finding.id == "gate.unit-died"
    assert finding.evidence.splitlines()[0] == root.replace(KEY, "***")
    assert "failure.library" in finding.cause and "system's package" in finding.fix
    assert len(finding.evidence.splitlines()) < 60


@pytest.mark.parametrize(
    ("cgroup", "started"),
    [("/system.slice/other.service", 500), ("/user.slice", 500), ("/system.slice/" + UNIT, 100), ("/x-%s" % UNIT, 500)],
)
def test_port_of_somebody_else_shuts_the_gate(tmp_path: Path, engine: t.Callable[..., Engine], cgroup: str, started: int) -> None:
    running = engine()
    proc_of(tmp_path, running, cgroup, started)
    outcome = gate(tmp_path, running)
    assert [finding.id for finding in outcome.findings] == ["gate.port-owner"]
    assert "engine.py" in outcome.findings[0].found


def test_engine_that_ran_before_may_be_old(tmp_path: Path, engine: t.Callable[..., Engine]) -> None:
    running = engine()
    proc_of(tmp_path, running, started=100)
    assert gate(tmp_path, running, ticks=0).ok


def test_listener_nobody_is_seen_to_own_is_no_evidence(tmp_path: Path, engine: t.Callable[..., Engine]) -> None:
    running = engine()
    proc = proc_of(tmp_path, running)
    (proc / str(running.process.pid) / "fd").unlink()
    assert [finding.id for finding in gate(tmp_path, running).findings] == ["gate.port-owner"]


def test_real_proc_names_the_listener() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        found = gates.listener(port)
        assert found is not None and found["pid"] == os.getpid() and found["started"] <= gates.ticks_now()
    assert gates.listener(port) is None


@pytest.mark.parametrize(
    ("state", "restarts", "dead"),
    [
        ({"ActiveState": "active", "NRestarts": "0"}, 0, False),
        ({"ActiveState": "active", "NRestarts": "2"}, 2, False),
        ({"ActiveState": "active", "NRestarts": "1"}, 0, True),
        ({"ActiveState": "activating", "SubState": "auto-restart", "NRestarts": "0"}, 0, True),
        ({"ActiveState": "activating", "SubState": "start", "NRestarts": "0"}, 0, False),
        ({"ActiveState": "failed"}, 0, True),
        ({"ActiveState": "deactivating"}, 0, True),
        ({}, 0, True),
    ],
)
def test_died(state: dict[str, str], restarts: int, dead: bool) -> None:
    assert (gates.died(state, restarts) is not None) is dead


@pytest.mark.parametrize(
    ("text", "tokens", "bad"),
    [
        ("", 5, True),
        (" \n", 5, True),
        ("!" * 20, 20, True),
        ("the the the the the the the the", 8, True),
        ("a b c d e f g h", 8, False),
        ("no no", 2, False),
        ("ab" * 10, 20, False),
    ],
)
def test_degenerate(text: str, tokens: int, bad: bool) -> None:
    assert gates.degenerate(text, tokens) is bad


def test_formulas() -> None:
    names = {"drafts": "d", "accepted": "a"}
    assert gates.acceptance("vllm", names, {"d": 10, "a": 5}, {"d": 20, "a": 20}) == (2.5, 10)
    assert gates.acceptance("vllm", names, {}, {"d": 0, "a": 0}) == (None, 0)
    names = {"generated": "g", "requests": "r", "verify": "v"}
    assert gates.acceptance("sglang", names, {"g": 100, "r": 1, "v": 10}, {"g": 205, "r": 6, "v": 60}) == (2.0, 50)


def test_a_journals_lines_are_cut_only_after_the_secrets_are_out():
    secret = "s3cret-0123456789"
    line = "x" * (gates._EXCERPT_WIDTH - 5) + secret

    def runner(argv, **_options):
        return Completed(0, line + "\nlast words\n", "")

    shown = gates.journal(runner, "specdec-main.service", 0.0, [secret])
    assert shown.splitlines()[-1] == "last words"
    assert secret[:6] not in shown
    assert max(map(len, shown.splitlines())) <= gates._EXCERPT_WIDTH + 4
