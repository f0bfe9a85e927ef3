# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A systemd unit as data: its text, the properties that repeat its sandbox, and what is wrong with it.

The sandbox was tried with SGLang on systemd 252. Directives that break an engine are absent on
purpose: ``SystemCallFilter=~@resources`` (ZeroMQ aborts), ``ProcSubset=pid`` (/proc/stat is read),
and ``RestrictAddressFamilies`` without AF_NETLINK (gloo finds no address family).
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from .findings import ERROR, OK, Finding
from .layout import RECOVER_UNIT, RUN, Layout, unit_name, user_name

Pairs = tuple[tuple[str, str], ...]

STRICT = "strict"
CONTAINER = "container"

#: Holds everywhere: capabilities, system calls, address families, devices by control group.
_PROCESS: Pairs = (
    ("NoNewPrivileges", "yes"),
    ("CapabilityBoundingSet", ""),
    ("AmbientCapabilities", ""),
    ("LockPersonality", "yes"),
    ("RestrictRealtime", "yes"),
    ("RestrictSUIDSGID", "yes"),
    ("RestrictNamespaces", "yes"),
    ("RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6 AF_NETLINK"),
    ("SystemCallArchitectures", "native"),
    ("SystemCallFilter", "@system-service"),
    ("SystemCallFilter", "~@privileged"),
    ("SystemCallErrorNumber", "EPERM"),
    ("ProtectClock", "yes"),
    ("DevicePolicy", "closed"),
    ("KeyringMode", "private"),
    ("RemoveIPC", "yes"),
)

#: Needs namespaces of its own: a mount namespace, and for the users and the host name one each.
_NAMESPACES: Pairs = (
    ("ProtectSystem", "strict"),
    ("ProtectHome", "yes"),
    ("PrivateTmp", "yes"),
    ("PrivateUsers", "yes"),
    ("ProtectProc", "invisible"),
    ("ProcSubset", "all"),
    ("ProtectHostname", "yes"),
    ("ProtectKernelLogs", "yes"),
    ("ProtectKernelModules", "yes"),
    ("ProtectKernelTunables", "yes"),
    ("ProtectControlGroups", "yes"),
)

#: *strict* is the default. *container* is for containers that forbid namespaces (LXC without nesting):
#: the file system is guarded by ownership alone, /tmp is shared.
SANDBOXES: t.Mapping[str, Pairs] = {STRICT: _NAMESPACES + _PROCESS, CONTAINER: _PROCESS}

#: A driver maps memory that is writable and executable, kernels are compiled while serving, and
#: memory is shared between ranks by descriptor. A device group by name covers nodes made later.
_GPU: Pairs = (("DeviceAllow", "char-nvidia* rw"), ("SystemCallFilter", "pidfd_getfd"))
_NO_GPU: Pairs = (("MemoryDenyWriteExecute", "yes"),)

#: What a transient unit of the same sandbox must not repeat: it would start, restart or clean up the
#: service's own, such as its runtime directory.
_SERVICE_ONLY = frozenset(
    (
        "Type",
        "ExecStart",
        "LoadCredential",
        "RuntimeDirectory",
        "RuntimeDirectoryMode",
        "Restart",
        "RestartSec",
        "KillMode",
        "TimeoutStopSec",
        "SuccessExitStatus",
    )
)

#: Limits that a controller of control groups enforces; without it systemd takes and shows them, and nothing holds them.
CONTROLLERS: t.Mapping[str, str] = {"TasksMax": "pids", "MemoryMax": "memory"}

_SECRET_NAME = re.compile(r"(?i)(api[-_]?key|token|secret|passw)(?!.*(file|path))")
_BYPASSES = ("FLASHINFER_DISABLE_VERSION_CHECK", "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK")
_OPEN_FILES = 65535


@dataclasses.dataclass(frozen=True)
class Unit:
    """A unit file: ordered sections of (directive, value); values are raw, without systemd's escapes."""

    name: str
    sections: tuple[tuple[str, Pairs], ...]

    def values(self, key: str) -> list[str]:
        """Every value of a directive, in order."""
        return [value for _section, pairs in self.sections for name, value in pairs if name == key]

    def value(self, key: str) -> t.Optional[str]:
        """The last value of a directive, the one that holds; None where it is not set."""
        values = self.values(key)
        return values[-1] if values else None

    def environment(self) -> dict[str, str]:
        """What the service finds in its environment by Environment=."""
        words = [_unquote(word) for value in self.values("Environment") for word in re.findall(r'"(?:\\.|[^"\\])*"|\S+', value)]
        return dict(word.split("=", 1) for word in words if "=" in word)

    def text(self) -> str:
        """The unit file."""
        blocks = []
        for section, pairs in self.sections:
            lines = ["%s=%s" % (key, value.replace("%", "%%")) for key, value in pairs]
            blocks.append("\n".join(["[%s]" % section, *lines, ""]))
        return "\n".join(blocks)

    def run_properties(self) -> list[str]:
        """``-p K=V …`` for systemd-run: same user, sandbox, limits and environment, nothing of the service's life."""
        service = dict(self.sections)["Service"]
        kept = ["%s=%s" % pair for pair in service if pair[0] not in _SERVICE_ONLY]
        return [word for pair in kept for word in ("-p", pair)]


