# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The switch of an instance to another release: stop, flip, start, gate, commit - or all of it back.

Every step is written down, flushed to the disk, before it is done. Whatever ends this process, the
record tells recovery enough: a committed transaction stays, everything else goes back to the release
that served before, or, at a first deploy, to nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pwd
import secrets
import time
import typing as t
from pathlib import Path

from . import adoptions, gates, jobs, registrations, releases, remains, units
from .findings import ERROR, OK, WARNING, Finding, FindingError, errors
from .layout import MARKER, SCHEMA, UNITS, Layout, unit_name, unit_of, user_name
from .releases import Release
from .runners import Progress, Runner

STARTED = "started"
STOPPED = "stopped"
FLIPPED = "flipped"
STARTING = "starting"
GATING = "gating"
COMMITTED = "committed"
ROLLED_BACK = "rolled back"

FAILED = "failed"

#: systemd itself needs a moment beside the engine's own time to stop.
_STOP_GRACE = 30
_POLL = 0.05
#: Bytes that going back may need for its records on a file system that has filled up.
_RESERVE = 256 * 1024
_DOWN = ("inactive", "failed")


# Time


@dataclasses.dataclass(frozen=True)
class Deadline:
    """How long a transaction may take, in seconds: at most until it is decided, and the way back."""

    stop: int
    start: int
    gate: int
    rollback: int

    @property
    def total(self) -> int:
        """The longest time until the instance serves again."""
        return self.stop + self.start + self.gate + self.rollback

    def text(self) -> str:
        """For whoever waits."""
        return "at most %d s until it serves again: stop %d, start %d, gate %d, way back %d" % (self.total, *dataclasses.astuple(self))


def deadline(release: t.Mapping[str, t.Any], previous: t.Optional[t.Mapping[str, t.Any]]) -> Deadline:
    """The deadline of a switch between two releases (each the content of release.json; None: first deploy)."""
    back = release["stop_timeout"]
    if previous:
        back += releases.start_limit(previous) + previous["gate"]["timeout"]
    stop = previous["stop_timeout"] if previous else 0
    return Deadline(stop, releases.start_limit(release), release["gate"]["timeout"], back)


def preview(spec: t.Mapping[str, t.Any], _runner: Runner) -> dict[str, t.Any]:
    """The ``spec`` of a switch with the deadline that the models on this host give it; the plan knows no sizes."""
    layout = Layout(spec["root"])

    def facts(release_id: t.Optional[str]) -> t.Optional[dict[str, t.Any]]:
        with contextlib.suppress(FindingError):
            return releases.load(layout, spec["instance"], release_id).facts if release_id else None
        return None  # what stands against it is the job's to say

    wanted, previous = facts(spec["release"]), facts(releases.current(layout, spec["instance"]))
    total = deadline(wanted, previous).total if wanted else 0
    return {"spec": {**spec, "deadline": max(total, spec["deadline"])}, "changed": True}


# The record


def _record_path(layout: Layout, instance: str) -> Path:
    return layout.instance(instance) / "transaction.json"


def _reserve_path(layout: Layout, instance: str) -> Path:
    """Space that is given back when a transaction ends or goes back: a file system that fills up meanwhile must not stop that."""
    return layout.instance(instance) / "transaction.reserve"


def unfinished(layout: Layout, instance: str) -> t.Optional[dict[str, t.Any]]:
    """The record of a transaction that has not ended; None where there is none. Raises FindingError when it cannot be understood."""
    path = _record_path(layout, instance)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        found = "schema %s" % record.get("schema")
        known = record.get("schema") == SCHEMA
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError) as error:
        found, known = str(error), False
    if known:
        return record
    raise _refusal(
        "record",
        str(path),
        "says that a switch was interrupted, in a way that this version does not understand; nothing was changed",
        found=found,
        expected="schema %d" % SCHEMA,
        cause="another version of the collection was at work, or the file was damaged",
        fix="run that version again; or see with systemctl status %s that what should serve does, then remove the file"
        % unit_name(instance),
    )


