# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Local hosts with a real systemd, reached by SSH: the machines of the demo and of the tests.

Each host is a podman container with systemd as PID 1 and a fixed address. A set of hosts is told apart by
three environment variables, so that several sets live side by side:

  SPECDEC_DEMO_PREFIX   name of the set: its network, and in front of its containers' names (specdec-demo)
  SPECDEC_DEMO_SUBNET   the first three numbers of its /24 network (10.89.77)
  SPECDEC_DEMO_STATE    directory for its key, its sudo password and its known_hosts (demo/.state)

A host is called ctN and gets the address SUBNET.N. One logs in as "engineer" with the key and becomes root with the password.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import fcntl
import json
import os
import pathlib
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import typing as t

HERE = pathlib.Path(__file__).resolve().parent
ENTER = str(HERE / "enter")
#: Only root can give containers addresses that are reached directly.
AS_ROOT = [] if os.geteuid() == 0 else ["sudo", "--non-interactive"]
DISTRIBUTION = "debian:bookworm"
BASE = "localhost/specdec-host:base"
#: Hosts with the tools an engineer works with; every other host is a bare target.
REFERENCES = ("ct129",)
USER = "engineer"
#: What unit sandboxing, IPAddressDeny, Nice=, firewalls and debuggers inside a host need; less than --privileged.
CAPABILITIES = "SYS_ADMIN,NET_ADMIN,NET_RAW,SYS_PTRACE,SYS_NICE,AUDIT_WRITE,MKNOD"
#: Seconds in which a host must have booted and sshd must answer.
PATIENCE = 300

#: Prints "running", or another state and the units that failed.
WAIT_FOR_BOOT = """
until [ -S /run/systemd/private ]; do sleep 0.05; done
systemctl is-system-running --wait || systemctl --failed --no-legend
"""
#: Reads from stdin the password, the public key (a line each) and /etc/hosts (the rest). Prints the host key.
SEED = """
read -r password && printf '%%s:%%s\\n' %(user)s "$password" | chpasswd
read -r key
install -d -m 0700 -o %(user)s -g %(user)s /home/%(user)s/.ssh
printf '%%s\\n' "$key" | install -m 0600 -o %(user)s -g %(user)s /dev/stdin /home/%(user)s/.ssh/authorized_keys
cat > /etc/hosts
cat /etc/ssh/ssh_host_ed25519_key.pub
""" % {"user": USER}


class Failure(Exception):
    """Something went wrong that a person can act on; the message says what and what to do."""


def run(*command: str, stdin: str | None = None, timeout: float | None = None) -> str:
    """Run a command and return its stdout; raise Failure with its stderr when it fails."""
    shown = " ".join(argument for argument in command if "\n" not in argument)
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise Failure("no end after %.0f s: %s" % (timeout or 0, shown)) from None
    except FileNotFoundError:
        raise Failure("%s is not installed here; run demo/hosts/requirements" % command[0]) from None
    if done.returncode:
        raise Failure("exit status %d of: %s\n%s" % (done.returncode, shown, done.stderr.strip() or done.stdout.strip()))
    return done.stdout


def podman(*arguments: str, **options: t.Any) -> str:
    """Run podman where it can run systemd."""
    if not shutil.which("podman"):
        raise Failure("podman is not installed here; run demo/hosts/requirements")
    return run(*AS_ROOT, ENTER, "podman", *arguments, **options)


