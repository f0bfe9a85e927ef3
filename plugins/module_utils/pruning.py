# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nobody refers to any more, and its removal.

Kept is whatever an instance serves, could roll back to, or was prepared to be switched to, and what those releases need.
Everything else under the root goes: environments, archives of uv's cache, overlay bundles, wheels, model revisions, and of the
instances old releases, their keys and caches. Each goes by one rename, so that a removal that is cut short leaves nothing half there.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import re
import secrets
import shutil
import typing as t
from pathlib import Path

from . import bytecode, releases, transactions, units
from .findings import ERROR, OK, WARNING, Finding, FindingError
from .layout import MARKER, Layout
from .runners import Progress, Runner

#: What is on its way out: a removal that was cut short is finished by the next one.
REMOVED = ".removed-"


@dataclasses.dataclass(frozen=True)
class Doomed:
    """Something to be removed: what it is, for a person, and where it lies; all of ``paths`` go together."""

    what: str
    paths: tuple[Path, ...]


# Space


class Tally:
    """Bytes that removing trees really frees: a file with several links goes with the last of them."""

    def __init__(self) -> None:
        self._links: collections.Counter[tuple[int, int]] = collections.Counter()

    def add(self, paths: t.Iterable[Path]) -> int:
        """Bytes that come free when these go too, after all that were added before."""
        return sum(self._tree(path) for path in paths)

    def _tree(self, path: Path) -> int:
        freed = self._one(path)
        if path.is_dir() and not path.is_symlink():
            for top, directories, names in os.walk(path):
                freed += sum(self._one(Path(top, name)) for name in (*directories, *names))
        return freed

    def _one(self, path: Path) -> int:
        try:
            found = path.lstat()
        except OSError:
            return 0
        if path.is_dir() and not path.is_symlink():
            return found.st_blocks * 512
        self._links[found.st_dev, found.st_ino] += 1
        return found.st_blocks * 512 if self._links[found.st_dev, found.st_ino] == found.st_nlink else 0