# Preparation, also used by what proves a release before it is switched


def prepare_user(layout: Layout, release: t.Mapping[str, t.Any], runner: Runner) -> None:
    """The instance's system user and the directory it may write. Raises FindingError."""
    instance = release["instance"]
    user = user_name(instance)
    path = releases.SYSUSERS / ("%s.conf" % user)
    text = releases.sysusers(layout, instance)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        releases.write_durably(path, text)
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        answer = runner(["systemd-sysusers", str(path)], timeout=60)
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            raise _refusal(
                "user",
                "user " + user,
                "cannot be made",
                evidence=answer.stderr,
                fix="make the system user %s by hand, or mend systemd-sysusers" % user,
            ) from None
    state = layout.instance_state(instance, release["environment"])
    state.mkdir(parents=True, exist_ok=True)
    for directory, mode in ((layout.state, 0o755), (state.parent, 0o755), (state, 0o700)):
        directory.chmod(mode)
    releases.own(state, entry.pw_uid, entry.pw_gid)
    temporary = Path(release["environment_variables"].get("TMPDIR", "/"))
    if temporary.parent == state:
        temporary.mkdir(mode=0o700, exist_ok=True)
        releases.own(temporary, entry.pw_uid, entry.pw_gid)


def guard_boots(layout: Layout, runner: Runner) -> bool:
    """Have the unit that finishes a transaction should the host restart in the middle of it; whether it was missing."""
    unit = units.recover_unit(str(layout.root))
    if not _place(unit.name, unit.text()):
        return False
    try:
        _systemctl(runner, "enable", "--quiet", unit.name)
    except FindingError:
        # what is in place is not enabled again
        (Path(UNITS) / unit.name).unlink(missing_ok=True)
        raise
    return True


def _place(name: str, text: str) -> bool:
    """Write a unit file where it differs; whether it did."""
    path = Path(UNITS) / name
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    releases.write_durably(path, text)
    return True


def _systemctl(runner: Runner, *words: str) -> None:
    answer = runner(["systemctl", *words], timeout=120)
    if answer.rc != 0:
        raise _refusal(
            "systemd",
            "systemctl " + " ".join(words),
            "ended with %d" % answer.rc,
            evidence=answer.stderr.strip(),
            fix="mend what systemd says and run the deploy again",
        )


def _refusal(id_: str, subject: str, message: str, *, fix: str, **more: str) -> FindingError:
    return FindingError(Finding("transaction." + id_, ERROR, subject, message, fix=fix, **more))


# The kinds of job


def switch(spec: t.Mapping[str, t.Any], runner: Runner, progress: Progress) -> dict[str, t.Any]:
    """Job kind *switch*: instance, release, and ``force`` to restart what runs or to retry what failed.

    :returns: committed, changed, rolled_back_to, times, gate, findings, noop.
    """
    return _Transaction(spec, runner, progress).to(spec["release"], "switch")


def rollback(spec: t.Mapping[str, t.Any], runner: Runner, progress: Progress) -> dict[str, t.Any]:
    """Job kind *rollback*: instance and, if not the one before, release. Returns what switch returns."""
    layout = Layout(spec["root"])
    release = spec.get("release") or way_back(layout, spec["instance"])
    return _Transaction(spec, runner, progress).to(release, "rollback")


def way_back(layout: Layout, instance: str) -> str:
    """The release a rollback goes to; raises FindingError when there is none."""
    back = releases.way_back(releases.history(layout, instance))
    if not back:
        raise _refusal(
            "no-way-back",
            "instance " + instance,
            "has no release to go back to",
            evidence="%s names no earlier release that served" % (layout.instance(instance) / "history"),
            fix="deploy the release you want, or name one: specdec rollback %s RELEASE" % instance,
        )
    return back[0]