def parse(name: str, text: str) -> Unit:
    """The reverse of :meth:`Unit.text`, also for a unit written by hand (continuation lines, comments)."""
    sections: list[tuple[str, list[tuple[str, str]]]] = []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        line = line.strip()
        if line.startswith("[") and line.endswith("]"):
            sections.append((line[1:-1], []))
        elif "=" in line and line[0] not in "#;" and sections:
            key, _sep, value = line.partition("=")
            sections[-1][1].append((key.strip(), value.strip().replace("%%", "%")))
    return Unit(name, tuple((section, tuple(pairs)) for section, pairs in sections))


def service_unit(root: str, release: t.Mapping[str, t.Any]) -> Unit:
    """The unit of an instance's release.

    :param root: ``specdec_root``.
    :param release: the content of release.json (see releases.compose); read are instance, environment,
        engine, environment_variables, secrets, host, start_timeout, start_timeout_by_size, stop_timeout, service, memory_max,
        sandbox, gpus, clients.
    """
    layout = Layout(root)
    instance = release["instance"]
    launcher = layout.instance(instance) / "current" / "launch.py"
    state = str(layout.instance_state(instance, release["environment"]))
    # The limit has to be reached also by an engine that takes its whole start time to die; how long a large model loads is not known here.
    interval = max(300, 4 * (3600 if release["start_timeout_by_size"] else release["start_timeout"]))
    how = release["service"]
    service: list[tuple[str, str]] = [
        ("Type", "exec"),
        ("User", user_name(instance)),
        ("Group", user_name(instance)),
        ("ExecStart", "/usr/bin/python3 -I -B %s" % launcher),
        ("WorkingDirectory", state),
        ("RuntimeDirectory", user_name(instance)),
        ("RuntimeDirectoryMode", "0700"),
    ]
    for name, secret in sorted(release["secrets"].items()):
        service.append(("LoadCredential", "%s:%s" % (name, layout.instance(instance) / "secrets" / secret["version"])))
    for name, value in sorted(release["environment_variables"].items()):
        service.append(("Environment", _quote("%s=%s" % (name, value))))
    service += [
        ("Restart", how["restart"]),
        ("RestartSec", "5"),
        ("KillMode", how["kill_mode"]),
        ("TimeoutStopSec", str(release["stop_timeout"])),
        ("OOMPolicy", "stop"),
        ("TasksMax", "32768"),
        ("LimitNOFILE", "1048576"),
        ("LimitMEMLOCK", "infinity"),
        ("LimitCORE", "0"),
        ("UMask", "0077"),
    ]
    if how["success_exit_status"]:
        service.append(("SuccessExitStatus", how["success_exit_status"]))
    if release["memory_max"]:
        service.append(("MemoryMax", release["memory_max"]))
    service += _sandbox(release, state)
    return Unit(
        unit_name(instance),
        (
            (
                "Unit",
                (
                    ("Description", "specdec instance %s: %s %s" % (instance, release["engine"]["name"], release["engine"]["version"])),
                    ("Wants", "network-online.target"),
                    ("After", "network-online.target %s" % RECOVER_UNIT),
                    ("StartLimitIntervalSec", str(interval)),
                    ("StartLimitBurst", "3"),
                ),
            ),
            ("Service", tuple(service)),
            ("Install", (("WantedBy", "multi-user.target"),)),
        ),
    )


def _sandbox(release: t.Mapping[str, t.Any], state: str) -> list[tuple[str, str]]:
    level = release["sandbox"]
    if level not in SANDBOXES:
        raise ValueError("sandbox %r is none of %s" % (level, ", ".join(SANDBOXES)))
    gpus = release["gpus"]
    pairs = list(SANDBOXES[level])
    if level == STRICT:
        pairs += [("PrivateDevices", "no" if gpus else "yes"), ("ReadWritePaths", state)]
    pairs += _GPU if gpus else _NO_GPU
    clients = ["localhost"] if loopback(release["host"]) else ["localhost", *release["clients"]]
    if loopback(release["host"]) or release["clients"]:
        pairs += [("IPAddressDeny", "any"), ("IPAddressAllow", " ".join(clients))]
    return pairs