def size(count: int) -> str:
    """Bytes for a person."""
    if count < 1000:
        return "%d B" % count
    power = min(4, (len(str(count)) - 1) // 3)
    return "%.1f %s" % (count / 1000**power, ("", "kB", "MB", "GB", "TB")[power])


# What is needed


def instance_names(layout: Layout) -> list[str]:
    """The instances that the host holds."""
    return [path.name for path in _children(layout.instances)]


def kept_releases(layout: Layout, instance: str, depth: t.Optional[int] = None) -> set[str]:
    """Ids of the releases that an instance serves, could go back to (at most ``depth``), or was prepared for since its last switch."""
    entries = releases.history(layout, instance)
    unfinished = transactions.unfinished(layout, instance) or {}
    kept = {releases.current(layout, instance), _running(instance), unfinished.get("from"), unfinished.get("to")}
    kept.update(releases.way_back(entries)[:depth])
    seen = {entry["to"] for entry in entries}
    last = max((entry.get("when", 0) for entry in entries), default=0)
    for path in (layout.instance(instance) / "releases").glob("*/release.json"):
        if path.parent.name not in seen and path.stat().st_mtime >= last:
            kept.add(path.parent.name)
    return {release for release in kept if release and layout.release(instance, release).exists()}


def _running(instance: str) -> t.Optional[str]:
    try:
        return Path(units.running_file(instance)).read_text(encoding="utf-8")
    except OSError:
        return None


class _Kept:
    """What the kept releases of all instances but some need."""

    def __init__(self, layout: Layout, depth: t.Optional[int], without: t.Collection[str]) -> None:
        self.layout = layout
        self.releases: dict[str, dict[str, dict[str, t.Any]]] = {}
        for instance in instance_names(layout):
            if instance not in without:
                kept = kept_releases(layout, instance, depth)
                self.releases[instance] = {release: releases.load(layout, instance, release).facts for release in kept}
        facts = [one for kept in self.releases.values() for one in kept.values()]
        self.environments = {one["environment"] for one in facts if not one.get("adopted")}
        self.models = {Path(path).resolve() for one in facts for path in one["models"]}
        self.overlays: set[str] = set()
        self.hashes: set[str] = set()
        self.dists: set[str] = set()
        for environment in self.environments:
            self._need(layout.environment(environment))

    def _need(self, environment: Path) -> None:
        """What an environment was made from: a prune must not make its repair a download."""
        with contextlib.suppress(OSError, ValueError):
            content = json.loads((environment / "environment.json").read_text(encoding="utf-8"))
            self.overlays.update(content.get("overlays", ()))
            self.hashes.update(wheel["sha256"] for wheel in content.get("wheels", ()))
        with contextlib.suppress(OSError):
            self.hashes.update(re.findall(r"sha256:([0-9a-f]{64})", (environment / "lock.txt").read_text(encoding="utf-8")))
        self.dists.update(path.name for path in environment.glob("venv/lib/python3*/site-packages/*.dist-info"))


# What goes


def doomed(layout: Layout, depth: t.Optional[int] = None, without: t.Collection[str] = ()) -> list[Doomed]:
    """All that nobody refers to, in the order in which it goes: who refers before what is referred to.

    :param depth: how many earlier releases an instance keeps; None: all that it could go back to.
    :param without: instances that do not count; what is theirs alone is not named.

    Raises FindingError when a release that counts cannot be read: what it needs is not known then.
    """
    kept = _Kept(layout, depth, without)
    found: list[Doomed] = []
    for instance, its in kept.releases.items():
        found += _of_instance(layout, instance, its)
    for path in _children(layout.environments):
        if path.name not in kept.environments:
            half = "" if (path / MARKER).exists() else ", not complete"
            found.append(Doomed("environment %s%s%s" % (path.name, _engine(path), half), (path,)))
    found += _archives(layout.uv_cache, kept.dists)
    found += _bytecode(layout.bytecode, kept.dists)
    found += [Doomed("wheel %s" % _file(path), (path,)) for path in _children(layout.wheels) if path.name not in kept.hashes]
    found += [Doomed("overlay bundle %s" % path.name, (path,)) for path in _children(layout.overlays) if path.name not in kept.overlays]
    found += _models(layout, kept.models)
    return found


def _of_instance(layout: Layout, instance: str, kept: t.Mapping[str, t.Mapping[str, t.Any]]) -> t.Iterator[Doomed]:
    directory = layout.instance(instance)
    for path in _children(directory / "releases"):
        if path.name not in kept:
            yield Doomed("release %s of %s" % (path.name, instance), (path, directory / "proven" / ("%s.json" % path.name)))
    versions = {secret["version"] for facts in kept.values() for secret in facts["secrets"].values()}
    for path in sorted((directory / "secrets").glob("*")):
        if path.name not in versions:
            yield Doomed("a secret of %s that no release uses" % instance, (path,))
    environments = {facts["environment"] for facts in kept.values()}
    for path in _children(layout.state / instance):
        if path.name not in environments:
            yield Doomed("caches of %s for environment %s" % (instance, path.name), (path,))


def _engine(environment: Path) -> str:
    try:
        engine = json.loads((environment / "environment.json").read_text(encoding="utf-8"))["engine"]
        return " (%s %s)" % (engine["name"], engine["version"])
    except (OSError, ValueError, KeyError):
        return ""


def _archives(cache: Path, dists: t.Collection[str]) -> t.Iterator[Doomed]:
    """Unpacked wheels of uv's cache that no environment holds, with what points at them; uv fetches anew what it misses."""
    pointers = collections.defaultdict(list)
    for link in cache.glob("wheels-v*/**/*"):
        if link.is_symlink():
            pointers[Path(os.path.realpath(link))].append(link)
    for path in sorted(one for top in cache.glob("archive-v*") for one in _children(top)):
        names = [one.name for one in path.glob("*.dist-info")]
        if any(name in dists for name in names):
            continue
        links = pointers[path.resolve()]
        beside = [link.with_name(link.name + ending) for link in links for ending in (".http", ".rev")]
        what = ", ".join(name.rpartition(".")[0] for name in names) or path.name
        yield Doomed("cached %s" % what, (*links, *(one for one in beside if one.exists()), path))


def _bytecode(directory: Path, dists: t.Collection[str]) -> t.Iterator[Doomed]:
    """Bytecode that is kept of packages that no environment holds."""
    for path in _children(directory):
        try:
            dist = json.loads((path / bytecode.INDEX).read_bytes())["dist"]
        except (OSError, ValueError, KeyError):
            dist = path.name
        if dist not in dists:
            yield Doomed("bytecode of %s" % dist.rpartition(".dist-info")[0], (path,))


def _models(layout: Layout, kept: t.Collection[Path]) -> t.Iterator[Doomed]:
    for marker in sorted(layout.models.glob("**/" + MARKER)):
        if marker.parent.resolve() not in kept:
            yield Doomed("model %s" % marker.parent.relative_to(layout.models), (marker.parent,))
    for path in sorted(layout.models.glob("*/%s*" % REMOVED)):
        if not (path / MARKER).exists():
            yield Doomed("rest of a removed model", (path,))


def _file(wheel: Path) -> str:
    return next((path.name for path in sorted(wheel.glob("*.whl"))), wheel.name)


def _children(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []


# Removal


def remove(path: Path) -> None:
    """Remove a file or a tree. The tree first gets another name: what is cut short then leaves nothing at its place."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    if not path.name.startswith(REMOVED):
        path = path.rename(path.with_name(REMOVED + secrets.token_hex(8)))
    shutil.rmtree(path)


@dataclasses.dataclass
class Removal:
    """What was removed, what that freed (bytes), and what did not go."""

    removed: list[str]
    freed: int
    findings: list[Finding]


def sizes(items: t.Iterable[Doomed]) -> list[int]:
    """Bytes that come free with each, removed in this order."""
    tally = Tally()
    return [tally.add(item.paths) for item in items]


def remove_all(items: t.Sequence[Doomed], progress: Progress, id_: str) -> Removal:
    """Remove these; what does not go is a finding of this id, and does not keep the rest from going."""
    done = Removal([], 0, [])
    for item, freed in zip(items, sizes(items)):
        try:
            for path in item.paths:
                remove(path)
        except OSError as error:
            fix = "mend that, then run this again: it goes on with what is left"
            done.findings.append(Finding(id_, ERROR, item.what, "cannot be removed", evidence=str(error), fix=fix))
            continue
        done.removed.append(item.what)
        done.freed += freed
        progress("remove", "removed %s, %s" % (item.what, size(freed)), bytes=freed)
    return done


def preview(spec: t.Mapping[str, t.Any], runner: Runner) -> dict[str, t.Any]:
    """What a prune would remove (see previews.py). Raises FindingError."""
    layout = Layout(spec["root"])
    items = _asked(spec, layout)
    freed = sizes(items)
    lines = ["would remove %s, %s" % (item.what, size(count)) for item, count in zip(items, freed)]
    lines.append("would free %s (%d bytes)" % (size(sum(freed)), sum(freed)) if items else "nothing to remove: everything is referred to")
    return {
        "spec": dict(spec),
        "changed": bool(items),
        "lines": lines,
        "diff": [{"before_header": "on the host", "after_header": "after", "before": _listing(items), "after": ""}] if items else [],
        "findings": [one.as_dict() for one in kept_findings(layout)],
    }


def _listing(items: t.Iterable[Doomed]) -> str:
    return "".join("%s\n" % item.what for item in items)


def prune(spec: t.Mapping[str, t.Any], runner: Runner, progress: Progress) -> dict[str, t.Any]:
    """Job kind *prune*: ``keep``, how many earlier releases stay per instance (none given: all).

    :returns: changed, removed (for a person), freed (bytes), findings.
    """
    layout = Layout(spec["root"])
    done = remove_all(_asked(spec, layout), progress, "prune.failed")
    message = "freed %s (%d bytes) with %d things that nobody referred to" % (size(done.freed), done.freed, len(done.removed))
    progress("prune", message, bytes=done.freed)
    found = [Finding("prune.done", OK, "the host", message), *done.findings, *kept_findings(layout)]
    return {
        "changed": bool(done.removed),
        "removed": done.removed,
        "freed": done.freed,
        "findings": [one.as_dict() for one in found],
    }


def _asked(spec: t.Mapping[str, t.Any], layout: Layout) -> list[Doomed]:
    keep = "" if spec.get("keep") is None else str(spec["keep"])
    if keep and not keep.isdigit():
        fix = "set specdec_prune_keep to a number of releases, or leave it out to keep all that an instance could go back to"
        raise FindingError(Finding("prune.keep", ERROR, "specdec_prune_keep", "is no number", found=keep, expected="0, 1, 2 …", fix=fix))
    try:
        return doomed(layout, int(keep) if keep else None)
    except FindingError as error:
        fix = "mend or remove that release's directory, then prune again"
        message = "cannot be read, so what it needs is not known; nothing was removed"
        finding = dataclasses.replace(error.finding, id="prune.unreadable", message=message, found=error.finding.message, fix=fix)
        raise FindingError(finding) from error


def kept_findings(layout: Layout) -> list[Finding]:
    """What nobody refers to and stays nevertheless."""
    return [
        Finding(
            "prune.partial",
            WARNING,
            "model %s" % path.relative_to(layout.models),
            "was fetched in part only and stays, so that the fetch can go on",
            found=str(path),
            fix="deploy again to go on with it, or remove that directory by hand",
        )
        for path in sorted(layout.models.glob("*/*.partial"))
    ]
