# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults while the whole playbook deploys over SSH, with a client that asks throughout; docs/faults.md has the table of a run.

``SPECDEC_FAULTS=all`` tries all of them and kills the controller at every task and at many other moments;
``SPECDEC_FAULTS_TABLE=FILE`` keeps, and adds to, the table. Every fault is followed by the same deploy once more, without the fault.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import random
import re
import signal
import time
import typing as t
from pathlib import Path

import pytest

ALL = os.environ.get("SPECDEC_FAULTS") == "all"
#: Where nothing that serves may be touched, whatever happens.
QUIET = ("gather", "resolve", "build", "prove")
ROOT = "/opt/specdec"
UNIT = "/etc/systemd/system/specdec-main.service"

#: What a deploy prints of its way back.
AGAIN = re.compile(r"serves release \w+ again, ([\d.]+) s after the failure")
#: Of a release whose gate failed, when it is deployed once more.
FAILED_BEFORE = "has failed its gate before and is not tried again unasked"

COMMITTED, ROLLED_BACK, REFUSED, HOST_ENDS_IT = "committed", "rolled back", "refused, nothing switched", "the host goes on alone"


class Table:
    """Rows of runs; kept in a file that is added to, where one is named: the full form takes its time, and may be run in parts."""

    HEAD = "| fault | stage | where it hit | expected | seen | requests lost, of all | interval, deadline | run again |"

    def __init__(self, path: t.Optional[Path]) -> None:
        self.path = path
        self.rows: list[list[str]] = []
        if path and path.exists():
            kept = path.read_text().partition(self.HEAD)[2].splitlines()[2:]
            self.rows = [line.strip("| ").split(" | ") for line in kept]

    def add(self, *cells: str) -> None:
        """One row, as HEAD names its cells."""
        self.rows.append(list(cells))
        print("| %s |" % " | ".join(cells), flush=True)
        if self.path:
            self.path.write_text(self.text())

    def text(self) -> str:
        """As docs/faults.md has it: how many in which stage, then the rows."""
        stages = [*QUIET, "switch", "gate", "record"]
        lines = ["| | %s | all |" % " | ".join(stages), "|---|%s---|" % ("---|" * len(stages))]
        for name, kill in (("controller killed", True), ("other faults", False)):
            hit = [row[1] for row in self.rows if row[0].startswith("controller killed") == kill]
            lines.append("| %s | %s | %d |" % (name, " | ".join(str(hit.count(stage)) for stage in stages), len(hit)))
        lines += ["", self.HEAD, "|---|---|---|---|---|---|---|---|"]
        return "\n".join([*lines, *("| %s |" % " | ".join(row) for row in self.rows)]) + "\n"


@pytest.fixture(scope="module")
def table() -> Table:
    path = os.environ.get("SPECDEC_FAULTS_TABLE")
    return Table(Path(path) if path else None)


@pytest.fixture(scope="module", autouse=True)
def served(site: t.Any) -> None:
    """What the first fault finds serving."""
    first = site.start(site.wanted())
    assert first.end() == 0, first.text[-4000:]


@dataclasses.dataclass
class Seen:
    """What became of a fault: the host as it stands, what the transactions did, how many requests were lost, how long nobody served."""

    look: dict[str, t.Any]
    entries: list[dict[str, t.Any]]
    lost: int
    asked: int
    interval: str

    @property
    def verdicts(self) -> str:
        """How the transactions ended."""
        return ", ".join(entry["verdict"] for entry in self.entries) or "nothing switched"


