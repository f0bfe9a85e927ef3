# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real systemd host on which instances of the double engine are switched."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
import typing as t
import zipfile
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils import releases, transactions

CHECKOUT = Path(__file__).resolve().parents[2]
NAME = "ct210"
ROOT = "/opt/specdec"
ENVIRONMENT = "0123456789abcdef"
#: Seconds within which an engine has to start, and to answer the gate: where a test waits until they pass, and where it does not.
WAITED_OUT, PATIENT = 6, 60
KEY = 'sk-"quoted"-0123456789abcdef'
KEY_VERSION = "00112233aabbccdd"

#: Runs on the host with a request on stdin; prints its answer as JSON.
AGENT = """
import json, sys
sys.path.insert(0, "/opt/specdec/bin/specdec")
from ansible_collections.specdec.serving.plugins.module_utils import jobs, layout, releases, transactions
from ansible_collections.specdec.serving.plugins.plugin_utils.processes import run
request = json.load(sys.stdin)
place = layout.Layout("/opt/specdec")
answer = {}
if "release" in request:
    release = releases.Release(**request["release"])
    transactions.prepare_user(place, release.facts, run)
    for version, value in request["secrets"].items():
        releases.store_secret(place, release.instance, version, value)
    releases.store(place, release)
if "spec" in request:
    try:
        answer = jobs.start(request["spec"], run, request.get("job_secrets"))
        if request["wait"]:
            request["follow"] = answer["directory"]
    except jobs.Busy as busy:
        answer = {"busy": str(busy)}
if "follow" in request:
    answer = {"lines": []}
    offset = 0
    while True:
        news = jobs.follow(request["follow"], offset, 30, run)
        offset = news["offset"]
        answer["lines"] += news["lines"]
        if news["done"]:
            break
    answer.update(result=news["result"], lost=news["lost"])
if "describe" in request:
    answer = transactions.describe(place, request["describe"], run)
print(json.dumps(answer))
"""


def _switch(release: releases.Release, **spec: t.Any) -> dict[str, t.Any]:
    limits = transactions.deadline(release.facts, release.facts)
    job = {"schema": 1, "kind": "switch", "root": ROOT, "who": "tester", "why": "test", "deadline": limits.total}
    return {**job, "instance": release.instance, "release": release.id, **spec}


def program() -> bytes:
    """The host program without the wheels it does not need here."""
    buffer = io.BytesIO()
    package = "ansible_collections/specdec/serving/plugins/module_utils"
    with zipfile.ZipFile(buffer, "w") as archive:
        for depth in range(1, package.count("/") + 1):
            archive.writestr("/".join([*package.split("/")[:depth], "__init__.py"]), "")
        for path in sorted((CHECKOUT / "plugins" / "module_utils").glob("*.py")):
            archive.write(path, "%s/%s" % (package, path.name))
        processes = "plugins/plugin_utils/processes.py"
        archive.write(CHECKOUT / processes, "ansible_collections/specdec/serving/" + processes)
        archive.writestr("ansible_collections/specdec/serving/plugins/plugin_utils/__init__.py", "")
        for path in sorted((CHECKOUT / "roles" / "uv" / "files" / "specdec").glob("*.py")):
            archive.write(path, "specdec/" + path.name)
        archive.writestr("__main__.py", "import sys\nfrom specdec.main import main\nsys.exit(main())\n")
    return buffer.getvalue()


