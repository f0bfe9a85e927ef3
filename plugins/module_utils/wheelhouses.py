# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A wheelhouse: a directory of the controller with every file that locks need, so that a deploy asks no index.

Files lie under their sha256 (``wheels/SHA256/FILENAME``, archives of Python likewise below ``python/``); what the
controller needs for itself lies in ``tools/``, flat, as uv reads it. The manifest is written last and names what is whole.
"""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

from . import artifacts, locks, networks, packagelists
from .findings import ERROR, Finding, FindingError
from .layout import SCHEMA, digest
from .networks import hidden

MANIFEST = "wheelhouse.json"
WHEELS = "wheels"
PYTHON = "python"
TOOLS = "tools"

#: What uv is told on a host that takes everything from the wheelhouse.
HOST = {"UV_OFFLINE": "1", "UV_NO_INDEX": "1"}

_VARIABLE = "specdec_wheelhouse"
_AGAIN = "run playbooks/wheelhouse.yml again where there is a network: it fetches only what is missing"
_NAMED = 10


def empty() -> dict[str, t.Any]:
    """The manifest of a wheelhouse that holds nothing.

    ``locks``: by id the lock's ``name`` and its ``files`` (name, version, filename, sha256, bytes). ``python``: archives
    (filename, sha256, bytes and what else their source says of them). ``tools``: filename → sha256 and bytes.
    """
    return {"schema": SCHEMA, "locks": {}, "python": [], "tools": {}}


def text(manifest: t.Mapping[str, t.Any]) -> str:
    """A manifest as it is kept, with the id of its content."""
    content = {key: value for key, value in manifest.items() if key != "id"}
    return json.dumps({**content, "id": digest(content)}, indent=1, sort_keys=True) + "\n"


def read(directory: Path) -> dict[str, t.Any]:
    """The manifest of a directory. Raises FindingError (``wheelhouse.none``, ``wheelhouse.edited``)."""
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        content = {key: value for key, value in manifest.items() if key != "id"}
        if content["schema"] != SCHEMA or manifest["id"] != digest(content):
            raise ValueError("its id is not the one of its content")
        return {**empty(), **content}
    except OSError as error:
        fix = "fill it with playbooks/wheelhouse.yml where there is a network, or name the directory that it was copied to"
        raise FindingError(
            _finding("wheelhouse.none", _VARIABLE, "is no wheelhouse", str(path), "a manifest", str(error), fix=fix)
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fix = "restore it; or remove it and run playbooks/wheelhouse.yml again, which keeps the files that are whole"
        cause = "it was changed by hand, or copied while it was written"
        finding = _finding(
            "wheelhouse.edited", _VARIABLE, "the manifest is not as it was written", str(path), "the manifest as written", str(error)
        )
        raise FindingError(Finding(**{**finding.as_dict(), "cause": cause, "fix": fix})) from error


def place(directory: Path, record: t.Mapping[str, t.Any], kind: str = WHEELS) -> Path:
    """Where a file of a manifest lies."""
    return directory / kind / record["sha256"] / record["filename"]


def files(directory: Path, manifest: t.Mapping[str, t.Any], lock: locks.Lock, name: str) -> list[dict[str, t.Any]]:
    """The files of a lock: name, version, filename, sha256, bytes; all of them are there.

    :param name: the lock's, for the finding.

    Raises FindingError: ``wheelhouse.lock`` where it was not gathered (another platform, Python, or version),
    ``wheelhouse.edited`` where a file is none that the lock accepts, ``wheelhouse.incomplete`` where files are not there.
    """
    held = manifest["locks"].get(lock.id)
    if held is None:
        known = "\n".join(sorted("%s (%s)" % (one["name"], id_) for id_, one in manifest["locks"].items())) or "no lock"
        message = "holds nothing for this lock: another engine version, Python, lane or platform, or a lock that was made since"
        raise FindingError(
            _finding("wheelhouse.lock", _VARIABLE, message, known, "%s (%s)" % (name, lock.id), str(directory / MANIFEST), fix=_AGAIN)
        )
    accepted = {package.name: package for package in lock.packages}
    foreign = [one["filename"] for one in held["files"] if one["sha256"] not in getattr(accepted.get(one["name"]), "hashes", ())]
    unnamed = sorted(accepted.keys() - {one["name"] for one in held["files"]})
    if foreign or unnamed:
        found = ", ".join([*foreign[:_NAMED], *("no file of " + one for one in unnamed[:_NAMED])])
        message = "the manifest's files are not those of the lock"
        fix = "restore the manifest; or remove it and run playbooks/wheelhouse.yml again"
        raise FindingError(
            _finding("wheelhouse.edited", _VARIABLE, message, found, "the files of %s" % name, str(directory / MANIFEST), fix=fix)
        )
    _present(directory, held["files"], name)
    return [dict(one) for one in held["files"]]


def _present(directory: Path, records: t.Iterable[t.Mapping[str, t.Any]], what: str, kind: str = WHEELS) -> None:
    absent = []
    for one in records:
        path = place(directory, one, kind)
        size = path.stat().st_size if path.is_file() else None
        if size != one["bytes"]:
            absent.append("%s (%s)" % (one["filename"], "not there" if size is None else "%d of %d bytes" % (size, one["bytes"])))
    if absent:
        listed = "\n".join(absent[:_NAMED] + (["and %d more" % (len(absent) - _NAMED)] if len(absent) > _NAMED else []))
        message = "%d file(s) of %s are not there" % (len(absent), what)
        raise FindingError(
            _finding("wheelhouse.incomplete", _VARIABLE, message, listed, "every file of the manifest", str(directory), fix=_AGAIN)
        )


def verify(directory: Path, records: t.Iterable[t.Mapping[str, t.Any]], kind: str = WHEELS) -> None:
    """Every file has its hash. Raises FindingError (``wheelhouse.damaged``) naming those that have not."""
    damaged = []
    for one in records:
        found = artifacts.file_digest(place(directory, one, kind))
        if found != one["sha256"]:
            damaged.append("%s: sha256 %s, not %s" % (one["filename"], found, one["sha256"]))
    if damaged:
        fix = "remove the file; then %s" % _AGAIN
        message = "%d file(s) are damaged" % len(damaged)
        found = "\n".join(damaged[:_NAMED])
        raise FindingError(_finding("wheelhouse.damaged", _VARIABLE, message, found, "the bytes that were locked", str(directory), fix=fix))


def archives(directory: str) -> t.Optional[list[dict[str, t.Any]]]:
    """The archives of Python in a directory; none where it holds no manifest (yet), None where no directory is named."""
    try:
        return list(read(Path(directory))["python"]) if directory else None
    except FindingError:
        return []


def checked_archive(directory: Path, record: t.Mapping[str, t.Any]) -> Path:
    """Where an archive of Python lies. Raises FindingError (``wheelhouse.incomplete``, ``wheelhouse.damaged``)."""
    _present(directory, [record], "the archives of Python", PYTHON)
    verify(directory, [record], PYTHON)
    return place(directory, record, PYTHON)


def total(records: t.Iterable[t.Mapping[str, t.Any]]) -> str:
    """Their size, for a person."""
    return packagelists.size(sum(one["bytes"] for one in records))


def offline(directory: Path) -> dict[str, str]:
    """Environment variables for a uv on the controller that takes its tools from the wheelhouse and asks no network."""
    return {**HOST, "UV_FIND_LINKS": str(directory / TOOLS)}


def outside(missing: t.Iterable[t.Mapping[str, t.Any]], fetches: t.Iterable[str], hub: str) -> list[Finding]:
    """What a deploy would have to ask a network for although it shall not.

    :param missing: pins that are to be made; :param fetches: models that are to be fetched; :param hub: its address, where one is named.
    """
    found = []
    for pin in missing:
        if pin["kind"] == "lock":
            message = "the pins hold no lock of what is wanted, and making one asks an index"
            fix = "run playbooks/lock.yml and playbooks/wheelhouse.yml where there is a network; copy the pins and the wheelhouse here"
            found.append(_finding("wheelhouse.no-lock", "specdec_pins_dir", message, "no locks/%s" % pin["name"], "a lock", fix=fix))
        elif pin["kind"] == "wheel":
            message = "a wheel that a pin names by address or commit is not there"
            fix = "run playbooks/wheelhouse.yml where there is a network; copy the pins and the wheelhouse here"
            found.append(_finding("wheelhouse.incomplete", "specdec_pins", message, pin["name"], "its wheel", fix=fix))
        elif pin["kind"] == "python" and not pin["artifacts"]:
            message = "is not on the host, and comes from a network"
            fix = "set specdec_python: {source: wheelhouse, version: ...} and run playbooks/wheelhouse.yml where there is a network"
            found.append(
                _finding("wheelhouse.interpreter", "specdec_python", message, pin["name"], "one on the host or in the wheelhouse", fix=fix)
            )
    for name in () if hub else fetches:
        message = "is not on the host, and a model that is named by repo comes from a hub"
        fix = "name it by directory (on the controller) or path (on the host), put it into models/ below the root, or name an inner mirror "
        fix += "in specdec_hub.endpoint"
        found.append(_finding("wheelhouse.model", "model %s" % name, message, "no models/%s" % name, "the model", fix=fix))
    return found


def _finding(id_: str, subject: str, message: str, found: str = "", expected: str = "", evidence: str = "", fix: str = _AGAIN) -> Finding:
    return Finding(id_, ERROR, subject, message, found, expected, evidence, fix=fix)


# While it is filled


def unavailable(name: str, lacking: t.Sequence[str], words: str) -> Finding:
    """Packages of the lock ``name`` that no index has; :param words: uv's."""
    fix = "check the controller's network, proxy, certificates and index, then run it again; what a lock accepts and no index has any more "
    fix += "can only be locked anew"
    message = "%d package(s) of %s cannot be had from the index" % (len(lacking), name)
    evidence = hidden(words.strip())[-600:]
    return _finding("wheelhouse.unavailable", _VARIABLE, message, ", ".join(lacking[:_NAMED]), evidence=evidence, fix=fix)


