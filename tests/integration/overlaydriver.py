# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on a host: builds an environment with an overlay through the host's own program, and does something to it at a chosen point.

A point is an event that Python's audit hooks tell before it happens: a file opened for writing, renamed, removed, a directory made, a
process started. So a kill comes at the same place every time, wherever the machine's speed would put it.

Started with the host's program on PYTHONPATH.

    overlaydriver.py build WHICH          build ``plain`` or ``overlaid`` below $ROOT; the job's result as JSON
    overlaydriver.py build WHICH WHAT     and do WHAT where the overlay begins: ``fill`` the disk, ``remount`` it read-only
    overlaydriver.py kills ALL INSIDE     kill at ALL points, INSIDE of them while files are laid over; a JSON line for each
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils import environments, jobs, layout
from ansible_collections.specdec.serving.plugins.plugin_utils.processes import run

ROOT = Path(os.environ.get("ROOT", "/opt/specdec"))
HERE = Path(__file__).resolve().parent
PLACE = layout.Layout(ROOT)
POINTS = ROOT / "points"
APPLYING = "overlay"


def spec(which: str) -> dict[str, t.Any]:
    """The job that builds ``plain`` or ``overlaid``."""
    inputs = json.loads((HERE / "overlays_under_fire.json").read_text(encoding="utf-8"))
    python = {"path": sys.executable, "implementation": sys.implementation.name, "version": platform.python_version(), "build": sys.version}
    content = {
        "schema": layout.SCHEMA,
        "lock": "0" * 16,
        "overlays": inputs["overlays"] if which == "overlaid" else [],
        "python": python,
        "engine": {"name": "engine", "version": "1.0"},
        "lane": "cpu",
        "wheels": inputs["wheels"],
    }
    content["id"] = environments.environment_id(content)
    facts = {"schema": layout.SCHEMA, "kind": "build", "root": str(ROOT), "who": "tester", "why": "test"}
    return {**facts, "environment": content, "lock": inputs["lock"], "python": sys.executable, "uv_env": {"UV_OFFLINE": "1"}}


def watched(at: t.Callable[[str, int, str], None]) -> t.Callable[..., None]:
    """Call ``at`` with stage, number and event of each point from now on; the progress that tells the stages."""
    state = {"stage": "start", "number": 0}
    writing = os.O_WRONLY | os.O_RDWR

    def hook(event: str, arguments: tuple[t.Any, ...]) -> None:
        what = str(arguments[0]) if arguments else ""
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & writing):
            return
        known = event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "subprocess.Popen")
        if known and (event == "subprocess.Popen" or str(PLACE.environments) in what):
            state["number"] = int(state["number"]) + 1
            at(str(state["stage"]), int(state["number"]), "%s %s" % (event, os.path.basename(what)))

    def progress(stage: str, message: str, **data: t.Any) -> None:
        state["stage"] = data.get("step", stage)
        if state["stage"] == APPLYING:
            at(APPLYING, 0, "begins")

    sys.addaudithook(hook)
    return progress


def build(which: str, at: t.Callable[[str, int, str], None]) -> dict[str, t.Any]:
    """The job as the host runs it, but for the points."""
    progress = watched(at)
    jobs.progress_to = lambda path: progress
    directory = Path(tempfile.mkdtemp(prefix="job-"))
    (directory / "spec.json").write_text(json.dumps(spec(which)), encoding="utf-8")
    try:
        return jobs.run(directory, run)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def do(what: str) -> t.Callable[[str, int, str], None]:
    """What happens to the file system where the overlay begins."""

    def at(stage: str, number: int, _event: str) -> None:
        if (stage, number) != (APPLYING, 0) or not what:
            return
        if what == "remount":
            subprocess.run(["mount", "-o", "remount,ro", str(ROOT)], check=True)
        else:
            subprocess.run(["sh", "-c", "cat /dev/zero > %s/filler 2>/dev/null" % ROOT], check=False)

    return at


