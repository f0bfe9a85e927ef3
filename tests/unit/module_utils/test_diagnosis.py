# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Journals of crashed units, real and as public reports show them, each reduced to its root."""

from __future__ import annotations

import textwrap
import time
import tracemalloc
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.filter import diagnose
from ansible_collections.specdec.serving.plugins.module_utils import diagnosis, failures
from ansible_collections.specdec.serving.plugins.module_utils.findings import COULD_NOT_CHECK, ERROR, OK, WARNING
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed

from . import reports
from .reports import REPORTS

JOURNALS = Path(__file__).with_name("journals")
SITE = "/opt/env/venv/lib/python3.11/site-packages"
EXITED = "Nov 30 03:00:09 gpu systemd[1]: specdec-main.service: Main process exited, code=exited, status=1/FAILURE"


def journal(text: str, process: int = 7) -> str:
    """Lines of one process as journalctl's short format has them; a line's own ``PID|`` in front says another process."""
    lines = []
    for line in textwrap.dedent(text).strip("\n").splitlines():
        own, found, rest = line.partition("|")
        if found and own.isdigit():
            lines.append("Nov 30 03:00:01 gpu python[%s]: %s" % (own, rest))
        else:
            lines.append("Nov 30 03:00:01 gpu python[%d]: %s" % (process, line))
    return "\n".join(lines)


def raised(message: str, file: str = SITE + "/engine/start.py", function: str = "begin") -> str:
    """A traceback that nobody caught."""
    return (
        "Traceback (most recent call last):\n"
        '  File "<frozen runpy>", line 198, in _run_module_as_main\n'
        '  File "%s", line 12, in %s\n    call()\n    ^^^^^^\n%s' % (file, function, message)
    )


def found(text: str) -> tuple[str, str]:
    finding = diagnosis.diagnose(text, "specdec-main.service").finding
    return finding.id, finding.message


# Recordings of real crashes of real engines

#: Where less than a start shows it again.
IMPORT = "/opt/sglang/venv/bin/python -c 'import sglang.srt.speculative.ddtree_worker'"
NUMPY = "/numpy/_core/_multiarray_umath.cpython-311-x86_64-linux-gnu.so"
LOAD = "python3 -c 'import ctypes; ctypes.CDLL(\"/opt/specdec/environments/3b9d2c66bae9d506/venv/lib/python3.11/site-packages%s\")'" % NUMPY
AGAIN_OF = {"broken-import": IMPORT, "version-mismatch-in-worker": IMPORT, "no-exec": LOAD}


@pytest.mark.parametrize("program_name_shown", [True, False])
@pytest.mark.parametrize(
    ("name", "id_", "message", "evidence"),
    [
        ("broken-import", "failure.overlay-name", "ImportError: cannot import name 'prune_tree'", "ddtree_worker.py:20 in <module>"),
        (
            "version-mismatch-in-worker",
            "failure.flashinfer-parts",
            "RuntimeError: flashinfer-cubin version (0.6.3)",
            "env.py:5 in _get_cubin",
        ),
        ("port-in-use", "failure.port-in-use", "ERROR:    [Errno 98] error while attempting to bind", ""),
        ("model-missing", "failure.model-file", "huggingface_hub.errors.HFValidationError: Repo id must be in the form", "in package"),
        ("model-cut", "failure.model-file", "safetensors._safetensors_rust.SafetensorError", "weight_utils.py:1354 in _load_file"),
        (
            "unknown-algorithm",
            "failure.algorithm",
            "ValueError: Unknown speculative algorithm name: NOSUCH",
            "spec_info.py:66",
        ),
        ("unknown-argument", "failure.arguments", "sglang serve: error: unrecognized arguments: --speculativ-algorithm", ""),
        ("few-files", "failure.open-files", "RuntimeError: [enforce fail at", "distributed_c10d.py"),
        ("cpu-memory", "failure.threads", "RuntimeError: Resource temporarily unavailable", "distributed_c10d.py"),
        ("no-exec", "failure.no-exec", "ImportError: /opt/specdec/environments/", "by way of ImportError: Error importing numpy"),
        # the signal was sent while it waited for work
        ("worker-segfault", "failure.segfault", "Fatal Python error: Segmentation fault", "zmq/sugar/poll.py:106 in poll"),
        ("worker-killed", "failure.killed", "scheduler_0 was killed by signal 9, memory limit likely", "exit code -9"),
        ("engine-killed", "failure.killed", "the engine was killed by signal 9, memory limit likely", "status=9/KILL"),
    ],
)
def test_recorded_crash_is_reduced_to_its_root(name: str, id_: str, message: str, evidence: str, program_name_shown: bool) -> None:
    text = (JOURNALS / (name + ".txt")).read_text(encoding="utf-8")
    if not program_name_shown:
        text = "\n".join(line.split(": ", 1)[-1] for line in text.splitlines())
    result = diagnosis.diagnose(text, "sglang.service")
    assert result.finding.id == id_ and result.finding.verdict == ERROR
    assert result.finding.message.startswith(message)
    assert evidence in result.finding.evidence
    assert result.finding.cause and result.finding.fix
    assert result.reproduce == AGAIN_OF.get(name, "systemctl restart sglang.service; journalctl --unit=sglang.service --follow")


