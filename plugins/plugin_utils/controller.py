# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the action plugins share: the data tables, a runner, who deploys, and the cache directory."""

from __future__ import annotations

import functools
import getpass
import os
import socket
import typing as t
from pathlib import Path

import yaml

from ansible_collections.specdec.serving.plugins.module_utils import networks, stackfiles, wheelhouses
from ansible_collections.specdec.serving.plugins.module_utils.findings import Finding
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed, Runner

from .processes import run

DATA = Path(__file__).resolve().parent.parent / "module_utils" / "data"


@functools.cache
def table(name: str) -> dict[str, t.Any]:
    """One of the data tables, by its file name without ending."""
    return yaml.safe_load((DATA / (name + ".yml")).read_text(encoding="utf-8"))


@functools.cache
def stacks() -> tuple[t.Any, list[Finding]]:
    """The table of stacks, and what is wrong in it (see module_utils/stackfiles.py)."""
    path = DATA / "stacks.yml"
    return stackfiles.load(path.read_text(encoding="utf-8"), str(path))


def networked(network: t.Mapping[str, t.Any]) -> Runner:
    """The runner for what uses the network, as ``specdec_network`` says; what it returns is without secrets.

    The controller's own environment variables hold for what the variable does not say. Raises FindingError (``network.ca``).
    """
    if not network:
        return run
    ready = networks.prepared(networks.described(network), cache_directory(), os.environ)

    def through(
        argv: t.Sequence[str],
        *,
        stdin: t.Optional[str] = None,
        env: t.Optional[t.Mapping[str, str]] = None,
        timeout: t.Optional[float] = None,
        on_line: t.Optional[t.Callable[[str], None]] = None,
    ) -> Completed:
        done = run(argv, stdin=stdin, env={**(env or {}), **ready.environment()}, timeout=timeout, on_line=on_line)
        return Completed(done.rc, ready.hidden(done.stdout), ready.hidden(done.stderr))

    return through


def network_environment(network: t.Mapping[str, t.Any]) -> dict[str, str]:
    """The environment variables that ``specdec_network`` adds, for what is no process; secrets are among them."""
    return networks.prepared(networks.described(network), cache_directory(), os.environ).environment()


def offline(house: Path) -> Runner:
    """The runner for a uv that takes tools from a wheelhouse and asks no network."""

    def alone(
        argv: t.Sequence[str],
        *,
        stdin: t.Optional[str] = None,
        env: t.Optional[t.Mapping[str, str]] = None,
        timeout: t.Optional[float] = None,
        on_line: t.Optional[t.Callable[[str], None]] = None,
    ) -> Completed:
        return run(argv, stdin=stdin, env={**(env or {}), **wheelhouses.offline(house)}, timeout=timeout, on_line=on_line)

    return alone


def who() -> str:
    """Who deploys, for the history: user@controller."""
    return "%s@%s" % (getpass.getuser(), socket.gethostname())


def cache_directory() -> Path:
    """Where host tools are kept on the controller (XDG)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specdec"


def refusal(headline: str, wrong: t.Iterable[Finding]) -> dict[str, t.Any]:
    """A failed result that says everything that is wrong."""
    listed = list(wrong)
    return {"failed": True, "msg": "\n".join([headline, *(one.text() for one in listed)]), "findings": [one.as_dict() for one in listed]}


def environment() -> t.Mapping[str, str]:
    """The controller's environment variables."""
    return os.environ
