# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probe: what is run by an environment's own Python, as the service user, in the unit's sandbox.

The source of this file is handed to that Python on its standard input (see probes.py), so it imports
nothing of the collection, and the search path is the one of ``python -m``. A supervisor forks the
worker that goes through the stages, and outlives whatever an import does to it: a crash, a hang, an
exit, a process left behind.

Standard output carries JSON lines alone: ``{"begin": stage}``, ``{"stage": …, "ok": …}``, ``{"cuda_context": …}`` and at the
end ``{"end": …}``; whatever the engine prints goes to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import functools
import importlib
import importlib.util
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import typing as t
from pathlib import Path
from unittest import mock

_PR_SET_CHILD_SUBREAPER = 36
_GRACE = 3.0
_NAMED = 5
_LONGEST = 2000


def main(task: t.Mapping[str, t.Any]) -> None:
    """Run the stages of ``task`` (see probes.task) in a child and report how it ended."""
    report = os.dup(1)
    os.dup2(2, 1)
    # Orphans of the worker become children of the supervisor, which can then name and end them.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    worker = os.fork()
    if worker == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        faulthandler.enable()
        try:
            run_stages(task, lambda line: _write(report, line))
        finally:
            sys.stderr.flush()
            os._exit(0)
    status = _wait(worker, task["deadline"])
    timed_out = status is None
    if status is None:
        os.kill(worker, signal.SIGABRT)  # faulthandler shows where it hangs
        status = _wait(worker, _GRACE)
    if status is None:
        os.kill(worker, signal.SIGKILL)
        status = os.waitpid(worker, 0)[1]
    end = {
        "status": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        "timed_out": timed_out,
        "strays": _end_strays(),
    }
    _write(report, {"end": end})


def run_stages(task: t.Mapping[str, t.Any], report: t.Callable[[t.Mapping[str, t.Any]], None]) -> None:
    """Every stage in order; those that need the engine are left out when it cannot be imported."""
    imported = True
    for name, needs_engine, action in _stages(task):
        if needs_engine and not imported:
            continue
        report({"begin": name})
        started = time.monotonic()
        line: dict[str, t.Any] = {"stage": name, "ok": False}
        try:
            line.update(action() or {})
            line.setdefault("error", [])
            line["ok"] = not line["error"]
        except BaseException as error:  # an import may raise SystemExit, too
            line["error"] = chain(error)
        line["seconds"] = round(time.monotonic() - started, 3)
        report(line)
        if name == "engine":
            imported = line["ok"]
    report({"cuda_context": cuda_context()})


def cuda_context() -> t.Optional[bool]:
    """Whether something that was imported or run has made a CUDA context in this process; None without a torch that can tell."""
    torch: t.Any = sys.modules.get("torch")
    try:
        if not torch.cuda.is_initialized():
            return False
        # torch calls itself initialised already when it has only asked what GPUs there are
        made = getattr(getattr(torch, "_C", None), "_cuda_hasPrimaryContext", None)
        return made is None or any(made(device) for device in range(torch.cuda.device_count()))
    except (AttributeError, RuntimeError):
        return None


def _stages(task: t.Mapping[str, t.Any]) -> t.Iterator[tuple[str, bool, t.Callable[[], t.Optional[dict[str, t.Any]]]]]:
    yield "models", False, lambda: read_models(task["models"])
    for part, module in task["imports"]:
        yield part, False, functools.partial(load, module)
    if task["plugins"]:
        yield "plugins", True, lambda: call(task["plugins"])
    if task["algorithm"]:
        yield "algorithm", True, lambda: {"found": recognise(task["recognise"], task["algorithm"])}
    if task["parse"]:
        yield "arguments", True, lambda: dry_run(task)


def read_models(paths: t.Iterable[str]) -> None:
    """Raise PermissionError with the first few files and directories below ``paths`` that this user cannot read."""
    closed = sorted({name for path in paths for name in _tree(path) if not os.access(name, os.R_OK)})
    if closed:
        raise PermissionError(", ".join(closed[:_NAMED]))


