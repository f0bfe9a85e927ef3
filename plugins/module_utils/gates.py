# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What must hold after a start before a release counts as serving.

In order: the unit lives, nobody else owns the port, /health answers, the engine generates, and the
draft earns something. Readiness is never taken from the journal: engines log it after a failed bind.
"""

from __future__ import annotations

import dataclasses
import re
import time
import typing as t
from pathlib import Path

from . import diagnosis, releases
from .engines_http import Client, Disconnected, HttpError, TimedOut
from .findings import COULD_NOT_CHECK, ERROR, NOT_APPLICABLE, OK, WARNING, Finding, errors
from .layout import unit_of
from .runners import Progress, Runner

PROC = Path("/proc")

#: The formula of a gate that asks for text alone.
NOT_COUNTED = "not-counted"

_POLL = 0.2
#: SGLang's /health generates a token and gives up itself after 20 s.
_HEALTH_TIMEOUT = 25.0
#: How long counters may lag behind the answers they count.
_COUNTER_LAG = 10.0
#: Between a broken connection and systemd's notice that the process behind it has ended.
_DYING = 5.0
_EXCERPT_LINES = 40
#: A start of eight ranks at the level INFO stays below this.
_START_LINES = 20000
#: Different lines of one kind that are shown.
_TOLD = 5
#: An engine prints all its settings in one line of many thousand characters.
_EXCERPT_WIDTH = 240
_LISTEN = "0A"
_FEW_TOKENS = 8
_PREFIX = re.compile(r"^\[[^]]*\]\s*")
#: Characters of a completion that are shown.
_SHOWN = 80


# The unit


def unit_state(runner: Runner, unit: str) -> dict[str, str]:
    """What systemd says of a unit, by property; without values where it knows no such unit."""
    names = (
        "ActiveState,SubState,Result,MainPID,NRestarts,ExecMainStatus,UnitFileState,NeedDaemonReload,TimeoutStopUSec,StateChangeTimestamp"
    )
    answer = runner(["systemctl", "show", "--property=" + names, unit], timeout=30)
    return dict(line.split("=", 1) for line in answer.stdout.splitlines() if "=" in line)


def died(state: t.Mapping[str, str], restarts: int = 0) -> t.Optional[str]:
    """In words, how a unit is no longer the process it was after that many restarts; None: it lives."""
    active, sub = state.get("ActiveState", "unknown"), state.get("SubState", "unknown")
    lives = active == "active" or (active == "activating" and sub != "auto-restart")
    if lives and int(state.get("NRestarts", 0)) <= restarts:
        return None
    how = "%s (%s), result %s, status %s" % (active, sub, state.get("Result"), state.get("ExecMainStatus"))
    return "restarted by systemd after it died; now %s" % how if lives else how


def journal(runner: Runner, unit: str, since: float, secrets: t.Sequence[str] = (), count: int = _EXCERPT_LINES) -> str:
    """The last ``count`` lines of a unit's journal since a time (seconds since the epoch), without the secrets."""
    argv = ["journalctl", "--unit=" + unit, "--since=@%.3f" % since, "--lines=%d" % count, "--output=cat", "--no-pager", "--quiet"]
    lines = releases.redact(runner(argv, timeout=30).stdout.strip(), secrets).splitlines()
    return "\n".join(line if len(line) <= _EXCERPT_WIDTH else line[:_EXCERPT_WIDTH] + " ..." for line in lines)


# Who listens


@dataclasses.dataclass(frozen=True)
class Listener:
    """A process, most often one that listens on a TCP port; pid is None where the owner cannot be seen.

    ``started`` is in kernel clock ticks since boot, 0 where that is not known.
    """

    pid: t.Optional[int]
    command: str
    cgroup: str
    started: float

    def of(self, unit: str) -> bool:
        """Whether it belongs to a unit's control group."""
        return unit in self.cgroup.split("/")

    def text(self) -> str:
        """The process as a person looks for it."""
        return "process %s (%s) in %s" % (self.pid, self.command, self.cgroup) if self.pid else "a process that cannot be seen"


