# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The import chain and the argument dry run, the way the service will run them.

:func:`dry_run` chooses on the controller what is asked of the engine (a row of data/engines.yml that
travels in release.json); :func:`run` starts stages.py on the host in a transient unit with the
service's user, sandbox and environment; :func:`findings` judges what it reported.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pkgutil
import re
import signal
import typing as t
from pathlib import Path

from . import arguments, failures, stages
from .findings import COULD_NOT_CHECK, ERROR, NOT_APPLICABLE, OK, WARNING, Finding
from .layout import RUN, Layout
from .runners import Completed, Progress, Runner
from .units import Unit

#: Seconds for all stages together; the first import from a cold disk takes a minute.
DEADLINE = 300

#: In place of every secret.
DUMMY = "dry-run-in-place-of-a-secret"

#: Check id by stage, in the order of what builds upon what: where several fail alike, the first is the cause.
CHECK_OF_STAGE = {
    "models": "host.model-readable",
    "torch": "import.torch",
    "kernel": "import.kernel",
    "flashinfer": "import.flashinfer",
    "engine": "import.engine",
    "plugins": "import.plugins",
    "algorithm": "algorithm.recognised",
    "arguments": "arguments.accepted",
}

_GOOD = {
    "models": "the service user can read every file of the models",
    "engine": "imported from the environment",
    "torch": "imported from the environment",
    "kernel": "imported from the environment",
    "flashinfer": "imported from the environment",
    "plugins": "the engine's plugins are loaded",
    "algorithm": "the engine recognises the algorithm",
    "arguments": "the engine reads, resolves and accepts its arguments",
}
_BAD = {
    "models": "the service user cannot read the models' files",
    "plugins": "a plugin of the engine fails",
    "algorithm": "the engine does not recognise the algorithm",
    "arguments": "the engine refuses its arguments",
}
#: Why, and the way out, where the exception itself is not known.
_CAUSE_OF_STAGE = {
    "models": "They belong to another user, or lie where the sandbox hides them.",
    "arguments": "An option is unknown to this version of the engine, or does not go with another one or with the model.",
}
_FIX_OF_STAGE = {
    "models": "Put the model below the model store, or give files and directories read rights; the sandbox hides /home and /root.",
    "arguments": "Correct the option of the instance that the message names.",
}

#: The sandbox of an import that nobody prepared anything for.
_READ_ONLY = (
    ("ProtectSystem", "strict"),
    ("ProtectHome", "read-only"),
    ("PrivateTmp", "yes"),
    ("PrivateNetwork", "yes"),
    ("NoNewPrivileges", "yes"),
    ("CapabilityBoundingSet", ""),
    ("UMask", "0077"),
    ("WorkingDirectory", "/"),
)
_VARIABLES = {"HOME": "/tmp", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}

#: What systemd and runuser say to others than root.
_DENIED = re.compile(r"(?i)authentication required|access denied|permission denied|may not be used by non-root")

_TAIL = 3000
_REBUILD = "See the findings on versions and names; change the pins (`specdec_pins`) or the overlay and build again."

#: Raised while something else is looked for; where the next exception came about by them, they are not the cause.
_LOOKUPS = frozenset(("KeyError", "AttributeError", "IndexError", "StopIteration"))

#: Why systemd could not start a process, by its exit status (systemd.exec(5), "Process exit codes").
NOT_STARTED = {
    200: ("the working directory cannot be entered (200/CHDIR)", "Deploy again: the state directory of the instance is made then."),
    203: ("the environment's Python cannot be executed (203/EXEC)", "Build the environment again."),
    217: ("the service user does not exist (217/USER)", "Deploy again: the user is made before a release is proven."),
    226: (
        "the sandbox cannot be set up here (226/NAMESPACE)",
        "In a container, allow nesting; or choose the documented lower level with `service: {sandbox: container}`.",
    ),
    228: ("the system call filter cannot be set up (228/SECCOMP)", "Give the host a kernel with seccomp."),
}


@dataclasses.dataclass(frozen=True)
class Report:
    """What the probe said.

    :param stages: stage → its line (stages.py).
    :param begun: the last stage that was begun, if any.
    :param end: how the worker ended; None when the probe itself was ended or never ran.
    :param rc: exit status of the transient unit.
    :param stderr: the last output of engine and systemd-run.
    :param cuda_context: whether a CUDA context was made; None where that is not known.
    """

    stages: t.Mapping[str, t.Mapping[str, t.Any]]
    begun: str
    end: t.Optional[t.Mapping[str, t.Any]]
    rc: int
    stderr: str
    cuda_context: t.Optional[bool] = None


