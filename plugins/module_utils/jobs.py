# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Long work on a host: started as a transient unit, followed from elsewhere, never tied to who asked.

The unit's name is the host's lock: systemd refuses a second one, and it is active exactly as long as
the work, or the recovery after it, goes on.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import secrets
import shutil
import time
import traceback
import typing as t
from pathlib import Path

from .findings import ERROR, Finding, FindingError
from .layout import JOB_UNIT, RUN, SCHEMA, Layout
from .releases import write_durably
from .runners import Progress, Runner

JOBS = Path(RUN) / "jobs"
#: Directory of a job's secrets, below its own.
SECRETS = "secrets"

#: Kind → module beside this one and its function ``(spec, runner, progress) -> dict``.
KINDS: t.Mapping[str, tuple[str, str]] = {
    "build": ("environments", "build"),
    "python": ("pythons", "install"),
    "fetch": ("models", "fetch"),
    "wheel": ("wheelbuilds", "build"),
    "prove": ("checks", "prove"),
    "switch": ("transactions", "switch"),
    "rollback": ("transactions", "rollback"),
    "recover": ("transactions", "recover"),
    "adopt": ("adoptions", "adopt"),
    "prune": ("pruning", "prune"),
    "remove": ("removals", "remove"),
}

#: Kinds that a killed process may leave half done; recovery then runs before the lock is given back.
_RECOVERED = ("switch", "rollback", "recover")
#: Kept so that a controller that comes late still reads a result.
_KEPT = 10
_POLL = 0.1
#: Beyond the deadline, which the work keeps itself: only a hang is cut off.
_GRACE = 60


_FILE_SYSTEM = {
    errno.ENOSPC: "the file system is full",
    errno.EDQUOT: "the quota of disk space is used up",
    errno.EROFS: "the file system cannot be written to",
}


class Busy(Exception):
    """Another job holds the host; the text says which, for whom and since when."""


class NotStarted(Exception):
    """systemd did not start the job; the text is its answer."""


def describe(spec: t.Mapping[str, t.Any], token: str) -> str:
    """The job in one line, as the lock shows it."""
    subject = spec.get("instance") or spec.get("repo") or spec.get("package") or (spec.get("environment") or {}).get("id") or "host"
    return "specdec: %s of %s for %s [%s]" % (spec["kind"], subject, spec.get("who", "nobody named"), token)


def unit_properties(runner: Runner) -> dict[str, str]:
    """The job unit's state: ActiveState, Job, Description, ActiveEnterTimestamp."""
    names = "ActiveState,Job,Description,ActiveEnterTimestamp"
    answer = runner(["systemctl", "show", "--property=" + names, JOB_UNIT], timeout=30)
    return dict(line.split("=", 1) for line in answer.stdout.splitlines() if "=" in line)


def alive(state: t.Mapping[str, str]) -> bool:
    """Whether the job unit runs, recovers, or waits to be started."""
    return state.get("ActiveState") in ("active", "activating", "deactivating", "reloading") or state.get("Job", "0") not in ("", "0")


def start(spec: t.Mapping[str, t.Any], runner: Runner, secret_values: t.Optional[t.Mapping[str, str]] = None) -> dict[str, str]:
    """Start a job; return its token and directory.

    :param spec: schema, kind, root, who, why and what the kind needs; ``deadline`` (seconds) bounds a
        switch and, once more, the recovery after it.
    :param secret_values: by name; the job finds each in the file that ``secret_files`` of its spec names, and
        they are gone when it ends.

    Raises Busy when another job holds the host, NotStarted when systemd refuses for another reason or the program is not there.
    """
    layout = Layout(spec["root"])
    token = secrets.token_hex(8)
    directory = JOBS / token
    JOBS.mkdir(parents=True, exist_ok=True)
    JOBS.chmod(0o700)
    directory.mkdir(mode=0o700)
    # A job keeps the program it was started with: the one in bin/ may be replaced meanwhile.
    program = directory / "specdec"
    try:
        shutil.copyfile(layout.specdec, program)
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise NotStarted("the host's program is not there (%s)" % error) from error
    if secret_values:
        (directory / SECRETS).mkdir(mode=0o700)
        for name, value in secret_values.items():
            write_durably(directory / SECRETS / name, value, 0o600)
        spec = {**spec, "secret_files": {name: str(directory / SECRETS / name) for name in secret_values}}
    write_durably(directory / "spec.json", json.dumps(spec), 0o600)
    command = ["/usr/bin/python3", "-I", "-B", str(program)]
    properties = ["Type=exec", "KillMode=mixed", "Environment=LC_ALL=C.UTF-8"]
    if spec["kind"] in _RECOVERED:
        limit = int(spec["deadline"]) + _GRACE
        properties += ["RuntimeMaxSec=%d" % limit, "TimeoutStopSec=%d" % limit]
        properties.append("ExecStopPost=%s recover --job %s" % (" ".join(command), directory))
    argv = ["systemd-run", "--unit=" + JOB_UNIT, "--collect", "--no-block", "--quiet", "--description=" + describe(spec, token)]
    answer = runner([*argv, *("--property=" + one for one in properties), *command, "job", str(directory)], timeout=60)
    if answer.rc == 0:
        _forget_old(directory)
        return {"token": token, "directory": str(directory)}
    shutil.rmtree(directory, ignore_errors=True)
    state = unit_properties(runner)
    if alive(state):
        raise _busy(state)
    raise NotStarted(answer.stderr.strip() or "systemd-run ended with %d" % answer.rc)