def listening_inodes(table: str, port: int) -> set[str]:
    """Socket inodes of the listeners on a port in the text of /proc/net/tcp or tcp6."""
    inodes = set()
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
            inodes.add(fields[9])
    return inodes


def listeners(port: int, proc: Path = PROC) -> list[Listener]:
    """Every process that listens on a port, by any address."""
    inodes: set[str] = set()
    for name in ("tcp", "tcp6"):
        inodes |= listening_inodes(_read(proc / "net" / name), port)
    owned: dict[int, set[str]] = {}
    wanted = {"socket:[%s]" % inode for inode in inodes}
    for directory in proc.glob("[0-9]*") if wanted else ():
        held = wanted & _links(directory / "fd")
        if held:
            owned[int(directory.name)] = held
    found = [process(proc / str(pid)) for pid in sorted(owned)]
    if wanted - set().union(*owned.values()):
        found.append(Listener(None, "", "", 0.0))
    return found


def process(directory: Path) -> Listener:
    """A process by its directory in /proc; of one that is not there any more nothing but the pid is known."""
    command = _read(directory / "cmdline").replace("\0", " ").strip()
    cgroup = ""
    for line in _read(directory / "cgroup").splitlines():
        _number, controllers, path = line.split(":", 2)
        if controllers in ("", "name=systemd") and len(path) > len(cgroup):
            cgroup = path
    # The command name may hold spaces and brackets; the fields after it do not.
    fields = _read(directory / "stat").rpartition(")")[2].split()
    return Listener(int(directory.name), command[:200], cgroup, float(fields[19]) if len(fields) > 19 else 0.0)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _links(directory: Path) -> set[str]:
    found = set()
    try:
        for link in directory.iterdir():
            try:
                found.add(str(link.readlink()))
            except OSError:
                continue
    except OSError:
        pass
    return found


def listener(port: int) -> t.Optional[dict[str, t.Any]]:
    """The process that listens on a port, as plain data; None where nobody does."""
    found = listeners(port)
    return dataclasses.asdict(found[0]) if found else None


def healthy(release: t.Mapping[str, t.Any], timeout: float = 3.0) -> bool:
    """Whether the engine of a release (content of release.json) says now that it is healthy."""
    return Client(release["host"], release["port"]).status(release["gate"]["health"], timeout) == 200


# What it generates


