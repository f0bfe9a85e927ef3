# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that is deployed to by the whole playbook over SSH, with small wheels from an index of its own; its engine is a double.

The wheel named sglang holds tests/doubles/engine.py, and as much of the engine's own modules as the proof of a release asks for.
All else is the product's: lock, environment, proof, release, transaction and gate.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import re
import secrets
import select
import shlex
import shutil
import signal
import subprocess
import threading
import time
import typing as t
import urllib.request
from pathlib import Path

import flow
import index

from ansible_collections.specdec.serving.plugins.plugin_utils import controller, hosttools

HOST = "ct200"
PORT = 30000
RIGHT = "the quick brown fox jumps over a lazy dog"
VERSION = "0.5.9"
#: The engine that cannot be imported.
BROKEN = "0.5.10"
#: Sent by the controller, so that the lane's own index is not asked.
TORCH = {"torch": "2.9.1+cpu", "torchvision": "0.24.1+standin"}
#: Seconds of the instance's own limits: a fault that lasts until one of them is to be over soon.
START, STOP, GATE = 8, 4, 8
#: Seconds that anything is waited for that has no limit of its own, on a machine that may be busy.
PATIENCE = 150

#: What the proof asks of the engine; see data/engines.yml.
ARGUMENTS = b"""
class ServerArgs:
    def check_server_args(self):
        pass


def prepare_server_args(argv):
    return ServerArgs()
"""
ALGORITHMS = b"""
class SpeculativeAlgorithm:
    @classmethod
    def from_string(cls, name):
        return name
"""
ENGINE = {
    "sglang/__init__.py": b"",
    "sglang/launch_server.py": (flow.CHECKOUT / "tests" / "doubles" / "engine.py").read_bytes(),
    "sglang/srt/__init__.py": b"",
    "sglang/srt/server_args.py": ARGUMENTS,
    "sglang/srt/speculative/__init__.py": b"",
    "sglang/srt/speculative/spec_info.py": ALGORITHMS,
    **{"sglang/srt/layers/m%d.py" % number: b"NUMBER = %d\n" % number for number in range(40)},
}


class Index(index.Index):
    """An index that may take its time over each answer, in seconds."""

    delay = 0.0

    def answer(self, path: str, accept: str) -> tuple[int, str, bytes]:
        time.sleep(self.delay)
        return super().answer(path, accept)


@dataclasses.dataclass
class Client:
    """Asks a server all the time, each time over a connection of its own; (begun, ended, what was wrong) of each request."""

    url: str
    key: str
    requests: list[tuple[float, float, str]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._ask_on, daemon=True)

    def __enter__(self) -> Client:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end.set()
        self._thread.join()

    def _ask_on(self) -> None:
        body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 9}).encode()
        headers = {"Content-Type": "application/json", "Authorization": "Bearer " + self.key}
        while not self._end.wait(0.03):
            begun = time.time()
            try:
                with urllib.request.urlopen(urllib.request.Request(self.url, body, headers), timeout=10) as answer:
                    text = json.load(answer)["choices"][0]["text"]
                wrong = "" if text == RIGHT else "wrong text"
            except Exception as error:
                wrong = repr(error)
            self.requests.append((begun, time.time(), wrong))


