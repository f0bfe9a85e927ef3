# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A release of an instance: composed as data, kept on the host, made the current one, remembered.

Everything on disk is written new and renamed, and flushed before the caller goes on, so that a power
cut leaves either what was or what is meant.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import secrets
import typing as t
from pathlib import Path

from . import units
from .findings import ERROR, Finding, FindingError, from_dict
from .layout import SCHEMA, UNITS, Layout, digest, unit_name, user_name

SYSUSERS = Path("/etc/sysusers.d")

#: What release.json must hold besides schema, id and instance; None: whatever the caller says.
_DEFAULTS: t.Mapping[str, t.Any] = {
    "config_option": "--config",
    "secrets": {},
    "environment_variables": {},
    "models": [],
    "host": "127.0.0.1",
    "port": 30000,
    "stop_timeout": 60,
    "start_timeout": 600,
    "start_timeout_by_size": False,
    "service": {"kill_mode": "mixed", "restart": "on-failure", "success_exit_status": ""},
    "memory_max": "",
    "sandbox": units.STRICT,
    "gpus": False,
    "clients": [],
    "dry_run": {"kind": "none"},
}
_REQUIRED = ("instance", "environment", "engine", "command", "gate")


@dataclasses.dataclass(frozen=True)
class Release:
    """What is switched: the content of the four files of a release."""

    facts: dict[str, t.Any]
    config: dict[str, t.Any]
    unit: str
    launcher: str

    @property
    def id(self) -> str:
        """The digest over everything the release holds."""
        return self.facts["id"]

    @property
    def instance(self) -> str:
        """The instance it belongs to."""
        return self.facts["instance"]

    def files(self) -> dict[str, str]:
        """File name → content; release.json is last, for it makes the release complete."""
        return {
            "config.json": _pretty(self.config),
            unit_name(self.instance): self.unit,
            "launch.py": self.launcher,
            "release.json": _pretty(self.facts),
        }


def compose(root: str, facts: t.Mapping[str, t.Any], config: t.Mapping[str, t.Any], launcher: str) -> Release:
    """A release as data; nothing is read, so the controller knows the id before a host is touched.

    :param root: ``specdec_root`` on the host.
    :param facts: release.json without schema and id; instance, environment, engine, command and gate
        are required, ``sandbox``, ``gpus`` and ``clients`` (networks that may reach a listener that is
        not loopback; none given: all) shape the unit.
    :param config: the engine's configuration without secrets.
    :param launcher: the text of launch.py.

    Raises ValueError when a fact is missing or unknown, or a secret stands in the configuration.
    """
    missing = [name for name in _REQUIRED if name not in facts]
    unknown = sorted(set(facts) - set(_REQUIRED) - set(_DEFAULTS))
    if missing or unknown:
        raise ValueError("a release lacks %s and knows no %s" % (missing or "nothing", unknown or "other"))
    whole = {"schema": SCHEMA, **_DEFAULTS, **facts}
    inside = [secret["option"] for secret in whole["secrets"].values() if secret["option"] in config]
    if inside:
        raise ValueError("the configuration holds the secrets %s" % ", ".join(inside))
    unit = units.service_unit(root, whole).text()
    return Release({**whole, "id": identity(whole, config, unit, launcher)}, dict(config), unit, launcher)


def identity(facts: t.Mapping[str, t.Any], config: t.Mapping[str, t.Any], unit: str, launcher: str) -> str:
    """The id of a release: the digest of all it holds, but the id itself."""
    return digest({"release": {k: v for k, v in facts.items() if k != "id"}, "config": config, "unit": unit, "launcher": launcher})


def new_secret_version() -> str:
    """The random name under which a new value of a secret is kept; it says nothing about the value."""
    return secrets.token_hex(8)


#: Bytes of a model's files that are read in a second also from a slow disk or a network.
_READ = 100_000_000