def limits(unit: Unit, controllers: t.Optional[t.Collection[str]]) -> str:
    """The limits of a unit for a person, and which of them this host does not enforce.

    :param controllers: of the host's control groups; None: not known.
    """
    told = []
    for directive, controller in CONTROLLERS.items():
        value = unit.value(directive)
        missing = controllers is not None and controller not in controllers
        if value:
            told.append("%s=%s%s" % (directive, value, " (not enforced here: no controller %s)" % controller if missing else ""))
    return ", ".join(told)


def running_file(instance: str) -> str:
    """Path on the host of the file in which the launcher leaves the id of the release that runs."""
    return str(RUN.with_name(user_name(instance)) / "release")


def loopback(host: str) -> bool:
    """Whether a listener on this address is reached from its own host alone."""
    return host in ("localhost", "::1") or host.startswith("127.")


def recover_unit(root: str) -> Unit:
    """The unit that finishes, at boot and before instances start, a transaction that a reboot interrupted."""
    layout = Layout(root)
    return Unit(
        RECOVER_UNIT,
        (
            (
                "Unit",
                (
                    ("Description", "specdec: bring back the release that served before an interrupted deployment"),
                    ("ConditionPathExistsGlob", str(layout.instances / "*" / "transaction.json")),
                ),
            ),
            ("Service", (("Type", "oneshot"), ("ExecStart", "/usr/bin/python3 -I -B %s recover --boot" % layout.specdec))),
            ("Install", (("WantedBy", "multi-user.target"),)),
        ),
    )


def _quote(word: str) -> str:
    return '"%s"' % word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _unquote(word: str) -> str:
    if not word.startswith('"'):
        return word
    return re.sub(r"\\(.)", lambda match: {"n": "\n"}.get(match[1], match[1]), word[1:-1])


# What is wrong with a unit


def lint(unit: Unit) -> list[Finding]:
    """One finding per rule, ok ones included; the unit may be ours or one written by hand."""
    return [rule(unit) for rule in (_secrets, _start_limit, _kill_mode, _stop_timeout, _open_files, _caches, _path, _bypass, _user)]


def _verdict(id_: str, unit: Unit, wrong: bool, found: str, message: str, expected: str, cause: str, fix: str) -> Finding:
    if not wrong:
        return Finding("unit." + id_, OK, unit.name, message, found, expected)
    return Finding("unit." + id_, ERROR, unit.name, message, found, expected, unit.name, cause, fix)


def seconds(value: t.Optional[str]) -> t.Optional[float]:
    """A time as systemd writes it (``90``, ``1min 30s``) in seconds; None for infinity and nothing."""
    if value is None or value == "infinity":
        return None
    scale = {"": 1.0, "s": 1.0, "sec": 1.0, "ms": 0.001, "min": 60.0, "m": 60.0, "h": 3600.0}
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]*)", value)
    return sum(float(number) * scale.get(suffix, 1.0) for number, suffix in parts) if parts else None


def secret(name: str) -> bool:
    """Whether a variable or option of this name holds a secret."""
    return bool(_SECRET_NAME.search(name))


def _secrets(unit: Unit) -> Finding:
    words = " ".join(unit.values("ExecStart")).split()
    options = [word.partition("=")[0] for word in words if word.startswith("-")]
    named = ["ExecStart %s" % option for option in options if _SECRET_NAME.search(option)]
    named += ["Environment %s" % name for name, value in unit.environment().items() if value and _SECRET_NAME.search(name)]
    return _verdict(
        "secret",
        unit,
        bool(named),
        ", ".join(named) or "names of %d options and %d variables" % (len(options), len(unit.environment())),
        "a secret stands in the command line or the environment" if named else "no secret in the command line or the environment",
        "secrets by LoadCredential= alone",
        "both are readable by every user of the host (ps, systemctl show)",
        "give the secret as api_key of the instance; it then reaches the engine as a credential",
    )


def _start_limit(unit: Unit) -> Finding:
    burst, interval = unit.value("StartLimitBurst"), seconds(unit.value("StartLimitIntervalSec"))
    wrong = not (burst and burst.isdigit() and int(burst) > 0 and interval)
    return _verdict(
        "start-limit",
        unit,
        wrong,
        "StartLimitBurst=%s StartLimitIntervalSec=%s" % (burst, unit.value("StartLimitIntervalSec")),
        "a crash at start repeats without end" if wrong else "restarts end at the start limit",
        "StartLimitBurst and StartLimitIntervalSec set",
        "every failed start costs memory and hides the first error in the journal",
        "set StartLimitBurst=3 and an interval longer than three starts take",
    )


def _kill_mode(unit: Unit) -> Finding:
    mode = unit.value("KillMode")
    return _verdict(
        "kill-mode",
        unit,
        mode != "mixed",
        "KillMode=%s" % (mode or "control-group (default)"),
        "a stop does not end the engine in order" if mode != "mixed" else "the engine stops its workers, what is left is killed",
        "KillMode=mixed",
        "process leaves workers behind that keep GPU memory; control-group cuts requests off in the workers",
        "set KillMode=mixed",
    )


