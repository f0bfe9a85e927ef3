# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run every kind of test, show progress, and end with a summary per kind, what failed and why, and ``N passed, M failed``.

    python tests/run.py [--full] [KIND ...]

Each kind is a command that writes ``ok NAME`` and ``not ok NAME`` lines, or a JUnit file. It is red when
the command fails, when a test fails, and when it has run no test at all. Kinds of different lanes run side by
side, those of one lane one after another. Logs are kept in .state/logs.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import subprocess
import sys
import threading
import time
import typing as t
from pathlib import Path
from xml.etree import ElementTree

CHECKOUT = Path(__file__).resolve().parents[1]
LOGS = CHECKOUT / ".state" / "logs"
#: Seconds between two lines of progress where the output is no terminal.
PATIENCE = 20


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of test: ``{junit}`` in its command is where it writes its results, if it does."""

    name: str
    command: tuple[str, ...]
    lane: int = 0
    full: bool = False


def pytest(*arguments: str) -> tuple[str, ...]:
    """The command that runs the tests of some files and directories."""
    return ("python", "-m", "pytest", "--junit-xml", "{junit}", *arguments)


#: Whole runs of playbooks, most of them against one fleet of hosts: they stay in one lane.
FLOWS = "tests/integration/test_*flow*.py"
#: Switches each check off in turn; the longest of all.
SILENCED = "tests/full/test_silenced_checks.py"

KINDS = (
    Kind("lint", ("tests/lint/run",)),
    Kind("flows", pytest(*sorted(str(path.relative_to(CHECKOUT)) for path in CHECKOUT.glob(FLOWS))), lane=1),
    Kind("sanity", ("python", "tests/sanity/run.py")),
    Kind("unit", pytest("tests/unit")),
    Kind("integration", pytest("tests/integration", "--ignore-glob=" + FLOWS)),
    Kind("molecule", ("tests/molecule",), lane=1),
    Kind("cores", ("tests/cores",), full=True),
    Kind("whole", pytest("tests/full", "--ignore=" + SILENCED), full=True),
    Kind("silenced", pytest(SILENCED), lane=1, full=True),
    Kind("faults", ("env", "SPECDEC_FAULTS=all", *pytest("tests/integration/test_faults.py")), full=True),
    Kind("deploys", ("env", "SPECDEC_FAULTS=all", "tests/molecule", "faults"), lane=1, full=True),
)


@dataclasses.dataclass
class Outcome:
    """How a kind went; ``failures`` tells of each test that failed its name and, in a few lines, why."""

    kind: Kind
    passed: int
    skipped: int
    failures: dict[str, str]
    seconds: float
    log: Path


def reason(text: str) -> str:
    """What a message says first: a few lines, for a playbook's error names cause and fix in as many."""
    lines = [line.strip()[:160] for line in text.splitlines() if line.strip()]
    return "\n      ".join(lines[:6])


def read_lines(log: Path) -> tuple[int, int, dict[str, str]]:
    """Passed, skipped and the failed, from ``ok``, ``skipped`` and ``not ok NAME: why`` lines."""
    text = log.read_text(errors="replace")
    count = {word: len(re.findall(r"^%s " % word, text, re.MULTILINE)) for word in ("ok", "skipped")}
    return (
        count["ok"],
        count["skipped"],
        {name: reason(why) for name, why in re.findall(r"^not ok ([^:\n]+):?(.*)", text, re.MULTILINE)},
    )


def read_junit(path: Path) -> tuple[int, int, dict[str, str]]:
    """Passed, skipped and the failed, from a JUnit file; nothing where there is none."""
    passed, skipped, failures = 0, 0, {}
    for case in ElementTree.parse(path).iter("testcase") if path.exists() else ():
        wrong = [*case.findall("failure"), *case.findall("error")]
        if wrong:
            failures["%s.%s" % (case.get("classname"), case.get("name"))] = reason(wrong[0].get("message") or wrong[0].text or "")
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return passed, skipped, failures


