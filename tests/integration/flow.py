# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The demo's hosts under names of their own, and the playbook as a user runs it against them."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import os
import re
import signal
import subprocess
import typing as t
import urllib.error
import urllib.request
from pathlib import Path

import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
INVENTORY = CHECKOUT / "inventories" / "demo"
ROOT = "/opt/specdec"
SUBNET = "10.89.76"

#: What a deploy may write on a host; a listing of it with contents is what "untouched" means.
SNAPSHOT = (
    "find /opt/specdec /etc/systemd/system /etc/sysusers.d /etc/ld.so.conf.d /run/specdec /run/specdec-main -xdev "
    "! -path '*/state/*' ! -path '*/jobs*' -printf '%p %y %m %s %T@\\n' 2>/dev/null | sort; "
    "systemctl show --property MainPID specdec-main"
)

#: Everything on the disk but what every login, every task and every unit leaves: path, inode, mode, owner, size, times of content and
#: of state.
FILES = (
    "find /opt /etc /usr /srv /root /home /var -xdev ! -path '*/.ansible*' ! -path '/var/log/*' ! -path '/var/tmp*' "
    "! -path '/var/lib/systemd/*' ! -path '/var/lib/sudo*' -printf '%p %i %m %u %s %T@ %C@\\n' | sort; "
)


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a playbook: exit status, what it printed, and how often each address was called."""

    rc: int
    text: str
    calls: t.Mapping[str, int]

    @property
    def why(self) -> str:
        """What a failed run says of itself: from its first error on, or its end where it tells none."""
        at = self.text.find("[ERROR]")
        return self.text[at : at + 5000] if at >= 0 else self.text[-5000:]

    def recap(self, host: str) -> dict[str, int]:
        """The host's line of the recap."""
        line = re.search(r"^%s\s+: (.*)$" % host, self.text, re.MULTILINE)
        assert line, self.text[-3000:]
        return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", line.group(1))}

    def acceptance(self) -> float:
        """The acceptance length that the summary names."""
        return float(re.search(r"acceptance\s+([\d.]+) tokens per verification over 5 prompts", self.text).group(1))


