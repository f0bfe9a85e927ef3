# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The root of a failure, out of the journal of a crashed unit.

The text may hold the lines of several processes, mixed and cut off. Every exception in it is read with what it came
from; errors that only report another process's death are passed over, and so is what healthy engines say, too. What
is left is judged by the table in failures.py; an exception that it does not know is reduced to itself, its frame and its package.
"""

from __future__ import annotations

import dataclasses
import re
import signal
import typing as t

from . import failures, probes
from .findings import COULD_NOT_CHECK, ERROR, OK, WARNING, Finding
from .runners import Runner

#: Lines that are read of a text, from its end: a crash is there, whatever came before.
LINES = 5000

_LONGEST = 2000
#: Characters that are looked at of a text, from its end: so many lines of that length.
_TAIL = LINES * _LONGEST
_SHOWN = 6
_CONTINUED = 30

_OPTIONS = ("--output=short-iso", "--no-pager", "--quiet")

_JOURNAL = re.compile(r"^(?:\w{3} +\d+ [\d:.]+|\d{4}-\d\d-\d\dT[\d:.,+-]+Z?) \S+ ([^\s\[:]+)(?:\[(\d+)\])?: ?(.*)$")
#: In front of a line: which of the engine's processes says it.
_SPEAKER = re.compile(r"^(?:\((\w+(?: pid=\d+)?)\)|\[(rank\d+)\]:) ?")
#: In front of a line: when and how bad.
_STAMP = re.compile(r"^(?:(?:ERROR|CRITICAL) [\d:. -]+(?:\[[^\]]*\])? ?|\[\d{4}-\d\d-\d\d [\d:.,]+[^\]]*\] ?)")
_GROUP = re.compile(r"^\s+\| ?")

_TRACEBACK = "Traceback (most recent call last):"
_ANNOUNCED = re.compile(r"hit an exception|failed to start|encountered a fatal error|died with|Worker ?(Proc)? failed|^Process \w+.*:$")
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+),? in (.+)$')
_SYNTAX = re.compile(r'^\s*File "([^"]+)", line (\d+)$')
_DURING = "During handling of the above exception"
_DIRECT = "The above exception was the direct cause"
_NAME = r"(?:[A-Za-z_]\w*\.)*"
_STRONG = re.compile(r"^(%s[A-Z]\w*(?:Error|Exception|Interrupt|Exit|OutOfResources))(?::\s?(.*))?$" % _NAME)
_ANY = re.compile(r"^(%s[A-Z][A-Za-z0-9_]*[a-z]\w*)(?::\s?(.*))?$" % _NAME)
_FATAL = re.compile(r"^Fatal Python error: (.*)$")
#: Ends the lines of an exception's message.
_OTHER = re.compile(
    r"^(\[[A-Z]?\d|\S+\.service: |(INFO|WARNING|ERROR|CRITICAL|DEBUG)\b|Received |During handling|The above|Process \w+"
    r"|\S+: \w*Warning|\w+-\d+:)"
)

_MANAGER = re.compile(r"^\S+\.(service|scope): |^(Started|Starting|Stopped|Stopping|Scheduled restart) ")
_BEGUN = re.compile(r"^(Starting|Started) ")
_EXITED = re.compile(r"(?:Main|Control) process exited, code=(\w+), status=(\d+)(?:/([\w-]+))?")
_OOM = re.compile(r"killed by the OOM killer|Failed with result 'oom-kill'|[Oo]ut of memory: Killed process|oom-kill:")
_SUICIDE = "kill_process_tree called"
#: The engine's own words for the end of one of its processes; a negative status is a signal.
_WORKER = re.compile(r"(?:Subprocess |[Pp]rocess |Worker ?)(\S+).*(?:exit code|exitcode)[ :=]+-(\d+)")
#: faulthandler shows every thread; only the one it calls current has failed.
_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+")
_ENDED = re.compile(r"process exited|Failed with result|[Kk]illed process|timed out")
_TIMED_OUT = re.compile(r"(start|stop[\w-]*) operation timed out|Failed with result '(timeout|watchdog)'")

#: Failures without an exception.
_OOM_FIX = "Give host or container more memory, lower the engine's memory fraction, or raise the unit's MemoryMax."
_UNKNOWN_FIX = "Run the command below to see it again; `specdec verify` tells whether the environment itself is whole."


@dataclasses.dataclass(frozen=True)
class Frame:
    """One line of a traceback."""

    file: str
    line: int
    function: str

    @property
    def where(self) -> str:
        """File, line and function."""
        return "%s:%d in %s" % (self.file, self.line, self.function)

    @property
    def module(self) -> str:
        """Dotted name of the file as a module, where it lies among installed packages; else empty."""
        _venv, found, path = self.file.rpartition("/site-packages/")
        return re.sub(r"(/__init__)?\.py$", "", path).replace("/", ".") if found and path.endswith(".py") else ""


@dataclasses.dataclass
class Raised:
    """An exception as a traceback shows it; the type is empty where the traceback is cut off before it."""

    type: str
    message: str
    frames: list[Frame]
    explicit: bool = False

    @property
    def text(self) -> str:
        """Type and message."""
        return "%s: %s" % (self.type, self.message) if self.message else self.type


@dataclasses.dataclass
class Chain:
    """An exception and what it came from, innermost first, as they are printed.

    :param speaker: the process that printed it.
    :param announced: the engine said that this is what ends it.
    """

    speaker: str
    announced: bool
    links: list[Raised]

    @property
    def root(self) -> Raised:
        """The exception that says what is wrong (see probes.deepest)."""
        links = [
            {"type": one.type.rpartition(".")[2], "explicit": one.explicit, "place": str(place)} for place, one in enumerate(self.links)
        ][::-1]
        return self.links[int(probes.deepest(links)["place"])]

    @property
    def fatal(self) -> bool:
        """Whether nobody caught it: announced as such, or raised through the bottom of its process."""
        bottom = self.links[-1].frames[:1]
        return self.announced or any(
            one.file.startswith(("<frozen runpy>", "<string>"))
            or one.function in ("_bootstrap", "_run_module_as_main")
            or (one.function == "<module>" and not one.module)
            for one in bottom
        )

    @property
    def consequence(self) -> bool:
        """Whether it only reports what happened in another process."""
        return bool(failures.CONSEQUENCES.search(self.root.text))


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The finding, and the command that shows the failure again; empty where there is no failure."""

    finding: Finding
    reproduce: str = ""

    def text(self) -> str:
        """Both, as a person reads them."""
        again = ["  again:    %s" % self.reproduce] if self.reproduce else []
        return "\n".join([self.finding.text(), *again])