class Watch:
    """A client that asks from here on; judged as often as wanted."""

    def __init__(self, site: t.Any) -> None:
        self.site = site
        self.client = site.client()
        self.known = len(site.look()["history"])
        self.judged = 0

    def __enter__(self) -> Watch:
        self.client.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.client.__exit__(*error)

    def judge(self) -> Seen:
        """Every request since the last time was answered, but between a transaction's stop and its end, which is within its deadline.

        While the host is switched off nobody answers.
        """
        self.site.wait_until_idle()
        enough = len(self.client.requests) + 3
        while len(self.client.requests) < enough:
            time.sleep(0.02)
        look = self.site.look()
        entries = look["history"][self.known :]
        requests = self.client.requests[self.judged :]
        self.known, self.judged = len(look["history"]), self.judged + len(requests)
        allowed, told = list(self.site.off), []
        for entry in entries:
            at = entry["at"]
            over = at.get("rolled back") or at["committed"]
            allowed.append((at["stopped"], over))
            limit = entry["deadline"] - at["started"]
            told.append("%.1f s of %.0f s" % (over - at["stopped"], limit))
            assert over - at["stopped"] <= limit or any(begin <= over and end >= at["stopped"] for begin, end in self.site.off), entry
        lost = [one for one in requests if one[2]]
        outside = [one for one in lost if not any(one[1] >= begin and one[0] <= end for begin, end in allowed)]
        assert outside == [], (outside[:5], entries)
        assert look["damaged"] == [], "an environment counts as built and is not whole"
        assert (look["unfinished"], look["healthy"], look["running"]) == (None, True, look["release"]), look
        return Seen(look, entries, len(lost), len(requests), ", ".join(told) or "none")


def number_of(site: t.Any) -> int:
    """Which of the releases of :meth:`faulthost.Site.wanted` serves."""
    return json.loads(site.sh("cat %s/instances/main/current/config.json" % ROOT))["double-number"]


def converge(site: t.Any, watch: Watch, wanted: dict[str, t.Any]) -> str:
    """The same deploy again ends well, and what it is to deploy serves."""
    begun = time.monotonic()
    again = site.start(wanted)
    assert again.end() == 0, again.text[-4000:]
    watch.judge()
    assert number_of(site) == wanted["specdec_instance_defaults"]["extra_args"]["double-number"]
    return "converged in %.0f s" % (time.monotonic() - begun)


# The controller killed

#: Where the host does nothing, by what the task that was begun last is called; all else belongs to the build.
STAGE_OF_TASK = (
    ("^Switch: ", "switch"),
    (r"releases beside|[Pp]rove\b|verify : ", "prove"),
    (r"[Ll]ock the stack|Pythons|archives of Python|Install Python|pins|Capture|Bring the wheels", "resolve"),
    (r"^the play|Gather and plan$|gpu_host : ", "gather"),
)


def stage_of(seen: Seen, when: float, task: str) -> tuple[str, str]:
    """Stage and place of a moment: by what the host was doing, and where it did nothing, by the task that was begun last."""
    for entry in seen.entries:
        at = entry["at"]
        over = at.get("rolled back") or at["committed"]
        if at["started"] <= when <= over:
            step = max((one for one in at if at[one] <= when), key=lambda one: at[one])
            return ("gate" if "gating" in at and when >= at["gating"] else "switch"), "%s, %.2f s into it" % (step, when - at[step])
    for kind, begun, ended in seen.look["jobs"]:
        if begun <= when <= ended:
            stage = {"switch": "record"}.get(kind, kind)
            return stage, "%.2f s into the %s of %.2f s" % (when - begun, kind, ended - begun)
    place = "begin of: " + re.sub("^Switch: |.* : ", "", task)
    for pattern, stage in STAGE_OF_TASK:
        if re.search(pattern, task):
            return stage, place
    return "build", place


def killed(site: t.Any, watch: Watch, table: Table, deploy: t.Any, name: str, expected: str, again: str) -> Seen:
    """Kill a controller now, and add what became of it to the table."""
    second = "PLAY [Switch" in deploy.text
    task = ("Switch: " if second else "") + (deploy.tasks[-1] if deploy.tasks else "the play")
    when = deploy.kill()
    seen = watch.judge()
    stage, place = stage_of(seen, when, task)
    before = place.startswith("begin of")  # the host may have got the job, or not
    if stage in QUIET:
        expected = "nothing switched"
        assert seen.lost == 0, (stage, place, seen)
    elif before:
        expected = "nothing switched, or " + expected
    assert seen.verdicts in expected.split(", or "), (stage, place, seen)
    table.add(name, stage, place, expected, seen.verdicts, "%d of %d" % (seen.lost, seen.asked), seen.interval, again)
    return seen