@contextlib.contextmanager
def step(subject: str, what: str) -> t.Iterator[None]:
    """Print one line with the time a step took, when it is done."""
    start = time.monotonic()
    yield
    print("%-10s %-28s %5.1f s" % (subject, what, time.monotonic() - start), flush=True)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody reaps does not, and has no command line."""
    try:
        return bool(pathlib.Path("/proc/%d/cmdline" % pid).read_bytes())
    except FileNotFoundError:
        return False


class Hosts:
    """One set of hosts."""

    def __init__(self, environment: t.Mapping[str, str]) -> None:
        self.prefix = environment.get("SPECDEC_DEMO_PREFIX") or "specdec-demo"
        self.subnet = environment.get("SPECDEC_DEMO_SUBNET") or "10.89.77"
        self.state = pathlib.Path(environment.get("SPECDEC_DEMO_STATE") or HERE.parent / ".state").resolve()
        if not re.fullmatch(r"(\d{1,3}\.){2}\d{1,3}", self.subnet):
            raise Failure("SPECDEC_DEMO_SUBNET is %r; expected three numbers such as 10.89.77" % self.subnet)
        self.key = self.state / "id_ed25519"
        self.password = self.state / "sudo_password"
        self.known_hosts = self.state / "known_hosts"

    # Names and addresses

    def container(self, name: str) -> str:
        return "%s-%s" % (self.prefix, name)

    def number(self, name: str) -> int:
        match = re.fullmatch(r"ct(\d{1,3})", name)
        if not match or not 2 <= int(match.group(1)) <= 254:
            raise Failure("a host cannot be called %r; expected ct2 to ct254, the number is the end of its address" % name)
        return int(match.group(1))

    def address(self, name: str) -> str:
        return "%s.%d" % (self.subnet, self.number(name))

    def mac(self, name: str) -> str:
        """A host keeps its MAC, so that nobody's ARP cache is wrong after it restarted."""
        return "02:00:%02x:%02x:%02x:%02x" % tuple(int(part) for part in self.address(name).split("."))

    def states(self) -> dict[str, str]:
        """State of each host that exists, by name: running, exited, created, ...; lost when its processes died unseen by podman."""
        states = {}
        for entry in json.loads(podman("ps", "--all", "--format=json", "--filter=label=specdec.hosts=" + self.prefix)):
            lost = entry["State"] in ("running", "stopping") and not alive(entry["Pid"])
            states[entry["Labels"]["specdec.host"]] = "lost" if lost else entry["State"]
        return dict(sorted(states.items(), key=lambda item: self.number(item[0])))

    def existing(self, names: t.Sequence[str]) -> list[str]:
        """The names, or all hosts when there are none; raises when one does not exist."""
        states = self.states()
        unknown = sorted(set(names) - set(states))
        if unknown:
            raise Failure("no such host: %s; there are: %s" % (", ".join(unknown), ", ".join(states) or "none"))
        return list(names) or list(states)

    # Commands

    def build(self) -> None:
        """Make the images target and reference."""
        with tempfile.TemporaryDirectory() as directory:
            context = pathlib.Path(directory)
            self._base(context)
            shutil.copytree(HERE / "rootfs", context / "rootfs")
            authorities = context / "ca"
            authorities.mkdir()
            for certificate in sorted(pathlib.Path("/usr/local/share/ca-certificates").rglob("*.crt")):
                shutil.copyfile(certificate, authorities / certificate.name)
            for stage in ("target", "reference"):
                with step(stage, "image built"):
                    podman(
                        "build", "--quiet", "--pull=never", "--network=host", "--build-arg=BASE=" + BASE, "--target=" + stage,
                        "--tag=localhost/specdec-host:" + stage, "--file=%s" % (HERE / "Containerfile"), directory,
                    )  # fmt: skip

    def _base(self, scratch: pathlib.Path) -> None:
        """Have the distribution's base image: pulled, or bootstrapped where no container registry answers."""
        if podman("images", "--quiet", BASE).strip():
            return
        try:
            with step("base", "image pulled"):
                podman("pull", "--quiet", DISTRIBUTION, timeout=300)
                podman("tag", DISTRIBUTION, BASE)
            return
        except Failure as failure:
            print("base       no container registry, bootstrapping (%s)" % str(failure).splitlines()[-1][:80], flush=True)
        codename = DISTRIBUTION.partition(":")[2]
        mirrors = []
        if "VERSION_CODENAME=%s\n" % codename in pathlib.Path("/etc/os-release").read_text(encoding="utf-8"):
            # This machine's mirrors serve the same distribution and are known to be reachable.
            sources = [pathlib.Path("/etc/apt/sources.list"), *pathlib.Path("/etc/apt/sources.list.d").glob("*.sources")]
            mirrors = [str(source) for source in sources if source.exists() and source.stat().st_size]
        archive = scratch / "base.tar"
        with step("base", "image bootstrapped"):
            run(*AS_ROOT, "mmdebstrap", "--quiet", "--variant=minbase", "--include=ca-certificates", codename, str(archive), *mirrors)
            podman("import", "--quiet", str(archive), BASE)
        run(*AS_ROOT, "rm", str(archive))

    def up(self, names: t.Sequence[str]) -> None:
        """Make and start the hosts, and have them ready for SSH; what is there already stays, except a host whose processes were killed."""
        for name in names:
            self.number(name)
        images = podman("images", "--format={{.Repository}}:{{.Tag}}").split()
        if not {self._image(name) for name in names} <= set(images):
            self.build()
        self._make_secrets()
        if not podman("network", "ls", "--quiet", "--filter=name=^%s$" % self.prefix).strip():
            with step(self.prefix, "network %s.0/24" % self.subnet):
                podman("network", "create", "--disable-dns", "--subnet=%s.0/24" % self.subnet, "--gateway=%s.1" % self.subnet, self.prefix)
        # The bridge's own route wins while there is one; without it packets would leave for somebody else's machines.
        run(*AS_ROOT, "ip", "route", "replace", *self._guard_route())
        states = self.states()
        self._each(lambda name: self._start(name, states.get(name)), names)
        self._seed(names)

    def down(self, names: t.Sequence[str]) -> None:
        """Remove the hosts; with the last one go network, route, namespace and the set's secrets."""
        states = self.states()
        wanted = [name for name in names if name in states] or ([] if names else list(states))
        if wanted:
            with step(self.prefix, "removed %s" % " ".join(wanted)):
                self._each(self._remove, wanted)
        if not self.states():
            with step(self.prefix, "network removed"):
                self._remove_network()
            for path in (self.key, self.key.with_suffix(".pub"), self.password, self.known_hosts):
                path.unlink(missing_ok=True)
            run(*AS_ROOT, ENTER, "--end")

    def start(self, names: t.Sequence[str]) -> None:
        """Start hosts that were stopped or killed."""
        states = self.states()
        self._each(lambda name: self._start(name, states[name]), self.existing(names))

    def stop(self, names: t.Sequence[str]) -> None:
        """Shut hosts down in order."""
        self._each(lambda name: self._stop(name, "stopped", 30), self.existing(names))

    def kill(self, names: t.Sequence[str]) -> None:
        """Let hosts die as if power was cut; they stay dead until started."""
        self._each(lambda name: self._stop(name, "killed", 0), self.existing(names))

    def list(self) -> None:
        """Print name, address and state of each host."""
        for name, state in self.states().items():
            print("%-10s %-16s %s" % (name, self.address(name), state))

    def execute(self, name: str, command: t.Sequence[str]) -> int:
        """Run a command in a host as root, around SSH; returns its exit status."""
        self.existing([name])
        terminal = ["--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
        arguments = [*AS_ROOT, ENTER, "podman", "exec", "--interactive", *terminal, self.container(name), *command]
        return subprocess.run(arguments, check=False).returncode

    # Parts

    def _each(self, action: t.Callable[[str], None], names: t.Sequence[str]) -> None:
        """Do something to all hosts, as many at a time as the machine has processors to spare."""
        with concurrent.futures.ThreadPoolExecutor(max_workers=max(4, os.cpu_count() or 1)) as pool:
            list(pool.map(action, names))

    def _image(self, name: str) -> str:
        return "localhost/specdec-host:" + ("reference" if name in REFERENCES else "target")

    def _guard_route(self) -> list[str]:
        return ["unreachable", "%s.0/24" % self.subnet, "metric", "4242"]

    def _start(self, name: str, state: str | None) -> None:
        with step(name, "running at %s" % self.address(name)):
            if state in ("lost", "created"):  # by a killed run
                self._remove(name)
            if state in (None, "lost", "created"):
                podman(
                    "run", "--detach", "--name=" + self.container(name), "--hostname=" + name,
                    "--network=" + self.prefix, "--ip=" + self.address(name), "--mac-address=" + self.mac(name), "--no-hosts",
                    "--label=specdec.hosts=" + self.prefix, "--label=specdec.host=" + name,
                    "--restart=always",  # a reboot from inside is the end of the container
                    "--systemd=always", "--cap-add=" + CAPABILITIES,
                    "--security-opt=apparmor=unconfined",  # the usual profile denies mount(2)
                    "--shm-size=4g", self._image(name),
                )  # fmt: skip
            elif state != "running":
                podman("start", self.container(name))
            verdict = podman("exec", self.container(name), "sh", "-c", WAIT_FOR_BOOT, timeout=PATIENCE).strip()
            if verdict != "running":
                raise Failure("%s did not boot well: %s\nlook with: demo/hosts/hosts exec %s -- journalctl -b" % (name, verdict, name))
            self._wait_for_ssh(name)

    def _remove(self, name: str) -> None:
        """Remove a host; podman needs a second attempt to believe that a host's processes were killed behind its back."""
        for attempt in range(3):
            try:
                podman("rm", "--force", "--ignore", "--time=2", self.container(name))
                return
            except Failure:
                if attempt == 2:
                    raise

    def _stop(self, name: str, what: str, grace: int) -> None:
        with step(name, what):
            podman("stop", "--time=%d" % grace, self.container(name))

    def _wait_for_ssh(self, name: str) -> None:
        """Wait until sshd introduces itself at the host's address."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                with socket.create_connection((self.address(name), 22), timeout=2) as connection:
                    if connection.recv(4) == b"SSH-":
                        return
            except OSError as error:
                if time.monotonic() > end:
                    raise Failure("no sshd at %s (%s) after %d s: %s" % (name, self.address(name), PATIENCE, error)) from None
            time.sleep(0.05)

    def _make_secrets(self) -> None:
        """Have the set's SSH key and sudo password."""
        if not self.key.exists():
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.prefix, "-f", str(self.key))
        if not self.password.exists():
            self._write(self.password, secrets.token_urlsafe(18) + "\n")

    def _seed(self, names: t.Sequence[str]) -> None:
        """Give the hosts the login and each other's names; collect their host keys on a way nobody can listen in on."""
        states = self.states()
        table = ["127.0.0.1 localhost", "::1 localhost ip6-localhost", *("%s %s" % (self.address(name), name) for name in states)]
        public_key = self.key.with_suffix(".pub").read_text(encoding="utf-8")
        stdin = self.password.read_text(encoding="utf-8") + public_key + "\n".join(table) + "\n"
        lines = {}
        if self.known_hosts.exists():
            lines = {line.split(",")[0]: line for line in self.known_hosts.read_text(encoding="utf-8").splitlines()}
        for name in (name for name, state in states.items() if state == "running"):
            with step(name, "login ready") if name in names else contextlib.nullcontext():
                host_key = podman("exec", "--interactive", self.container(name), "sh", "-ec", SEED, stdin=stdin)
            lines[name] = "%s,%s %s" % (name, self.address(name), " ".join(host_key.split()[:2]))
        self._write(self.known_hosts, "".join(lines[name] + "\n" for name in states if name in lines))

    def _write(self, path: pathlib.Path, content: str) -> None:
        """Replace a file of the state directory as a whole; only its owner may read it."""
        new = path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(content, encoding="utf-8")
        new.replace(path)

    def _remove_network(self) -> None:
        """Remove the network with its route, also where a killed run left only a part of it."""
        if podman("network", "ls", "--quiet", "--filter=name=^%s$" % self.prefix).strip():
            podman("network", "rm", "--force", self.prefix)
        networks = json.loads(podman("network", "ls", "--format=json"))
        if any(subnet["subnet"] == self.subnet + ".0/24" for network in networks for subnet in network.get("subnets", [])):
            return  # another set's
        for link in json.loads(run("ip", "-json", "address", "show", "type", "bridge") or "[]"):
            if any(address.get("local") == self.subnet + ".1" for address in link.get("addr_info", [])):
                run(*AS_ROOT, "ip", "link", "delete", link["ifname"])
        if run("ip", "route", "show", "type", "unreachable", "exact", "%s.0/24" % self.subnet).strip():
            run(*AS_ROOT, "ip", "route", "delete", *self._guard_route())