def dry_run(engine: t.Mapping[str, t.Any], version: str, lacks: t.Collection[str] = (), package: str = "") -> dict[str, t.Any]:
    """What release.json carries under ``dry_run``: the row for an engine's version, and the parts to import.

    :param engine: one engine of data/engines.yml.
    :param lacks: what the stack's lane does not have (parity.PARTS).
    :param package: the distribution that the engine is on the stack's lane, where that is another one than usually.
    :return: kind (``argv`` or ``none``), package, kernels, lacks, imports [[part, module]…], and for ``argv`` what data/engines.yml
        says under ``dry_run``.
    """
    row = arguments.row(engine.get("dry_run", ()), version) or {"kind": "none"}
    kernel = [["kernel", row["kernel_module"]]] if row.get("kernel_module") else []
    return {
        **{key: value for key, value in row.items() if key not in ("versions", "kernel_module")},
        "package": package or engine["package"],
        "kernels": list(engine["kernel_packages"]),
        "lacks": sorted(lacks),
        "imports": [["engine", engine["package"]], ["torch", "torch"], *kernel, ["flashinfer", "flashinfer"]],
    }


def task(release: t.Mapping[str, t.Any], config: t.Mapping[str, t.Any], deadline: float) -> dict[str, t.Any]:
    """What the probe is told: plain data, without a secret.

    :param release: content of release.json.
    :param config: content of config.json.
    """
    row = release["dry_run"]
    options = {**config, **{secret["option"]: DUMMY for secret in release["secrets"].values()}}
    algorithm = options.get(row.get("algorithm_option", "")) or ""
    if algorithm and row.get("algorithm_key"):
        algorithm = json.loads(algorithm)[row["algorithm_key"]]
    return {
        "models": list(release["models"]),
        "imports": row["imports"],
        "plugins": row.get("plugins", ""),
        "recognise": row.get("recognise", ""),
        "algorithm": row.get("aliases", {}).get(algorithm, algorithm),
        "parser": row.get("parser", ""),
        "fill": row.get("fill", ""),
        "checks": row.get("checks", []),
        "parse": row.get("parse", ""),
        "then": row.get("then", []),
        "config_option": release["config_option"],
        "config": options,
        "deadline": deadline,
    }


def script(what: t.Mapping[str, t.Any]) -> str:
    """The program for the environment's Python: stages.py and its task. Works from a zipapp, too."""
    source = pkgutil.get_data(stages.__name__.rpartition(".")[0], "stages.py")
    if source is None:
        raise FileNotFoundError("stages.py is not beside probes.py")
    return "%s\n\nmain(json.loads(%r))\n" % (source.decode(), json.dumps(what))


def run(
    release: t.Mapping[str, t.Any],
    unit: Unit,
    runner: Runner,
    progress: Progress,
    layout: Layout,
    config: t.Mapping[str, t.Any],
    deadline: float = DEADLINE,
    read_only: bool = False,
) -> Report:
    """Run the probe of a release in a transient unit with its unit's user, sandbox and environment.

    :param layout: where the environment lies.
    :param config: content of the release's config.json.
    :param deadline: seconds for all stages together.
    :param read_only: what imports write goes into a directory that is removed afterwards, not into the instance's caches.
    """
    python = layout.environment(release["environment"]) / "venv" / "bin" / "python"
    name = "specdec-probe-%s-%d" % (release["instance"], os.getpid())
    properties = unit.run_properties()
    if read_only:
        properties = _aside(properties, str(layout.instance_state(release["instance"], release["environment"])), name)
    progress("prove", "importing as %s in the unit's sandbox, at most %d s" % (unit.value("User"), deadline))
    return _start(python, task(release, config, deadline), name, properties, runner, deadline)