def at_every_task(site: t.Any, table: Table) -> None:
    """Each deploy is killed at the begin of the first task that none was killed at before, so each shows that the next goes past it."""
    wanted, known = site.wanted(), set()
    with Watch(site) as watch:
        while True:
            deploy = site.start(wanted)
            task = deploy.wait_for_task(known)
            if task is None:
                break
            known.add(task)
            killed(site, watch, table, deploy, "controller killed", COMMITTED, "went past it")
        assert deploy.end() == 0, deploy.text[-3000:]
        converge(site, watch, wanted)
    assert len(known) > 20


def in_build_and_switch(number: int, site: t.Any, table: Table) -> None:
    """A moment of the build, then one of the switch or of the gate; the same ones for the same number, as far as a host is as fast."""
    rng, early = random.Random(number), number % 2 == 1
    wanted = site.wanted(start=1.5, mode="stubborn" if number % 3 == 0 else "ok")
    with Watch(site) as watch:
        deploy = site.start(wanted)
        site.wait_for_job("build", deploy)
        time.sleep(rng.uniform(0, 1.2))
        killed(site, watch, table, deploy, "controller killed", COMMITTED, "went past it")
        deploy = site.start(wanted)
        site.wait_for_step("stopped" if early else "gating", deploy)
        time.sleep(rng.uniform(0, 0.8 if early else 2))
        killed(site, watch, table, deploy, "controller killed", COMMITTED, "converged")
        converge(site, watch, wanted)


def while_a_gate_fails(mode: str, site: t.Any, table: Table) -> None:
    """The host goes back without anybody; the bad release is not tried again, another one is."""
    wanted = site.wanted(build=False, mode=mode)
    with Watch(site) as watch:
        deploy = site.start(wanted)
        site.wait_for_step("gating", deploy)
        seen = killed(site, watch, table, deploy, "controller killed, engine fails", ROLLED_BACK, "refused; another release converged")
        refused = site.start(wanted)
        assert refused.end() != 0 and FAILED_BEFORE in refused.text, refused.text[-3000:]
        assert watch.judge().entries == [] and site.look()["release"] == seen.look["release"]
        converge(site, watch, site.wanted(build=False))


KILLS: dict[str, t.Callable[[t.Any, Table], None]] = {
    **{"in build and switch, %d" % number: functools.partial(in_build_and_switch, number) for number in range(16)},
    **{"while a gate fails, " + mode: functools.partial(while_a_gate_fails, mode) for mode in ("wedge", "hang")},
    "at every task": at_every_task,
}


@pytest.mark.parametrize("points", list(KILLS) if ALL else list(KILLS)[:1])
def test_the_controller_is_killed(site: t.Any, table: Table, points: str) -> None:
    KILLS[points](site, table)


# Everything else


@dataclasses.dataclass(frozen=True)
class Fault:
    """What goes wrong while a deploy runs.

    ``hurt`` does it and returns the deploy once it has ended; after it ``mend`` takes it back, before the deploy runs again.

    :param stage: where it hits; :param expected: what becomes of the deploy; :param says: what its output holds.
    :param version: of the engine, where it is another one; :param small: on a file system that can be made small.
    :param double: of the new engine; :param old: of the one that served; :param model: of the new one.
    :param bad: the release itself is bad: it is not tried again, and another one has to converge.
    """

    name: str
    stage: str
    where: str
    expected: str
    says: tuple[str, ...]
    hurt: t.Callable[[t.Any, dict[str, t.Any]], t.Any]
    mend: t.Callable[[t.Any], object] = lambda site: None
    build: bool = True
    double: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)
    old: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)
    version: str = ""
    model: str = "good"
    small: bool = False
    bad: bool = False
    short: bool = False


def ended(deploy: t.Any) -> t.Any:
    """The same deploy, once it has ended."""
    deploy.end()
    return deploy


def plainly(site: t.Any, wanted: dict[str, t.Any]) -> t.Any:
    """Nothing beside the deploy: what is wrong is in the release, or was done before."""
    return ended(site.start(wanted))


def first(script: str) -> t.Callable[[t.Any, dict[str, t.Any]], t.Any]:
    """Run a script on the host, then deploy."""

    def hurt(site: t.Any, wanted: dict[str, t.Any]) -> t.Any:
        site.sh(script)
        return plainly(site, wanted)

    return hurt