def refuse_busy(runner: Runner) -> None:
    """Raise Busy when a job holds the host: what is there is about to change then."""
    state = unit_properties(runner)
    if alive(state):
        raise _busy(state)


def _busy(state: t.Mapping[str, str]) -> Busy:
    return Busy("%s, since %s" % (state.get("Description"), state.get("ActiveEnterTimestamp") or "just now"))


def _forget_old(newest: Path) -> None:
    def age(directory: Path) -> float:
        try:
            return directory.stat().st_mtime
        except OSError:
            return 0.0

    ended = sorted((one for one in JOBS.iterdir() if one != newest), key=age, reverse=True)
    for directory in ended:
        # of one that was killed while nobody followed it, too
        shutil.rmtree(directory / SECRETS, ignore_errors=True)
    for directory in ended[_KEPT:]:
        shutil.rmtree(directory, ignore_errors=True)


def follow(directory: t.Union[str, Path], offset: int, wait: float, runner: Runner) -> dict[str, t.Any]:
    """What is new of a job since ``offset``; returns at the first news, its end, or after ``wait`` seconds.

    :returns: ``lines`` of progress, the next ``offset``, ``done``, ``result`` once there is one, and
        ``lost`` when the job ended without leaving any.
    """
    directory = Path(directory)
    end = time.monotonic() + wait
    while True:
        # In this order, so that a job ending in between is not taken for a lost one.
        running = _runs(directory.name, runner)
        result = _read_json(directory / "result.json")
        lines, following = _lines(directory / "progress.jsonl", offset)
        lost = not running and result is None
        # A result with the lock still held is recovery's or the last step's: the host is not free yet.
        done = not running
        if done:
            shutil.rmtree(directory / SECRETS, ignore_errors=True)
        if lines or done or time.monotonic() >= end:
            return {"done": done, "lines": lines, "offset": following, "result": result if done else None, "lost": lost}
        time.sleep(_POLL)


def _runs(token: str, runner: Runner) -> bool:
    state = unit_properties(runner)
    return alive(state) and "[%s]" % token in state.get("Description", "")


def _read_json(path: Path) -> t.Optional[dict[str, t.Any]]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _lines(path: Path, offset: int) -> tuple[list[dict[str, t.Any]], int]:
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            new = stream.read()
    except OSError:
        return [], offset
    whole = new[: new.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines()], offset + len(whole)


def run(directory: t.Union[str, Path], runner: Runner) -> dict[str, t.Any]:
    """Do the work a directory's spec.json asks for; write and return the result. Raises OSError only."""
    directory = Path(directory)
    try:
        spec = json.loads((directory / "spec.json").read_text(encoding="utf-8"))
        if spec.get("schema") != SCHEMA or spec.get("kind") not in KINDS:
            raise FindingError(_unknown(spec))
        module, function = KINDS[spec["kind"]]
        work = getattr(importlib.import_module("." + module, __package__), function)
        result = work(spec, runner, progress_to(directory / "progress.jsonl"))
    except FindingError as error:
        result = {"findings": [error.finding.as_dict()]}
    except Exception as error:
        result = {"findings": [unexpected(error).as_dict()]}
    shutil.rmtree(directory / SECRETS, ignore_errors=True)
    return finish(directory, result)


def finish(directory: Path, result: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Write a job's result; ``ok`` is what its findings say, unless it says so itself."""
    wrong = any(finding["verdict"] == ERROR for finding in result["findings"])
    whole = {"ok": not wrong, "changed": False, **result}
    write_durably(directory / "result.json", json.dumps(whole), 0o600)
    return whole


def progress_to(path: Path) -> Progress:
    """A progress that appends JSON lines to a file."""

    def progress(stage: str, message: str, **data: t.Any) -> None:
        line = json.dumps({**data, "t": time.time(), "stage": stage, "message": message})
        # Nobody may be there to read: that is no reason to stop.
        with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")

    return progress


def unexpected(error: BaseException) -> Finding:
    """An exception nobody foresaw, with all that is needed to report it; a full or read-only file system is named as such."""
    if isinstance(error, OSError) and error.errno in _FILE_SYSTEM:
        fix = "free some space, or make the file system writable, then run the deploy again"
        return Finding("job.disk", ERROR, error.filename or "the host", _FILE_SYSTEM[error.errno], evidence=str(error), fix=fix)
    return Finding(
        "job.failed",
        ERROR,
        "job",
        "stopped by %s: %s" % (type(error).__name__, error),
        evidence="".join(traceback.format_exception(type(error), error, error.__traceback__)).strip(),
        fix="run the deploy again; if it repeats, report it with this evidence",
    )


def _unknown(spec: t.Mapping[str, t.Any]) -> Finding:
    return Finding(
        "job.unknown",
        ERROR,
        "job",
        "the host's program does not know this job",
        found="kind %s of schema %s" % (spec.get("kind"), spec.get("schema")),
        expected="%s of schema %d" % (", ".join(KINDS), SCHEMA),
        cause="controller and host hold different versions of the collection",
        fix="run the whole deploy again: it replaces the host's program",
    )
