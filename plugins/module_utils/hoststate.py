# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole state of a host, read once: what it is, what lies under the root, what serves.

Everything is read without a privilege it might lack changing the shape of the answer: what cannot be
read is null. Nothing is written.
"""

from __future__ import annotations

import hmac
import json
import os
import platform
import shutil
import typing as t
from pathlib import Path

from . import artifacts, gates, gpus, modelfiles, pythons, releases, units
from .engines_http import Client
from .layout import JOB_UNIT, MARKER, SCHEMA, Layout, unit_name
from .runners import Runner

#: An engine's /health may generate a token, and gives that up by itself after 20 s.
_HEALTH_TIMEOUT = 25.0

_CGROUPS = Path("/sys/fs/cgroup")
_UNIT_PROPERTIES = ("Id", "ActiveState", "SubState", "MainPID", "UnitFileState", "ActiveEnterTimestamp", "Result", "NRestarts")


def gather(
    root: str,
    runner: Runner,
    ports: t.Sequence[int] = (),
    secrets: t.Optional[t.Mapping[str, t.Mapping[str, str]]] = None,
    prefix: str = "",
    models: t.Sequence[t.Sequence[str]] = (),
) -> dict[str, t.Any]:
    """Everything the controller decides by.

    :param root: ``specdec_root``.
    :param runner: starts systemctl and other interpreters.
    :param ports: TCP ports whose listener is to be named.
    :param secrets: per instance and name the value that is wanted; answered with the stored version
        that holds exactly it. Values are never part of the answer.
    :param prefix: a directory that may hold a Python besides.
    :param models: directories of models that are to be read, a model with its draft.
    """
    layout = Layout(root)
    return {
        "schema": SCHEMA,
        **hardware(layout, runner, prefix),
        "systemd": _systemd(runner),
        "cpus": os.cpu_count(),
        "disk": _disk(layout.root),
        "temporary": _temporary(),
        "tools": {"specdec": artifacts.placed_digest(layout.specdec), "uv": artifacts.placed_digest(layout.uv)},
        "wheels": sorted(p.name for p in _children(layout.wheels)),
        "overlays": sorted(p.name for p in _children(layout.overlays)),
        "models": sorted(str(p.relative_to(layout.models).parent) for p in layout.models.glob("**/" + MARKER)),
        "model_files": modelfiles.describe(models),
        "environments": {p.name: _json(p / "environment.json") for p in _children(layout.environments) if (p / MARKER).exists()},
        "instances": _instances(layout, runner),
        "secrets": _secret_versions(layout, secrets or {}),
        "listeners": {str(port): [_listener(one) for one in gates.listeners(port)] for port in ports},
        "job": _job(runner),
    }


def hardware(layout: Layout, runner: Runner, prefix: str = "") -> dict[str, t.Any]:
    """The part of the state that a stack is chosen by: what the host is."""
    pythons_ = pythons.gather(layout, runner, prefix)
    return {"os": _os(), "memory": _memory(), "gpus": gpus.gather(str(layout.root), runner), "pythons": pythons_}


def _os() -> dict[str, t.Any]:
    release = {}
    try:
        for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines():
            key, _sep, value = line.partition("=")
            release[key] = value.strip('"')
    except OSError:
        pass
    try:
        glibc = (os.confstr("CS_GNU_LIBC_VERSION") or "").rpartition(" ")[2] or None
    except (ValueError, OSError):
        glibc = None
    return {
        "id": release.get("ID"),
        "version": release.get("VERSION_ID"),
        "name": release.get("PRETTY_NAME"),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "glibc": glibc,
        "system": platform.system(),
    }


def _systemd(runner: Runner) -> dict[str, t.Any]:
    running = os.path.isdir("/run/systemd/system")
    version = None
    container = None
    if running:
        words = runner(["systemctl", "--version"], timeout=10).stdout.split()
        version = int(words[1].split(".")[0]) if len(words) > 1 and words[1][:1].isdigit() else None
        container = runner(["systemd-detect-virt", "--container"], timeout=10).stdout.strip() or None
    return {"running": running, "version": version, "container": container, "controllers": _controllers()}


def _controllers() -> list[str]:
    """What the control groups of this host can limit."""
    unified = _text(_CGROUPS / "cgroup.controllers")
    return sorted(unified.split()) if unified is not None else [path.name for path in _children(_CGROUPS)]


def _memory() -> dict[str, t.Optional[int]]:
    values: dict[str, int] = {}
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            name, _sep, rest = line.partition(":")
            values[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return {"total": values.get("MemTotal"), "available": values.get("MemAvailable")}


def _temporary() -> dict[str, t.Any]:
    """Where programs put files that they then load; a unit's own /tmp lies there, too."""
    return {"path": "/tmp", "executable": not os.statvfs("/tmp").f_flag & os.ST_NOEXEC}