def run_imports(
    python: Path,
    imports: t.Sequence[t.Sequence[str]],
    runner: Runner,
    *,
    user: str = "",
    environment: t.Optional[t.Mapping[str, str]] = None,
    sandbox: bool = True,
    devices: bool = False,
    deadline: float = DEADLINE,
) -> Report:
    """Run the import chain alone with the Python of any environment; nothing outside of a temporary directory can be written.

    :param imports: [part, module] in order.
    :param user: who imports; whoever calls, where it is empty.
    :param environment: variables for the process.
    :param sandbox: in a transient unit that cannot write, has no network and a /tmp of its own; else as a plain process.
    :param devices: the GPUs are in sight, so that imports may make a CUDA context on them.
    """
    what = {"models": [], "imports": [list(one) for one in imports], "plugins": "", "algorithm": "", "parse": "", "deadline": deadline}
    variables = {**_VARIABLES, **(environment or {}), "PYTHONDONTWRITEBYTECODE": "1"}
    if not devices:
        variables["CUDA_VISIBLE_DEVICES"] = ""
    if not sandbox:
        argv = [*(["runuser", "-u", user, "--"] if user else []), str(python), "-"]
        return read(runner(argv, stdin=script(what), env=variables, timeout=deadline + 60))
    properties = [word for pair in (*_READ_ONLY, ("PrivateDevices", "no" if devices else "yes")) for word in ("-p", "%s=%s" % pair)]
    properties += ["-p", "User=%s" % user] if user else []
    properties += ["--setenv=%s=%s" % pair for pair in sorted(variables.items())]
    return _start(python, what, "specdec-probe-imports-%d" % os.getpid(), properties, runner, deadline)


def _start(python: Path, what: t.Mapping[str, t.Any], name: str, properties: t.Sequence[str], runner: Runner, deadline: float) -> Report:
    """The transient unit has a name of its own, so that two people may look at once."""
    limits = {"RuntimeMaxSec": "%d" % (deadline + 20), "KillMode": "control-group", "TimeoutStopSec": "5"}
    argv = ["systemd-run", "--wait", "--pipe", "--collect", "--unit=" + name, *properties]
    argv += [word for key, value in limits.items() for word in ("-p", "%s=%s" % (key, value))]
    return read(runner([*argv, str(python), "-"], stdin=script(what), timeout=deadline + 60))


def _aside(properties: t.Sequence[str], state: str, name: str) -> list[str]:
    """The same sandbox, but that what it may write is empty and goes with it."""
    directory = str(RUN.with_name(name))
    moved = [one.replace(state, directory) for one in properties if one != "ReadWritePaths=%s" % state]
    kept = [word for place, word in enumerate(moved) if not (word == "-p" and moved[place + 1 : place + 2] in ([], ["-p"]))]
    return [*kept, "-p", "RuntimeDirectory=%s" % name, "-p", "RuntimeDirectoryMode=0700", "-p", "Environment=PYTHONDONTWRITEBYTECODE=1"]


def read(completed: Completed) -> Report:
    """The report in a finished probe's output; lines that are none are left out."""
    stages: dict[str, t.Mapping[str, t.Any]] = {}
    begun = ""
    end = context = None
    for text in completed.stdout.splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if not isinstance(line, dict):
            continue
        begun = line.get("begin", begun)
        end = line.get("end", end)
        context = line.get("cuda_context", context)
        if "stage" in line:
            stages[line["stage"]] = line
    return Report(stages, begun, end, completed.rc, completed.stderr[-_TAIL:], context)


def deepest(links: t.Sequence[t.Mapping[str, t.Any]]) -> t.Mapping[str, t.Any]:
    """The exception to show first, of a chain from outermost to innermost.

    That is the innermost one, but not a failed look-up that the next exception was raised beside: there
    the next one says what is wrong.
    """
    best = links[0]
    for outer, inner in zip(links, links[1:]):
        if not outer.get("explicit") and inner["type"] in _LOOKUPS:
            continue
        best = inner
    return best


def findings(report: Report, release: t.Mapping[str, t.Any], layout: Layout) -> list[Finding]:
    """The verdict of every stage of a release's probe; a stage that nothing is known of is *could not check*."""
    row = release["dry_run"]
    return [*judge(report, row, [layout.environment(release["environment"])]), *_unknown(report, row)]


def imports(report: Report, row: t.Mapping[str, t.Any], homes: t.Sequence[Path], devices: bool) -> list[Finding]:
    """The same for the import chain alone.

    :param homes: where imports may come from.
    :param devices: whether the GPUs were in sight; where not, a failure for want of one proves nothing.
    """
    if not report.begun:
        # that says something of the host, and nothing of the environment
        fix = "Run it as root on a host with systemd; or without a transient unit (import_health with `sandbox: false`)."
        return [dataclasses.replace(one, verdict=COULD_NOT_CHECK, fix="%s %s" % (one.fix, fix)) for one in _ended(report)]
    found = judge(dataclasses.replace(report, stages={part: line for part, line in report.stages.items() if part != "models"}), row, homes)
    for part, _module in row["imports"]:
        if part not in report.stages and part != report.begun:
            found.append(_not_reached(part))
    return found if devices else [_without_gpu(one) for one in found]