def recover(spec: t.Mapping[str, t.Any], runner: Runner, progress: Progress) -> dict[str, t.Any]:
    """Job kind *recover*: finish every transaction of the host that was interrupted."""
    layout = Layout(spec["root"])
    findings: list[Finding] = []
    recovered = {}
    for instance in interrupted(layout):
        transaction = _Transaction({**spec, "instance": instance}, runner, progress)
        findings += transaction.finish()
        recovered[instance] = releases.current(layout, instance)
    return {"findings": [finding.as_dict() for finding in findings], "changed": bool(recovered), "recovered": recovered}


def interrupted(layout: Layout) -> list[str]:
    """Instances with a transaction that has not ended."""
    return sorted(path.parent.name for path in layout.instances.glob("*/transaction.json"))


def flip_back(layout: Layout, runner: Runner) -> int:
    """At boot, before instances start: make what served before current again; return the longest recovery in seconds."""
    longest = 0
    for instance in interrupted(layout):
        transaction = _Transaction({"root": str(layout.root), "instance": instance}, runner, lambda *_a, **_k: None)
        longest += transaction.point_back()
    return longest


def stop(unit: str, runner: Runner) -> float:
    """Stop a unit, however it stands; seconds taken. Raises FindingError when it does not stop."""
    begun = time.monotonic()
    state = gates.unit_state(runner, unit)
    if state.get("ActiveState", "inactive") not in _DOWN:
        # What is loaded decides how long systemd waits before it kills.
        limit = units.seconds(state.get("TimeoutStopUSec"))
        answer = runner(["systemctl", "stop", unit], timeout=limit and limit + _STOP_GRACE)
        after = gates.unit_state(runner, unit)
        if after.get("ActiveState") not in _DOWN:
            raise _refusal(
                "stop",
                unit,
                "does not stop",
                found="%s (%s)" % (after.get("ActiveState"), after.get("SubState")),
                evidence=answer.stderr.strip(),
                cause="a process that the kernel cannot end, often one stuck in a driver",
                fix="look for processes in state D (systemctl status %s); the host may need a restart" % unit,
            )
    return round(time.monotonic() - begun, 2)


# The transaction


