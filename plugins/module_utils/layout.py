# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where everything lies under the root directory of a host, and how a name becomes an id."""

from __future__ import annotations

import hashlib
import json
import typing as t
from pathlib import Path, PurePosixPath

#: Changes whenever what an environment, release or bundle holds changes its meaning.
SCHEMA = 1

MARKER = ".complete"
RUN = PurePosixPath("/run/specdec")
UNITS = PurePosixPath("/etc/systemd/system")
JOB_UNIT = "specdec-job.service"
RECOVER_UNIT = "specdec-recover.service"


def canonical(data: t.Any) -> bytes:
    """JSON that is the same bytes for the same data."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def digest(data: t.Any) -> str:
    """The id of data: the first 16 hexadecimal digits of the sha256 over its canonical JSON."""
    return hashlib.sha256(canonical(data)).hexdigest()[:16]


class Layout:
    """The paths under ``specdec_root`` (see the design: on the host)."""

    def __init__(self, root: t.Union[str, PurePosixPath]) -> None:
        self.root = Path(root)
        self.bin = self.root / "bin"
        self.uv = self.bin / "uv"
        self.specdec = self.bin / "specdec"
        self.python = self.root / "python"
        self.cache = self.root / "cache"
        self.uv_cache = self.cache / "uv"
        self.wheels = self.cache / "wheels"
        self.bytecode = self.cache / "bytecode"
        self.overlays = self.cache / "overlays"
        self.environments = self.root / "environments"
        self.instances = self.root / "instances"
        self.models = self.root / "models"
        self.state = self.root / "state"
        #: Where the loader is told that libraries lie; a link to those of the environment that serves (registrations.py).
        self.libraries = self.root / "lib"

    def environment(self, environment_id: str) -> Path:
        """One environment: venv/ overlay.json lock.txt lib/ environment.json .complete"""
        return self.environments / environment_id

    def instance(self, name: str) -> Path:
        """One instance: releases/<id>/, current, secrets/<version>, history"""
        return self.instances / name

    def release(self, name: str, release_id: str) -> Path:
        """One release: release.json, config.json, unit, launch.py"""
        return self.instance(name) / "releases" / release_id

    def instance_state(self, name: str, environment_id: str) -> Path:
        """Caches that the service user may write: HOME of an instance on one environment."""
        return self.state / name / environment_id


def unit_name(instance: str) -> str:
    """The systemd unit of an instance."""
    return "specdec-%s.service" % instance


def unit_of(release: t.Mapping[str, t.Any]) -> str:
    """The unit that runs a release (content of release.json): the instance's, or the one made by hand that was adopted."""
    adopted = release.get("adopted")
    return adopted["unit"] if adopted else unit_name(release["instance"])


def user_name(instance: str) -> str:
    """The system user of an instance."""
    return "specdec-%s" % instance