def judge(report: Report, row: t.Mapping[str, t.Any], homes: t.Sequence[Path]) -> list[Finding]:
    """The verdict of the stages that were reached, one finding per cause, and on how the probe ended."""
    causes: dict[t.Any, list[str]] = {}
    found: list[Finding] = []
    for name, line in report.stages.items():
        if line["ok"]:
            found.append(_passed(name, line, homes))
        elif line.get("absent") and name in row["lacks"]:
            said = "%(type)s: %(message)s" % deepest(line["error"])
            found.append(Finding(CHECK_OF_STAGE[name], NOT_APPLICABLE, name, "this lane has no %s, and none is installed" % name, said))
        else:
            root = deepest(line["error"])
            causes.setdefault((root["type"], root["message"], root["where"]), []).append(name)
    for names in causes.values():
        stage, *others = sorted(names, key=list(CHECK_OF_STAGE).index)
        found.append(_broken(stage, others, report.stages[stage]["error"]))
    inside = [name for name, line in report.stages.items() if line["ok"] and "file" in line]
    if inside and not any(one.id == "import.outside" for one in found):
        where = " or ".join(str(home) for home in homes)
        found.append(Finding("import.outside", OK, "imports", "all come from the environment", ", ".join(inside), "below %s" % where))
    return [*found, *_ended(report), *_context(report)]


def _context(report: Report) -> list[Finding]:
    """``import.cuda-context``, where that is known: the GPUs serve meanwhile."""
    if report.cuda_context is None:
        return []
    if not report.cuda_context:
        return [Finding("import.cuda-context", OK, "GPUs", "no CUDA context was made", "not initialised", evidence="torch.cuda")]
    message = "the imports or the dry run made a CUDA context"
    cause = "Something initialises CUDA while it is imported or while arguments are checked; it takes memory of a GPU as long as it lasts."
    fix = (
        "Nothing has to be done where the GPUs have memory to spare; else check (`specdec verify`, a deploy) while nothing serves on them."
    )
    return [Finding("import.cuda-context", WARNING, "GPUs", message, "initialised", "not initialised", "torch.cuda", cause, fix)]


def _without_gpu(finding: Finding) -> Finding:
    row = failures.known(finding.found) if finding.verdict == ERROR else None
    if row is None or row.id not in ("no-gpu", "driver-library"):
        return finding
    fix = "Try it with the GPUs in sight while nothing serves on them (`devices: true`)."
    return dataclasses.replace(finding, verdict=COULD_NOT_CHECK, message="the import needs a GPU, and none was in its sight", fix=fix)


def explain(text: str) -> tuple[str, str]:
    """Cause and way out of an exception's ``type: message``; the cause is empty where it is not known."""
    row = failures.known(text)
    return (row.cause, row.fix) if row else ("", _REBUILD)


def _passed(name: str, line: t.Mapping[str, t.Any], homes: t.Sequence[Path]) -> Finding:
    found = " ".join(word for word in (line.get("version"), line.get("found")) if word)
    if "file" in line and not any(line["file"].startswith("%s/" % home) for home in homes):
        return Finding(
            "import.outside",
            ERROR,
            name,
            "the import does not come from the environment",
            line["file"] or "a directory without code (a namespace package)",
            "a file below %s" % " or ".join(str(home) for home in homes),
            "__file__ of the imported module",
            "PYTHONPATH, the working directory or a user's site directory holds another copy.",
            "Remove the copy, or the variable that leads to it, and deploy again.",
        )
    evidence = ", ".join(word for word in (line.get("file"), "%.1f s" % line["seconds"]) if word)
    return Finding(CHECK_OF_STAGE[name], OK, name, _GOOD[name], found, evidence=evidence)


def _broken(stage: str, consequences: t.Sequence[str], links: t.Sequence[t.Mapping[str, t.Any]]) -> Finding:
    root = deepest(links)
    text = "%s: %s" % (root["type"], root["message"])
    cause, fix = explain(text)
    if not cause:
        cause, fix = _CAUSE_OF_STAGE.get(stage, ""), _FIX_OF_STAGE.get(stage, fix)
    others = [link for link in links if link is not root]
    around = ["by way of %s: %s  %s" % (link["type"], link["message"].partition("\n")[0], link["where"]) for link in others]
    also = ["breaks also: %s" % ", ".join(consequences)] if consequences else []
    return Finding(
        CHECK_OF_STAGE[stage],
        ERROR,
        stage,
        _BAD.get(stage, "the import fails"),
        text,
        _GOOD[stage],
        "\n".join([line for line in (root["where"], *around, *also) if line]),
        cause,
        fix,
    )