def _stop_timeout(unit: Unit) -> Finding:
    wrong = not seconds(unit.value("TimeoutStopSec"))
    return _verdict(
        "stop-timeout",
        unit,
        wrong,
        "TimeoutStopSec=%s" % unit.value("TimeoutStopSec"),
        "draining has no limit of its own" if wrong else "a stop ends in bounded time",
        "TimeoutStopSec set to the time that requests may take to drain",
        "an engine drains for as long as a request runs",
        "set service.stop_timeout of the instance",
    )


def _open_files(unit: Unit) -> Finding:
    limit = unit.value("LimitNOFILE")
    soft = (limit or "").partition(":")[0]
    enough = soft == "infinity" or (soft.isdigit() and int(soft) >= _OPEN_FILES)
    return _verdict(
        "open-files",
        unit,
        not enough,
        "LimitNOFILE=%s" % limit,
        "too few open files are allowed" if not enough else "enough open files are allowed",
        "LimitNOFILE of %d or more" % _OPEN_FILES,
        "workers and connections fail with 'Too many open files' under load",
        "set LimitNOFILE=1048576",
    )


def _writable(unit: Unit) -> list[str]:
    """Directories the service may write, those of systemd's making also by their specifier."""
    places = [word.lstrip("-+") for value in unit.values("ReadWritePaths") for word in value.split()]
    for key, bases in (
        ("StateDirectory", ("/var/lib/", "%S/")),
        ("CacheDirectory", ("/var/cache/", "%C/")),
        ("RuntimeDirectory", ("/run/", "%t/")),
    ):
        places += [base + word for value in unit.values(key) for word in value.split() for base in bases]
    return places


def _caches(unit: Unit) -> Finding:
    places = _writable(unit)
    guarded = unit.value("ProtectSystem") == "strict"
    directories = {name: value for name, value in unit.environment().items() if name == "HOME" or re.search(r"(CACHE|WORKSPACE)", name)}
    outside = [
        "%s=%s" % (name, value)
        for name, value in sorted(directories.items())
        if value.startswith(("/", "%"))
        and guarded
        and not any(value == place or value.startswith(place.rstrip("/") + "/") for place in places)
    ]
    if "HOME" not in directories:
        outside.insert(0, "HOME is not set")
    return _verdict(
        "caches",
        unit,
        bool(outside),
        ", ".join(outside or ("%s=%s" % one for one in sorted(directories.items()))),
        "a cache lies where the service cannot write" if outside else "HOME and every cache are writable",
        "HOME and every cache directory below %s" % (", ".join(places) or "a writable directory"),
        "compilers and kernels write there at the first request; it ends in 'Permission denied' or 'Read-only file system'",
        "leave HOME and the cache variables out of the instance's environment, or point them below its state directory",
    )


def _path(unit: Unit) -> Finding:
    first = unit.environment().get("PATH", "").split(":")[0]
    return _verdict(
        "path",
        unit,
        not first.endswith("/venv/bin"),
        "PATH=%s" % unit.environment().get("PATH", "(systemd's own)"),
        "the environment's programs are found first" if first.endswith("/venv/bin") else "the environment's programs are not found first",
        "PATH begins with the environment's venv/bin",
        "kernels are compiled with ninja from the environment",
        "leave PATH out of the instance's environment",
    )


def _bypass(unit: Unit) -> Finding:
    return bypass(unit.name, unit.environment())


def bypass(name: str, environment: t.Mapping[str, str]) -> Finding:
    """``unit.bypass`` over the variables that a unit of this name gets."""
    set_ = [variable for variable in _BYPASSES if environment.get(variable, "0") not in ("0", "")]
    return _verdict(
        "bypass",
        Unit(name, ()),
        bool(set_),
        ", ".join(set_) or "%d variables, not %s" % (len(environment), ", ".join(_BYPASSES)),
        "a version check of the engine is switched off" if set_ else "the engine's own version checks are on",
        "no variable that switches a version check off",
        "parts of different versions then load and fail, or answer wrongly, later",
        "remove the variable and let the versions agree: specdec_pins moves all parts together",
    )


def _user(unit: Unit) -> Finding:
    user = unit.value("User")
    wrong = user in (None, "root", "0") and unit.value("DynamicUser") not in ("yes", "true", "1")
    return _verdict(
        "user",
        unit,
        wrong,
        "User=%s" % (user or ("root (default)" if wrong else "(DynamicUser)")),
        "the engine runs as root" if wrong else "the service has its own user",
        "a user of its own",
        "a model's code runs with the service's rights",
        "set User= to a system user",
    )