def _disk(root: Path) -> dict[str, t.Any]:
    existing = next(p for p in [root, *root.parents] if p.exists())
    usage = shutil.disk_usage(existing)
    return {"path": str(existing), "free": usage.free, "total": usage.total}


def _instances(layout: Layout, runner: Runner) -> dict[str, t.Any]:
    names = sorted(p.name for p in _children(layout.instances))
    units_ = {name: releases.adopted_unit(layout, name, releases.current(layout, name)) or unit_name(name) for name in names}
    shown = _units(list(units_.values()), runner) if names else {}
    return {name: _instance(layout, name, shown.get(units_[name], {})) for name in names}


def _instance(layout: Layout, name: str, unit: t.Mapping[str, str]) -> dict[str, t.Any]:
    directory = layout.instance(name)
    current = releases.current(layout, name)
    running = _text(Path(units.running_file(name)))
    release = _json(layout.release(name, current) / "release.json") if current else None
    return {
        "current": current,
        "running": running,
        "release": release,
        "releases": sorted(p.name for p in _children(directory / "releases")),
        "failed": sorted(p.stem for p in directory.glob("failed/*.json")),
        "unit": dict(unit),
        "unit_as_released": releases.unit_in_place(layout, name, current) if current else None,
        "health": _health(release) if release and unit.get("ActiveState") == "active" else None,
        "history": releases.history(layout, name)[-5:],
        "unfinished": _json(directory / "transaction.json"),
        "proven": sorted(p.stem for p in directory.glob("proven/*.json")),
    }


def _health(release: t.Mapping[str, t.Any]) -> t.Union[int, str]:
    return Client(release["host"], release["port"]).status(release["gate"]["health"], _HEALTH_TIMEOUT)


def _listener(one: gates.Listener) -> dict[str, t.Any]:
    return {"pid": one.pid, "command": one.command, "cgroup": one.cgroup}


def _units(names: t.Sequence[str], runner: Runner) -> dict[str, dict[str, str]]:
    answer = runner(["systemctl", "show", "--property=" + ",".join(_UNIT_PROPERTIES), *names], timeout=20)
    shown = {}
    for block in answer.stdout.split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "Id" in values:
            shown[values["Id"]] = values
    return shown


def _job(runner: Runner) -> t.Optional[dict[str, str]]:
    """The job that holds the host, if one is active."""
    answer = runner(["systemctl", "show", "--property=ActiveState,Description", JOB_UNIT], timeout=20)
    values = dict(line.split("=", 1) for line in answer.stdout.splitlines() if "=" in line)
    if values.get("ActiveState") in ("active", "activating", "deactivating"):
        return {"description": values.get("Description", "")}
    return None


def _secret_versions(layout: Layout, wanted: t.Mapping[str, t.Mapping[str, str]]) -> dict[str, dict[str, t.Optional[str]]]:
    answer: dict[str, dict[str, t.Optional[str]]] = {}
    for name, values in wanted.items():
        stored = {p.name: _text(p) or "" for p in sorted((layout.instance(name) / "secrets").glob("*"))}
        answer[name] = {
            secret: next((version for version, kept in stored.items() if hmac.compare_digest(kept.encode(), value.encode())), None)
            for secret, value in values.items()
        }
    return answer


def _children(directory: Path) -> list[Path]:
    try:
        return sorted(p for p in directory.iterdir() if p.is_dir())
    except OSError:
        return []


def _json(path: Path) -> t.Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _text(path: Path) -> t.Optional[str]:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