@dataclasses.dataclass
class Deploy:
    """A playbook that runs; each line it printed, with the time it came."""

    process: subprocess.Popen[str]
    lines: list[tuple[float, str]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.news = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            with self.news:
                self.lines.append((time.time(), line))
                self.news.notify_all()
        with self.news:
            self.news.notify_all()

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(line for _when, line in self.lines)

    @property
    def said(self) -> str:
        """The same as one line: where its lines are folded says nothing."""
        return " ".join(self.text.split())

    @property
    def tasks(self) -> list[str]:
        """The tasks that were begun."""
        return re.findall(r"^TASK \[(.*?)\] \*", self.text, re.MULTILINE)

    def wait_for(self, pattern: str, number: int = 1, timeout: float = 2 * PATIENCE) -> bool:
        """Until so many lines match, or it ended; whether they do."""
        limit = time.monotonic() + timeout
        with self.news:
            while sum(bool(re.search(pattern, line)) for _when, line in self.lines) < number:
                left = limit - time.monotonic()
                assert left > 0, self.text[-3000:]
                if not self._thread.is_alive():
                    return False
                self.news.wait(min(left, 0.2))
        return True

    def kill(self) -> float:
        """SIGKILL to the controller and everything it started here; when."""
        when = time.time()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.end()
        return when

    def wait_for_task(self, known: t.Container[str]) -> t.Optional[str]:
        """Wait for the first task that is not known; None when the run ends before."""
        place = 0
        while True:
            with self.news:
                while len(self.lines) == place and self._thread.is_alive():
                    self.news.wait(0.2)
                if len(self.lines) == place:
                    return None
                place += 1
            tasks = self.tasks if self.lines[place - 1][1].startswith("TASK [") else []
            name = "%s (%d)" % (tasks[-1], tasks.count(tasks[-1])) if tasks else ""
            if name and name not in known:
                return name

    def end(self, timeout: float = 300) -> int:
        """Wait for its end; the exit status."""
        status = self.process.wait(timeout)
        self._thread.join(20)
        return status


#: On the host: what is half done, what counts as built though it is not whole, and how the instance stands.
LOOK = """
import json, pathlib, sys
sys.path.insert(0, "/opt/specdec/bin/specdec")
from ansible_collections.specdec.serving.plugins.module_utils import layout, records, transactions
from ansible_collections.specdec.serving.plugins.plugin_utils.processes import run
place = layout.Layout("/opt/specdec")
damaged = []
for marker in place.environments.glob("*/.complete"):
    (site,) = marker.parent.glob("venv/lib/python3*/site-packages")
    found = records.verify(site)
    if found.changed or found.missing or not (marker.parent / "environment.json").exists():
        damaged.append(marker.parent.name)
jobs = []
for directory in pathlib.Path("/run/specdec/jobs").glob("*"):
    try:
        spec = json.loads((directory / "spec.json").read_text())
        times = [json.loads(line)["t"] for line in (directory / "progress.jsonl").read_text().splitlines()]
        result = directory / "result.json"
        ended = result.stat().st_mtime if result.exists() else max(times)
        jobs.append([spec["kind"], (directory / "spec.json").stat().st_mtime, ended])
    except (OSError, ValueError):
        continue
print(json.dumps({**transactions.describe(place, "main", run), "damaged": damaged, "jobs": jobs}))
"""

#: On the host: what lies in the root goes on in a file system whose size can be set.
RESIZABLE = """
cd / && mountpoint -q ROOT && exit
systemctl stop specdec-main && mv ROOT ROOT.moved && mkdir ROOT
mount -t tmpfs -o mode=0755,exec,size=6g tmpfs ROOT
cp -a ROOT.moved/. ROOT/ && rm -rf ROOT.moved && systemctl start specdec-main
""".replace("ROOT", flow.ROOT)


#: On the host: until no task of a controller runs there, no job holds it and nothing is unfinished.
IDLE = """
while pgrep -x sudo || ls /opt/specdec/instances/*/transaction.json ||
    systemctl show --value --property=ActiveState specdec-job.service | grep -qx -e active -e activating -e deactivating ||
    [ -n "$(systemctl show --value --property=Job specdec-job.service | tr -d 0)" ]; do sleep 0.1; done >/dev/null 2>&1
"""


class Site:
    """The host, the index that it takes packages from, and deploys to it."""

    def __init__(self, state: Path, prefix: str, subnet: str) -> None:
        self.fleet = flow.Fleet(state, prefix, subnet)
        # A user's deploy has none of the settings that molecule gives its own playbooks, such as colours.
        for name in set(self.fleet.environment) - {"ANSIBLE_INVENTORY", "ANSIBLE_NOCOLOR", "ANSIBLE_SSH_CONTROL_PATH_DIR"}:
            if name.startswith("ANSIBLE_"):
                del self.fleet.environment[name]
        # to ask again would only take its time
        self.fleet.environment.update(UV_HTTP_RETRIES="0", UV_FIND_LINKS="", PYTHONUNBUFFERED="1")
        self.state = state
        self.number = int(time.time())  # a host may be kept from an earlier run
        self.shell: t.Optional[subprocess.Popen[bytes]] = None
        self.off: list[tuple[float, float]] = []

    def up(self) -> None:
        """Host, key, index and a first release that serves."""
        self.fleet.hosts("up", HOST)
        # while the controller has an index that has them
        hosttools.tools(controller.cache_directory(), controller.run, platform.machine())
        (self.state / "api_key").write_text(secrets.token_urlsafe(24))
        for name, more in (("good", {}), ("bad", {"double-crash": "RuntimeError: size mismatch for lm_head.weight"})):
            model = self.state / "models" / name / "target"
            shutil.copytree(flow.CHECKOUT / "demo" / "models" / "target", model, dirs_exist_ok=True)
            config = json.loads((model / "config.json").read_text())
            (model / "config.json").write_text(json.dumps({**config, **more}))
        wheels = self.state / "wheels"
        wheels.mkdir(exist_ok=True)
        for package, version in TORCH.items():
            name, content = index.wheel(package, version)
            (wheels / name).write_bytes(content)
        self.index = Index(self.fleet.subnet + ".1")
        broken = {"sglang/__init__.py": b"raise RuntimeError('broken on purpose')\n"}
        for version, files in ((VERSION, ENGINE), (BROKEN, {**ENGINE, **broken})):
            self.index.add("sglang", version, ["torch==2.9.1"], files=files)
        for name in ("dill", "triton"):
            self.index.add(name, "1.0")

    def down(self) -> None:
        """What runs here for it; the host goes with its set."""
        self.leave()
        self.index.close()

    def client(self) -> Client:
        """A client of the instance."""
        return Client("http://%s.%s:%d/v1/completions" % (self.fleet.subnet, HOST[2:], PORT), self.fleet.key())

    def wanted(self, *, build: bool = True, version: str = "", model: str = "good", **double: t.Any) -> dict[str, t.Any]:
        """Variables of a release that was not there before, in an environment of its own where one is to be built.

        :param version: of the engine.
        :param model: ``good``, or ``bad``: another revision, which the engine cannot load.
        :param double: of the engine's behaviour (tests/doubles/engine.py).
        """
        self.number += 1
        if build:
            self.part = "%d.0" % self.number
            self.index.add("part", self.part)
        arguments = {"double-number": self.number, **{"double-" + name: value for name, value in double.items()}}
        return {
            "specdec_instance_defaults": {
                "engine": {"name": "sglang", "version": version or VERSION, "lane": "cpu"},
                "model": {"directory": str(self.state / "models" / model / "target")},
                "served_model_name": "tiny",
                "service": {"start_timeout": START, "stop_timeout": STOP},
                "gate": {"timeout": GATE},
                "extra_args": arguments,
            },
            "specdec_pins": TORCH,
            "specdec_extra_packages": ["part==" + self.part],
            "specdec_wheel_directories": [str(self.state / "wheels")],
            "specdec_pins_dir": str(self.state / "pins"),
            "specdec_network": {"index": self.index.url},
        }

    def start(self, variables: t.Mapping[str, t.Any], *arguments: str, playbook: str = "deploy.yml") -> Deploy:
        """Start a playbook, in a process group of its own."""
        argv = ["ansible-playbook", playbook, "-l", HOST, "-e", json.dumps(variables), *arguments]
        return Deploy(
            subprocess.Popen(
                argv,
                env={**self.fleet.environment, "ANSIBLE_COLLECTIONS_PATH": str(flow.CHECKOUT / "collections")},
                cwd=flow.CHECKOUT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        )

    def sh(self, script: str, unless: t.Optional[Deploy] = None) -> str:
        """Run a script on the host as root, around SSH; it has to succeed, and to end before a deploy does that it waits for."""
        if self.shell is None:
            command = ["demo/hosts/hosts", "exec", HOST, "--", "sh"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            self.shell = subprocess.Popen(command, env=self.fleet.environment, cwd=flow.CHECKOUT, **pipes)
        assert self.shell.stdin and self.shell.stdout
        self.shell.stdin.write(("timeout %d sh -c %s </dev/null; echo; echo end-$?-of-it\n" % (PATIENCE, shlex.quote(script))).encode())
        self.shell.stdin.flush()
        said = b""
        while not (over := re.search(rb"\nend-(\d+)-of-it\n$", said)):
            ready = select.select([self.shell.stdout], [], [], 0.05)[0]
            new = os.read(self.shell.stdout.fileno(), 1 << 16) if ready else b""
            said += new
            if (ready and not new) or (unless and not ready and unless.process.poll() is not None):
                self.leave()
                raise AssertionError("%s\n%s\n%s" % (script, said.decode(), unless.text[-4000:] if unless else ""))
        text = said[: over.start()].decode().strip()
        assert over[1] == b"0", "%s\n%s" % (script, text)
        return text

    def leave(self) -> None:
        """End the shell on the host."""
        if self.shell:
            self.shell.kill()
            self.shell.communicate()
            self.shell = None

    def look(self) -> dict[str, t.Any]:
        """How the instance stands and what is damaged."""
        return json.loads(self.sh("/usr/bin/python3 -I -B -c " + shlex.quote(LOOK)))

    def wait_until_idle(self) -> None:
        """Until nothing works on the host any more."""
        self.sh(IDLE)

    def wait_for_step(self, step: str, deploy: Deploy) -> None:
        """Until the transaction of a deploy has recorded a step."""
        self.sh('until grep -qs \'"step": "%s"\' %s/instances/main/transaction.json; do sleep 0.01; done' % (step, flow.ROOT), deploy)

    def wait_for_job(self, kind: str, deploy: Deploy) -> None:
        """Until a job of a deploy's works."""
        show = "systemctl show --value --property=Description specdec-job.service"
        self.sh("until %s | grep -q '^specdec: %s '; do sleep 0.03; done" % (show, kind), deploy)

    def hold_job(self, kind: str, deploy: Deploy, whom: str = "all") -> None:
        """Stop a job of a deploy's where it is: all its processes, or the ``main`` one, until :meth:`let_job_go`."""
        self.wait_for_job(kind, deploy)
        self.sh("systemctl kill --kill-whom=%s --signal=STOP specdec-job.service" % whom, deploy)

    def let_job_go(self) -> None:
        """It goes on, if it is there."""
        self.sh("systemctl kill --kill-whom=all --signal=CONT specdec-job.service || true")

    def cut_sessions(self) -> None:
        """Every SSH session of the host ends at once."""
        self.sh("for pid in $(pgrep -P $(systemctl show --value --property=MainPID ssh)); do kill -KILL $(pgrep -P $pid) $pid; done; true")

    def resizable(self) -> None:
        """Move all of the product's to a file system whose size can be set, once; a power cut would take it away."""
        self.sh(RESIZABLE)
        with self.client() as client:
            while not client.requests or client.requests[-1][2]:
                time.sleep(0.05)

    def restart(self) -> None:
        """Cut the power and start again; ``off`` tells when, until something serves that was started at boot."""
        # a machine that is slow to cut the power finds the job where it was
        self.sh("systemctl kill --kill-whom=all --signal=STOP specdec-job.service || true")
        self.leave()
        begun = time.time()
        self.fleet.hosts("kill", HOST)
        self.fleet.hosts("start", HOST)
        limit = time.monotonic() + PATIENCE
        while not self.healthy():
            assert time.monotonic() < limit, self.sh("systemctl status --no-pager specdec-main specdec-recover")
            time.sleep(0.1)
        self.off.append((begun, time.time()))

    def healthy(self) -> bool:
        """Whether the instance's server says that it is."""
        with contextlib.suppress(OSError):
            self.fleet.ask(HOST, "/health")
            return True
        return False