class _Stream:
    """What one process has printed so far."""

    def __init__(self, speaker: str) -> None:
        self.speaker = speaker
        self.open = 0
        self.announced = False
        self.frames: list[Frame] = []
        self.link: t.Optional[bool] = None
        self.chain: t.Optional[Chain] = None
        self.last: t.Optional[Raised] = None
        self.continued = 0
        self.fatal = False
        self.current = True


class Journal:
    """A journal, read: :attr:`chains` of exceptions, :attr:`alone` (known errors outside of tracebacks), :attr:`manager` (systemd's and
    the kernel's lines), :attr:`said` (all others)."""

    def __init__(self, text: str) -> None:
        self.chains: list[Chain] = []
        self.alone: list[tuple[str, failures.Failure]] = []
        self.manager: list[str] = []
        self.said: list[str] = []
        self._streams: dict[str, _Stream] = {}
        for line in _tail(text).splitlines()[-LINES:]:
            self._line(line[:_LONGEST])
        for stream in self._streams.values():
            if stream.open and stream.frames:
                self._raised(stream, "", "the traceback is cut off here")
        self.chains = [chain for chain in self.chains if not any(failures.HARMLESS.search(one.text) for one in chain.links)]

    def _line(self, raw: str) -> None:
        program, process, text = _JOURNAL.sub(r"\1\0\2\0\3", raw).split("\0")[:3] if _JOURNAL.match(raw) else ("", "", raw)
        if program in ("systemd", "kernel") or (not program and _MANAGER.match(text)):
            self.manager.append(text)
            return
        if not text.strip():
            return
        self.said.append(text)
        speaker = _SPEAKER.match(text)
        if speaker:
            text = text[speaker.end() :]
        key = " ".join(word for word in (process, speaker and (speaker[1] or speaker[2])) if word)
        stream = self._streams.setdefault(key, _Stream(key))
        stamp = _STAMP.match(text)
        self._spoken(stream, _GROUP.sub("", text[stamp.end() :] if stamp else text), stamped=bool(stamp) and text.startswith("["))

    def _spoken(self, stream: _Stream, text: str, stamped: bool) -> None:
        frame = _FRAME.match(text) or _SYNTAX.match(text)
        thread = _THREAD.match(text) if stream.fatal else None
        if thread:
            stream.current = thread[1] != "Thread"
        elif _TRACEBACK in text:
            stream.announced = stream.announced or bool(_ANNOUNCED.search(text))
            stream.open += 1
            stream.last = None
        elif frame:
            found = Frame(frame[1], int(frame[2]), frame[3] if frame.re is _FRAME else "<module>")
            if stream.fatal and not stream.current:
                pass
            elif stream.fatal and stream.last:
                # this one is printed the other way round: most recent call first
                stream.last.frames.insert(0, found)
            else:
                stream.frames.append(found)
        elif text.startswith((_DURING, _DIRECT)):
            stream.link = text.startswith(_DIRECT)
        elif not self._exception(stream, text):
            self._other(stream, text, stamped)

    def _exception(self, stream: _Stream, text: str) -> bool:
        fatal = _FATAL.match(text)
        match = fatal or (_ANY if stream.open else _STRONG).match(text)
        if not match:
            return False
        if fatal:
            self._raised(stream, "Fatal Python error", fatal[1])
        else:
            self._raised(stream, match[1], match[2] or "")
        stream.fatal, stream.current = bool(fatal), True
        return True

    def _raised(self, stream: _Stream, type_: str, message: str) -> None:
        raised = Raised(type_, message, stream.frames)
        if stream.link is None or stream.chain is None:
            stream.chain = Chain(stream.speaker, stream.announced, [])
            self.chains.append(stream.chain)
        else:
            raised.explicit = stream.link
        stream.chain.links.append(raised)
        stream.open = max(0, stream.open - 1)
        stream.frames, stream.last, stream.link, stream.announced, stream.continued = [], raised, None, False, 0

    def _other(self, stream: _Stream, text: str, stamped: bool) -> None:
        if (stream.open or stream.frames) and text[:1].isspace():
            return  # source below a frame
        if stream.last and not stamped and not _OTHER.match(text) and stream.continued < _CONTINUED:
            stream.continued += 1
            if not stream.fatal:
                stream.last.message = (stream.last.message + "\n" + text.strip()).strip()
            return
        if not stream.open:
            stream.last, stream.frames, stream.fatal = None, [], False
        stream.announced = bool(_ANNOUNCED.search(text))
        row = None if failures.HARMLESS.search(text) else failures.known(text, alone=True)
        if row:
            self.alone.append((text.strip(), row))