class Fleet:
    """ct129, ct200 and ct201 of a set of their own, told apart as demo/hosts/hosts does."""

    def __init__(self, state: Path, prefix: str = "specdec-flow", subnet: str = SUBNET) -> None:
        self.state = state
        self.subnet = subnet
        self.environment = {
            **os.environ,
            "SPECDEC_DEMO_PREFIX": prefix,
            "SPECDEC_DEMO_SUBNET": subnet,
            "SPECDEC_DEMO_STATE": str(state),
            "ANSIBLE_INVENTORY": str(INVENTORY),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(state / "cp"),
        }

    def command(
        self, *argv: str, timeout: float = 900, cwd: Path = CHECKOUT, env: t.Optional[t.Mapping[str, str]] = None
    ) -> subprocess.CompletedProcess:
        """Run a command of the checkout; output together as text."""
        return subprocess.run(
            argv,
            env={**self.environment, **(env or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )

    def must(self, *argv: str, **options: t.Any) -> str:
        """The same; it has to succeed."""
        done = self.command(*argv, **options)
        assert done.returncode == 0, "%s\n%s" % (" ".join(argv), done.stdout[-5000:])
        return done.stdout

    def up(self) -> None:
        """All hosts, and ct129 as an engineer left it."""
        self.start("ct129", "ct200", "ct201")
        self.must("ansible-playbook", "demo/reference/provision.yml", timeout=1800)

    def start(self, *hosts: str) -> None:
        """Hosts, wheels and key."""
        self.must("demo/hosts/hosts", "up", *hosts)
        self.must("demo/prepare")

    def down(self) -> None:
        """Nothing of it stays."""
        self.must("demo/hosts/hosts", "down")

    def hosts(self, *arguments: str) -> str:
        """demo/hosts/hosts of this set."""
        return self.must("demo/hosts/hosts", *arguments, timeout=600)

    @contextlib.contextmanager
    def without(self, host: str) -> t.Iterator[None]:
        """A host is off meanwhile, and answers again afterwards, for the tests that follow."""
        self.hosts("stop", host)
        try:
            yield
        finally:
            self.hosts("start", host)

    def sh(self, host: str, script: str) -> str:
        """Run a script on a host as root."""
        return self.hosts("exec", host, "--", "sh", "-c", script).strip()

    def deploy(
        self,
        *arguments: str,
        limit: str = "ct200",
        playbook: str = "deploy.yml",
        variables: t.Optional[t.Mapping[str, t.Any]] = None,
        **options: t.Any,
    ) -> Run:
        """``ansible-playbook deploy.yml -l LIMIT`` as written; calls are counted at the connection."""
        extra = ["-e", json.dumps(variables)] if variables else []
        env = {**options.pop("env", {}), "ANSIBLE_VERBOSITY": "3"}
        done = self.command("ansible-playbook", playbook, "-l", limit, *extra, *arguments, env=env, **options)
        calls: dict[str, int] = {}
        for address in re.findall(r"^<([\d.]+)> SSH: EXEC ", done.stdout, re.MULTILINE):
            calls[address] = calls.get(address, 0) + 1
        return Run(done.returncode, done.stdout, calls)

    def fill(self, variables: t.Mapping[str, t.Any], limit: str = "ct200") -> Run:
        """playbooks/wheelhouse.yml; the variables name the directory."""
        env = {"ANSIBLE_COLLECTIONS_PATH": str(CHECKOUT / "collections")}
        return self.deploy(limit=limit, playbook="specdec.serving.wheelhouse", variables=variables, env=env)

    def start_deploy(self, variables: t.Mapping[str, t.Any], output: Path) -> subprocess.Popen:
        """The same in a process group of its own, so that all of the controller can be killed at once."""
        with output.open("w") as stream:
            return subprocess.Popen(
                ["ansible-playbook", "deploy.yml", "-l", "ct200", "-e", json.dumps(variables)],
                env=self.environment,
                cwd=CHECKOUT,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, process: subprocess.Popen) -> None:
        """SIGKILL to the controller and everything it started here."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def snapshot(self, host: str = "ct200") -> str:
        """Everything a deploy may write, and which process serves."""
        return self.sh(host, SNAPSHOT)

    def key(self) -> str:
        """The API key of the demo."""
        return (self.state / "api_key").read_text()

    def complete(self, prompt: str, host: str = "ct200", key: t.Optional[str] = None, tokens: int = 48) -> str:
        """One greedy completion over the network; raises urllib.error.HTTPError."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        answer = json.loads(self.ask(host, "/v1/completions", json.dumps(body).encode(), self.key() if key is None else key))
        return answer["choices"][0]["text"]

    def ask(self, host: str, path: str, body: t.Optional[bytes] = None, key: str = "") -> bytes:
        """One HTTP call to the server of a host."""
        url = "http://%s.%s:30000%s" % (self.subnet, host[2:], path)
        headers = {"Content-Type": "application/json", **({"Authorization": "Bearer " + key} if key else {})}
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
            return answer.read()

    def counter(self, name: str, host: str = "ct200") -> float:
        """The sum of one of the engine's counters."""
        text = self.ask(host, "/metrics", key=self.key()).decode()
        return sum(float(value) for value in re.findall(r"^%s(?:\{[^}]*\})? (\S+)$" % re.escape(name), text, re.MULTILINE))

    def history(self, host: str = "ct200") -> list[dict[str, t.Any]]:
        """What happened to the instance."""
        return [json.loads(line) for line in self.sh(host, "cat %s/instances/main/history" % ROOT).splitlines()]

    def release(self, host: str = "ct200") -> dict[str, t.Any]:
        """The current release.json."""
        return json.loads(self.sh(host, "cat %s/instances/main/current/release.json" % ROOT))


def variables(**change: t.Any) -> dict[str, t.Any]:
    """The demo group's variables with options of the instance changed; None takes one out."""
    group = yaml.safe_load((INVENTORY / "group_vars" / "blackwell.yml").read_text())
    defaults = copy.deepcopy(group["specdec_instance_defaults"])
    for name, value in change.items():
        if value is None:
            defaults.pop(name, None)
        elif isinstance(value, dict) and isinstance(defaults.get(name), dict):
            defaults[name] = {key: one for key, one in {**defaults[name], **value}.items() if one is not None}
        else:
            defaults[name] = value
    return {"specdec_instance_defaults": defaults}


#: Takes away a host's default route; the network that it shares with the controller stays, and with it SSH.
CUT = """
import fcntl, socket, struct
anywhere = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton("0.0.0.0"))
route = struct.pack("L", 0) + anywhere * 3 + struct.pack("=H", 1)
fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x890C, route.ljust(120, b"\\0"))
"""


def cut_off(fleet: Fleet, host: str) -> None:
    """Leave a host no way but to its own network; to look up a name fails, too."""
    fleet.hosts("exec", host, "--", "/usr/bin/python3", "-c", CUT)


def refused_routes(fleet: Fleet, host: str) -> int:
    """How often something on a host wanted to go where no route leads: every attempt of a connection or a look-up."""
    names, values = fleet.sh(host, "grep ^Ip: /proc/net/snmp").splitlines()
    return int(values.split()[names.split().index("OutNoRoutes")])