def during(stage: str, what: t.Union[str, t.Callable[[t.Any], object]]) -> t.Callable[[t.Any, dict[str, t.Any]], t.Any]:
    """Do something, or run a script on the host, while a stage is at work there; it is stopped meanwhile where it may be quick."""

    def hurt(site: t.Any, wanted: dict[str, t.Any]) -> t.Any:
        deploy = site.start(wanted)
        if stage in QUIET:
            site.hold_job(stage, deploy)
        else:
            site.wait_for_step({"switch": "stopped", "gate": "gating"}[stage], deploy)
        site.sh(what) if isinstance(what, str) else what(site)
        if stage in QUIET:
            site.let_job_go()
        return ended(deploy)

    return hurt


def script(text: str) -> t.Callable[[t.Any], object]:
    """Run a script on the host."""
    return lambda site: site.sh(text)


def break_index(site: t.Any, wanted: dict[str, t.Any]) -> t.Any:
    """The controller has its lock; the host then finds an index that is broken."""
    deploy = site.start(wanted)
    assert deploy.wait_for(r"\| lock .* packages, id "), deploy.text[-3000:]
    site.index.fault = "error"
    return ended(deploy)


def lose_index(site: t.Any, wanted: dict[str, t.Any]) -> t.Any:
    """The index answers nobody, from the begin."""
    site.index.fault = "error"
    return plainly(site, wanted)


def mend_index(site: t.Any) -> None:
    site.index.fault, site.index.delay = "", 0.0


def slow_index(site: t.Any, wanted: dict[str, t.Any]) -> t.Any:
    """Every answer of the index takes its time."""
    site.index.delay = 1.0
    return plainly(site, wanted)


def lose_model(site: t.Any, wanted: dict[str, t.Any]) -> t.Any:
    """The model goes when the deploy has seen that it is there."""
    deploy = site.start(wanted)
    assert deploy.wait_for(r"^TASK \[Build the environment\]"), deploy.text[-3000:]
    site.sh("rm -rf %s/models/target" % ROOT)
    return ended(deploy)


def two_at_once(site: t.Any, wanted: dict[str, t.Any]) -> t.Any:
    """A second deploy, of something else, while the first builds; the second is what is looked at."""
    one = site.start(wanted)
    site.hold_job("build", one, "main")
    other = ended(site.start(site.wanted(build=False)))
    site.let_job_go()
    ended(one)
    assert re.search(r"is busy with another deploy found: specdec: build of \w+ for \S+ \[\w+\]", other.said), other.text[-3000:]
    return one


def prune_in_build(site: t.Any, wanted: dict[str, t.Any]) -> t.Any:
    """A prune while the deploy builds: it is refused with the name of the build."""
    deploy = site.start(wanted)
    site.hold_job("build", deploy, "main")
    prune = ended(site.start({}, playbook="specdec.serving.prune"))
    site.let_job_go()
    ended(deploy)
    assert "The host is busy: specdec: build of " in prune.said, prune.text[-3000:]
    return deploy


def prune_before_switch(site: t.Any, wanted: dict[str, t.Any]) -> t.Any:
    """A whole prune between proof and switch: what waits for its switch stays."""
    deploy = site.start(wanted)
    assert deploy.wait_for(r"^TASK \[Switch the instances\]"), deploy.text[-3000:]
    os.killpg(deploy.process.pid, signal.SIGSTOP)
    try:
        prune = site.start({}, playbook="specdec.serving.prune")
        assert prune.end() == 0, prune.text[-3000:]
    finally:
        os.killpg(deploy.process.pid, signal.SIGCONT)
    return ended(deploy)