def _tail(text: str) -> str:
    """The end of a text, from a line's beginning; a journal may be as large as a disk."""
    return text[-_TAIL:].partition("\n")[2] if len(text) > _TAIL else text


def starts(text: str) -> list[str]:
    """The text of a journal, one part for each start of its unit; what comes before the first start is a part of its own."""
    parts: list[list[str]] = [[]]
    starting = False
    for line in _tail(text).splitlines():
        match = _JOURNAL.match(line)
        begun = _BEGUN.match(match[3]) if match and match[1] == "systemd" else None
        # "Starting" and "Started" belong to one start; units that are simple say only the second.
        if begun and not (starting and begun[1] == "Started"):
            parts.append([])
        if begun:
            starting = begun[1] == "Starting"
        parts[-1].append(line)
    return ["\n".join(part) for part in parts if part]


def kernel_lines(text: str, unit: str) -> str:
    """Those lines of the kernel's log that name the unit's control group, or a process that such a line names."""
    lines = text.splitlines()
    named = [line for line in lines if unit in line]
    victims = {pid for line in named for pid in re.findall(r"\bpid=(\d+)", line)}
    return "\n".join(line for line in lines if unit in line or any(re.search(r"(process |\[)%s\b" % pid, line) for pid in victims))


def last_start(unit: str, runner: Runner) -> Diagnosis:
    """Diagnose the last start of a unit of this host, or the one before where systemd started it again by itself and all is well so far."""
    answer = runner(["journalctl", "--unit=" + unit, "--lines=%d" % LINES, *_OPTIONS], timeout=60)
    if answer.rc:
        message, fix = "the journal cannot be read", "Run this as root, on a host with a journal."
        evidence = answer.stderr.strip() or "exit status %d" % answer.rc
        return Diagnosis(Finding("failure.none", COULD_NOT_CHECK, unit, message, evidence=evidence, fix=fix))
    parts = starts(answer.stdout) or [""]
    result = _with_kernel(parts[-1], unit, runner)
    if result.finding.id == "failure.none" and len(parts) > 1 and "Scheduled restart job" in parts[-2]:
        return _with_kernel(parts[-2], unit, runner)
    return result