def degenerate(text: str, tokens: int) -> bool:
    """Whether a completion is no language: nothing at all, or one token again and again."""
    if not text.strip():
        return True
    if tokens < _FEW_TOKENS:
        return False
    # A tokenizer may drop the space before the first token.
    return any(len(whole) % tokens == 0 and whole == whole[: len(whole) // tokens] * tokens for whole in (text, " " + text))


def acceptance(
    formula: str, counters: t.Mapping[str, str], before: t.Mapping[str, float], after: t.Mapping[str, float]
) -> tuple[t.Optional[float], float]:
    """Acceptance length and number of verifications between two readings.

    :param formula: ``sglang`` counts tokens, requests (each one's first token comes from prefill) and
        verify calls; ``vllm`` counts accepted tokens and drafts.
    :returns: None for the length where nothing was verified.

    Raises KeyError with a counter's name where the engine does not count it.
    """

    def moved(role: str) -> float:
        name = counters[role]
        if name not in after:
            raise KeyError(name)
        return after[name] - before.get(name, 0.0)

    if formula == "vllm":
        drafts = moved("drafts")
        return (1 + moved("accepted") / drafts if drafts else None), drafts
    verified = moved("verify")
    return ((moved("generated") - moved("requests")) / verified if verified else None), verified


# The gate


@dataclasses.dataclass
class Outcome:
    """What the gate found: findings, seconds per part, and what was measured."""

    findings: list[Finding]
    times: dict[str, float]
    measured: dict[str, t.Any]

    @property
    def ok(self) -> bool:
        """Whether the release may stay; without a finding there is no evidence."""
        return bool(self.findings) and not errors(self.findings)


class _Closed(Exception):
    """The gate is shut by a finding; nothing after it is looked at."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


class Gate:
    """The checks of one start.

    :param release: content of release.json.
    :param since: seconds since the epoch just before the start, for the journal.
    :param ticks: kernel clock ticks since boot just before the start (see :func:`ticks_now`); 0 where
        the engine ran already.
    :param restarts: how often systemd had restarted the unit before.
    :param secrets: what must not stand in evidence.
    """

    def __init__(
        self,
        release: t.Mapping[str, t.Any],
        runner: Runner,
        progress: Progress,
        *,
        since: float,
        ticks: float,
        restarts: int = 0,
        key: t.Optional[str] = None,
        secrets: t.Sequence[str] = (),
        proc: Path = PROC,
    ) -> None:
        self.release = release
        self.gate = release["gate"]
        self.unit = unit_of(release)
        self.runner = runner
        self.progress = progress
        self.since = since
        self.ticks = ticks
        self.restarts = restarts
        self.secrets = secrets
        self.proc = proc
        self.client = Client(release["host"], release["port"], key)
        self.outcome = Outcome([], {}, {})

    def pass_through(self) -> Outcome:
        """Look at everything in order; ends at the first error. Raises nothing of its own."""
        started = time.monotonic()
        try:
            self._wait_until_healthy(started)
            self.outcome.times["ready"] = round(time.monotonic() - started, 2)
            ready = time.monotonic()
            try:
                self._generate(ready + self.gate["timeout"])
                self._alive()
                self._fallbacks()
            finally:
                self.outcome.times["gate"] = round(time.monotonic() - ready, 2)
        except _Closed as closed:
            self.outcome.findings.append(closed.finding)
        return self.outcome

    def _add(self, id_: str, verdict: str, message: str, **more: str) -> None:
        self.outcome.findings.append(Finding("gate." + id_, verdict, self.unit, message, **more))

    def _shut(self, id_: str, message: str, *, fix: str, evidence: str = "", **more: str) -> _Closed:
        said = journal(self.runner, self.unit, self.since, self.secrets)
        root = diagnosis.diagnose(said, self.unit).finding
        blamed = root.verdict not in (OK, COULD_NOT_CHECK)
        if blamed:
            more.setdefault("cause", "%s (%s)" % (root.cause or root.message, root.id))
        excerpt = "\n".join(said.splitlines()[-_EXCERPT_LINES:])
        parts = (blamed and root.message, evidence, excerpt and "journal of %s:\n%s" % (self.unit, excerpt))
        evidence = "\n".join(part for part in parts if part)
        # Only a death is explained by the journal alone; the other gates have a way out of their own.
        if blamed and root.cause and id_ == "unit-died":
            fix = root.fix
        return _Closed(Finding("gate." + id_, ERROR, self.unit, message, evidence=evidence, fix=fix, **more))

    def _alive(self, patience: float = 0) -> None:
        """Shut if the unit has died, or does so within ``patience`` seconds."""
        end = time.monotonic() + patience
        how = died(unit_state(self.runner, self.unit), self.restarts)
        while not how and time.monotonic() < end:
            time.sleep(_POLL)
            how = died(unit_state(self.runner, self.unit), self.restarts)
        if how:
            raise self._shut(
                "unit-died",
                "the engine died after it was started",
                found=how,
                expected="active, the process that was started",
                fix="read the evidence from its end: the last error of a worker is the cause, not the main process's own",
            )

    def _port_is_ours(self) -> bool:
        """Whether the unit listens; shut when somebody else does."""
        port = self.release["port"]
        found = listeners(port, self.proc)
        # Looked at twice: a process may end between the socket table and its own directory.
        if self._foreign(found):
            found = listeners(port, self.proc)
        foreign = self._foreign(found)
        if foreign:
            raise self._shut(
                "port-owner",
                "port %d belongs to somebody else" % port,
                found=", ".join(one.text() for one in foreign),
                expected="a process of %s, started by this switch" % self.unit,
                fix="stop that process or give the instance another port, then run the deploy again",
            )
        return bool(found)

    def _foreign(self, found: t.Iterable[Listener]) -> list[Listener]:
        return [one for one in found if not one.of(self.unit) or one.started < self.ticks - 1]

    def _wait_until_healthy(self, started: float) -> None:
        limit = releases.start_limit(self.release)
        path = self.gate["health"]
        said: t.Union[int, str] = "nothing listens on port %d" % self.release["port"]
        told = started
        while True:
            # The port first: an engine that finds it taken dies, and its death is not the cause.
            owned = self._port_is_ours()
            self._alive()
            left = started + limit - time.monotonic()
            if owned:
                said = self.client.status(path, max(0.5, min(_HEALTH_TIMEOUT, left)))
                if said == 200:
                    self._add("health", OK, "%s answers 200" % path)
                    return
            if left <= 0:
                raise self._shut(
                    "health",
                    "not healthy within %d s" % limit,
                    found="%s: %s" % (path, said),
                    expected="200",
                    fix="if the engine was still loading, raise service.start_timeout; otherwise the evidence says where it stands",
                )
            if time.monotonic() - told >= 10:
                told = time.monotonic()
                self.progress("start", "waiting for %s: %s" % (path, said))
            time.sleep(_POLL)

    def _generate(self, end: float) -> None:
        per_response = self.gate["formula"] == "sglang-responses"
        uncounted = self.gate["formula"] == NOT_COUNTED
        self._ask(self.gate["prompts"][0], end)  # not counted: the first request may compile
        before = {} if per_response or uncounted else self._metrics(end)
        answers = [self._ask(prompt, end) for prompt in self.gate["prompts"]]
        if all(degenerate(text, tokens) for text, tokens, _verified in answers):
            raise self._shut(
                "generation",
                "no completion is language",
                found="; ".join("%.60r (%d tokens)" % (text, tokens) for text, tokens, _verified in answers),
                expected="text that is neither empty nor one token repeated",
                fix="look for wrong weights, a wrong KV-cache type or a kernel built for another GPU",
            )
        tokens = sum(count for _text, count, _verified in answers)
        self._add("generation", OK, "%d completions, %d tokens" % (len(answers), tokens), found="%.60r" % answers[0][0])
        self.outcome.measured.update(completion=answers[0][0][:_SHOWN], prompts=len(answers), floor=self.gate["acceptance_floor"])
        if uncounted:
            self._add("acceptance-floor", NOT_APPLICABLE, "made by hand: whether it speculates is not asked")
            return
        if per_response:
            verified = float(sum(count for _text, _tokens, count in answers))
            length = (tokens - len(answers)) / verified if verified else None
        else:
            measured = self._counted(before, tokens, end)
            if measured is None:
                return
            length, verified = measured
        self.outcome.measured.update(acceptance=length and round(length, 3), verifications=verified, tokens=tokens)
        self._judge(length, verified)

    def _ask(self, prompt: str, end: float) -> tuple[str, int, int]:
        limit = max(0.5, end - time.monotonic())
        wanted = self.gate["max_tokens"]
        try:
            if self.gate["formula"] == "sglang-responses":
                return self.client.generate(prompt, wanted, limit)
            return (*self.client.completion(self.gate["served_model"], prompt, wanted, limit), 0)
        except HttpError as error:
            self._alive(_DYING if isinstance(error, Disconnected) else 0)
            if isinstance(error, TimedOut):
                raise self._late("a completion") from error
            raise self._shut(
                "generation",
                "a completion failed",
                found=str(error),
                expected="200 with text",
                fix="the evidence holds the engine's own error; /health alone does not show a dead scheduler",
            ) from error

    def _late(self, what: str) -> _Closed:
        return self._shut(
            "timeout",
            "%s took longer than the gate's time" % what,
            expected="all of %d prompts within %d s" % (len(self.gate["prompts"]) + 1, self.gate["timeout"]),
            fix="raise gate.timeout if the first request compiles kernels; otherwise the engine hangs: see the evidence",
        )

    def _metrics(self, end: float) -> dict[str, float]:
        try:
            return self.client.metrics(max(0.5, end - time.monotonic()))
        except TimedOut as error:
            raise self._late("reading the counters") from error
        except HttpError as error:
            self._alive()
            raise self._shut(
                "acceptance-floor",
                "the engine's counters cannot be read",
                found=str(error),
                expected="/metrics with %s" % ", ".join(self.gate["counters"].values()),
                fix="leave the engine's metrics switched on",
            ) from error

    def _counted(self, before: t.Mapping[str, float], tokens: int, end: float) -> t.Optional[tuple[t.Optional[float], float]]:
        """Acceptance and verifications, once the counters hold what was generated; None: not counted, and said so."""
        counters = self.gate["counters"]
        generated = counters.get("generated")
        give_up = min(end, time.monotonic() + _COUNTER_LAG)
        after = self._metrics(end)
        while generated and after.get(generated, 0) - before.get(generated, 0) < tokens and time.monotonic() < give_up:
            time.sleep(_POLL)
            after = self._metrics(end)
        try:
            return acceptance(self.gate["formula"], counters, before, after)
        except KeyError as error:
            if not self.gate["speculative"]:
                self._add("acceptance-floor", NOT_APPLICABLE, "no speculation, and the engine counts none")
                return None
            if self.gate["floor_enforced"]:
                raise self._shut(
                    "acceptance-floor",
                    "acceptance cannot be measured",
                    found="no counter %s" % error.args[0],
                    expected=", ".join(counters.values()),
                    fix="leave the engine's metrics on; if this version names its counters otherwise, correct its row in data/engines.yml",
                ) from error
            self._add(
                "acceptance-floor",
                WARNING,
                "acceptance cannot be measured",
                found="no counter %s" % error.args[0],
                fix="none is needed to serve",
            )
            return None

    def _fallbacks(self) -> None:
        """Warn of what the engine says it does otherwise than asked for; by the engine's own data (``fallbacks``)."""
        patterns = [re.compile(one) for one in self.gate.get("fallbacks", ())]
        if not patterns:
            return
        said = journal(self.runner, self.unit, self.since, self.secrets, _START_LINES).splitlines()
        # each rank says it, behind its own time and number
        lines = dict.fromkeys(_PREFIX.sub("", line) for line in said if any(one.search(line) for one in patterns))
        for line in list(lines)[:_TOLD]:
            self._add(
                "fallback",
                WARNING,
                "the engine does something otherwise than asked for",
                found=line,
                evidence="journalctl -u %s" % self.unit,
                fix="none is needed to serve; say in extra_args what fits this host, so that it is wanted",
            )

    def _judge(self, length: t.Optional[float], verified: float) -> None:
        floor = self.gate["acceptance_floor"]
        if not self.gate["speculative"]:
            if verified:
                raise self._shut(
                    "unwanted-speculation",
                    "the engine speculates although the instance does not want it",
                    found="%d verifications" % verified,
                    expected="none",
                    fix="remove the speculative arguments from extra_args, or set speculative.algorithm",
                )
            self._add("acceptance-floor", NOT_APPLICABLE, "no speculation, and nothing was verified")
            return
        if length is None or length == 1.0:
            id_, message = "draft-does-nothing", "the draft does nothing"
            found = "not a single verification" if length is None else "acceptance length exactly 1.0 over %d verifications" % verified
            fix = "check that the draft belongs to this model and that the engine loaded it with the right algorithm"
        elif length < floor:
            id_, message = "acceptance-floor", "the draft is accepted too rarely"
            found = "acceptance length %.3f over %d verifications" % (length, verified)
            fix = "check draft, model and their revisions; if the draft is that weak by design, lower gate.acceptance_floor"
        else:
            self._add("acceptance-floor", OK, "acceptance length %.3f" % length, found="%.3f" % length, expected="%.2f or more" % floor)
            return
        if self.gate["floor_enforced"]:
            raise self._shut(id_, message, found=found, expected="%.2f or more" % floor, fix=fix)
        self._add(id_, WARNING, message, found=found, expected="%.2f or more" % floor, fix=fix)


def ticks_now() -> float:
    """Kernel clock ticks since boot, the unit in which /proc says when a process started."""
    # USER_HZ, which /proc counts in, is 100 on every architecture that systemd runs on.
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 100