class _Transaction:
    """One instance's way from a release to another."""

    def __init__(self, spec: t.Mapping[str, t.Any], runner: Runner, progress: Progress) -> None:
        self.spec = spec
        self.layout = Layout(spec["root"])
        self.instance: str = spec["instance"]
        self.unit = unit_name(self.instance)
        self.runner = runner
        self.progress = progress
        self.record: dict[str, t.Any] = {}
        self.times: dict[str, float] = {}
        self.libraries: list[Finding] = []

    # Forward

    def to(self, release_id: str, what: str) -> dict[str, t.Any]:
        """Serve this release; ``what`` is *switch* or *rollback*."""
        findings = self.finish()
        wanted = releases.load(self.layout, self.instance, release_id)
        force = bool(self.spec.get("force"))
        self._refuse_unfit(wanted, unasked=what == "switch" and not force)
        now = releases.current(self.layout, self.instance)
        if now == release_id and not force and self._serves(wanted):
            self.progress("switch", "release %s is current and runs: nothing to do" % release_id)
            return self._result(findings, committed=True, noop=True)
        previous = self._previous(now, findings)
        if not wanted.facts.get("adopted"):
            prepare_user(self.layout, wanted.facts, self.runner)
        guard_boots(self.layout, self.runner)
        self._begin(what, wanted, previous)
        try:
            outcome = self._forward(wanted, previous)
        except Exception as error:
            finding = error.finding if isinstance(error, FindingError) else jobs.unexpected(error)
            outcome = gates.Outcome([finding], {}, {})
        findings += outcome.findings
        if outcome.ok:
            self._commit(outcome.measured)
            return self._result(findings, committed=True, gate=outcome.measured)
        reason = errors(outcome.findings)[0]
        self.record["acceptance"] = outcome.measured.get("acceptance")
        self.progress("gate", reason.message, finding=reason.as_dict())
        findings += self._back(reason)
        if reason.id.startswith("gate."):
            releases.mark_failed(self.layout, self.instance, release_id, reason)
        return self._result(findings, committed=False, gate=outcome.measured, rolled_back_to=self.record["from"])

    def _result(
        self,
        findings: t.Sequence[Finding],
        *,
        committed: bool,
        noop: bool = False,
        gate: t.Optional[t.Mapping[str, t.Any]] = None,
        rolled_back_to: t.Optional[str] = None,
    ) -> dict[str, t.Any]:
        return {
            "ok": committed,
            "changed": not noop,
            "committed": committed,
            "rolled_back_to": rolled_back_to,
            "times": self.times,
            "gate": dict(gate or {}),
            "findings": [finding.as_dict() for finding in (*findings, *self.libraries)],
        }

    def _refuse_unfit(self, wanted: Release, *, unasked: bool) -> None:
        environment = self.layout.environment(wanted.facts["environment"])
        if wanted.facts.get("adopted"):
            self._refuse_absent_unit(wanted)
        elif not (environment / MARKER).exists():
            raise _refusal(
                "environment-missing",
                "environment " + wanted.facts["environment"],
                "is not complete on this host",
                evidence="%s is not there" % (environment / MARKER),
                fix="run the whole deploy: it builds the environment before it switches",
            )
        for name, secret in wanted.facts["secrets"].items():
            path = releases.secret_path(self.layout, self.instance, secret["version"])
            if not path.exists():
                raise _refusal(
                    "secret-missing",
                    "secret %s of %s" % (name, self.instance),
                    "is not on this host",
                    evidence="%s is not there" % path,
                    fix="run the whole deploy: it sends the secret again",
                )
        mark = releases.failed(self.layout, self.instance, wanted.id)
        if mark and unasked:
            raise _refusal(
                "failed-before",
                "release %s of %s" % (wanted.id, self.instance),
                "has failed its gate before and is not tried again unasked",
                found=mark.message,
                evidence=mark.evidence,
                fix="change what made it fail (%s), or force this switch to try the same release again" % mark.fix,
            )

    def _refuse_absent_unit(self, adopted: Release) -> None:
        unit = unit_of(adopted.facts)
        answer = self.runner(["systemctl", "show", "--value", "--property=LoadState", unit], timeout=30)
        if answer.stdout.strip() != "loaded":
            raise _refusal(
                "unit-gone",
                "release %s of %s, the unit %s that was made by hand" % (adopted.id, self.instance, unit),
                "is not on this host any more",
                found=answer.stdout.strip(),
                expected="loaded",
                fix="bring the unit back, or go to another release: specdec status %s" % self.instance,
            )

    def _serves(self, release: Release) -> bool:
        unit = unit_of(release.facts)
        lives = gates.unit_state(self.runner, unit).get("ActiveState") == "active"
        if unit != self.unit:
            return lives
        try:
            running = Path(units.running_file(self.instance)).read_text(encoding="utf-8")
        except OSError:
            running = ""
        return lives and running == release.id and releases.unit_in_place(self.layout, self.instance, release.id)

    def _previous(self, now: t.Optional[str], findings: list[Finding]) -> t.Optional[Release]:
        if now is None:
            return None
        try:
            return releases.load(self.layout, self.instance, now)
        except FindingError as error:
            findings.append(
                dataclasses.replace(
                    error.finding, id="transaction.no-way-back", verdict=WARNING, message="no way back: " + error.finding.message
                )
            )
            return None

    def _begin(self, what: str, wanted: Release, previous: t.Optional[Release]) -> None:
        limits = deadline(wanted.facts, previous.facts if previous else None)
        now = time.time()
        self.record = {
            "schema": SCHEMA,
            "id": secrets.token_hex(8),
            "instance": self.instance,
            "what": what,
            "from": previous.id if previous else None,
            "to": wanted.id,
            "step": STARTED,
            "at": {STARTED: now},
            "deadline": now + limits.total,
            "who": self.spec.get("who", ""),
            "why": self.spec.get("why", ""),
        }
        try:
            _reserve_path(self.layout, self.instance).write_bytes(bytes(_RESERVE))
            self._write_record()
        except OSError as error:
            _reserve_path(self.layout, self.instance).unlink(missing_ok=True)
            fix = "free some space, or make the file system writable, then run this again"
            message = "the transaction cannot be written down; nothing was stopped"
            raise _refusal("disk", str(self.layout.instance(self.instance)), message, evidence=str(error), fix=fix) from error
        self.progress(
            "switch", "%s: %s → %s, %s" % (self.instance, self.record["from"] or "nothing", wanted.id, limits.text()), deadline=limits.total
        )

    def _step(self, step: str) -> None:
        self.record["step"] = step
        self.record["at"][step] = time.time()
        self._write_record()
        self.progress(step, "%s: %s" % (self.instance, step))

    def _write_record(self) -> None:
        releases.write_durably(_record_path(self.layout, self.instance), json.dumps(self.record))

    def _forward(self, wanted: Release, previous: t.Optional[Release]) -> gates.Outcome:
        before = remains.processes(self._units(), self.runner)
        self._step(STOPPED)
        self.times["stop"] = self._stop()
        uses_gpus = wanted.facts.get("gpus") or bool(previous and previous.facts.get("gpus"))
        left = remains.gone(before, uses_gpus, str(self.layout.root), self.runner)
        if left.verdict == ERROR:
            raise FindingError(left)
        self._step(FLIPPED)
        self._point(wanted)
        outcome = self._start_and_gate(wanted, self.times, self._step)
        return dataclasses.replace(outcome, findings=[*([left] if before else []), *outcome.findings])

    def _start_and_gate(self, release: Release, times: dict[str, float], step: t.Callable[[str], None]) -> gates.Outcome:
        step(STARTING)
        since, ticks, begun = time.time(), gates.ticks_now(), time.monotonic()
        before = self._start(release)
        times["start"] = round(time.monotonic() - begun, 2)
        step(GATING)
        gate = gates.Gate(
            release.facts,
            self.runner,
            self.progress,
            since=since,
            ticks=0 if before else ticks,
            restarts=int(before.get("NRestarts", 0)),
            key=releases.read_secret(self.layout, release.facts, "api_key"),
            secrets=releases.secret_values(self.layout, release.facts),
        )
        outcome = gate.pass_through()
        times.update(outcome.times)
        return outcome

    def _commit(self, measured: t.Mapping[str, t.Any]) -> None:
        self._free_reserve()
        self.record.update(times=self.times, acceptance=measured.get("acceptance"))
        self._step(COMMITTED)
        self._settle()
        self.progress("switch", "%s serves release %s" % (self.instance, self.record["to"]), times=self.times, **measured)

    def _settle(self) -> None:
        """What follows from a commit; repeating it changes nothing."""
        self._enable()
        releases.clear_failed(self.layout, self.instance, self.record["to"])
        self._end("committed")

    def _free_reserve(self) -> None:
        with contextlib.suppress(OSError):
            _reserve_path(self.layout, self.instance).unlink(missing_ok=True)

    def _end(self, verdict: str) -> None:
        """Into the history, once, and the transaction is over."""
        self._free_reserve()
        entries = releases.history(self.layout, self.instance)
        if not any(entry.get("transaction") == self.record["id"] for entry in entries[-3:]):
            entry = {
                key: self.record.get(key) for key in ("who", "what", "from", "to", "why", "times", "at", "deadline", "acceptance", "reason")
            }
            releases.append_history(
                self.layout, self.instance, {**entry, "when": time.time(), "verdict": verdict, "transaction": self.record["id"]}
            )
        _record_path(self.layout, self.instance).unlink(missing_ok=True)

    # Back

    def finish(self) -> list[Finding]:
        """Finish what was interrupted, if anything was; what it found."""
        record = unfinished(self.layout, self.instance)
        if record is None:
            return []
        self.record = record
        self.times = dict(record.get("times") or {})
        if record["step"] == COMMITTED:
            self._settle()
            return [Finding("transaction.recovered", OK, "instance " + self.instance, "an interrupted transaction was committed: it stays")]
        if record["step"] == ROLLED_BACK:
            self._end(record["verdict"])
            return []
        return self._back(
            Finding(
                "transaction.interrupted",
                WARNING,
                "instance " + self.instance,
                "a %s to release %s was interrupted and taken back" % (record["what"], record["to"]),
                found="its last step was: %s" % record["step"],
                cause="its process was killed, or the host restarted",
                fix="run the deploy again",
            )
        )

    def _back(self, reason: Finding) -> list[Finding]:
        """Serve the release from before again; what was found on the way."""
        self._free_reserve()
        self.record["reason"] = reason.message
        findings = [] if reason.verdict == ERROR else [reason]
        previous_id = self.record["from"]
        if previous_id == self.record["to"] and reason.verdict == ERROR:
            # It was restarted and failed: what was there before is this very release.
            return findings + self._stay_failed()
        begun = time.monotonic()
        self.progress("back", "%s goes back to %s" % (self.instance, previous_id or "nothing"))
        try:
            previous = self._take_back()
        except FindingError as error:
            findings.append(error.finding)
            return findings + self._stay_failed()
        if previous is None:
            self.record["verdict"] = ROLLED_BACK
            self._step(ROLLED_BACK)
            self._end(ROLLED_BACK)
            return findings
        times: dict[str, float] = {}
        outcome = self._start_and_gate(previous, times, lambda step: self.progress("back", "%s: %s" % (previous.id, step)))
        self.record["verdict"] = ROLLED_BACK if outcome.ok else FAILED
        self.record["times"] = {**self.times, **{"back " + part: seconds for part, seconds in times.items()}}
        self._step(ROLLED_BACK)
        self._end(self.record["verdict"])
        if outcome.ok:
            self.times["back"] = round(time.monotonic() - begun, 2)
            self.progress("back", "%s serves release %s again, %.1f s after the failure" % (self.instance, previous.id, self.times["back"]))
            return findings
        return findings + [
            dataclasses.replace(one, subject="%s, back on release %s" % (one.subject, previous.id)) for one in errors(outcome.findings)
        ]

    def _stay_failed(self) -> list[Finding]:
        self.record["verdict"] = FAILED
        self._step(ROLLED_BACK)
        self._end(FAILED)
        return []

    def _take_back(self) -> t.Optional[Release]:
        """Stop what was started and point at the release from before; None at a first deploy."""
        previous_id = self.record["from"]
        if previous_id is None:
            self._stop()
            self.runner(["systemctl", "disable", "--quiet", self.unit], timeout=120)
            self._forget_failure(self.unit)
            self._point(None)
            return None
        previous = releases.load(self.layout, self.instance, previous_id)
        if not (self._serves(previous) and releases.current(self.layout, self.instance) == previous_id):
            self._stop()
            self._point(previous)
        return previous

    def point_back(self) -> int:
        """The part of going back that a boot does before anything starts; how long the rest may take."""
        record = unfinished(self.layout, self.instance)
        if record is None or record["step"] in (COMMITTED, ROLLED_BACK):
            return 0
        previous = releases.load(self.layout, self.instance, record["from"]) if record["from"] else None
        self._point(previous)
        if previous is None:
            return 0
        return previous.facts["stop_timeout"] + releases.start_limit(previous.facts) + previous.facts["gate"]["timeout"]

    # systemd

    def _point(self, release: t.Optional[Release]) -> None:
        """Make a release current, its unit included; None: neither is there any more."""
        wanted = release.id if release else None
        if releases.current(self.layout, self.instance) != wanted:
            releases.flip(self.layout, self.instance, wanted)
        if release is None:
            path = Path(UNITS) / self.unit
            changed = path.exists()
            path.unlink(missing_ok=True)
        elif release.facts.get("adopted"):
            changed = False  # its unit is not ours to write
        else:
            changed = _place(self.unit, release.unit)
        # A process killed between writing and reloading leaves a file in place that systemd has not read.
        if changed or gates.unit_state(self.runner, self.unit).get("NeedDaemonReload") == "yes":
            _systemctl(self.runner, "daemon-reload")
        self.libraries = registrations.settle(self.layout, self.runner)

    def _units(self) -> list[str]:
        """The instance's unit, and one made by hand that this transaction comes from or goes to."""
        units_ = [self.unit]
        for release_id in (self.record.get("from"), self.record.get("to")):
            adopted = releases.adopted_unit(self.layout, self.instance, release_id)
            if adopted and adopted not in units_:
                units_.append(adopted)
        return units_

    def _stop(self) -> float:
        return round(sum(stop(unit, self.runner) for unit in self._units()), 2)

    def _start(self, release: Release) -> dict[str, str]:
        """Start the unit; systemd's own job is over when this returns. Its state if it ran already, else nothing."""
        unit = unit_of(release.facts)
        before = gates.unit_state(self.runner, unit)
        if before.get("ActiveState") == "active":
            return before
        self._forget_failure(unit)
        answer = self.runner(["systemctl", "start", "--no-block", unit], timeout=60)
        if answer.rc != 0:
            raise self._not_started(unit, answer.stderr.strip())
        limit = releases.start_limit(release.facts)
        end = time.monotonic() + limit
        while True:
            show = self.runner(["systemctl", "show", "--property=ActiveState,Job,Result", unit], timeout=30)
            state = dict(line.split("=", 1) for line in show.stdout.splitlines() if "=" in line)
            if state.get("ActiveState") in ("active", "failed") or state.get("Job", "0") in ("", "0"):
                return {}  # whether it lives is the gate's to say
            if time.monotonic() > end:
                raise self._not_started(unit, "its start job is still queued after %d s" % limit)
            time.sleep(_POLL)

    def _forget_failure(self, unit: str) -> None:
        """So that no start limit of an earlier crash counts; a unit that did not fail has nothing to forget."""
        self.runner(["systemctl", "reset-failed", unit], timeout=30)

    def _not_started(self, unit: str, evidence: str) -> FindingError:
        return _refusal(
            "start",
            unit,
            "cannot be started",
            evidence=evidence,
            fix="systemctl status %s and systemd-analyze verify say why" % unit,
        )

    def _enable(self) -> None:
        """What serves now starts at boot, and nothing else of the instance; one made by hand only if it did so before."""
        serving = releases.adopted_unit(self.layout, self.instance, self.record["to"]) or self.unit
        for unit in self._units():
            enabled = gates.unit_state(self.runner, unit).get("UnitFileState") == "enabled"
            wanted = unit == serving and (unit == self.unit or adoptions.was_enabled(self.layout, self.instance))
            if enabled != wanted:
                _systemctl(self.runner, "enable" if wanted else "disable", "--quiet", unit)


# What a person asks for


def describe(layout: Layout, instance: str, runner: Runner) -> dict[str, t.Any]:
    """An instance as it stands now, for a person: all plain values, None where there is none."""
    now = releases.current(layout, instance)
    release = None
    problem = None
    if now:
        try:
            release = releases.load(layout, instance, now).facts
        except FindingError as error:
            problem = error.finding
    entries = releases.history(layout, instance)
    try:
        running: t.Optional[str] = Path(units.running_file(instance)).read_text(encoding="utf-8")
    except OSError:
        running = None
    state = gates.unit_state(runner, unit_of(release) if release else unit_name(instance))
    if release and release.get("adopted") and state.get("ActiveState") == "active":
        running = now
    return {
        "instance": instance,
        "release": now,
        "running": running,
        "facts": release,
        "problem": problem.as_dict() if problem else None,
        "state": state,
        "healthy": gates.healthy(release) if release and state.get("ActiveState") == "active" else None,
        "history": entries,
        "unfinished": unfinished(layout, instance),
        "way_back": releases.way_back(entries),
    }