def _with_kernel(text: str, unit: str, runner: Runner) -> Diagnosis:
    since = text[:19].replace("T", " ")
    asked = ["journalctl", "--dmesg", "--since=" + since, "--lines=%d" % LINES, *_OPTIONS]
    kernel = runner(asked, timeout=60).stdout if text else ""
    return diagnose(text + "\n" + kernel_lines(kernel, unit), unit)


def diagnose(text: str, unit: str = "") -> Diagnosis:
    """The root of the failure in a journal's text.

    :param text: what ``journalctl --unit=UNIT`` prints, in its short formats or as ``cat``; one start is enough.
    :param unit: name of the unit, for the finding and for the command.
    :return: verdict *error* for a failure, *warning* for an error that the unit has survived so far, *ok* for a journal without one,
        *could not check* for an empty one.
    """
    journal = Journal(text)
    subject = unit or "journal"
    again = "systemctl restart %s; journalctl --unit=%s --follow" % (unit, unit) if unit else ""
    killed = [line for line in journal.manager if _OOM.search(line)]
    if killed:
        message = "killed for lack of memory"
        cause = "Host, container or unit had no memory left."
        return Diagnosis(_failure("memory", subject, message, found=killed[0], evidence=_listed(killed), cause=cause, fix=_OOM_FIX), again)
    chain = _choose(journal)
    if chain and not chain.consequence and not (journal.alone and not chain.fatal and not failures.known(chain.root.text)):
        return _of_chain(chain, subject, again, ERROR if chain.fatal else _verdict(journal))
    if journal.alone:
        line, row = journal.alone[0]
        finding = _failure(row.id, subject, _STAMP.sub("", line), verdict=_verdict(journal), cause=row.cause, fix=row.fix)
        return Diagnosis(finding, _again(line, [], again))
    return _of_end(journal, chain, subject, again)


def _choose(journal: Journal) -> t.Optional[Chain]:
    """What nobody caught comes first, then what is known, then what came last; another process's death only where there is nothing else."""

    def rank(place: int) -> tuple[bool, bool, bool, int]:
        chain = journal.chains[place]
        explained = failures.known(chain.root.text) is not None
        return (chain.consequence, not chain.fatal, not explained, place if chain.fatal or explained else -place)

    best = min(range(len(journal.chains)), key=rank, default=None)
    return None if best is None else journal.chains[best]


def _verdict(journal: Journal) -> str:
    """*Warning* for an error that the unit has survived so far."""
    return ERROR if any(_ENDED.search(line) for line in journal.manager) else WARNING


def _of_chain(chain: Chain, subject: str, again: str, verdict: str) -> Diagnosis:
    root = chain.root
    frame = root.frames[-1] if root.frames else None
    row = failures.known(root.text)
    first = root.text.splitlines()[0]
    package = frame.module.partition(".")[0] if frame else ""
    around = ["by way of %s" % one.text.splitlines()[0] for one in chain.links if one is not root]
    evidence = [
        *([frame.where] if frame else []),
        *(["in package %s" % package] if package else []),
        *(["said by %s" % chain.speaker] if chain.speaker else []),
        *around,
    ]
    finding = _failure(
        row.id if row else "exception",
        subject,
        first,
        verdict=verdict,
        found=root.text if root.text != first else "",
        evidence="\n".join(evidence),
        cause=row.cause if row else "",
        fix=row.fix if row else _UNKNOWN_FIX,
    )
    return Diagnosis(finding, _again(root.text, root.frames, again))