def test_recorded_start_of_a_healthy_engine_has_no_failure() -> None:
    finding = diagnosis.diagnose((JOURNALS / "start-ok.txt").read_text(encoding="utf-8")).finding
    assert (finding.id, finding.verdict) == ("failure.none", OK)


# What reports show


@pytest.mark.parametrize(("report", "line", "id_"), REPORTS, ids=[report for report, _line, _id in REPORTS])
def test_report_is_recognised_with_cause_and_fix(report: str, line: str, id_: str) -> None:
    text = journal("INFO loading\n" + raised(line)) + "\n" + EXITED
    finding = diagnosis.diagnose(text, "specdec-main.service").finding
    row = next(one for one in failures.FAILURES if one.id == id_)
    assert (finding.id, finding.verdict) == ("failure." + id_, ERROR), report
    assert finding.message == line
    assert (finding.cause, finding.fix) == (row.cause, row.fix)


def test_every_row_of_the_table_is_tried_here() -> None:
    without_exception = {"segfault", "arguments"}
    assert {row.id for row in failures.FAILURES} == {id_ for _report, _line, id_ in REPORTS} | without_exception
    assert len({row.id for row in failures.FAILURES}) == len(failures.FAILURES)


def test_documentation_holds_the_tables() -> None:
    text = reports.PAGE.read_text(encoding="utf-8")
    assert reports.written(text) == text, "run python tests/unit/module_utils/reports.py"


@pytest.mark.parametrize(
    ("line", "id_"),
    [
        (
            "[2026-11-30 03:00:01] ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 1): address already in use",
            "port-in-use",
        ),
        ("launch_server.py: error: unrecognized arguments: --specultive-algorithm DDTREE", "arguments"),
        ("python: error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file", "library"),
        ("Failed to initialize NVML: Driver/library version mismatch", "driver-mismatch"),
    ],
)
def test_known_line_without_a_traceback_is_evidence(line: str, id_: str) -> None:
    assert found(journal(line) + "\n" + EXITED)[0] == "failure." + id_
    assert diagnosis.diagnose(journal(line)).finding.verdict == WARNING


# Shapes of tracebacks


def test_unknown_exception_is_reduced_to_exception_frame_and_package() -> None:
    text = journal(raised("engine.errors.Surprise: 42", SITE + "/quack/gemm/tune.py", "pick")) + "\n" + EXITED
    result = diagnosis.diagnose(text, "specdec-main.service")
    assert (result.finding.id, result.finding.message) == ("failure.exception", "engine.errors.Surprise: 42")
    assert result.finding.evidence.splitlines()[:2] == [SITE + "/quack/gemm/tune.py:12 in pick", "in package quack"]
    assert result.finding.cause == "" and result.finding.fix
    assert result.reproduce == "systemctl restart specdec-main.service; journalctl --unit=specdec-main.service --follow"


