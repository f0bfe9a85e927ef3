# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults of an engine and of its host during a switch, with a client that asks throughout.

After each, by the client's log, every request was answered with the right text outside the interval from the transaction's recorded
stop to its recorded end, that interval is no longer than the deadline, and what should serve serves. ``SPECDEC_FAULTS_TABLE=FILE`` keeps
the table of a run (docs/faults.md has one).
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
import typing as t
from pathlib import Path

import pytest
from switchhost import KEY, ROOT, Host

RIGHT = "the quick brown fox jumps over a lazy dog"

#: Asks again and again until the file it is named is there; a line for each request: begun, ended, and what was wrong.
CLIENT = """
import json, os, sys, time, urllib.request
port, key, end, right = sys.argv[1:]
headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 9}).encode()
while not os.path.exists(end):
    begun, wrong = time.time(), ""
    try:
        request = urllib.request.Request("http://127.0.0.1:%s/v1/completions" % port, body, headers)
        with urllib.request.urlopen(request, timeout=2) as answer:
            text = json.load(answer)["choices"][0]["text"]
        wrong = "" if text == right else "wrong text"
    except Exception as error:
        wrong = repr(error)
    print(json.dumps([begun, time.time(), wrong]), flush=True)
    time.sleep(0.02)
"""


@dataclasses.dataclass(frozen=True)
class Fault:
    """What goes wrong: how the new engine behaves, how the old one did, what is done to the host at which step.

    ``finding`` forbids the release; none: it is committed. The long run alone tries what is not ``short``.
    """

    name: str
    finding: str
    mode: str = "ok"
    acceptance: float = 3
    old: str = "ok"
    config: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)
    step: str = ""
    do: str = ""
    undo: str = ""
    short: bool = False


FILL = "dd if=/dev/zero of=%s/filler bs=1M status=none || true" % ROOT
KILL = "systemctl kill --kill-whom=main --signal=KILL specdec-job.service"
FAULTS = (
    Fault("none", ""),
    Fault("engine crashes at start", "gate.unit-died", mode="crash", short=True),
    Fault("engine exits 0 at start", "gate.unit-died", mode="ends"),
    Fault("engine hangs before it is ready", "gate.health", mode="hang"),
    Fault("engine needs longer than the timeout", "gate.health", config={"double-start": 60}),
    Fault("engine listens, health is 503", "gate.health", mode="unhealthy"),
    Fault("engine is healthy, generates nothing", "gate.timeout", mode="wedge", short=True),
    Fault("engine answers 500", "gate.generation", mode="error"),
    Fault("engine loses its worker at the first request", "gate.unit-died", mode="dies"),
    Fault("engine repeats one token", "gate.generation", mode="garbage"),
    Fault("engine answers with no text", "gate.generation", mode="empty"),
    Fault("draft does nothing", "gate.draft-does-nothing", acceptance=1.0),
    Fault("draft is accepted too rarely", "gate.acceptance-floor", acceptance=1.03),
    Fault("old engine ignores SIGTERM", "", old="stubborn"),
    Fault("old engine leaves an orphan on the port", "", old="orphan"),
    Fault("new engine leaves an orphan on the port", "gate.draft-does-nothing", mode="orphan", acceptance=1.0),
    Fault("switch killed while it stops", "job.killed", old="stubborn", step="stopped", do=KILL),
    Fault("switch killed while the engine loads", "job.killed", config={"double-start": 60}, step="gating", do=KILL),
    Fault("switch killed in the gate", "job.killed", mode="wedge", step="gating", do=KILL, short=True),
    Fault("engine killed in the gate", "gate.unit-died", mode="wedge", step="gating", do="systemctl kill --signal=KILL specdec-INSTANCE"),
    Fault("disk full before the switch", "transaction.disk", step="before", do=FILL, undo="rm -f %s/filler" % ROOT),
    Fault("disk full in the gate", "gate.timeout", mode="wedge", step="gating", do=FILL, undo="rm -f %s/filler" % ROOT, short=True),
    Fault(
        "unit edited by hand",
        "",
        step="before",
        do="sed -i s/^Description=.*/Description=mine/ /etc/systemd/system/specdec-INSTANCE.service",
    ),
    Fault(
        "record of a version to come",
        "transaction.record",
        step="before",
        do="echo '{\"schema\": 99}' > %s/instances/INSTANCE/transaction.json" % ROOT,
        undo="rm %s/instances/INSTANCE/transaction.json" % ROOT,
    ),
)
ROWS: list[str] = []
#: ``make test-full`` sets SPECDEC_FAULTS=all.
CHOSEN = [number for number, one in enumerate(FAULTS) if one.short or os.environ.get("SPECDEC_FAULTS") == "all"]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Host]:
    """A host with a small file system of its own for the root, so that it can be filled."""
    made = Host(tmp_path_factory.mktemp("faults"), prefix="specdec-faults", subnet="10.89.189")
    try:
        made.hosts("up", made.name)
        made.sh("mkdir", "-p", ROOT)
        made.sh("mount", "-t", "tmpfs", "-o", "size=24m,mode=0755,exec", "tmpfs", ROOT)
        made.up()
        yield made
    finally:
        made.down()
        if os.environ.get("SPECDEC_FAULTS_TABLE"):
            Path(os.environ["SPECDEC_FAULTS_TABLE"]).write_text("\n".join(ROWS) + "\n")