def last_line(log: Path) -> str:
    """What the command said last, shortened to fit a line."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 2000))
        lines = stream.read().decode(errors="replace").split("\n")
    said = [re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line).strip() for line in lines]
    return ([line for line in said if line] or ["started"])[-1][:90]


class Progress:
    """What runs at present, shown on the terminal, or told as a line now and then."""

    def __init__(self) -> None:
        self.running: dict[str, tuple[float, Path]] = {}
        self.lock = threading.Lock()
        self.told = time.monotonic()

    def say(self, text: str) -> None:
        """Print lines, above what is shown of the progress."""
        with self.lock:
            print(("\r\033[K" if sys.stdout.isatty() else "") + text, flush=True)

    def show(self) -> None:
        """Show how far the running kinds are; called about once a second."""
        now = time.monotonic()
        lines = ["%-12s %4.0f s  %s" % (name, now - started, last_line(log)) for name, (started, log) in list(self.running.items())]
        if sys.stdout.isatty():
            with self.lock:
                print("\r\033[K  " + " | ".join(line[: 150 // len(lines)] for line in lines), end="", flush=True)
        elif now - self.told >= PATIENCE:
            self.told = now
            self.say("\n".join("  " + line for line in lines))


def run(kind: Kind, progress: Progress) -> Outcome:
    """Run one kind from start to end."""
    log, junit = LOGS / (kind.name + ".log"), LOGS / (kind.name + ".xml")
    junit.unlink(missing_ok=True)
    command = [word.replace("{junit}", str(junit)) for word in kind.command]
    progress.say("%s: %s" % (kind.name, " ".join(word for word in kind.command if word not in ("--junit-xml", "{junit}"))))
    started = time.monotonic()
    with log.open("wb") as stream:
        progress.running[kind.name] = (started, log)
        status = subprocess.run(
            command, cwd=CHECKOUT, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, check=False
        ).returncode
        del progress.running[kind.name]
    passed, skipped, failures = read_junit(junit) if "{junit}" in kind.command else read_lines(log)
    if status and not failures:
        failures[kind.name] = "%s ended with status %d" % (" ".join(kind.command), status)
    if not passed and not failures:
        failures[kind.name] = "no test was run"
    outcome = Outcome(kind, passed, skipped, failures, time.monotonic() - started, log)
    progress.say("  " + line_of(outcome))
    if failures:
        ending = ["    | " + line for line in log.read_text(errors="replace").splitlines()[-60:]]
        progress.say("\n".join(["    the end of .state/logs/%s:" % log.name, *ending]))
    return outcome


def run_lanes(kinds: t.Sequence[Kind]) -> list[Outcome]:
    """Run the kinds, the lanes side by side; outcomes in the kinds' order."""
    progress, outcomes = Progress(), {}

    def follow(lane: int) -> None:
        for kind in kinds:
            if kind.lane == lane:
                outcomes[kind.name] = run(kind, progress)

    lanes = [threading.Thread(target=follow, args=(lane,), daemon=True) for lane in sorted({kind.lane for kind in kinds})]
    for thread in lanes:
        thread.start()
    while any(thread.is_alive() for thread in lanes):
        time.sleep(1)
        if progress.running:
            progress.show()
    return [outcomes[kind.name] for kind in kinds]


def line_of(outcome: Outcome) -> str:
    """One kind's line of the summary."""
    verdict = "FAILED" if outcome.failures else "ok"
    counts = "%4d passed, %d failed" % (outcome.passed, len(outcome.failures))
    if outcome.skipped:
        counts += ", %d skipped" % outcome.skipped
    return "%-12s %-6s %s in %.0f s" % (outcome.kind.name, verdict, counts, outcome.seconds)


def main(argv: t.Sequence[str]) -> int:
    """Run what the command line asks for; 0 when every kind is green."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="also what takes long: every supported ansible-core and Python")
    parser.add_argument("kinds", nargs="*", metavar="KIND", choices=[[], *(kind.name for kind in KINDS)], help="only these")
    asked = parser.parse_args(argv)
    chosen = [kind for kind in KINDS if (kind.name in asked.kinds if asked.kinds else asked.full or not kind.full)]
    LOGS.mkdir(parents=True, exist_ok=True)
    os.environ["PATH"] = os.pathsep.join([str(CHECKOUT / ".venv" / "bin"), os.environ.get("PATH", os.defpath)])
    outcomes = run_lanes(chosen)
    print("\nsummary")
    for outcome in outcomes:
        print("  " + line_of(outcome))
        for name, why in outcome.failures.items():
            print("    %s: %s" % (name, why))
    failed = sum(len(outcome.failures) for outcome in outcomes)
    print("%d passed, %d failed" % (sum(outcome.passed for outcome in outcomes), failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