def _tree(path: str) -> t.Iterator[str]:
    """A path and all that is below it."""
    yield path
    for parent, directories, files in os.walk(path):
        yield from (os.path.join(parent, entry) for entry in directories + files)


def load(module: str) -> dict[str, t.Any]:
    """Import a module: its file and version; ``absent`` when there is none of that name."""
    if importlib.util.find_spec(module) is None:
        return {"absent": True, "error": [{"type": "ModuleNotFoundError", "message": "No module named %r" % module, "where": ""}]}
    loaded = importlib.import_module(module)
    version = getattr(loaded, "__version__", None)
    return {"file": getattr(loaded, "__file__", None) or "", "version": version if isinstance(version, str) else ""}


def dry_run(task: t.Mapping[str, t.Any]) -> None:
    """Let the engine read, resolve and check its configuration as it does at start."""
    refusing = mock.patch.object(argparse.ArgumentParser, "error", _refuse)
    with refusing, tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "config.yaml")
        path.write_text(json.dumps(task["config"]), encoding="utf-8")
        words: t.Any = [task["config_option"], str(path)]
        if task.get("parser"):
            words = _resolve(task["fill"])(call(task["parser"])).parse_args(words)
        for check in task.get("checks", ()):
            _resolve(check)(words)
        arguments = _resolve(task["parse"])(words)
    for step in task["then"]:
        getattr(arguments, step)()


def recognise(entry_point: str, name: str) -> str:
    """What an entry point makes of a name: a function that is given it, or a type that lists all names (``Literal``)."""
    found: t.Any = _resolve(entry_point)
    names = t.get_args(found)
    if names and name not in names:
        raise ValueError("%r is none of %s" % (name, ", ".join(sorted(names))))
    return repr(name if names else found(name))


def _refuse(_parser: t.Any, message: str) -> None:
    """In place of argparse's usage text and exit."""
    raise ValueError(message) from None


def call(entry_point: str) -> t.Any:
    """Call, without arguments, what an entry point names."""
    return _resolve(entry_point)()


def _resolve(entry_point: str) -> t.Callable[..., t.Any]:
    """``package.module:name.name`` as the object it names."""
    module, _colon, names = entry_point.partition(":")
    found: t.Any = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return t.cast("t.Callable[..., t.Any]", found)


def chain(error: BaseException) -> list[dict[str, t.Any]]:
    """An exception and what it came from, outermost first; ``explicit``: raised ``from`` the next one."""
    links: list[dict[str, t.Any]] = []
    seen: set[int] = set()
    current: t.Optional[BaseException] = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        before = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
        links.append(
            {
                "type": type(current).__name__,
                "message": str(current)[:_LONGEST],
                "where": _where(current),
                "explicit": current.__cause__ is not None,
            }
        )
        current = before
    return links


def _where(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return "%s:%s" % (error.filename, error.lineno)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    return "%s:%s" % (frames[-1].filename, frames[-1].lineno) if frames else ""


def _write(descriptor: int, line: t.Mapping[str, t.Any]) -> None:
    os.write(descriptor, json.dumps(line).encode() + b"\n")


def _wait(worker: int, seconds: float) -> t.Optional[int]:
    """The worker's wait status, or None when it still runs after ``seconds``."""
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(worker, os.WNOHANG)
        if done:
            return status
        left = end - time.monotonic()
        if left <= 0:
            return None
        signal.sigtimedwait([signal.SIGCHLD], left)


def _end_strays() -> list[str]:
    """Command lines of processes that the worker left behind and that do not end by themselves; they are killed."""
    end = time.monotonic() + _GRACE
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < end:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                signal.sigtimedwait([signal.SIGCHLD], max(0.0, end - time.monotonic()))
        strays = []
        for process in _children():
            with contextlib.suppress(OSError):
                words = Path("/proc", str(process), "cmdline").read_bytes().split(b"\0")
                strays.append(b" ".join(words).decode("utf-8", "replace").strip()[:200])
                os.kill(process, signal.SIGKILL)
        return sorted(strays)
    return []


def _children() -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and int(Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(entry))
    return found