def _of_end(journal: Journal, chain: t.Optional[Chain], subject: str, again: str) -> Diagnosis:
    """No error of the engine's own: how it ended, as systemd saw it, or that another of its processes died without a word."""
    evidence = _listed(
        [*(chain.root.text.splitlines()[:1] if chain else []), *(line for line in journal.manager if not _BEGUN.match(line))]
    )
    exits = [match for match in map(_EXITED.search, journal.manager) if match]
    code, status = (exits[0][1], int(exits[0][2])) if exits else ("", 0)
    timed_out = next((line for line in journal.manager if _TIMED_OUT.search(line)), "")
    worker = next((match for match in map(_WORKER.search, journal.said) if match), None)
    silent = chain is not None or any("Received sigquit" in line for line in journal.said)
    if worker and int(worker[2]) != 9:
        return Diagnosis(_of_signal(int(worker[2]), worker[1], subject, "\n".join((worker.string.strip(), evidence))), again)
    if silent or worker or (code == "killed" and status == 9 and not timed_out):
        what = worker[1] if worker else "a process of the engine" if any(_SUICIDE in line for line in journal.said) else "the engine"
        message = "%s was killed by signal 9, memory limit likely" % what if worker or not silent else "%s ended without a word" % what
        cause = "Most likely the kernel's killer for lack of memory, or a crash in compiled code; the journal does not say it."
        fix = "Look at `journalctl -k` of that time for `Killed process` or `segfault`. " + _OOM_FIX
        shown = "\n".join((worker.string.strip(), evidence)) if worker else evidence
        return Diagnosis(_failure("killed", subject, message, evidence=shown, cause=cause, fix=fix), again)
    if timed_out:
        fix = "If it was still loading, raise the time limit (`service.start_timeout`, `stop_timeout`); the last lines say where it stood."
        shown = "\n".join([evidence, *journal.said[-_SHOWN:]])
        return Diagnosis(
            _failure("timeout", subject, "systemd ended it: a time limit passed", found=timed_out, evidence=shown, fix=fix), again
        )
    if code in ("dumped", "killed") and status != 15:
        return Diagnosis(_of_signal(status, "", subject, evidence), again)
    if code == "exited" and status in probes.NOT_STARTED:
        cause, fix = probes.NOT_STARTED[status]
        return Diagnosis(_failure("not-started", subject, "systemd could not start it", evidence=evidence, cause=cause, fix=fix), again)
    if code == "exited" and status:
        shown = "\n".join(journal.said[-_SHOWN:])
        return Diagnosis(_failure("exit", subject, "ended with status %d" % status, evidence=shown, fix=_UNKNOWN_FIX), again)
    if not journal.said:
        fix = "Start the unit, or read further back: `journalctl --unit=UNIT`; without root's rights the journal seems empty, too."
        return Diagnosis(Finding("failure.none", COULD_NOT_CHECK, subject, "the journal holds no line of the engine", fix=fix))
    found = "%d lines, %d exception(s) that engines survive" % (len(journal.said), len(journal.chains))
    return Diagnosis(Finding("failure.none", OK, subject, "no failure in the journal", found=found, evidence=journal.said[-1]))


def _of_signal(number: int, process: str, subject: str, evidence: str) -> Finding:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = str(number)
    row = failures.known("signal %d" % number)
    cause, fix = (row.cause, row.fix) if row else ("", _UNKNOWN_FIX)
    message = "%skilled by %s" % (process + " was " if process else "", name)
    return _failure(row.id if row else "signal", subject, message, evidence=evidence, cause=cause, fix=fix)


def _failure(id_: str, subject: str, message: str, *, fix: str, verdict: str = ERROR, **more: str) -> Finding:
    return Finding("failure." + id_, verdict, subject, message, fix=fix, **more)


def _listed(lines: t.Sequence[str]) -> str:
    return "\n".join(lines[:_SHOWN])


def _again(text: str, frames: t.Sequence[Frame], otherwise: str) -> str:
    """The shortest command that fails alike: the loading of a library, an import, or the start of the unit."""
    library = re.search(r"(/\S+\.so[\w.]*): (undefined symbol|cannot open shared|failed to map)", text) or re.search(
        r"\b(lib[\w.+-]+\.so[\w.]*): cannot open", text
    )
    if library:
        return "python3 -c 'import ctypes; ctypes.CDLL(\"%s\")'" % library[1]
    # The import that leads to the error: the outermost of the innermost run of modules' top levels.
    tops = [place for place, frame in enumerate(frames) if frame.function == "<module>" and frame.module and not _main(frames, place)]
    if not tops:
        return otherwise
    first = tops[-1]
    for place in range(first, -1, -1):
        if place in tops:
            first = place
        elif not frames[place].file.startswith("<frozen "):
            break
    python = re.sub(r"/lib/python[\d.]+/site-packages/.*$", "/bin/python", frames[first].file)
    return "%s -c 'import %s'" % (python, frames[first].module)


def _main(frames: t.Sequence[Frame], place: int) -> bool:
    """Whether a frame is the program's own top level, not an import."""
    return place > 0 and frames[place - 1].file == "<frozen runpy>"
