# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the dynamic loader of a host knows of an environment's libraries: one directory, or nothing.

A unit always gets its environment's directory by LD_LIBRARY_PATH, so no switch changes what a running service finds.
Where one environment serves a host, the same directory is registered besides, for what does not inherit the unit's
variables: a person's shell, a profiler, a child that clears its environment. The loader is told of one path that never
changes; behind it is a link to the environment that serves.

Everything follows from the instances' current releases, so the same call registers, moves and takes back, and whoever
finishes an interrupted switch need not know how far it came.
"""

from __future__ import annotations

import contextlib
import os
import platform
import typing as t
from pathlib import Path

from . import libraries, releases
from .findings import OK, WARNING, Finding, FindingError
from .layout import Layout
from .runners import Runner

CONFIGURATION = Path("/etc/ld.so.conf.d/specdec.conf")

REGISTERED = "libraries.registered"

_LDCONFIG = "/sbin/ldconfig"
_TIMEOUT = 120.0


def settle(layout: Layout, runner: Runner, configuration: Path = CONFIGURATION) -> list[Finding]:
    """Register the libraries of the one environment that serves, or nothing; what the loader knows now, as a finding.

    Nothing is raised: the service has its libraries without it, so what goes wrong is a warning.
    """
    environments = serving(layout)
    directories = [layout.environment(one) / "lib" for one in environments]
    names = sorted(entry.name for one in directories if one.is_dir() for entry in one.iterdir())
    try:
        if len(environments) != 1 or not names:
            _withdraw(layout, runner, configuration)
            return [_alone(environments)] if names else []
        known = _known(runner)
        foreign = {name: known[name] for name in names if name in known and not _ours(layout, known[name])}
        if foreign:
            _withdraw(layout, runner, configuration)
            return [_refused(foreign)]
        if _register(layout, directories[0], configuration) or not all(name in known for name in names):
            _rebuild(runner)
            known = _known(runner)
        lost = [name for name in names if known.get(name) != str(layout.libraries / name)]
        if lost:
            _withdraw(layout, runner, configuration)
            return [_failed("ldconfig -p does not know %s" % ", ".join(lost))]
        evidence = "%s in %s" % (layout.libraries, configuration)
        message = "%d libraries are registered with the loader" % len(names)
        return [Finding(REGISTERED, OK, "environment " + environments[0], message, evidence=evidence)]
    except (OSError, FindingError) as error:
        with contextlib.suppress(OSError, FindingError):
            _withdraw(layout, runner, configuration)
        return [_failed(str(error))]


def serving(layout: Layout) -> list[str]:
    """The environments of all current releases."""
    found = set()
    for path in sorted(layout.instances.glob("*/current")):
        release = releases.current(layout, path.parent.name)
        with contextlib.suppress(FindingError):
            if release:
                found.add(releases.load(layout, path.parent.name, release).facts["environment"])
    # a unit that was adopted has none of ours
    return sorted(found - {""})


def _register(layout: Layout, directory: Path, configuration: Path) -> bool:
    """The link, then the line that names it, each whole or not there; whether something was changed."""
    changed = False
    target = os.path.relpath(directory, layout.libraries.parent)
    if not (layout.libraries.is_symlink() and os.readlink(layout.libraries) == target):
        new = layout.libraries.with_name(".%s.new" % layout.libraries.name)
        new.unlink(missing_ok=True)
        new.symlink_to(target)
        new.replace(layout.libraries)
        changed = True
    line = "%s\n" % layout.libraries
    if not configuration.exists() or configuration.read_text(encoding="utf-8") != line:
        configuration.parent.mkdir(mode=0o755, exist_ok=True)
        releases.write_durably(configuration, line)
        changed = True
    return changed


def _withdraw(layout: Layout, runner: Runner, configuration: Path) -> None:
    """Take back what was registered; the cache is made anew where it may still hold it."""
    held = configuration.exists() or layout.libraries.is_symlink()
    configuration.unlink(missing_ok=True)
    if held:
        _rebuild(runner)
    # last: a call that is cut off before finds by it that there is something to do
    layout.libraries.unlink(missing_ok=True)


def _rebuild(runner: Runner) -> None:
    """Without -X ldconfig would make links of its own in the environment."""
    answer = runner([_LDCONFIG, "-X"], timeout=_TIMEOUT)
    if answer.rc:
        raise OSError("ldconfig ended with %d: %s" % (answer.rc, answer.stderr.strip()))


def _known(runner: Runner) -> dict[str, str]:
    """Path by name of what the loader's cache has for this machine."""
    answer = runner([_LDCONFIG, "-p"], timeout=_TIMEOUT)
    if answer.rc:
        raise OSError("ldconfig -p ended with %d: %s" % (answer.rc, answer.stderr.strip()))
    return libraries.system_libraries(answer.stdout, "EM_" + platform.machine().upper())


def _ours(layout: Layout, path: str) -> bool:
    return path.startswith(str(layout.libraries) + os.sep)


def _alone(environments: t.Sequence[str]) -> Finding:
    message = "the libraries are given to the units alone: %d environments serve" % len(environments)
    return Finding(REGISTERED, OK, "environments " + ", ".join(environments), message)


def _refused(foreign: t.Mapping[str, str]) -> Finding:
    return Finding(
        REGISTERED,
        WARNING,
        ", ".join(foreign),
        "the libraries are given to the unit alone: registering them would shadow what others find elsewhere",
        ", ".join(foreign.values()),
        "no library of this name with the loader",
        "ldconfig -p",
        "The host has libraries of its own under the names of the environment's.",
        "None is needed for the service. Where nothing else on the host needs these files, take them away and deploy again.",
    )


def _failed(why: str) -> Finding:
    return Finding(
        REGISTERED,
        WARNING,
        str(CONFIGURATION),
        "the libraries are given to the unit alone: they could not be registered",
        evidence=why,
        fix="None is needed for the service. Mend what the evidence says and deploy again, where other programs need the libraries.",
    )