def source(name: str, sources: t.Sequence[str]) -> Finding:
    """Packages of the lock ``name`` of which the index has no wheel."""
    message = "of %d package(s) of %s the index has only the source, which a host without a network cannot build" % (len(sources), name)
    fix = "build the wheel on a machine like the host (pip wheel --no-deps NAME==VERSION), put it into a directory of "
    fix += "specdec_wheel_directories, pin exactly that version in specdec_pins, and lock anew: it is then a wheel of the lock"
    return _finding("wheelhouse.source", _VARIABLE, message, ", ".join(sources[:_NAMED]), "wheels", fix=fix)


def unreachable(filename: str, url: str, words: str) -> Finding:
    """A file that cannot be downloaded."""
    fix = "check the controller's network, proxy, certificates and credentials, then run it again: it goes on where it stopped"
    own = _finding("wheelhouse.fetch", filename, "could not be downloaded", hidden(url), "the file", hidden(words), fix=fix)
    return networks.diagnose(hidden(words), "the controller, fetching %s" % filename, ("proxy", "certificate", "credentials")) or own


def other_bytes(filename: str, url: str, found: str, expected: str) -> Finding:
    """A file that has another sha256 than the lock."""
    message = "what the index gave is not the file that was locked; it was thrown away"
    fix = "find out who changed it (an index, a mirror, a proxy that answers by itself); only then lock anew"
    return _finding("wheelhouse.hash", filename, message, found, expected, hidden(url), fix=fix)