def parse(arguments: t.Sequence[str]) -> argparse.Namespace:
    """Command line to names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("build", help="make the images; up does it when they are missing")
    commands.add_parser("list", help="show the hosts that exist")
    for command, text, number in (
        ("up", "make and start hosts; repeat it freely", "+"),
        ("down", "remove hosts; without a name all of them and everything they left", "*"),
        ("start", "start hosts that are stopped", "*"),
        ("stop", "shut hosts down in order", "*"),
        ("kill", "let hosts die as if power was cut", "+"),
    ):
        commands.add_parser(command, help=text).add_argument("names", metavar="NAME", nargs=number)
    execute = commands.add_parser("exec", help="run a command in a host as root, around SSH: exec NAME -- COMMAND")
    execute.add_argument("name", metavar="NAME")
    execute.add_argument("arguments", metavar="COMMAND", nargs=argparse.REMAINDER)
    return parser.parse_args(arguments)


@contextlib.contextmanager
def alone(hosts: Hosts) -> t.Iterator[None]:
    """Let only one change of a set go on at a time."""
    hosts.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = os.open(hosts.state, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def main(arguments: t.Sequence[str]) -> int:
    """Do what the command line says; returns the exit status."""
    options = parse(arguments)
    try:
        hosts = Hosts(os.environ)
        if options.command == "exec":
            command = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
            return hosts.execute(options.name, command)
        if options.command == "list":
            hosts.list()
            return 0
        with alone(hosts):
            action = getattr(hosts, options.command)
            action(*([options.names] if "names" in options else []))
    except Failure as failure:
        print("hosts: %s" % failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
