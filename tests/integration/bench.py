# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the budgets on a local host of its own, each against its yardstick in the same run, and print the ratios.

    tests/bench [ROW ...]        all without arguments

  no-op deploy    a deploy that finds everything done, on 1, 4 and 16 hosts, against a playbook of one empty task over the same
                  hosts; its remote calls, counted at the connection; beside it a shell script that asks the same over one SSH
                  connection. All but the first host are stand-ins: they hold its records, and sleep where it serves
  environment     a build from a cold cache, from a warm one, and with nothing to do, against bare ``uv venv`` and ``uv pip sync`` of
                  the same lock, both from wheels on the host
  proof           lock, RECORD, parity and compiled code, against ``sha256sum`` over the same files; RECORD and parity of an environment of
                  60,000 files against the same; compiled code alone, against ``readelf`` of the dynamic sections and symbols of the same
  imports         the engine's import chain in a transient unit, against the same imports by a bare Python
  locking         a stack resolved, its files chosen and checked, against bare ``uv pip compile`` of the same requirements
  switch          a rollback from its start to its result, without the engine's own stop and start and without the gate
  overlay         the engine's whole package, every file of it edited, sent by a playbook and laid over while an environment is built
                  (of which the overlay's own steps count), against the same tree by a playbook with
                  ansible.posix.synchronize; and the remote calls of a deploy once it is there. Ours besides
                  verifies what arrived, the base and the result by hash, and keeps the bundle for the next environment; what it compiles is
                  told apart. Beside it, for comparison: an archive and unarchive, copy of a part, scaled, and rsync alone

A time that misses its goal is shown, never a failure: machines differ. Not being able to measure is one.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import yaml
from flow import CHECKOUT, INVENTORY, ROOT, Fleet, variables

from ansible_collections.specdec.serving.plugins.module_utils import artifacts, bundles, environments, layout, records
from ansible_collections.specdec.serving.plugins.plugin_utils import basewheels, controller

HOST = "ct200"
#: Hosts that hold the records of the first one.
STAND_INS = tuple("ct%d" % number for number in range(202, 217))
#: Without an overlay and a draft: neither has a part in what is measured, and no reference is needed.
PLAIN = {"overlays": [], "speculative": None, "draft": None, "extra_args": {"speculative-ddtree-budget": None}}
EMPTY = "- hosts: all\n  gather_facts: false\n  become: true\n  tasks:\n    - ansible.builtin.ping:\n"
REPEATS = 5

#: What a deploy asks a host, as an engineer would script it.
ASKING = """
cat /etc/os-release /proc/meminfo /proc/net/tcp; uname -a; systemctl --version; getconf GNU_LIBC_VERSION
for python in /usr/bin/python3.[0-9]*; do $python -c 'import platform; print(platform.python_version())'; done
df -B1 %(root)s; ls -d /dev/nvidia* /sys/bus/pci/devices/*; nvidia-smi -q
cat %(root)s/bin/*.sha256 %(root)s/environments/*/environment.json %(root)s/instances/*/current/release.json %(root)s/instances/*/history
ls %(root)s/cache/wheels %(root)s/cache/overlays %(root)s/models/*/* %(root)s/instances/*/releases
for file in /etc/systemd/system/specdec-*.service; do cmp $file %(root)s/instances/main/current/specdec-main.service; done
sha256sum %(root)s/instances/*/secrets/*; cat /run/specdec-*/release
systemctl show specdec-main specdec-job
python3 -c 'import urllib.request; print(urllib.request.urlopen("http://127.0.0.1:30000/health").status)'
"""
#: All that a deploy reads of a host, without what is heavy; and a unit of the same text, that sleeps.
PACK = """
cd / && tar -cz --exclude=venv --exclude=cache --exclude=python --exclude=bin/uv --exclude=state .%(root)s \
  etc/sysusers.d/specdec-main.conf etc/systemd/system/specdec-main.service etc/systemd/system/specdec-recover.service
"""
UNPACK = """
set -e
tar -xz -C /; touch %(root)s/bin/uv; systemd-sysusers 2>/dev/null; cd %(root)s/instances/main/current; release=$(basename $(pwd -P))
state=%(root)s/state/main/$(basename %(root)s/environments/*); mkdir -p $state; chown specdec-main $state
mkdir -p /run/systemd/system/specdec-main.service.d
printf '[Service]\nExecStart=\nExecStart=/bin/sh -c "echo -n %%s >/run/specdec-main/release; exec sleep infinity"\n' $release \
  > /run/systemd/system/specdec-main.service.d/sleep.conf
systemctl daemon-reload; systemctl start specdec-main
"""

#: In front of every program for the host, which has the host program's modules and prints the seconds of each measurement as JSON.
MEASURE = """
import json, os, subprocess, sys, time
sys.path.insert(0, ROOT + "/bin/specdec")
def seconds(work):
    begun = time.monotonic()
    work()
    return time.monotonic() - begun
def hashed(paths):
    listed = "\\0".join(paths).encode()
    return lambda: subprocess.run(["xargs", "-0", "sha256sum"], input=listed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""

#: Files are read once before.
PROOF = """
from ansible_collections.specdec.serving.plugins.module_utils import abi, checks, releases
from ansible_collections.specdec.serving.plugins.module_utils.layout import Layout
from ansible_collections.specdec.serving.plugins.plugin_utils.processes import run
release = releases.current(Layout(ROOT), "main")
engine = releases.load(Layout(ROOT), "main", release).facts["engine"]
wanted = {"engine": engine["name"], "version": engine["version"]}
elf = []
def read():
    argv = ["env", "LD_LIBRARY_PATH=" + READELF, READELF + "/readelf", "--wide", "--dynamic", "--dyn-syms", *compiled]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
def ours():
    subject = checks.load({"root": ROOT, "instance": "main", "release": release, "wanted": wanted})
    found = checks.lock_findings(subject) + checks.record_findings(subject) + checks.parity_findings(subject)
    begun = time.monotonic()
    found += checks.elf_findings(subject, run)
    elf.append(time.monotonic() - begun)
    return subject, [one for one in found if one.verdict == "error"]
subject, wrong = ours()
paths = [str(subject.site_packages / path) for one in subject.distributions for path in one.rows]
theirs = hashed(paths)
found = abi.read(subject.site_packages, subject.distributions)
compiled = [str(subject.site_packages / module.path) for module in found.modules]
read()
rounds = [(seconds(ours), seconds(theirs)) for _ in range(3)]
abi_rounds = [(one, seconds(read)) for one in elf[1:]]
said = {"wrong": [one.text() for one in wrong], "files": len(paths), "rounds": rounds, "compiled": len(compiled), "elf": abi_rounds}
print(json.dumps(said))
"""

#: An environment of many files, from 40 bytes to 40 kB each, as source packages have them.
MANY = """
import base64, hashlib, shutil
from pathlib import Path
from ansible_collections.specdec.serving.plugins.module_utils import parity, records
top = Path(ROOT + "-many")
site = top / "lib" / "python3.11" / "site-packages"
paths = []
try:
    for number in range(150):
        info = "package%d-1.0.dist-info" % number
        rows = [info + "/RECORD,,"]
        for place in range(400):
            path = "package%d/part%d/module%d.py" % (number, place % 20, place) if place else info + "/METADATA"
            content = b"%d %d\\n" % (number, place) * (1 << (place % 10 + 3))
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_bytes(content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
            rows.append("%s,sha256=%s,%d" % (path, digest, len(content)))
            paths.append(str(site / path))
        (site / info / "RECORD").write_text("\\n".join(rows) + "\\n")
    def ours():
        dists = records.distributions(site)
        parity.findings({one.name: one.version for one in dists}, [], parity.PARTS, "cpu")
        return records.findings(records.verify(site, dists))
    theirs = hashed(paths)
    wrong = [one.text() for one in ours() if one.verdict != "ok"]
    print(json.dumps({"wrong": wrong, "files": len(paths), "rounds": [(seconds(ours), seconds(theirs)) for _ in range(3)]}))
finally:
    shutil.rmtree(top)
"""

#: What is already in the page cache and compiled; both look at no GPU.
IMPORTS = """
from pathlib import Path
from ansible_collections.specdec.serving.plugins.module_utils import probes
from ansible_collections.specdec.serving.plugins.plugin_utils.processes import run
release = json.loads(Path(ROOT, "instances/main/current/release.json").read_text())
python = Path(ROOT, "environments", release["environment"], "venv/bin/python")
chain = [one for one in release["dry_run"]["imports"] if one[0] not in release["dry_run"]["lacks"]]
reports = []
def ours():
    reports.append(probes.run_imports(python, chain, run))
def theirs():
    subprocess.run([str(python), "-c", "import " + ", ".join(module for _part, module in chain)], check=True, stderr=subprocess.DEVNULL)
theirs()
rounds = [(seconds(ours), seconds(theirs)) for _ in range(3)]
wrong = [part for report in reports for part, _module in chain if not report.stages.get(part, {}).get("ok")]
print(json.dumps({"wrong": wrong, "chain": [module for _part, module in chain], "rounds": rounds}))
"""

#: The same for an environment, in a second root that has the first one's tools. All wheels lie on the host: no index and no network has
#: a part in what is measured. Bare uv comes first: files are no colder for ours.
BUILD = """
import shutil
from pathlib import Path
from ansible_collections.specdec.serving.plugins.module_utils.layout import Layout
layout, other = Layout(ROOT), Layout(ROOT + "-bench")
release = json.loads((layout.instance("main") / "current" / "release.json").read_text())
directory = layout.environment(release["environment"])
content = json.loads((directory / "environment.json").read_text())
lock = directory / "lock.txt"
wheels = [{"sha256": one.parent.name, "filename": one.name} for one in sorted(layout.wheels.glob("*/*.whl"))]
offline = {"UV_OFFLINE": "1", "UV_NO_INDEX": "1"}
shutil.rmtree(other.root, ignore_errors=True)
other.cache.mkdir(parents=True)
(other.root / "bin").symlink_to(layout.bin)
other.wheels.symlink_to(layout.wheels)
links = [word for one in wheels for word in ("--find-links", str(layout.wheels / one["sha256"]))]
def bare(*more, keep=False):
    venv = other.root / "bare"
    environment = {**os.environ, **offline, "UV_CACHE_DIR": str(other.root / "bare-cache"), "UV_NO_CONFIG": "1",
                   "UV_PYTHON_DOWNLOADS": "never"}
    begun = time.monotonic()
    if not venv.exists():
        subprocess.run([str(layout.uv), "--quiet", "venv", "--no-project", "--python", content["python"]["path"], str(venv)],
                       env=environment, check=True)
    words = ["pip", "sync", "--require-hashes", "--python", str(venv / "bin" / "python"), *links, *more, str(lock)]
    subprocess.run([str(layout.uv), "--quiet", *words], env=environment, check=True)
    seconds = time.monotonic() - begun
    if not keep:
        shutil.rmtree(venv)
    return seconds
def ours(keep=False):
    job = other.root / "job"
    job.mkdir()
    spec = {"schema": 1, "kind": "build", "root": str(other.root), "who": "bench", "why": "", "environment": content, "uv_env": offline,
            "wheels": wheels, "lock": lock.read_text(), "python": content["python"]["path"], "critical": release["dry_run"]["kernels"]}
    (job / "spec.json").write_text(json.dumps(spec))
    begun = time.monotonic()
    subprocess.run(["/usr/bin/python3", "-I", "-B", str(layout.specdec), "job", str(job)], check=False)
    seconds = time.monotonic() - begun
    result = json.loads((job / "result.json").read_text())
    wrong.extend(one for one in result["findings"] if one["verdict"] == "error")
    shutil.rmtree(job)
    if not keep:
        shutil.rmtree(other.environments)
    return seconds, result.get("timings")
wrong = []
try:
    said = {"cold": [bare("--compile-bytecode"), ours()]}
    said["warm"] = [bare(), ours(keep=True)]
    bare(keep=True)
    said["nothing"] = [bare(keep=True), ours()]
    print(json.dumps({**said, "wrong": wrong}))
finally:
    shutil.rmtree(other.root)
"""

#: Run on the controller: a stack for a GPU host that is not there, from the index's metadata; the seconds of each round as JSON.
LOCKING = """
import json, os, runpy, subprocess, sys, tempfile, time
from pathlib import Path
runpy.run_path("tests/unit/conftest.py")
from ansible_collections.specdec.serving.plugins.module_utils import locks, stacks
from ansible_collections.specdec.serving.plugins.plugin_utils import controller, hosttools
gpus = {"source": "nvml", "driver": "580.95.05", "devices": [{"compute_capability": "9.0", "name": "GPU"}]}
python = {"version": "3.12.3", "implementation": "cpython", "headers": True}
facts = {"os": {"machine": "x86_64", "glibc": "2.39"}, "gpus": gpus, "pythons": [python]}
pins = {"flashinfer": "0.6.8.post1", "quack-kernels": "0.3.2"}
stack, found = stacks.resolve(controller.stacks()[0], facts, {"name": "sglang", "version": "0.5.9", "lane": "cu128"}, pins)
wanted, uv = locks.inputs(stack), hosttools.find_uv()
def ours():
    return locks.check(locks.lock(wanted, controller.run, uv), wanted)
with tempfile.TemporaryDirectory() as scratch:
    for name in ("requirements", "overrides"):
        Path(scratch, name + ".txt").write_text("".join(line + "\\n" for line in wanted[name]))
    argv = [uv, "pip", "compile", "--quiet", "requirements.txt", "--overrides", "overrides.txt", "--generate-hashes",
            "--only-binary", ":all:", "--python", sys.executable, "--python-version", wanted["python"],
            "--python-platform", wanted["platform"]]
    env = {**os.environ, "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_SYSTEM_CERTS": "1"}
    def theirs():
        subprocess.run(argv, cwd=scratch, env=env, check=True, stdout=subprocess.DEVNULL)
    def seconds(work):
        begun = time.monotonic()
        work()
        return time.monotonic() - begun
    theirs()
    wrong = [one.text() for one in ours() if one.verdict == "error"]
    print(json.dumps({"wrong": wrong, "rounds": [(seconds(ours), seconds(theirs)) for _ in range(5)]}))
"""
#: What a deploy does with an overlay: the bundle is sent,
OVERLAY = """
- hosts: all
  gather_facts: false
  become: true
  tasks:
    - specdec.serving.push:
        artifacts: "{{ artifacts }}"
"""
#: and laid over by the job that builds the environment, with or without one.
BUILT = """
- hosts: all
  gather_facts: false
  become: true
  tasks:
    - specdec.serving.job:
        spec: "{{ job }}"
      register: built
    - ansible.builtin.debug:
        msg: "timings:{{ built.result.timings | to_json | b64encode }}" # in one word: the callback folds lines
"""
#: The job's steps that are the overlay's; the others build the environment, which is no part of it.
LAID, COMPILED = ("inputs", "overlay"), "overlay-bytecode"
SYNCHRONIZE = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.posix.synchronize:
        src: "{{ tree }}/"
        dest: tree/
        delete: true
        rsync_path: "{{ rsync_path }}"
        use_ssh_args: true
"""
UNARCHIVE = """
- hosts: all
  gather_facts: false
  tasks:
    - delegate_to: localhost
      ansible.builtin.command: {argv: [tar, -C, "{{ tree }}", -czf, "{{ tree }}.tar.gz", .]}
    - ansible.builtin.file: {path: unpacked, state: directory, mode: "0755"}
    - ansible.builtin.unarchive: {src: "{{ tree }}.tar.gz", dest: unpacked}
"""
COPY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.copy: {src: "{{ item }}", dest: "copied/", mode: "0644"}
      loop: "{{ files }}"
"""
COPIED = 20


class NotMeasured(Exception):
    """Why a row has no figure."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table, in seconds or calls; the goal is a ratio where there is a yardstick, else a figure like ours."""

    what: str
    ours: float
    theirs: t.Optional[float]
    goal: float
    unit: str = "s"

    @property
    def compared(self) -> float:
        """What is held against the goal."""
        return self.ours if self.theirs is None else self.ours / self.theirs

    def text(self) -> str:
        """The line."""
        theirs = "" if self.theirs is None else "%.2f %s" % (self.theirs, self.unit)
        ratio, goal = ("", "%g %s" % (self.goal, self.unit)) if self.theirs is None else ("%.2f" % self.compared, "%g" % self.goal)
        verdict = "met" if self.compared <= self.goal else "NOT MET"
        return "%-62s %9s %9s %6s  <= %-8s %s" % (self.what, "%.2f %s" % (self.ours, self.unit), theirs, ratio, goal, verdict)


class Bench:
    """The host and what is done to it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.empty = fleet.state / "empty.yml"
        self.empty.write_text(EMPTY)

    def deploy(self, *arguments: str, **change: t.Any) -> None:
        """Deploy; it has to succeed."""
        done = self.fleet.deploy(*arguments, limit=HOST, variables=variables(**{**PLAIN, **change}))
        if done.rc != 0:
            raise NotMeasured("the deploy failed:\n%s" % done.why)

    def on_host(self, script: str) -> dict[str, t.Any]:
        """Run Python on the host; what its last line says."""
        program = "ROOT = %r\n%s%s" % (ROOT, MEASURE, script)
        done = self.fleet.command("demo/hosts/hosts", "exec", HOST, "--", "/usr/bin/python3", "-I", "-B", "-c", program)
        try:
            return json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            raise NotMeasured(done.stdout[-3000:]) from None

    def playbook(self, *words: str) -> float:
        """Seconds of one run that has to succeed."""
        return self.timed(*words)[0]

    def timed(self, *words: str, env: t.Optional[t.Mapping[str, str]] = None, limit: str = HOST) -> tuple[float, str]:
        """The same, and what it printed."""
        begun = time.monotonic()
        done = self.fleet.command("ansible-playbook", "-l", limit, *words, env=env)
        seconds = time.monotonic() - begun
        if done.returncode != 0:
            raise NotMeasured(done.stdout[-3000:])
        return seconds, done.stdout

    # Rows

    def no_op(self) -> t.Iterator[Row]:
        """A deploy that has nothing to do."""
        wanted = variables(**PLAIN)
        counted = self.fleet.deploy(limit=HOST, variables=wanted)
        if counted.rc != 0 or counted.recap(HOST)["changed"]:
            raise NotMeasured("the second deploy is not empty:\n%s" % counted.why)
        rounds = [(self.playbook("deploy.yml", "-e", json.dumps(wanted)), self.playbook(str(self.empty))) for _round in range(REPEATS)]
        ours, theirs = (statistics.median(side) for side in zip(*rounds, strict=True))
        yield Row("deploy with nothing to do / one empty task", ours, theirs, 2)
        yield Row("its remote calls", float(sum(counted.calls.values())), None, 2, "calls")
        options = {"-i": self.fleet.state / "id_ed25519", "-o": "UserKnownHostsFile=%s" % (self.fleet.state / "known_hosts")}
        ssh = ["ssh", *(str(word) for pair in options.items() for word in pair), "engineer@%s.%s" % (self.fleet.subnet, HOST[2:])]
        asked = (self.fleet.state / "sudo_password").read_text().strip() + "\n" + ASKING % {"root": ROOT}
        seconds = [self._asked([*ssh, "sudo -S -p '' sh -s"], asked) for _round in range(REPEATS)]
        print("a shell script that asks the same over one SSH connection: %.2f s" % statistics.median(seconds))

    def _asked(self, argv: t.Sequence[str], script: str) -> float:
        begun = time.monotonic()
        done = subprocess.run(argv, input=script, capture_output=True, text=True, check=False)
        if "ActiveState=active" not in done.stdout:
            raise NotMeasured(done.stdout[-1500:] + done.stderr[-1500:])
        return time.monotonic() - begun

    def no_op_fleet(self) -> t.Iterator[Row]:
        """The same on several hosts."""
        self.fleet.start(HOST, *STAND_INS)
        command = ["demo/hosts/hosts", "exec", "%s", "--"]
        records_ = subprocess.run(
            [word.replace("%s", HOST) for word in command] + ["sh", "-c", PACK % {"root": ROOT}],
            cwd=CHECKOUT,
            env=self.fleet.environment,
            capture_output=True,
            check=True,
        ).stdout
        for name in STAND_INS:
            argv = [word.replace("%s", name) for word in command] + ["sh", "-c", UNPACK % {"root": ROOT}]
            subprocess.run(argv, cwd=CHECKOUT, env=self.fleet.environment, input=records_, check=True, stdout=subprocess.DEVNULL)
        own = yaml.safe_load((INVENTORY / "host_vars" / ("%s.yml" % HOST)).read_text())
        listed = {name: {"ansible_host": "%s.%s" % (self.fleet.subnet, name[2:]), **own} for name in STAND_INS}
        inventory = self.fleet.state / "stand-ins.yml"
        inventory.write_text(json.dumps({"demo": {"children": {"blackwell": {"hosts": listed}}}}))
        where = ["-i", str(INVENTORY), "-i", str(inventory)]
        wanted = json.dumps(variables(**PLAIN))
        for count, goal in ((4, 4), (16, 8)):
            limit = ",".join((HOST, *STAND_INS[: count - 1]))
            _first, said = self.timed("deploy.yml", "-e", wanted, *where, limit=limit)
            if said.count("serves, unchanged") != count:
                raise NotMeasured(said[-4000:])
            rounds = [
                (self.timed("deploy.yml", "-e", wanted, *where, limit=limit)[0], self.timed(str(self.empty), *where, limit=limit)[0])
                for _round in range(3)
            ]
            ours, theirs = (statistics.median(side) for side in zip(*rounds, strict=True))
            yield Row("deploy with nothing to do on %d hosts / one empty task" % count, ours, theirs, goal)
        for name in STAND_INS:
            self.fleet.hosts("stop", name)

    def switch(self) -> t.Iterator[Row]:
        """What a transaction adds to the engine's stop, start and gate."""
        self.deploy(extra_args={"speculative-ddtree-budget": None, "max-running-requests": 4})
        begun, *_said, ended = self.fleet.sh(HOST, "date +%%s.%%N; %s/bin/specdec rollback main; date +%%s.%%N" % ROOT).splitlines()
        whole = float(ended) - float(begun)
        last = self.fleet.history(HOST)[-1]
        if (last["what"], last["verdict"]) != ("rollback", "committed"):
            raise NotMeasured("the rollback did not end well: %s" % last)
        own = sum(last["times"][part] for part in ("stop", "start", "ready"))
        print("a rollback took %.2f s: the engine's stop and start %.2f s, the gate %.2f s" % (whole, own, last["times"]["gate"]))
        yield Row("a switch, beyond the engine's stop and start and the gate", whole - own - last["times"]["gate"], None, 1)

    def proof(self) -> t.Iterator[Row]:
        """The proof of the files."""
        self._bring("readelf", self.fleet.state / "readelf")
        said = self.on_host("READELF = os.path.expanduser('~engineer/readelf')\n" + PROOF)
        if said["wrong"]:
            raise NotMeasured("\n".join(said["wrong"]))
        ours, theirs = (statistics.median(side) for side in zip(*said["rounds"], strict=True))
        yield Row("lock, RECORD, parity and ELF of %d files / sha256sum" % said["files"], ours, theirs, 1.5)
        ours, theirs = (statistics.median(side) for side in zip(*said["elf"], strict=True))
        yield Row("ABI of %d compiled files / readelf of the same" % said["compiled"], ours, theirs, 4)
        yield self._rounds(MANY, "RECORD and parity of %(files)d files / sha256sum", 1.5)

    def imports(self) -> t.Iterator[Row]:
        """The import chain."""
        yield self._rounds(IMPORTS, "import chain of %(chain)s / python -c import", 1.5)

    def _rounds(self, script: str, what: str, goal: float) -> Row:
        said = self.on_host(script)
        if said["wrong"]:
            raise NotMeasured(json.dumps(said["wrong"]))
        ours, theirs = (statistics.median(side) for side in zip(*said["rounds"], strict=True))
        return Row(what % said, ours, theirs, goal)

    def locking(self) -> t.Iterator[Row]:
        """A lock from the index's metadata."""
        done = self.fleet.command(sys.executable, "-c", LOCKING)
        try:
            said = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            raise NotMeasured(done.stdout[-3000:]) from None
        if said["wrong"]:
            raise NotMeasured("\n".join(said["wrong"]))
        ours, theirs = (statistics.median(side) for side in zip(*said["rounds"], strict=True))
        yield Row("locking, with its checks / uv pip compile", ours, theirs, 1.1)

    def environment(self) -> t.Iterator[Row]:
        """The build of an environment, all from wheels that lie on the host."""
        said = self.on_host(BUILD)
        if said["wrong"]:
            raise NotMeasured(json.dumps(said["wrong"], indent=1))
        for cache in ("cold", "warm"):
            print("the steps of the build, %s cache: %s" % (cache, ", ".join("%s %.1f s" % item for item in said[cache][1][1].items())))
        print("a build that has nothing to do, which a deploy does not even start; uv pip sync: %.2f s" % said["nothing"][0])
        yield Row("environment, cold cache / uv pip sync --compile-bytecode", said["cold"][1][0], said["cold"][0], 1.1)
        yield Row("environment, warm cache / uv pip sync, which compiles nothing", said["warm"][1][0], said["warm"][0], 1.1)
        yield Row("the build of an environment that is there", said["nothing"][1][0], None, 1)

    def overlay(self) -> t.Iterator[Row]:
        """The engine's whole package as an overlay."""
        top = self.fleet.state / "overlay"
        shutil.rmtree(top, ignore_errors=True)
        tree, bundle = whole_package(top)
        files = [path for path in tree.rglob("*") if path.is_file()]
        self._bring("rsync", top / "rsync")
        collections = posix_collection(self.fleet.state / "ansible")
        for name, text in {"ours": OVERLAY, "built": BUILT, "synchronize": SYNCHRONIZE, "unarchive": UNARCHIVE, "copy": COPY}.items():
            (top / (name + ".yml")).write_text(text)
        job = self._job(bundle)
        dest = job.pop("dest")
        artifact = artifacts.Artifact(str(bundle), dest, artifacts.tree_digest(bundle)).as_dict()
        rsync_path = "env LD_LIBRARY_PATH=rsync rsync/rsync"
        said = {"artifacts": [artifact], "job": job, "tree": str(tree), "rsync_path": rsync_path, "files": list(map(str, files[:COPIED]))}
        env = {"ANSIBLE_COLLECTIONS_PATH": "%s:%s" % (CHECKOUT / "collections", collections)}
        variables_file = top / "variables.json"
        variables_file.write_text(json.dumps(said))
        built = "%s/environments/%s" % (ROOT, job["environment"]["id"])
        made = " ".join((dest, built, *("~engineer/" + one for one in ("tree", "unpacked", "copied"))))
        # aside and not away: for a while after thousands of files were removed, ext4 is slow to make new ones
        clean = "aside=$(mktemp -d %s/aside-XXXX); for one in %s; do if [ -e $one ]; then mv $one $aside; fi; done" % (ROOT, made)

        def play(name: str) -> tuple[float, dict[str, float]]:
            seconds, text = self.timed("-e", "@%s" % variables_file, str(top / (name + ".yml")), env=env)
            told = re.search(r"timings:(\S+)", text)
            return seconds, json.loads(base64.b64decode(told.group(1).strip("'"))) if told else {}

        rounds = []
        for _round in range(3):
            self.fleet.sh(HOST, clean)
            sent, theirs = play("ours")[0], play("synchronize")[0]
            steps = play("built")[1]
            rounds.append((sent, sum(steps[step] for step in LAID), steps[COMPILED], theirs))
        sent, laid, compiled, theirs = (statistics.median(side) for side in zip(*rounds, strict=True))
        ours = sent + laid
        print("overlay by ours: sent %.1f s, laid over %.1f s, compiled %.1f s, which the others leave out" % (sent, laid, compiled))
        again = {"synchronize": (theirs, play("synchronize")[0])}
        for name in ("unarchive", "copy"):
            scale = len(files) / COPIED if name == "copy" else 1
            again[name] = (play(name)[0] * scale, play(name)[0] * scale)
        self.fleet.sh(HOST, clean)
        ssh = "ssh -i %(state)s/id_ed25519 -o UserKnownHostsFile=%(state)s/known_hosts" % {"state": self.fleet.state}
        bare = ["rsync", "--archive", "--delete", "--rsync-path=" + rsync_path, "--rsh=" + ssh, "%s/" % tree]
        target = "engineer@%s.200:tree/" % self.fleet.subnet
        again["rsync -a alone"] = (self._seconds([*bare, target]), self._seconds([*bare, target]))
        for name, (first, second) in again.items():
            print("overlay by %s: first %.1f s, with nothing to do %.1f s" % (name, first, second))
        size = sum(path.stat().st_size for path in files)
        yield Row("overlay, %d files, %d MB / ansible.posix.synchronize" % (len(files), size / 1e6), ours, theirs, 1.3)
        yield from self._nothing_to_do(bundle)

    def _job(self, bundle: Path) -> dict[str, t.Any]:
        """The build of the environment that serves, with the overlay besides; ``dest`` is where its bundle belongs."""
        environment = self.fleet.release(HOST)["environment"]
        there = "%s/environments/%s" % (ROOT, environment)
        content = json.loads(self.fleet.sh(HOST, "cat %s/environment.json" % there))
        digest = bundles.read_bundle(bundle).digest
        content["overlays"] = [digest]
        content["id"] = environments.environment_id(content)
        lock = self.fleet.sh(HOST, "cat %s/lock.txt" % there) + "\n"
        job = {"schema": 1, "kind": "build", "root": ROOT, "environment": content, "lock": lock, "python": content["python"]["path"]}
        place = layout.Layout(ROOT)
        names = self.fleet.sh(HOST, "cd %s && ls */*.whl" % place.wheels).split()
        wheels = [{"sha256": name.split("/")[0], "filename": name.split("/")[1]} for name in names]
        offline = {"UV_OFFLINE": "1", "UV_NO_INDEX": "1"}
        return {**job, "wheels": wheels, "uv_env": offline, "dest": str(place.overlays / digest)}

    def _nothing_to_do(self, bundle: Path) -> t.Iterator[Row]:
        """The overlay in a deploy: once it is there, not one call more than a deploy without any."""
        calls = []
        for overlays in ([], [{"directory": str(bundle)}]):
            wanted = variables(**{**PLAIN, "overlays": overlays})
            for _time in ("first", "again"):
                done = self.fleet.deploy("--tags", "build", limit=HOST, variables=wanted)
                if done.rc != 0:
                    raise NotMeasured("the deploy of the overlay failed:\n%s" % done.why)
            calls.append(sum(done.calls.values()))
        yield Row("remote calls that it adds to a deploy, once it is there", float(calls[1] - calls[0]), None, 0, "calls")

    def _bring(self, name: str, place: Path) -> None:
        """This machine's program with its libraries, for the host has none; it lies in a directory of its name."""
        program = shutil.which(name)
        if program is None:
            raise NotMeasured("%s is not installed on this machine" % name)
        place.mkdir(exist_ok=True)
        needed = re.findall(r"=> (/\S+)", self.fleet.must("ldd", program))
        shutil.copy(program, place / name)
        for path in needed:
            if "/libc.so" not in path:
                shutil.copy(path, place)
        packed = subprocess.run(["tar", "-C", str(place), "-c", "."], capture_output=True, check=True).stdout
        unpack = "mkdir -p ~engineer/%s && tar -x -C ~engineer/%s" % (name, name)
        command = ["demo/hosts/hosts", "exec", HOST, "--", "sh", "-c", unpack]
        subprocess.run(command, cwd=CHECKOUT, env=self.fleet.environment, input=packed, check=True)

    def _seconds(self, argv: t.Sequence[str]) -> float:
        begun = time.monotonic()
        self.fleet.must(*argv)
        return time.monotonic() - begun


def posix_collection(place: Path) -> Path:
    """Where ansible.posix lies: in the package ``ansible`` of the index, which the bench alone has a use for."""
    if not (place / "ansible_collections" / "ansible" / "posix").is_dir():
        argv = ["uv", "pip", "install", "--quiet", "--no-deps", "--target", str(place), "ansible"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NotMeasured("ansible.posix cannot be had: %s" % done.stderr[-1000:])
    return place


def whole_package(top: Path) -> tuple[Path, Path]:
    """Every file of the engine's package, edited: as a tree, and as the bundle that an overlay of it is."""
    base = {"name": "sglang", "version": "0.5.23"}
    package = basewheels.fetch(controller.cache_directory(), controller.run, base, "3.11", "x86_64")
    tree, bundle = top / "tree", top / "bundle"
    entries, held = [], {}
    rows = basewheels.package(package, base["name"]).rows
    for path in records.tree(package, ["sglang"]):
        data = (package / path).read_bytes() + b"\n"
        if bundles.is_plain(path) and not bundles.leftover(path) and not bundles.is_compiled(data):
            entries.append(bundles.entry(path, "change", rows[path].digest, data))
            held[path] = data
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(data)
    notes: dict[str, t.Any] = {"adds": {}, "reference_versions": {}}
    bundles.write_bundle(bundle, bundles.seal({"base": base, "python": "3.11", "files": entries, **notes}, held))
    return tree, bundle


def main(asked: t.Sequence[str]) -> int:
    """Measure everything, or what is asked for; 1 when something could not be."""
    state = CHECKOUT / ".state" / "bench"
    state.mkdir(parents=True, exist_ok=True)
    fleet = Fleet(state, "specdec-bench", "10.89.73")
    rows: list[Row] = []
    missing: list[str] = []
    started = time.monotonic()
    try:
        fleet.start(HOST)
        bench = Bench(fleet)
        # from a wheelhouse, so that the environment's row finds all wheels on the host
        house = {"specdec_wheelhouse": str(state / "wheelhouse")}
        filled = fleet.fill({**variables(**PLAIN), **house}, HOST)
        if filled.rc != 0:
            raise NotMeasured("the wheelhouse was not filled:\n%s" % filled.why)
        bench.deploy("-e", json.dumps(house))
        print("%4.0f s: the host is up and serves" % (time.monotonic() - started), flush=True)
        measures = (
            bench.no_op,
            bench.no_op_fleet,
            bench.proof,
            bench.imports,
            bench.switch,
            bench.environment,
            bench.locking,
            bench.overlay,
        )
        for measure in measures:
            if asked and measure.__name__ not in asked:
                continue
            try:
                rows += measure()
            except (NotMeasured, AssertionError, KeyError) as error:
                missing.append("%s: %s" % (measure.__name__, error))
            print("%4.0f s: %s" % (time.monotonic() - started, measure.__name__), flush=True)
    except NotMeasured as error:
        missing.append("everything: %s" % error)
    finally:
        fleet.down()
    print("\n%-62s %9s %9s %6s  %s" % ("what", "ours", "theirs", "ratio", "goal"))
    for row in rows:
        print(row.text())
    for text in missing:
        print("\nNOT MEASURED: %s" % text)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