def worker(which: str, chosen: int) -> None:
    """Note every point, and end at the chosen one, with all that was started, as if the power had gone."""
    os.setsid()
    with POINTS.open("w", encoding="utf-8") as stream:

        def at(stage: str, number: int, event: str) -> None:
            if number:
                os.write(stream.fileno(), ("%s\t%d\t%s\n" % (stage, number, event)).encode())
            if number == chosen and number:
                os.killpg(0, signal.SIGKILL)

        result = build(which, at)
    if not result["ok"]:
        sys.exit(json.dumps(result["findings"]))


def forked(which: str, chosen: int = 0) -> int:
    """The exit status of a build in a process of its own, which need not read Python's modules again; negative where it was killed."""
    process = multiprocessing.get_context("fork").Process(target=worker, args=(which, chosen))
    process.start()
    process.join()
    return t.cast("int", process.exitcode)


def points() -> list[list[str]]:
    """What the last build noted: stage, number and event of each."""
    return [line.split("\t") for line in POINTS.read_text(encoding="utf-8").splitlines()]


def contents(directory: Path, but: str = "") -> str:
    """A digest of every file below a directory: path, mode, bytes; bytecode, which names times, by its path."""
    value = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        if path.is_symlink() or not path.is_file() or (but and any(part.startswith(but) for part in path.parts)):
            continue
        data = b"" if path.suffix == ".pyc" else path.read_bytes()
        value.update(repr((str(path.relative_to(directory)), path.stat().st_mode, hashlib.sha256(data).hexdigest())).encode())
    return value.hexdigest()


def chosen(noted: t.Sequence[t.Sequence[str]], count: int, inside: int) -> list[int]:
    """So many points: INSIDE while files are laid over, and of the rest most where the steps are, few in the one that links files."""

    def evenly(found: t.Sequence[t.Sequence[str]], wanted: int) -> list[int]:
        return [int(found[round(step * (len(found) - 1) / max(1, wanted - 1))][1]) for step in range(wanted)]

    laying = [one for one in noted if one[0] == APPLYING]
    linking = [one for one in noted if one[0] == "own"]
    steps = [one for one in noted if one[0] not in (APPLYING, "own")]
    outside = count - inside
    return sorted({*evenly(laying, inside), *evenly(linking, outside // 4), *evenly(steps, outside - outside // 4)})


def kills(count: int, inside: int) -> None:
    """Kill at each point; after it nothing half counts and what serves is untouched, and the next run converges."""
    environment = PLACE.environment(spec("overlaid")["environment"]["id"])
    serving = PLACE.environment(spec("plain")["environment"]["id"])
    forked("plain")
    serve = "import sys, time; print(sys.prefix, flush=True); time.sleep(100000)"
    subprocess.run(["systemctl", "stop", "served"], stderr=subprocess.DEVNULL, check=False)
    subprocess.run(["systemd-run", "--quiet", "--collect", "--unit=served", str(serving / "venv/bin/python"), "-c", serve], check=True)
    pid = served()
    shutil.rmtree(environment, ignore_errors=True)
    if forked("overlaid"):
        sys.exit("the first build failed")
    found = points()
    golden, beside, cache = contents(environment), contents(serving), contents(PLACE.uv_cache, "interpreter")
    for number in chosen(found, count, inside):
        shutil.rmtree(environment)
        status = forked("overlaid", number)
        stage, _number, event = points()[-1]
        complete = sorted(path.parent.name for path in PLACE.environments.glob("*/.complete"))
        again = forked("overlaid")
        told = {
            "point": number,
            "stage": stage,
            "event": event,
            "killed": status == -signal.SIGKILL,
            "half": complete != [serving.name],
            "untouched": (contents(serving), contents(PLACE.uv_cache, "interpreter"), served()) == (beside, cache, pid),
            "converged": again == 0 and contents(environment) == golden and (environment / ".complete").exists(),
            "left": sorted(path.name for path in PLACE.environments.iterdir() if path not in (environment, serving)),
        }
        print(json.dumps(told), flush=True)
    subprocess.run(["systemctl", "stop", "served"], check=False)


def served() -> str:
    """The process that serves."""
    done = subprocess.run(["systemctl", "show", "--value", "--property=MainPID", "served"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    command, words = sys.argv[1], sys.argv[2:]
    if command == "build":
        print(json.dumps(build(words[0], do(words[1] if len(words) > 1 else ""))))
    else:
        kills(int(words[0]), int(words[1]))