class Host:
    """One host of a set, told apart as demo/hosts/hosts does; every instance name used on it belongs to one test."""

    def __init__(self, state: Path, name: str = NAME, prefix: str = "specdec-switch", subnet: str = "10.89.79") -> None:
        self.state = state
        self.name = name
        self.address = "%s.%s" % (subnet, name[2:])
        self.environment = {
            **os.environ,
            "SPECDEC_DEMO_PREFIX": prefix,
            "SPECDEC_DEMO_SUBNET": subnet,
            "SPECDEC_DEMO_STATE": str(state),
        }
        self._port = 31000
        self._ports: dict[str, int] = {}

    def hosts(self, *arguments: str, stdin: t.Union[str, bytes, None] = None, check: bool = True) -> str:
        """Run demo/hosts/hosts."""
        data = stdin.encode() if isinstance(stdin, str) else stdin
        command = [str(CHECKOUT / "demo" / "hosts" / "hosts"), *arguments]
        done = subprocess.run(command, env=self.environment, input=data or b"", capture_output=True, timeout=600, check=False)
        if check:
            assert done.returncode == 0, "%s: %s%s" % (" ".join(arguments), done.stdout.decode(), done.stderr.decode())
        return done.stdout.decode()

    def sh(self, *command: str, check: bool = True, stdin: t.Union[str, bytes, None] = None) -> str:
        """Run a command on the host as root; what it printed."""
        return self.hosts("exec", self.name, "--", *command, stdin=stdin, check=check).strip()

    def up(self) -> None:
        """Make the host; an environment on it is the host's own Python and the double."""
        self.hosts("up", self.name)
        self.put({ROOT + "/bin/specdec": (program(), 0o755)})
        self.add_environment(ENVIRONMENT)

    def put(self, files: t.Mapping[str, t.Union[tuple[bytes, int], str]]) -> None:
        """Files of the host by their path: content and mode, or where a link points to."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for path, content in files.items():
                entry = tarfile.TarInfo(path.lstrip("/"))
                if isinstance(content, str):
                    entry.type, entry.linkname = tarfile.SYMTYPE, content
                    archive.addfile(entry)
                else:
                    entry.size, entry.mode = len(content[0]), content[1]
                    archive.addfile(entry, io.BytesIO(content[0]))
        self.sh("tar", "-x", "-C", "/", stdin=buffer.getvalue())

    def add_environment(self, environment: str, **facts: t.Any) -> None:
        """An environment that holds the host's own Python and the double; ``facts`` stand in its environment.json."""
        place = "%s/environments/%s" % (ROOT, environment)
        self.put(
            {
                place + "/engine.py": ((CHECKOUT / "tests" / "doubles" / "engine.py").read_bytes(), 0o644),
                place + "/environment.json": (json.dumps({"schema": 1, "id": environment, **facts}).encode(), 0o644),
                place + "/.complete": (b"", 0o644),
                place + "/venv/bin/python": "/usr/bin/python3",
            }
        )

    def playbook(self, name: str, *arguments: str, **variables: t.Any) -> subprocess.CompletedProcess[str]:
        """Run a playbook of the collection on this host as a user does, over SSH; output together as text."""
        return play([self], "specdec.serving." + name, "-e", json.dumps(variables), *arguments)

    def down(self) -> None:
        """Remove it."""
        self.hosts("down", check=False)

    def agent(self, **request: t.Any) -> t.Any:
        """Call the core on the host."""
        return json.loads(self.sh("python3", "-I", "-B", "-c", AGENT, stdin=json.dumps(request)))

    def specdec(self, *arguments: str, check: bool = True) -> str:
        """The host program's command line."""
        return self.sh("/usr/bin/python3", "-I", "-B", ROOT + "/bin/specdec", *arguments, check=check)

    def release(
        self,
        instance: str,
        mode: str = "ok",
        acceptance: float = 2.5,
        environment: str = ENVIRONMENT,
        engine_config: t.Optional[t.Mapping[str, t.Any]] = None,
        patience: t.Optional[int] = None,
        **facts: t.Any,
    ) -> releases.Release:
        """A release of an instance; another mode or acceptance is another release.

        :param patience: seconds to start and seconds to answer within; without it few where the fault is that they pass.
        """
        if instance not in self._ports:
            self._port += 1
            self._ports[instance] = self._port
        late = mode in ("hang", "unhealthy", "wedge") or (engine_config or {}).get("double-start", 0) > WAITED_OUT
        patience = patience or (WAITED_OUT if late else PATIENT)
        state = "%s/state/%s/%s" % (ROOT, instance, environment)
        place = "%s/environments/%s" % (ROOT, environment)
        whole = {
            "instance": instance,
            "environment": environment,
            "engine": {"name": "double", "version": "1"},
            "command": ["-B", place + "/engine.py"],
            "environment_variables": {"HOME": state, "PATH": place + "/venv/bin:/usr/bin:/bin"},
            "secrets": {"api_key": {"option": "api-key", "version": KEY_VERSION}},
            "port": self._ports[instance],
            "stop_timeout": 3,
            "start_timeout": patience,
            "gate": {
                "served_model": "tiny",
                "speculative": acceptance > 0,
                "acceptance_floor": 1.05,
                "floor_enforced": True,
                "max_tokens": 41,
                "prompts": ["a", "b", "c", "d", "e"],
                "formula": "sglang",
                "counters": {
                    "generated": "sglang:generation_tokens_total",
                    "requests": "sglang:num_requests_total",
                    "verify": "sglang:spec_verify_calls_total",
                },
                "health": "/health",
                "timeout": patience,
            },
            **facts,
        }
        config = {"host": whole.get("host", "127.0.0.1"), "port": whole["port"], "double-mode": mode, "double-acceptance": acceptance}
        config.update(engine_config or {})
        launcher = (CHECKOUT / "roles" / "uv" / "files" / "specdec" / "launch.py").read_text(encoding="utf-8")
        return releases.compose(ROOT, whole, config, launcher)

    def install(self, release: releases.Release, **request: t.Any) -> t.Any:
        """Put a release in place beside what serves."""
        whole = {"facts": release.facts, "config": release.config, "unit": release.unit, "launcher": release.launcher}
        return self.agent(release=whole, secrets={KEY_VERSION: KEY}, **request)

    def start(self, release: releases.Release, wait: bool = False, **spec: t.Any) -> dict[str, t.Any]:
        """Put a release in place and start the switch to it; the job's directory, or who is busy."""
        return self.install(release, spec=_switch(release, **spec), wait=wait)

    def start_installed(self, release: releases.Release) -> dict[str, t.Any]:
        """Start the switch to a release that is in place; the job's directory."""
        return self.agent(spec=_switch(release), wait=False)

    def follow(self, job: t.Mapping[str, str]) -> dict[str, t.Any]:
        """Wait for a job's end: lines, result, lost."""
        return self.agent(follow=job["directory"])

    def switch(self, release: releases.Release, **spec: t.Any) -> dict[str, t.Any]:
        """Switch and wait; the job's result."""
        ended = self.start(release, wait=True, **spec)
        assert not ended["lost"], ended["lines"]
        return ended["result"]

    def describe(self, instance: str) -> dict[str, t.Any]:
        """transactions.describe of an instance."""
        return self.agent(describe=instance)

    def show(self, unit: str, name: str) -> str:
        """One property of a unit."""
        return self.sh("systemctl", "show", "--value", "--property=" + name, unit)

    def wait_for_step(self, instance: str, step: str) -> None:
        """Until the transaction of an instance has recorded a step."""
        command = 'until grep -qs \'"step": "%s"\' %s/instances/%s/transaction.json; do sleep 0.02; done' % (step, ROOT, instance)
        self.sh("timeout", "300", "sh", "-c", command)

    def wait_until_idle(self) -> None:
        """Until no job holds the host and nothing is unfinished."""
        unfinished = "ls %s/instances/*/transaction.json" % ROOT
        busy = "systemctl show --value --property=ActiveState specdec-job.service | grep -q ing"
        active = "systemctl is-active --quiet specdec-job.service"
        self.sh("timeout", "300", "sh", "-c", "while %s || %s || %s; do sleep 0.1; done >/dev/null 2>&1" % (unfinished, active, busy))

    def power_cycle(self) -> None:
        """Cut the power and start again."""
        self.hosts("kill", self.name)
        self.hosts("start", self.name)