CHAINED = """
    Traceback (most recent call last):
      File "{site}/a/inner.py", line 1, in load
        open()
    {inner}

    {link}

    Traceback (most recent call last):
      File "<frozen runpy>", line 88, in _run_code
      File "{site}/a/outer.py", line 2, in start
        load()
    {outer}
"""


@pytest.mark.parametrize(
    ("inner", "link", "outer", "root"),
    [
        ("OSError: disk", "The above exception was the direct cause of the following exception:", "ValueError: config", "OSError: disk"),
        ("OSError: disk", "During handling of the above exception, another exception occurred:", "ValueError: config", "OSError: disk"),
        ("KeyError: 'x'", "During handling of the above exception, another exception occurred:", "ValueError: no x", "ValueError: no x"),
        ("KeyError: 'x'", "The above exception was the direct cause of the following exception:", "ValueError: no x", "KeyError: 'x'"),
    ],
)
def test_chain_is_reduced_to_what_it_came_from(inner: str, link: str, outer: str, root: str) -> None:
    text = textwrap.dedent(CHAINED).format(site=SITE, inner=inner, link=link, outer=outer)
    result = diagnosis.diagnose(journal(text))
    assert result.finding.message == root
    other = ({inner, outer} - {root}).pop()
    assert "by way of %s" % other in result.finding.evidence


def test_interleaved_workers_are_told_apart_by_process() -> None:
    text = journal(
        """
        11|Traceback (most recent call last):
        12|Traceback (most recent call last):
        11|  File "<string>", line 1, in <module>
        12|  File "<string>", line 1, in <module>
        11|  File "/e/one.py", line 1, in one
        12|  File "/e/two.py", line 2, in two
        12|ConnectionResetError: [Errno 104] Connection reset by peer
        11|    call()
        11|OSError: the root
        """
    )
    result = diagnosis.diagnose(text)
    assert result.finding.message == "OSError: the root"
    assert result.finding.evidence.splitlines() == ["/e/one.py:1 in one", "said by 11"]


def test_workers_mixed_in_one_pipe_still_give_the_exception() -> None:
    text = """\
Traceback (most recent call last):
Traceback (most recent call last):
  File "<string>", line 1, in <module>
  File "<string>", line 1, in <module>
  File "/e/w.py", line 1, in work
  File "/e/w.py", line 1, in work
RuntimeError: CUDA error: no kernel image is available for execution on the device
RuntimeError: CUDA error: no kernel image is available for execution on the device
"""
    assert found(text)[0] == "failure.no-kernel-image"
    assert len(diagnosis.Journal(text).chains) == 2


