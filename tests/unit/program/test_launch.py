# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The launcher, in a process of its own: what the engine gets, and what the journal gets."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

from specdec import launch

KEY = "sk-\"q\"-'ü'-0123456789"

ENGINE = """
import base64, json, os, signal, sys, time
path = sys.argv[sys.argv.index("--config") + 1]
config = json.load(open(path))
key = config["api-key"]
exec(os.environ["SCRIPT"])
"""


class Service:
    """A release on disk and the directories systemd would give."""

    def __init__(self, directory: Path) -> None:
        self.release = directory / "instances" / "main" / "releases" / "r1"
        self.runtime = directory / "run"
        venv = directory / "environments" / "abc" / "venv" / "bin"
        for path in (self.release, self.runtime, directory / "credentials", venv):
            path.mkdir(parents=True)
        (venv / "python").symlink_to(sys.executable)
        (directory / "credentials" / "api_key").write_text(KEY, encoding="utf-8")
        (directory / "engine.py").write_text(ENGINE, encoding="utf-8")
        facts = {
            "id": "r1",
            "environment": "abc",
            "command": [str(directory / "engine.py")],
            "config_option": "--config",
            "secrets": {"api_key": {"option": "api-key", "version": "v"}},
        }
        (self.release / "release.json").write_text(json.dumps(facts), encoding="utf-8")
        (self.release / "config.json").write_text('{"port": 1}', encoding="utf-8")
        shutil.copyfile(launch.__file__, self.release / "launch.py")
        current = directory / "instances" / "main" / "current"
        current.symlink_to("releases/r1")
        self.command = [sys.executable, "-I", "-B", str(current / "launch.py")]
        self.environment = {
            **os.environ,
            "RUNTIME_DIRECTORY": str(self.runtime),
            "CREDENTIALS_DIRECTORY": str(directory / "credentials"),
            "PYTHONUNBUFFERED": "1",
        }

    def start(self, script: str) -> subprocess.Popen[str]:
        """Launch an engine that does this."""
        environment = {**self.environment, "SCRIPT": script}
        return subprocess.Popen(self.command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")

    def run(self, script: str) -> tuple[int, str]:
        """Status and output of an engine that does this."""
        process = self.start(script)
        said, _none = process.communicate(timeout=60)
        return process.returncode, said


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path)


def test_engine_gets_its_configuration_with_the_secret(service: Service) -> None:
    status, said = service.run("print(config['port'], len(key), oct(os.stat(path).st_mode & 0o777), os.path.dirname(path))")
    assert (status, said) == (0, "1 %d 0o600 %s\n" % (len(KEY), service.runtime))
    assert (service.runtime / "release").read_text(encoding="utf-8") == "r1"
    assert KEY not in "".join(path.read_text(encoding="utf-8") for path in service.release.iterdir())


@pytest.mark.parametrize(
    "script",
    [
        "print('key', key)",
        "print('args', {'api_key': key})",
        "print('json', json.dumps(config))",
        "print('basic', base64.b64encode(key.encode()).decode())",
        "print(key, file=sys.stderr)",
        "sys.stdout.write(key)",
        "sys.stdout.write('x' * 65530 + key + 'y' * 70000)",
        "os.write(1, key.encode()[:7]); time.sleep(0.2); os.write(1, key.encode()[7:])",
    ],
)
def test_secret_never_comes_out(service: Service, script: str) -> None:
    status, said = service.run(script)
    assert status == 0 and "***" in said
    for spelling in (KEY, json.dumps(KEY)[1:-1], repr(KEY)[1:-1], base64.b64encode(KEY.encode()).decode(), KEY[-10:]):
        assert spelling not in said


def test_other_lines_pass_unchanged_and_in_order(service: Service) -> None:
    _status, said = service.run("[print('line', n, file=(sys.stdout, sys.stderr)[n % 2]) for n in range(2000)]")
    assert said == "".join("line %d\n" % number for number in range(2000))


def test_last_words_of_a_dying_engine_come_through(service: Service) -> None:
    status, said = service.run("print('x' * 60000); print('RuntimeError: the cause', file=sys.stderr); os.kill(os.getpid(), 9)")
    assert status == -signal.SIGKILL and said.endswith("RuntimeError: the cause\n")


@pytest.mark.parametrize(("script", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV)])
def test_end_is_the_engine_s_own(service: Service, script: str, status: int) -> None:
    assert service.run(script)[0] == status


def test_signals_reach_the_engine(service: Service) -> None:
    process = service.start("signal.signal(signal.SIGTERM, lambda *_: (print('drained'), os._exit(7))); print('ready'); signal.pause()")
    stdout = t.cast("t.TextIO", process.stdout)
    assert stdout.readline() == "ready\n"
    process.terminate()
    assert process.wait(60) == 7 and stdout.read() == "drained\n"


def test_worker_that_outlives_the_engine_does_not_hold_it_back(service: Service) -> None:
    process = service.start("worker = os.fork()\nif worker == 0:\n  time.sleep(60)\nprint(worker)\nsys.stdout.flush()\nos._exit(4)")
    worker = int(t.cast("t.TextIO", process.stdout).readline())
    try:
        assert process.wait(30) == 4
    finally:
        os.kill(worker, signal.SIGKILL)


def test_missing_environment_is_named(service: Service, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "environments")
    status, said = service.run("")
    assert status == 1 and said == "specdec: environment abc is not on this host: run the deploy again\n"


def test_release_without_secrets_needs_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    assert launch.credentials({"secrets": {}}) == {}
    assert launch.Redactor([]).feed(b"plain") == b"plain"
