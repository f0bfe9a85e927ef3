# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carry an overlay over to another version of its base: file by file, by ``git merge-file``; a proposal, never applied here."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import secrets
import shutil
import typing as t
from pathlib import Path

from . import additions, apinames, bundles
from .bundles import Base, Bundle
from .findings import ERROR, Finding, FindingError
from .runners import Runner

#: What became of a file; those of PROPOSED are in the proposed bundle.
UNCHANGED = "base unchanged"
MERGED = "merged"
CONFLICT = "conflict"
GONE = "gone upstream"
SAME = "upstream has it"
DELETED = "deleted by the overlay, changed upstream"
UNMERGEABLE = "cannot be merged"
PROPOSED = (UNCHANGED, MERGED, CONFLICT)

BUNDLE = "bundle"
REPORT = "report.txt"

#: git merge-file ends with the number of conflicts, at most this; above it, it failed.
_MOST_CONFLICTS = 127


@dataclasses.dataclass(frozen=True)
class File:
    """What became of one file.

    :param verdict: one of the constants of this module.
    :param conflicts: how many hunks are left to a person; their markers are in the proposed file.
    :param lacking: modules of the package that the proposed file imports and that the new version does not have.
    """

    path: str
    verdict: str
    conflicts: int = 0
    lacking: tuple[str, ...] = ()

    def text(self) -> str:
        """The file as a line for a person."""
        notes = ["%d hunk(s)" % self.conflicts] if self.conflicts else []
        notes += ["imports %s, which is gone upstream" % module for module in self.lacking]
        return "%-14s %s%s" % (self.verdict, self.path, ": " + "; ".join(notes) if notes else "")


@dataclasses.dataclass(frozen=True)
class Rebase:
    """A proposed bundle for the other version, and what became of each file of the overlay."""

    bundle: Bundle
    files: tuple[File, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing is left to a person."""
        return all(file.verdict in (UNCHANGED, MERGED, SAME) and not file.lacking for file in self.files)

    def advice(self, directory: t.Union[str, Path]) -> str:
        """How to go on with the proposal in a directory."""
        if self.clean:
            return "nothing is left to a person: put {directory: %s/bundle} into overlays, in the place of the reference" % directory
        return (
            "look through the files above in %s/bundle/files, then put {directory: %s/bundle/files} into overlays, in the place of the "
            "reference (a directory takes no file away); or mend the reference and capture it" % (directory, directory)
        )

    def report(self) -> str:
        """The files, one a line."""
        return "".join(file.text() + "\n" for file in self.files)


def rebase(bundle: Bundle, base: Base, new: Base, version: str, runner: Runner, scratch: Path) -> Rebase:
    """Merge what an overlay changed with what another version of its base changed.

    :param base: the unmodified package that the overlay was made over; :param new: the other version's.
    :param scratch: an empty directory for the merges.

    Raises FindingError where the base is another build (``overlay.base``), or git is not there (``rebase.git``).
    """
    additions.same_base(bundle, base)
    names = ("overlay", *("%s %s" % (bundle.manifest["base"]["name"], one) for one in (bundle.manifest["base"]["version"], version)))
    found: list[File] = []
    entries: list[dict[str, t.Any]] = []
    files: dict[str, bytes] = {}
    for entry in bundle.manifest["files"]:
        path = entry["path"]
        mine, old, now = bundle.files.get(path), base(path), new(path)
        file, result = _one(path, mine, old, now, lambda *texts: _merge(runner, scratch, names, *texts))
        found.append(file)
        if file.verdict in PROPOSED:
            action = "delete" if result is None else "add" if now is None else "change"
            before = None if now is None else hashlib.sha256(now).hexdigest()
            entries.append(bundles.entry(path, action, before, result, entry["mode"] == "0755"))
            if result is not None:
                files[path] = result
    found = [dataclasses.replace(file, lacking=_lacking(file.path, files, base, new)) for file in found]
    manifest = {
        "base": {**bundle.manifest["base"], "version": version},
        "python": bundle.manifest["python"],
        "files": entries,
        **additions.notes(files, new),
        "reference_versions": {},
    }
    return Rebase(bundles.seal(manifest, files), tuple(found))


def _lacking(path: str, files: t.Mapping[str, bytes], old: Base, new: Base) -> tuple[str, ...]:
    """The modules of its own package that a proposed file imports, that the old version had and that are nowhere now."""
    package = path.split("/", 1)[0]
    used = apinames.uses_in(files[path], path, package) if path in files and path.endswith(".py") else None

    def there(module: str, base: Base) -> bool:
        place = module.replace(".", "/")
        return any(base(name) is not None for name in (place + ".py", place + "/__init__.py"))

    modules = {module for use in used or () for module in (use.module, use.dotted)}
    return tuple(sorted(one for one in modules if there(one, old) and not there(one, new) and not there(one, files.get)))


def _one(
    path: str,
    mine: t.Optional[bytes],
    old: t.Optional[bytes],
    now: t.Optional[bytes],
    merge: t.Callable[[bytes, bytes, bytes], tuple[int, bytes]],
) -> tuple[File, t.Optional[bytes]]:
    if now == old:
        return File(path, UNCHANGED), mine
    if now == mine:
        return File(path, SAME), None
    if now is None:
        return File(path, GONE), None
    if mine is None:
        return File(path, DELETED), None
    status, result = merge(mine, old or b"", now)
    if status == 0:
        return File(path, MERGED), result
    return (File(path, CONFLICT, status), result) if status <= _MOST_CONFLICTS else (File(path, UNMERGEABLE), None)


def _merge(runner: Runner, scratch: Path, names: t.Sequence[str], mine: bytes, old: bytes, now: bytes) -> tuple[int, bytes]:
    """Exit status and merged bytes of git merge-file; the bytes travel as files, for a runner decodes what it reads."""
    places = [scratch / name for name in ("overlay", "old", "new")]
    for place, data in zip(places, (mine, old, now)):
        place.write_bytes(data)
    labels = [part for name in names for part in ("-L", name)]
    # whatever style the user chose for their own conflicts
    done = runner(["git", "-c", "merge.conflictStyle=merge", "merge-file", *labels, *map(str, places)], timeout=60)
    if done.rc == _MOST_CONFLICTS and "git" in done.stderr and places[0].read_bytes() == mine:
        fix = "install git on the controller"
        raise FindingError(Finding("rebase.git", ERROR, "controller", "git cannot be started", evidence=done.stderr, fix=fix))
    return done.rc % 256, places[0].read_bytes()


def write(directory: Path, made: Rebase) -> bool:
    """Put the proposal in a directory that is not there yet: ``bundle/`` and ``report.txt``; False where the same is there.

    Raises FindingError (``rebase.directory``) where something else is there: somebody may be resolving conflicts in it.
    """
    if directory.exists():
        with_same = directory / REPORT
        if with_same.is_file() and with_same.read_text(encoding="utf-8") == _whole_report(made):
            return False
        message = "holds another proposal, or one that was worked on"
        fix = "move it away, then run this again"
        raise FindingError(Finding("rebase.directory", ERROR, str(directory), message, fix=fix))
    directory.parent.mkdir(parents=True, exist_ok=True)
    new = directory.with_name(".%s-%s" % (directory.name, secrets.token_hex(4)))
    try:
        bundles.write_bundle(new / BUNDLE, made.bundle)
        (new / REPORT).write_text(_whole_report(made), encoding="utf-8")
        os.rename(new, directory)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return True


def _whole_report(made: Rebase) -> str:
    return "proposed bundle %s over %s %s\n%s" % (made.bundle.digest, *made.bundle.manifest["base"].values(), made.report())