def plan(old: t.Any, new: t.Any) -> dict[str, t.Any]:
    """What the plan says of one host whose instance is to be switched."""
    switch = {"kind": "switch", "root": ROOT, "instance": new.instance, "release": new.id, "deadline": 60}
    release = {
        "instance": new.instance,
        "id": new.id,
        "environment": new.facts["environment"],
        "engine": "double 1",
        "present": False,
        "current": old.id,
        "switch_needed": True,
        "files": {"facts": new.facts, "config": new.config, "unit": new.unit, "launcher": new.launcher},
        "switch": switch,
        "query": "curl",
    }
    return {"root": ROOT, "stages": ["engine_service"], "releases": [release], "gone": []}


def play(
    hosts: t.Sequence[Host], playbook: str, *arguments: str, own: t.Optional[t.Mapping[str, t.Any]] = None, library: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a playbook on hosts of one set; ``own`` are variables by host, ``library`` a directory with modules of the test's own."""
    first = hosts[0]
    inventory = first.state / "hosts.yml"
    listed = {host.name: {"ansible_host": host.address, **(own or {}).get(host.name, {})} for host in hosts}
    inventory.write_text(json.dumps({"demo": {"hosts": listed}}))
    limit = ",".join(listed)
    return subprocess.run(
        ["ansible-playbook", playbook, "-i", str(CHECKOUT / "inventories" / "demo"), "-i", str(inventory), "-l", limit, *arguments],
        env={
            **first.environment,
            "ANSIBLE_COLLECTIONS_PATH": str(CHECKOUT / "collections"),
            "ANSIBLE_LIBRARY": library,
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(first.state / "cp"),
        },
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