def start_limit(release: t.Mapping[str, t.Any]) -> int:
    """Seconds that the start of a release (content of release.json) may take: where nobody set them, more for larger models.

    To be asked on the host: what is not there has no size.
    """
    if not release.get("start_timeout_by_size"):
        return release["start_timeout"]
    return release["start_timeout"] + sum(_bytes(Path(path)) for path in release["models"]) // _READ


def _bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


# On disk


def _pretty(data: t.Any) -> str:
    return json.dumps(data, indent=2, sort_keys=True) + "\n"


def write_durably(path: Path, text: str, mode: int = 0o644) -> None:
    """Write new, flush, rename over, flush the directory."""
    new = path.with_name(".%s.%s" % (path.name, secrets.token_hex(4)))
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    _flush(path.parent)


def _flush(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _directory(path: Path, mode: int) -> None:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)


def store(layout: Layout, release: Release) -> bool:
    """Put a release in place; whether anything was written. What is there with its content stays."""
    directory = layout.release(release.instance, release.id)
    # The service's user reads its own release; no secret is in it.
    for path in (directory.parents[1], directory.parent, directory):
        _directory(path, 0o755)
    changed = False
    for name, content in release.files().items():
        if _text(directory / name) != content:
            write_durably(directory / name, content)
            changed = True
    return changed


def load(layout: Layout, instance: str, release_id: str) -> Release:
    """Read a release back; raises FindingError when it is not there, or not what its id says."""
    directory = layout.release(instance, release_id)

    def broken(message: str, evidence: str) -> FindingError:
        return FindingError(
            Finding(
                "release.broken",
                ERROR,
                "release %s of %s" % (release_id, instance),
                message,
                evidence=evidence,
                cause="it was removed or changed by hand",
                fix="run the deploy again: it writes the release anew",
            )
        )

    try:
        facts = json.loads((directory / "release.json").read_text(encoding="utf-8"))
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        unit = (directory / unit_name(instance)).read_text(encoding="utf-8")
        launcher = (directory / "launch.py").read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise broken("cannot be read", str(error)) from error
    if facts.get("schema") != SCHEMA:
        raise broken("is of another version of the collection", "schema %s, not %d" % (facts.get("schema"), SCHEMA))
    found = identity(facts, config, unit, launcher)
    if found != release_id:
        raise broken("its content is not that of its id", "%s holds content of id %s" % (directory, found))
    return Release(facts, config, unit, launcher)


def _text(path: Path) -> t.Optional[str]:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def current(layout: Layout, instance: str) -> t.Optional[str]:
    """The id of the release that is to run; None before the first deploy."""
    try:
        return (layout.instance(instance) / "current").readlink().name
    except OSError:
        return None


def flip(layout: Layout, instance: str, release_id: t.Optional[str]) -> None:
    """Make a release the current one, by one rename; None: there is no current one any more."""
    directory = layout.instance(instance)
    link = directory / "current"
    if release_id is None:
        link.unlink(missing_ok=True)
    else:
        new = directory / (".current.%s" % secrets.token_hex(4))
        new.symlink_to(Path("releases") / release_id)
        new.replace(link)
    _flush(directory)


def adopted_unit(layout: Layout, instance: str, release_id: t.Optional[str]) -> t.Optional[str]:
    """The unit made by hand that a release stands for; None where it stands for none."""
    try:
        facts = json.loads((layout.release(instance, release_id or "") / "release.json").read_text(encoding="utf-8"))
        return (facts.get("adopted") or {}).get("unit")
    except (OSError, ValueError):
        return None


def unit_in_place(layout: Layout, instance: str, release_id: str) -> bool:
    """Whether systemd's unit file of the instance is the release's own."""
    wanted = _text(layout.release(instance, release_id) / unit_name(instance))
    return wanted is not None and _text(Path(UNITS) / unit_name(instance)) == wanted


# History and failures


