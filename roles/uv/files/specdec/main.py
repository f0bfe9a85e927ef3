# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host program's command line: what a person asks at three in the morning, and what systemd calls."""

from __future__ import annotations

import argparse
import collections
import getpass
import json
import os
import sys
import time
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils import diagnosis, jobs, previews, releases, rollbacks, transactions
from ansible_collections.specdec.serving.plugins.module_utils.findings import (
    COULD_NOT_CHECK,
    ERROR,
    NOT_APPLICABLE,
    OK,
    VERDICTS,
    Finding,
    FindingError,
    from_dict,
    worst,
)
from ansible_collections.specdec.serving.plugins.module_utils.layout import MARKER, SCHEMA, Layout, unit_name
from ansible_collections.specdec.serving.plugins.plugin_utils.processes import run

_HISTORY_LINES = 5


def main(argv: t.Optional[t.Sequence[str]] = None) -> int:
    """Run a command; its exit status: 0 done, 1 an error was found, 2 not understood, 3 (of verify) something could not be checked."""
    options = _parser().parse_args(argv)
    try:
        return options.function(options)
    except FindingError as error:
        print(error.finding.text(), file=sys.stderr)
    except jobs.Busy as busy:
        print("This host is busy: %s. Wait until that has ended." % busy, file=sys.stderr)
    except jobs.NotStarted as error:
        print("systemd did not start the job: %s" % error, file=sys.stderr)
    except PermissionError as error:
        print("%s. Run this as root: sudo specdec …" % error, file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="specdec", description="Looks after the engines that specdec.serving put on this host.")
    parser.add_argument("--root", type=Path, default=_own_root(), help="directory that holds everything (default: %(default)s)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: t.Callable[[argparse.Namespace], int], text: t.Optional[str]) -> argparse.ArgumentParser:
        shown = {"help": text} if text else {}
        added = commands.add_parser(name, description=text, **shown)
        added.set_defaults(function=function)
        return added

    status = command("status", _status, "what each instance runs, since when, and how to go back")
    status.add_argument("instance", nargs="?")
    verify = command("verify", _verify, "prove an instance's environment and release again, without touching it")
    verify.epilog = (
        "Nothing is changed: no file of the instance is written and no cache is filled; what the imports write goes into a directory that "
        "is removed. Exit status: 0 all is good, warnings included; 1 there is an error; 2 the command was not understood; 3 there is no "
        "error, but something could not be checked."
    )
    verify.add_argument("instance", nargs="?")
    verify.add_argument("--all", action="store_true", help="show what is good, too, with its evidence")
    verify.add_argument("--json", action="store_true", help="print everything as JSON")
    verify.add_argument("--skip", action="append", default=[], metavar="ID", help="leave out a check by its id; may be repeated")
    verify.add_argument("--diff", action="store_true", help="show what was edited of the overlays' files")
    diagnose = command("diagnose", _diagnose, "why an instance crashed, from its journal since the last start")
    diagnose.add_argument("instance", nargs="?", help="or a unit that was made by hand, as NAME.service")
    back = command("rollback", _rollback, "serve an earlier release again")
    back.add_argument("instance")
    back.add_argument("release", nargs="?", help="default: the one that served before")
    prune = command("prune", _prune, "remove what nobody refers to, and say what that freed")
    prune.add_argument("--dry-run", action="store_true", help="only say what would go")
    prune.add_argument(
        "--keep", type=_count, metavar="N", help="earlier releases that stay per instance (default: all it could go back to)"
    )
    job = command("job", _job, None)
    job.add_argument("directory", type=Path)
    recover = command("recover", _recover, None)
    recover.add_argument("--boot", action="store_true")
    recover.add_argument("--job", type=Path)
    return parser


def _own_root() -> Path:
    """The root this program lies under: <root>/bin/specdec."""
    return Path(sys.argv[0]).resolve().parent.parent


# For systemd


def _job(options: argparse.Namespace) -> int:
    return 0 if jobs.run(options.directory, run)["ok"] else 1


def _recover(options: argparse.Namespace) -> int:
    """After a job's end (--job), at boot (--boot), or by hand: take back what is unfinished."""
    if options.job:
        return _recover_after(options.job)
    layout = Layout(options.root)
    if not options.boot and jobs.alive(jobs.unit_properties(run)):
        raise jobs.Busy(jobs.unit_properties(run).get("Description"))
    spec = _spec(options, "recover", "interrupted, found at boot" if options.boot else "by hand")
    # Starting and gating takes minutes and must not hold up the boot: that is a job of its own.
    longest = transactions.flip_back(layout, run)
    if not transactions.interrupted(layout):
        print("nothing was interrupted")
        return 0
    started = jobs.start({**spec, "deadline": longest}, run)
    return 0 if options.boot else _follow(started["directory"])


def _recover_after(directory: Path) -> int:
    """What ExecStopPost does: nothing, unless the job left a transaction unfinished."""
    spec = json.loads((directory / "spec.json").read_text(encoding="utf-8"))
    if not transactions.interrupted(Layout(spec["root"])):
        return 0
    progress = jobs.progress_to(directory / "progress.jsonl")
    result = transactions.recover(spec, run, progress)
    if not (directory / "result.json").exists():
        killed = Finding(
            "job.killed",
            ERROR,
            "job %s" % spec["kind"],
            "was ended before it was done; what served before was brought back",
            found="result %s, status %s" % (os.environ.get("SERVICE_RESULT", "unknown"), os.environ.get("EXIT_STATUS", "unknown")),
            cause="somebody stopped it, memory ran out, or it passed its deadline",
            fix="run the deploy again",
        )
        jobs.finish(directory, {**result, "ok": False, "committed": False, "findings": [killed.as_dict(), *result["findings"]]})
    return 0


def _spec(options: argparse.Namespace, kind: str, why: str) -> dict[str, t.Any]:
    who = os.environ.get("SUDO_USER") or getpass.getuser()
    return {"schema": SCHEMA, "kind": kind, "root": str(options.root), "who": "%s on the host" % who, "why": why}


# For a person


def _instances(options: argparse.Namespace) -> list[str]:
    directory = Layout(options.root).instances
    known = sorted(path.name for path in directory.iterdir() if path.is_dir()) if directory.is_dir() else []
    if options.instance is None:
        return known
    if options.instance not in known:
        raise FindingError(
            Finding(
                "instance.unknown",
                ERROR,
                "instance " + options.instance,
                "is not on this host",
                expected=", ".join(known) or "none: nothing was deployed here",
                fix="name one of these",
            )
        )
    return [options.instance]


def _status(options: argparse.Namespace) -> int:
    layout = Layout(options.root)
    names = _instances(options)
    job = jobs.unit_properties(run)
    if jobs.alive(job):
        print("at work: %s, since %s\n" % (job.get("Description"), job.get("ActiveEnterTimestamp")))
    if not names:
        print("no instance on this host")
    well = True
    for name in names:
        seen = transactions.describe(layout, name, run)
        print(status_text(seen))
        well = well and bool(seen["healthy"]) and seen["running"] == seen["release"] and not seen["unfinished"]
    return 0 if well else 1


def status_text(seen: t.Mapping[str, t.Any]) -> str:
    """One instance (see transactions.describe) as a tired person reads it."""
    facts, state = seen["facts"], seen["state"]
    health = {True: "healthy", False: "NOT HEALTHY", None: "not running"}[seen["healthy"]]
    lines = ["%s: %s" % (seen["instance"], health)]

    def row(label: str, value: t.Any) -> None:
        if value:
            lines.append("  %-12s %s" % (label, value))

    row("release", seen["release"] or "none: nothing has served here")
    if seen["running"] and seen["running"] != seen["release"]:
        row("BUT RUNS", "%s: restart it: systemctl restart specdec-%s" % (seen["running"], seen["instance"]))
    if facts:
        row("engine", "%s %s" % (facts["engine"]["name"], facts["engine"]["version"]))
        row("environment", facts["environment"])
        row("listens on", "%s:%s" % (facts["host"], facts["port"]))
    row("state", "%s (%s) since %s" % (state.get("ActiveState"), state.get("SubState"), state.get("StateChangeTimestamp") or "boot"))
    row("restarts", state.get("NRestarts") != "0" and state.get("NRestarts"))
    if seen["problem"]:
        lines.append(from_dict(seen["problem"]).text())
    if seen["unfinished"]:
        unfinished = seen["unfinished"]
        row("UNFINISHED", "%s to %s, last step: %s" % (unfinished["what"], unfinished["to"], unfinished["step"]))
    for entry in seen["history"][-_HISTORY_LINES:]:
        row("history", history_line(entry))
    row("journal", "journalctl -u specdec-%s -e" % seen["instance"])
    back = seen["way_back"]
    row("go back", back and "specdec rollback %s    (to %s)" % (seen["instance"], back[0]))
    return "\n".join([*lines, ""])


def history_line(entry: t.Mapping[str, t.Any]) -> str:
    """One line of an instance's history."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["when"]))
    words = [when, "%s %s → %s: %s" % (entry["what"], entry["from"] or "nothing", entry["to"], entry["verdict"])]
    if entry.get("acceptance"):
        words.append("acceptance %.2f" % entry["acceptance"])
    words += [str(entry[key]) for key in ("reason", "who", "why") if entry.get(key)]
    return ", ".join(words)


def _verify(options: argparse.Namespace) -> int:
    from ansible_collections.specdec.serving.plugins.module_utils import checks, differences

    layout = Layout(options.root)
    seen: dict[str, dict[str, t.Any]] = {}
    edits: list[str] = []
    for name in _instances(options):
        now = releases.current(layout, name)
        if now is None:
            found = [_never_served(name)]
            seen[name] = {"release": None, "findings": [one.as_dict() for one in found]}
            continue
        facts = releases.load(layout, name, now).facts
        wanted = {"engine": facts["engine"]["name"], "version": facts["engine"]["version"]}
        spec = {**_spec(options, "prove", "verify"), "instance": name, "release": now, "wanted": wanted}
        result = checks.prove({**spec, "read_only": True, "skip": options.skip}, run, _print_progress)
        seen[name] = {"release": now, "environment": facts["environment"], "engine": facts["engine"], "findings": result["findings"]}
        if options.diff and (layout.environment(facts["environment"]) / MARKER).exists():
            edits += differences.edits(layout, facts["environment"])
    found = [from_dict(finding) for one in seen.values() for finding in one["findings"]]
    verdict = worst(found)
    if options.json:
        print(json.dumps({"schema": SCHEMA, "verdict": verdict, "instances": seen, "edits": edits}, indent=1))
    else:
        print(verify_text(seen, options.all))
        for line in edits:
            print(line)
    if verdict == ERROR:
        return 1
    return 3 if COULD_NOT_CHECK in {one.verdict for one in found} or not found else 0


def _never_served(name: str) -> Finding:
    return Finding("instance.unknown", COULD_NOT_CHECK, "instance " + name, "nothing has served here yet", fix="deploy the instance")


def verify_text(seen: t.Mapping[str, t.Mapping[str, t.Any]], everything: bool) -> str:
    """What each instance's checks found: the worst first, and how many there were of each verdict."""
    lines = []
    for name, one in seen.items():
        found = sorted((from_dict(finding) for finding in one["findings"]), key=lambda it: -VERDICTS.index(it.verdict))
        counts = collections.Counter(it.verdict for it in found)
        lines.append(
            "%s, release %s: %s" % (name, one["release"], ", ".join("%d %s" % (counts[it], it) for it in VERDICTS[::-1] if counts[it]))
        )
        lines += [it.text() for it in found if everything or it.verdict not in (OK, NOT_APPLICABLE)]
    return "\n".join(lines) or "no instance on this host"


def _print_progress(stage: str, message: str, **_data: t.Any) -> None:
    print("%s: %s" % (stage, message), file=sys.stderr)


def _diagnose(options: argparse.Namespace) -> int:
    by_hand = (options.instance or "").endswith(".service")
    names = [options.instance] if by_hand else [unit_name(name) for name in _instances(options)]
    results = [diagnosis.last_start(name, run) for name in names]
    for result in results:
        print(result.text())
    return 1 if worst(result.finding for result in results) == ERROR else 0


def _rollback(options: argparse.Namespace) -> int:
    asked = {**_spec(options, "rollback", "asked for on the host"), "instance": options.instance, "release": options.release}
    spec = rollbacks.specification(asked)
    return _follow(jobs.start(spec, run)["directory"])


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError("%r is no number of releases" % text)
    return int(text)


def _prune(options: argparse.Namespace) -> int:
    spec = {**_spec(options, "prune", "asked for on the host"), "keep": options.keep}
    seen = previews.preview(spec, run) or {}
    if options.dry_run or not seen["changed"]:
        print("\n".join([*seen["lines"], *(from_dict(one).text() for one in seen["findings"])]))
        return 0
    return _follow(jobs.start(spec, run)["directory"])


def _follow(directory: str) -> int:
    offset = 0
    while True:
        news = jobs.follow(directory, offset, 20, run)
        for line in news["lines"]:
            print("%s  %s" % (time.strftime("%H:%M:%S", time.localtime(line["t"])), line["message"]))
        offset = news["offset"]
        if news["done"]:
            break
    if news["lost"]:
        print("The job ended without a result. See: specdec status", file=sys.stderr)
        return 1
    for finding in news["result"]["findings"]:
        if finding["verdict"] == ERROR:
            print(from_dict(finding).text(), file=sys.stderr)
    return 0 if news["result"]["ok"] else 1