@pytest.mark.parametrize("number", CHOSEN, ids=[FAULTS[number].name for number in CHOSEN])
def test_every_request_outside_the_transaction_is_answered(bench: Host, number: int) -> None:
    fault, instance = FAULTS[number], "f%d" % number
    old = bench.release(instance, mode=fault.old)
    assert bench.switch(old)["committed"]
    end, log = "/run/%s-end" % instance, "/run/%s-said" % instance
    unit = ["systemd-run", "--quiet", "--unit=client-" + instance, "--property=StandardOutput=file:" + log]
    bench.sh(*unit, "python3", "-c", CLIENT, str(old.facts["port"]), KEY, end, RIGHT)
    patience = 600 if fault.step == "gating" and "kill" in fault.do else None
    new = bench.release(instance, mode=fault.mode, acceptance=fault.acceptance, engine_config=fault.config, patience=patience)
    begun = time.time()
    ended = hit(bench, fault, instance, new)
    taken = time.time() - begun
    entry = bench.describe(instance)["history"][-1]
    bench.sh("sh", "-c", "sleep 0.3; touch %s; while systemctl is-active --quiet client-%s; do sleep 0.05; done" % (end, instance))
    requests = [json.loads(line) for line in bench.sh("cat", log).splitlines()]
    stopped, over, limit = interval(entry, new.id)
    outside = [one for one in requests if one[2] and not (one[1] >= stopped and one[0] <= over)]
    lost = [one for one in requests if one[2]]
    seen = ids(ended["result"]) or "committed"
    serving = bench.describe(instance)
    ROWS.append(
        "| %s | %s | %s | %s | %d of %d | %.1f s of %d s |"
        % (fault.name, fault.step or "start", fault.finding or "committed", seen, len(lost), len(requests), max(0, over - stopped), limit)
    )
    assert seen == (fault.finding or "committed"), ended
    assert outside == [], (outside[:5], entry)
    assert over - stopped <= limit and taken < limit + 20
    expected = old.id if fault.finding else new.id
    assert (serving["running"], serving["healthy"], serving["unfinished"]) == (expected, True, None), serving
    again = bench.switch(bench.release(instance, acceptance=4))
    assert again["committed"], again
    bench.sh("systemctl", "disable", "--now", "--quiet", "specdec-" + instance)


def hit(host: Host, fault: Fault, instance: str, new: t.Any) -> dict[str, t.Any]:
    """Switch, and do to the host what the fault says at its step; the job's end."""
    do, undo = (words.replace("INSTANCE", instance) for words in (fault.do, fault.undo))
    host.install(new)
    if fault.step == "before":
        host.sh("sh", "-c", do)
    job = host.start_installed(new)
    if fault.step not in ("", "before"):
        host.wait_for_step(instance, fault.step)
        host.sh("sh", "-c", do)
    ended = host.follow(job)
    if undo:
        host.sh("sh", "-c", undo)
    return ended


def interval(entry: t.Mapping[str, t.Any], release: str) -> tuple[float, float, float]:
    """When the transaction to a release stopped what served, when it was over, and within how long it had to be; 0: it never began."""
    if entry["to"] != release:
        return 0.0, 0.0, 0.0
    at = entry["at"]
    return at["stopped"], at.get("rolled back") or at["committed"], entry["deadline"] - at["started"]


def ids(result: t.Mapping[str, t.Any]) -> str:
    """Ids of the findings that forbid going on."""
    return ", ".join(finding["id"] for finding in result["findings"] if finding["verdict"] == "error")
