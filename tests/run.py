# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run every kind of test, show progress, and end with a summary per kind and ``N passed, M failed``.

    python tests/run.py [--full] [KIND ...]

Each kind is a command that writes ``ok NAME`` and ``not ok NAME`` lines, or a JUnit file. It is red when
the command fails, when a test fails, and when it has run no test at all. Logs are kept in .state/logs.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import subprocess
import sys
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
    full: bool = False


def pytest(directory: str) -> tuple[str, ...]:
    """The command that runs the tests below a directory."""
    return ("python", "-m", "pytest", "--junit-xml", "{junit}", directory)


KINDS = (
    Kind("lint", ("tests/lint/run",)),
    Kind("sanity", ("python", "tests/sanity/run.py")),
    Kind("unit", pytest("tests/unit")),
    Kind("integration", pytest("tests/integration")),
    Kind("molecule", ("tests/molecule",)),
    Kind("cores", ("tests/cores",), full=True),
    Kind("pairs", pytest("tests/full"), full=True),
    Kind("faults", ("env", "SPECDEC_FAULTS=all", *pytest("tests/integration/test_faults.py")), full=True),
)


@dataclasses.dataclass
class Outcome:
    """How a kind went; ``failures`` names what failed."""

    kind: Kind
    passed: int
    skipped: int
    failures: list[str]
    seconds: float
    log: Path


def read_lines(log: Path) -> tuple[int, int, list[str]]:
    """Passed, skipped and the names of the failed, from ``ok``, ``skipped`` and ``not ok`` lines."""
    text = log.read_text(errors="replace")
    count = {word: len(re.findall(r"^%s " % word, text, re.MULTILINE)) for word in ("ok", "skipped")}
    return count["ok"], count["skipped"], re.findall(r"^not ok (.+)", text, re.MULTILINE)


def read_junit(path: Path) -> tuple[int, int, list[str]]:
    """Passed, skipped and the names of the failed, from a JUnit file; nothing where there is none."""
    passed, skipped, failures = 0, 0, []
    for case in ElementTree.parse(path).iter("testcase") if path.exists() else ():
        if case.find("failure") is not None or case.find("error") is not None:
            failures.append("%s.%s" % (case.get("classname"), case.get("name")))
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


def wait(process: subprocess.Popen[bytes], name: str, log: Path) -> int:
    """The exit status of a process, with progress on the terminal, or as a line now and then."""
    terminal, started, told = sys.stdout.isatty(), time.monotonic(), time.monotonic()
    while True:
        try:
            status = process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            now = time.monotonic()
            if terminal or now - told >= PATIENCE:
                told = now
                line = "  %-12s %4.0f s  %s" % (name, now - started, last_line(log))
                print("\r\033[K" + line if terminal else line, end="" if terminal else "\n", flush=True)
        else:
            if terminal:
                print("\r\033[K", end="")
            return status


def run(kind: Kind) -> Outcome:
    """Run one kind from start to end."""
    log, junit = LOGS / (kind.name + ".log"), LOGS / (kind.name + ".xml")
    junit.unlink(missing_ok=True)
    command = [word.replace("{junit}", str(junit)) for word in kind.command]
    print("%s: %s" % (kind.name, " ".join(kind.command[:-1] if "{junit}" in kind.command else kind.command)), flush=True)
    started = time.monotonic()
    with log.open("wb") as stream:
        process = subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT)
        status = wait(process, kind.name, log)
    passed, skipped, failures = read_junit(junit) if "{junit}" in kind.command else read_lines(log)
    if status and not failures:
        failures.append("%s ended with status %d" % (" ".join(kind.command), status))
    if not passed and not failures:
        failures.append("no test was run")
    outcome = Outcome(kind, passed, skipped, failures, time.monotonic() - started, log)
    print("  " + line_of(outcome), flush=True)
    if failures:
        for failure in failures:
            print("    failed: %s" % failure)
        print("    the end of %s:" % log.relative_to(CHECKOUT))
        for line in log.read_text(errors="replace").splitlines()[-40:]:
            print("    | " + line)
    return outcome


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
    outcomes = [run(kind) for kind in chosen]
    print("\nsummary")
    for outcome in outcomes:
        print("  " + line_of(outcome))
    failed = sum(len(outcome.failures) for outcome in outcomes)
    print("%d passed, %d failed" % (sum(outcome.passed for outcome in outcomes), failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