REBOOT = "power cut"
READ_ONLY = f"mount --bind {ROOT}/cache {ROOT}/cache && mount -o remount,bind,ro {ROOT}/cache"
#: What asks waits for an answer: of a connection that there is, and of a new one.
SILENT, HEARD = "pkill -STOP ^sshd", "pkill -CONT ^sshd"
#: The file system gets as small as what is on it.
FILL = f"until mount -o remount,size=$(df --output=used -k {ROOT} | tail -1 | tr -d ' ')k {ROOT}; do :; done"
FREE = f"mount -o remount,size=6g {ROOT}"
FAULTS = (
    Fault("index broken", "resolve", "the controller locks", REFUSED, ("no package index that works",), lose_index, mend_index),
    Fault("index broken", "build", "the host builds", REFUSED, ("no package index that works",), break_index, mend_index),
    Fault("index slow", "build", "1 s for each answer", COMMITTED, (), slow_index, mend_index),
    Fault(
        "cache read-only",
        "build",
        "before the deploy",
        REFUSED,
        ("takes no writes", "Read-only file system"),
        first(READ_ONLY),
        script("umount %s/cache" % ROOT),
    ),
    Fault("model gone", "prove", "after it was seen", REFUSED, ("target",), lose_model),
    Fault("SSH cut", "build", "while the host builds", HOST_ENDS_IT, ("UNREACHABLE",), during("build", lambda site: site.cut_sessions())),
    Fault(
        "SSH cut",
        "switch",
        "old engine stops",
        HOST_ENDS_IT,
        ("UNREACHABLE",),
        during("switch", lambda site: site.cut_sessions()),
        build=False,
        old={"mode": "stubborn"},
    ),
    Fault(
        "SSH silent",
        "gate",
        "new engine loads",
        HOST_ENDS_IT,
        ("UNREACHABLE",),
        during("gate", SILENT),
        script(HEARD),
        build=False,
        double={"start": 3},
    ),
    Fault(REBOOT, "build", "while the host builds", REBOOT, ("UNREACHABLE",), during("build", lambda site: site.restart())),
    Fault(
        REBOOT,
        "switch",
        "old engine stops",
        REBOOT,
        ("UNREACHABLE",),
        during("switch", lambda site: site.restart()),
        build=False,
        old={"mode": "stubborn"},
    ),
    Fault(
        REBOOT,
        "gate",
        "new engine loads",
        REBOOT,
        ("UNREACHABLE",),
        during("gate", lambda site: site.restart()),
        build=False,
        double={"start": 4},
    ),
    Fault("two deploys at once", "build", "while the first builds", COMMITTED, (), two_at_once),
    Fault("prune during a deploy", "build", "while the host builds", COMMITTED, (), prune_in_build),
    Fault("prune during a deploy", "switch", "between proof and switch", COMMITTED, (), prune_before_switch),
    Fault(
        "unit edited by hand",
        "switch",
        "before the deploy",
        COMMITTED,
        (),
        first("sed -i s/^Description=.*/Description=mine/ %s" % UNIT),
        build=False,
    ),
    Fault(
        "record from the future",
        "switch",
        "before the deploy",
        REFUSED,
        ("does not understand", "schema 99"),
        first("echo '{\"schema\": 99}' > %s/instances/main/transaction.json" % ROOT),
        script("rm -f %s/instances/main/transaction.json" % ROOT),
        build=False,
    ),
    Fault(
        "record from the past",
        "switch",
        "before the deploy",
        REFUSED,
        ("does not understand", "schema 0"),
        first("echo '{\"schema\": 0}' > %s/instances/main/transaction.json" % ROOT),
        script("rm -f %s/instances/main/transaction.json" % ROOT),
        build=False,
    ),
    Fault(
        "engine crashes at import",
        "prove",
        "the proof imports it",
        REFUSED,
        ("broken on purpose",),
        plainly,
        version="0.5.10",
        bad=True,
    ),
    Fault(
        "engine crashes at start",
        "gate",
        "start",
        ROLLED_BACK,
        ("flashinfer-cubin does not match",),
        plainly,
        build=False,
        double={"mode": "crash"},
        bad=True,
    ),
    Fault(
        "bad revision of the model",
        "gate",
        "start",
        ROLLED_BACK,
        ("size mismatch for lm_head.weight",),
        plainly,
        build=False,
        model="bad",
        bad=True,
        short=True,
    ),
    Fault(
        "engine exits 0 at start",
        "gate",
        "start",
        ROLLED_BACK,
        ("the engine died after it was started",),
        plainly,
        build=False,
        double={"mode": "ends"},
        bad=True,
    ),
    Fault("engine hangs before it is ready", "gate", "start", ROLLED_BACK, (), plainly, build=False, double={"mode": "hang"}, bad=True),
    Fault(
        "engine is ready, then wedges",
        "gate",
        "first generation",
        ROLLED_BACK,
        (),
        plainly,
        build=False,
        double={"mode": "wedge"},
        bad=True,
    ),
    Fault("engine serves garbage", "gate", "first generation", ROLLED_BACK, (), plainly, build=False, double={"mode": "garbage"}, bad=True),
    Fault(
        "engine loses its worker",
        "gate",
        "first generation",
        ROLLED_BACK,
        ("scheduler died",),
        plainly,
        build=False,
        double={"mode": "dies"},
        bad=True,
    ),
    Fault("engine needs longer than the timeout", "gate", "start", ROLLED_BACK, (), plainly, build=False, double={"start": 30}, bad=True),
    Fault("old engine ignores SIGTERM", "switch", "stop", COMMITTED, (), plainly, build=False, old={"mode": "stubborn"}),
    Fault("old engine leaves an orphan on the port", "switch", "stop", COMMITTED, (), plainly, build=False, old={"mode": "orphan"}),
    Fault(
        "disk full",
        "build",
        "while the host builds",
        REFUSED,
        ("the file system is full",),
        during("build", FILL),
        script(FREE),
        small=True,
    ),
    Fault(
        "disk full",
        "gate",
        "new engine loads",
        COMMITTED,
        (),
        during("gate", FILL),
        script(FREE),
        small=True,
        build=False,
        double={"start": 2},
    ),
)
CHOSEN = [number for number, one in enumerate(FAULTS) if one.short or ALL]