def append_history(layout: Layout, instance: str, entry: t.Mapping[str, t.Any]) -> None:
    """Add one line: when, who, what, from, to, why, verdict, times, acceptance, transaction."""
    path = layout.instance(instance) / "history"
    torn = (_text(path) or "\n")[-1:] != "\n"
    with path.open("a", encoding="utf-8") as stream:
        stream.write("\n" * torn + json.dumps(dict(entry), sort_keys=True) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def history(layout: Layout, instance: str) -> list[dict[str, t.Any]]:
    """All that happened to the instance, oldest first; a line torn by a power cut is left out."""
    entries = []
    for line in (_text(layout.instance(instance) / "history") or "").splitlines():
        with contextlib.suppress(ValueError):
            entries.append(json.loads(line))
    return [entry for entry in entries if isinstance(entry, dict) and {"what", "to", "verdict"} <= set(entry)]


def way_back(entries: t.Iterable[t.Mapping[str, t.Any]]) -> list[str]:
    """The releases one can go back to, nearest first, without those that were left by a rollback.

    The last committed release is where the instance is; going back to one forgets what came after it.
    """
    served: list[str] = []
    for entry in entries:
        if entry["verdict"] != "committed":
            continue
        if entry["what"] == "rollback" and entry["to"] in served:
            del served[served.index(entry["to"]) + 1 :]
        else:
            served = [release for release in served if release != entry["to"]] + [entry["to"]]
    return served[-2::-1]


def _failed_mark(layout: Layout, instance: str, release_id: str) -> Path:
    return layout.instance(instance) / "failed" / ("%s.json" % release_id)


def mark_failed(layout: Layout, instance: str, release_id: str, finding: Finding) -> None:
    """Remember that a release's gate failed, so that nobody tries it again unasked."""
    path = _failed_mark(layout, instance, release_id)
    _directory(path.parent, 0o755)
    write_durably(path, _pretty(finding.as_dict()))


def failed(layout: Layout, instance: str, release_id: str) -> t.Optional[Finding]:
    """Why a release's gate failed, if it did."""
    text = _text(_failed_mark(layout, instance, release_id))
    return from_dict(json.loads(text)) if text else None


def clear_failed(layout: Layout, instance: str, release_id: str) -> None:
    """Forget that a release failed: it has served since."""
    _failed_mark(layout, instance, release_id).unlink(missing_ok=True)


# Secrets and the user


def secret_path(layout: Layout, instance: str, version: str) -> Path:
    """The file of one version of a secret; it holds the value and nothing else."""
    return layout.instance(instance) / "secrets" / version


def store_secret(layout: Layout, instance: str, version: str, value: str) -> None:
    """Keep a secret's value, readable by root alone."""
    path = secret_path(layout, instance, version)
    _directory(path.parents[1], 0o755)
    _directory(path.parent, 0o700)
    write_durably(path, value, 0o600)


def read_secret(layout: Layout, release: t.Mapping[str, t.Any], name: str) -> t.Optional[str]:
    """A release's secret; None when it has none of that name."""
    secret = release["secrets"].get(name)
    return secret_path(layout, release["instance"], secret["version"]).read_text(encoding="utf-8") if secret else None


def secret_values(layout: Layout, release: t.Mapping[str, t.Any]) -> list[str]:
    """All secrets of a release that can be read, for keeping them out of what is shown."""
    values = [_text(secret_path(layout, release["instance"], secret["version"])) for secret in release["secrets"].values()]
    return [value for value in values if value]


def redact(text: str, values: t.Iterable[str]) -> str:
    """The text without these values."""
    for value in values:
        text = text.replace(value, "***")
    return text


def own(path: Path, uid: int, gid: int) -> None:
    """Give a directory to a user, where it is not the user's already."""
    found = path.stat()
    if (found.st_uid, found.st_gid) != (uid, gid):
        os.chown(path, uid, gid)


def sysusers(layout: Layout, instance: str) -> str:
    """The systemd-sysusers file of an instance's user."""
    if not re.fullmatch(r"[a-z][a-z0-9-]*", instance):
        raise ValueError("%r is no name of an instance" % instance)
    return 'u %s - "specdec instance %s" %s /usr/sbin/nologin\n' % (user_name(instance), instance, layout.state / instance)