def _ended(report: Report) -> list[Finding]:
    """Findings on a worker that hung, died or left something behind; ``import.sandbox`` on one that never ran."""
    evidence = report.stderr.strip()
    if not report.begun and _DENIED.search(evidence):
        message, fix = "only root may start the probe with the unit's user and sandbox", "Run this as root (sudo, `become: true`)."
        return [Finding("import.sandbox", COULD_NOT_CHECK, "sandbox", message, evidence=evidence, fix=fix)]
    if not report.begun:
        cause, fix = NOT_STARTED.get(report.rc, ("", "Read the evidence; `systemd-analyze verify` on the release's unit says more."))
        message = "the probe could not be started with the unit's user and sandbox"
        return [Finding("import.sandbox", ERROR, "sandbox", message, "exit status %d" % report.rc, "started", evidence, cause, fix)]
    reached = "the probe ran in it, to %s" % report.begun
    found = [Finding("import.sandbox", OK, "sandbox", "the unit's user and sandbox can be set up here", reached)]
    stage = report.begun
    unfinished = stage not in report.stages
    end = report.end or {}
    if end.get("timed_out"):
        message = "it does not come to an end"
        cause = "Code waits for something while it is imported that does not come; the sandbox has no network."
        fix = "Read in the evidence where it waits: a network address, a lock, a compiler; or give it more time."
        return [*found, Finding("import.hang", ERROR, stage, message, "still running at the deadline", "an end", evidence, cause, fix)]
    if not end or end["signal"] or unfinished:
        how = "the probe was killed from outside"
        cause = "Its supervisor was ended, too: a lack of memory is likely."
        fix = "Look for the kernel's killer (`journalctl -k`), and give host or container more memory."
        if end:
            fix = _REBUILD
            how = "killed by %s" % signal.Signals(end["signal"]).name if end["signal"] else "ended by itself with status %s" % end["status"]
            cause = "Compiled code crashed." if end["signal"] else "Code ends the process while it is imported."
        message = "the process dies in this stage"
        found.append(Finding("import.died", ERROR, stage, message, how, "a stage that returns", evidence, cause, fix))
    if end.get("strays"):
        fix = "Find out which package starts it; it would stay beside the engine."
        cause = "Code starts a process of its own while it is imported."
        message = "a process is left behind by an import"
        found.append(Finding("import.stray", WARNING, "probe", message, "\n".join(end["strays"]), "none", cause=cause, fix=fix))
    told = {one.id for one in found}
    how = "ended with status %s after %d stages" % (end.get("status"), len(report.stages))
    return [*found, *(Finding(id_, OK, "probe", message, how) for id_, message in _ENDS.items() if end and id_ not in told)]


#: What holds of a probe that came to its end.
_ENDS = {
    "import.hang": "it came to an end in time",
    "import.died": "no stage ended the process",
    "import.stray": "no process was left behind",
}


def _not_reached(stage: str) -> Finding:
    fix = "Repair what the other findings on the import name, and check again."
    return Finding(CHECK_OF_STAGE[stage], COULD_NOT_CHECK, stage, "not reached", fix=fix)


def _unknown(report: Report, row: t.Mapping[str, t.Any]) -> list[Finding]:
    """*Could not check* for the stages that were wanted and not reached, *not applicable* for the algorithm of an instance without one."""
    wanted = ["models", *(part for part, _module in row["imports"]), "algorithm", "arguments"]
    found = []
    for stage in wanted:
        if stage in report.stages or stage == report.begun:
            continue
        if stage == "algorithm" and "arguments" in report.stages:
            found.append(
                Finding(CHECK_OF_STAGE[stage], NOT_APPLICABLE, stage, "the arguments name no speculative algorithm", evidence="arguments")
            )
        elif row["kind"] == "none" and stage in ("algorithm", "arguments"):
            why = "how this engine version checks its arguments is not known"
            fix = "Add a row for the version to `dry_run` in data/engines.yml."
            found.append(Finding(CHECK_OF_STAGE[stage], COULD_NOT_CHECK, stage, why, fix=fix))
        else:
            found.append(_not_reached(stage))
    return found