@pytest.mark.parametrize("number", CHOSEN, ids=["%s, %s" % (FAULTS[number].name, FAULTS[number].stage) for number in CHOSEN])
def test_fault(site: t.Any, table: Table, number: int) -> None:
    fault = FAULTS[number]
    if fault.small:
        site.resizable()
    if fault.old:
        before = site.start(site.wanted(build=False, **fault.old))
        assert before.end() == 0, before.text[-3000:]
    wanted = site.wanted(build=fault.build, version=fault.version, model=fault.model, **fault.double)
    with Watch(site) as watch:
        serving = site.look()["release"]
        deploy = fault.hurt(site, wanted)
        fault.mend(site)
        seen = watch.judge()
        for words in fault.says:
            assert words in deploy.said, deploy.text[-4000:]
        check(fault, deploy, seen, serving)
        again = converge(site, watch, site.wanted(build=False)) if fault.bad else converge(site, watch, wanted)
    if fault.bad:
        again = "another release " + again
    told = "power cut" if fault.expected == REBOOT and not seen.entries else seen.interval
    if fault.expected == ROLLED_BACK:
        told += "; %s s after the failure" % AGAIN.search(deploy.said)[1]
    table.add(fault.name, fault.stage, fault.where, fault.expected, seen.verdicts, "%d of %d" % (seen.lost, seen.asked), told, again)


def check(fault: Fault, deploy: t.Any, seen: Seen, serving: str) -> None:
    """What became of the deploy is what the fault lets expect."""
    status, verdicts, release = deploy.process.returncode, seen.verdicts, seen.look["release"]
    if fault.expected == COMMITTED:
        assert (status, verdicts, release != serving) == (0, COMMITTED, True), deploy.text[-4000:]
    elif fault.expected == REFUSED:
        assert status != 0 and (verdicts, seen.lost, release) == ("nothing switched", 0, serving), deploy.text[-4000:]
    elif fault.expected == HOST_ENDS_IT:
        assert status != 0 and verdicts == ("nothing switched" if fault.stage in QUIET else COMMITTED), deploy.text[-4000:]
    else:
        back = "nothing switched" if fault.stage in QUIET else ROLLED_BACK
        assert status != 0 and (verdicts, release) == (back, serving), deploy.text[-4000:]
        assert fault.expected == REBOOT or AGAIN.search(deploy.said), deploy.text[-4000:]
    assert fault.build or "| build" not in deploy.text, deploy.text[-4000:]