VLLM = """
    (EngineCore_DP0 pid=21) ERROR 11-30 03:00:01 [core.py:842] EngineCore failed to start.
    (EngineCore_DP0 pid=21) ERROR 11-30 03:00:01 [core.py:842] Traceback (most recent call last):
    (APIServer pid=20) INFO 11-30 03:00:01 [api.py:1] waiting
    (EngineCore_DP0 pid=21) ERROR 11-30 03:00:01 [core.py:842]   File "/e/core.py", line 5, in run
    (EngineCore_DP0 pid=21) ERROR 11-30 03:00:01 [core.py:842]     self.model = load()
    (EngineCore_DP0 pid=21) ERROR 11-30 03:00:01 [core.py:842] ValueError: the root
    (EngineCore_DP0 pid=21) Process EngineCore_DP0:
    (EngineCore_DP0 pid=21) Traceback (most recent call last):
    (EngineCore_DP0 pid=21)   File "/usr/lib/python3.11/multiprocessing/process.py", line 314, in _bootstrap
    (EngineCore_DP0 pid=21) ValueError: the root
    (APIServer pid=20) Traceback (most recent call last):
    (APIServer pid=20)   File "/opt/env/venv/bin/vllm", line 8, in <module>
    (APIServer pid=20) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def test_vllm_s_own_pointer_is_followed() -> None:
    result = diagnosis.diagnose(journal(VLLM) + "\n" + EXITED)
    assert result.finding.message == "ValueError: the root"
    assert result.finding.evidence == "/e/core.py:5 in run\nsaid by 7 EngineCore_DP0 pid=21"


def test_worker_s_error_is_told_before_that_of_the_process_that_waited_for_it() -> None:
    text = journal(
        """
        (Worker_TP1 pid=31) ERROR 11-30 03:00:01 [multiproc.py:9] WorkerProc failed to start.
        (Worker_TP1 pid=31) ERROR 11-30 03:00:01 [multiproc.py:9] Traceback (most recent call last):
        (Worker_TP1 pid=31) ERROR 11-30 03:00:01 [multiproc.py:9]   File "/e/w.py", line 5, in run
        (Worker_TP1 pid=31) ERROR 11-30 03:00:01 [multiproc.py:9] ImportError: libnuma.so.1: cannot open shared object file
        (EngineCore pid=21) ERROR 11-30 03:00:02 [core.py:8] EngineCore failed to start.
        (EngineCore pid=21) ERROR 11-30 03:00:02 [core.py:8] Traceback (most recent call last):
        (EngineCore pid=21) ERROR 11-30 03:00:02 [core.py:8]   File "/e/core.py", line 6, in run
        (EngineCore pid=21) ERROR 11-30 03:00:02 [core.py:8] Exception: WorkerProc initialization failed due to an exception
        """
    )
    result = diagnosis.diagnose(text)
    assert result.finding.id == "failure.library"
    assert result.reproduce == "python3 -c 'import ctypes; ctypes.CDLL(\"libnuma.so.1\")'"


def test_traceback_without_its_end_says_where_it_was() -> None:
    text = journal("Scheduler hit an exception: Traceback (most recent call last):\n" + '  File "/e/s.py", line 3, in step') + "\n" + EXITED
    finding = diagnosis.diagnose(text).finding
    assert finding.verdict == ERROR and "cut off" in finding.message
    assert finding.evidence.startswith("/e/s.py:3 in step")


def test_traceback_without_its_head_keeps_exception_and_frame() -> None:
    text = journal('  File "/e/s.py", line 3, in step\n    go()\nOSError: the root') + "\n" + EXITED
    finding = diagnosis.diagnose(text).finding
    assert (finding.message, finding.evidence.splitlines()[0]) == ("OSError: the root", "/e/s.py:3 in step")


def test_exception_group_is_read_through_its_frame() -> None:
    text = journal(
        """
          + Exception Group Traceback (most recent call last):
          |   File "/e/g.py", line 1, in run
          | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
          +-+---------------- 1 ----------------
            | Traceback (most recent call last):
            |   File "/e/h.py", line 9, in serve
            | OSError: [Errno 98] Address already in use
            +------------------------------------
        """
    )
    assert found(text + "\n" + EXITED)[0] == "failure.port-in-use"


def test_cause_in_a_later_line_of_the_message_counts() -> None:
    text = journal(raised("ImportError: \n[sgl_kernel] CRITICAL: could not load\n- libnuma.so.1: cannot open shared object file"))
    assert found(text)[0] == "failure.library"


def test_caught_exception_in_front_is_not_the_cause() -> None:
    text = journal(
        """
        optional part is not there
        Traceback (most recent call last):
          File "/e/optional.py", line 1, in load
        ModuleNotFoundError: No module named 'torchaudio'
        INFO going on
        """
    )
    assert found(text + "\n" + journal(raised("engine.Surprise: 42")) + "\n" + EXITED) == ("failure.exception", "engine.Surprise: 42")


# Ends without an exception


def manager(*lines: str) -> str:
    return "\n".join("Nov 30 03:00:09 gpu systemd[1]: " + line for line in lines)


KILLED = "specdec-main.service: Main process exited, code=killed, status=9/KILL"


def test_memory_is_certain_where_systemd_says_so() -> None:
    text = journal("loading") + "\n" + manager("specdec-main.service: A process of this unit has been killed by the OOM killer.", KILLED)
    finding = diagnosis.diagnose(text).finding
    assert finding.id == "failure.memory" and "OOM killer" in finding.found


def test_memory_is_certain_where_the_kernel_says_so() -> None:
    log = (
        "Nov 30 03:00:08 gpu kernel: oom-kill:task_memcg=/system.slice/specdec-main.service,task=python,pid=71\n"
        "Nov 30 03:00:08 gpu kernel: Memory cgroup out of memory: Killed process 71 (python) total-vm:9kB\n"
        "Nov 30 03:00:08 gpu kernel: Out of memory: Killed process 99 (other) total-vm:9kB\n"
        "Nov 30 03:00:08 gpu kernel: usb 1-1: new device\n"
    )
    kept = diagnosis.kernel_lines(log, "specdec-main.service")
    assert len(kept.splitlines()) == 2
    assert found(journal("loading") + "\n" + manager(KILLED) + "\n" + kept)[0] == "failure.memory"
    assert diagnosis.kernel_lines(log, "specdec-draft.service") == ""


def test_memory_is_likely_where_only_the_signal_is_known() -> None:
    id_, message = found(journal("loading") + "\n" + manager(KILLED))
    assert id_ == "failure.killed" and "memory limit likely" in message


def test_worker_that_dies_silently_is_not_the_engine_s_own_signal() -> None:
    text = journal("Received sigquit from a child process. It usually means the child failed.\nkill_process_tree called: parent_pid=7")
    id_, message = found(text + "\n" + manager(KILLED))
    assert id_ == "failure.killed" and "without a word" in message


def test_pointer_without_the_root_is_not_taken_for_it() -> None:
    text = journal(raised("RuntimeError: Engine core initialization failed. See root cause above.")) + "\n" + EXITED
    finding = diagnosis.diagnose(text).finding
    assert finding.id == "failure.killed"
    assert "See root cause above" in finding.evidence


@pytest.mark.parametrize(
    ("line", "id_"),
    [
        ("specdec-main.service: Main process exited, code=dumped, status=11/SEGV", "segfault"),
        ("specdec-main.service: Main process exited, code=dumped, status=6/ABRT", "signal"),
        ("specdec-main.service: Main process exited, code=exited, status=203/EXEC", "not-started"),
        ("specdec-main.service: Main process exited, code=exited, status=3/NOTIMPLEMENTED", "exit"),
        ("specdec-main.service: start operation timed out. Terminating.", "timeout"),
    ],
)
def test_end_that_only_systemd_saw(line: str, id_: str) -> None:
    finding = diagnosis.diagnose(journal("loading") + "\n" + manager(line)).finding
    assert (finding.id, finding.verdict) == ("failure." + id_, ERROR)


def test_crash_of_compiled_code_names_the_frame_it_was_called_from() -> None:
    text = journal(
        """
        Fatal Python error: Segmentation fault

        Current thread 0x00007f (most recent call first):
          File "/e/ops.py", line 9 in gemm
          File "/e/model.py", line 2 in forward
        """
    )
    finding = diagnosis.diagnose(text + "\n" + manager("specdec-main.service: Main process exited, code=dumped, status=11/SEGV")).finding
    assert finding.id == "failure.segfault"
    assert finding.evidence.startswith("/e/ops.py:9 in gemm")


# Journals that say nothing, or too much


@pytest.mark.parametrize("text", ["", "\n\n", manager("Started specdec-main.service.")])
def test_empty_journal_is_no_proof_of_health(text: str) -> None:
    assert diagnosis.diagnose(text).finding.verdict == COULD_NOT_CHECK


def test_exception_of_a_request_is_no_crash() -> None:
    text = journal('Exception in ASGI application\nTraceback (most recent call last):\n  File "/e/http.py", line 3, in call\nOSError: gone')
    assert diagnosis.diagnose(text).finding.verdict == WARNING


@pytest.mark.parametrize("line", ["x" * 5_000_000, "\x00\x01\x1b[31mred", "Traceback (most recent call last):", "A" * 999 + "Error" * 999])
def test_strange_text_is_read_in_bounded_time(line: str) -> None:
    begun = time.monotonic()
    diagnosis.diagnose("\n".join([line] * 20) + "\n" + EXITED)
    # linear it is a second, quadratic it is days: this tells the two apart on any machine
    assert time.monotonic() - begun < 300


@pytest.mark.parametrize("noise", [pytest.param("INFO 11-30 03:00:01 [loop.py:1] a step\n", id="lines"), pytest.param("x", id="one line")])
def test_of_a_journal_of_100_megabytes_only_the_end_is_read(noise: str) -> None:
    size = 100 << 20
    ending = journal(raised("OSError: the root")) + "\n" + EXITED
    text = noise * (size // len(noise)) + "\n" + ending
    assert len(text) > size - 200
    tracemalloc.start()
    try:
        result = diagnosis.diagnose(text, "specdec-main.service")
        parts = diagnosis.starts(text)
        _now, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (result.finding.id, result.finding.message) == ("failure.exception", "OSError: the root")
    assert len(parts) == 1 and parts[0].endswith(ending)
    # a tenth of the text is looked at, and parts of that are held twice
    assert most < size // 2


def test_the_host_is_asked_for_the_end_of_its_journals_alone() -> None:
    _result, asked = on_host(CRASHED)
    assert len(asked) == 2 and all("--lines=%d " % diagnosis.LINES in one for one in asked)


def test_starts_are_told_apart() -> None:
    text = "\n".join(
        [
            manager("Started specdec-main.service - engine."),
            journal(raised("OSError: first")),
            manager("specdec-main.service: Scheduled restart job, restart counter is at 1.", "Starting specdec-main.service - engine..."),
            manager("Started specdec-main.service - engine."),
            journal("loading"),
        ]
    )
    parts = diagnosis.starts(text)
    assert [diagnosis.diagnose(part).finding.message for part in parts] == ["OSError: first", "no failure in the journal"]


def test_filter_gives_plain_data() -> None:
    said = diagnose.FilterModule().filters()["diagnose"](journal(raised("OSError: x")), "a.service")
    assert (said["id"], said["verdict"], said["subject"]) == ("failure.exception", ERROR, "a.service")
    assert said["reproduce"].startswith("systemctl restart a.service")


def test_text_names_the_command() -> None:
    text: t.Any = diagnosis.diagnose(journal(raised("OSError: x")), "specdec-main.service").text()
    assert text.splitlines()[-1].startswith("  again:    systemctl restart specdec-main.service")


# Asked for on the host


CRASHED = (
    "2026-11-30T03:00:01+0000 gpu systemd[1]: Started specdec-main.service - engine.\n"
    "2026-11-30T03:00:05+0000 gpu systemd[1]: specdec-main.service: Main process exited, code=killed, status=9/KILL\n"
)
RESTARTED = "2026-11-30T03:00:06+0000 gpu systemd[1]: specdec-main.service: Scheduled restart job, restart counter is at 1.\n"
AGAIN = "2026-11-30T03:00:07+0000 gpu systemd[1]: Started specdec-main.service - engine.\n2026-11-30T03:00:08+0000 gpu python[8]: loading\n"


def on_host(unit: str, kernel: str = "", rc: int = 0) -> tuple[diagnosis.Diagnosis, list[str]]:
    asked: list[str] = []

    def runner(argv: t.Sequence[str], **_options: t.Any) -> Completed:
        asked.append(" ".join(argv))
        return Completed(rc, kernel if "--dmesg" in argv else unit, "no journal" if rc else "")

    return diagnosis.last_start("specdec-main.service", runner), asked


def test_start_that_systemd_repeated_is_diagnosed_by_the_one_before() -> None:
    result, asked = on_host(CRASHED + RESTARTED + AGAIN)
    assert result.finding.id == "failure.killed"
    assert "--since=2026-11-30 03:00:01" in asked[-1]


def test_start_that_somebody_repeated_is_diagnosed_by_itself() -> None:
    assert on_host(CRASHED + AGAIN)[0].finding.verdict == OK


def test_kernel_s_log_is_asked_about_memory() -> None:
    kernel = "2026-11-30T03:00:04+0000 gpu kernel: oom-kill:task_memcg=/system.slice/specdec-main.service,task=python,pid=71\n"
    assert on_host(CRASHED, kernel)[0].finding.id == "failure.memory"


def test_journal_that_cannot_be_read_says_why() -> None:
    finding = on_host("", rc=1)[0].finding
    assert (finding.verdict, finding.evidence) == (COULD_NOT_CHECK, "no journal")
