# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Overlays on an installed package: checked, applied, audited.

Installed files may be hard links into a cache that other environments share: nothing here ever writes
into an existing file.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import secrets
import shutil
import stat
import typing as t
from pathlib import Path

from . import records
from .bundles import Bundle, verify_bundle
from .findings import ERROR, OK, WARNING, Finding, FindingError

#: A name in ``__pycache__`` (PEP 3147, PEP 488).
_COMPILED = re.compile(r"(?P<stem>.+?)\.[^.]+(?:\.opt-[^.]+)?\.py[co]", re.DOTALL)


def expected(manifests: t.Iterable[t.Mapping[str, t.Any]]) -> dict[str, t.Optional[str]]:
    """What applied overlays, in order, left behind: path → sha256, or None for a file they took away."""
    return {entry["path"]: entry["result"] for manifest in manifests for entry in manifest["files"]}


def check(bundle: Bundle, site_packages: Path, dists: t.Optional[t.Sequence[records.Distribution]] = None) -> list[Finding]:
    """What forbids applying a bundle to a site-packages directory; empty when nothing does.

    A bundle that is there already, wholly or in part, is no hindrance.
    """
    return _checked(bundle, Path(site_packages), dists)[0]


def _checked(
    bundle: Bundle, site_packages: Path, dists: t.Optional[t.Sequence[records.Distribution]]
) -> tuple[list[Finding], dict[str, t.Optional[str]]]:
    """What forbids applying a bundle, and the hash that each of its files has now, where that was looked at."""
    try:
        verify_bundle(bundle, bundle.manifest.get("digest", "overlay"))
    except FindingError as error:
        return [error.finding], {}
    manifest = bundle.manifest
    base = manifest["base"]
    subject = "overlay %s on %s" % (bundle.digest, base["name"])
    dist = records.find(records.distributions(site_packages) if dists is None else dists, base["name"])
    finding = version_finding(manifest, dist.version if dist else None, dist.rows if dist else {})
    if dist is None or finding:
        return ([finding] if finding else []), {}
    packages = dist.packages()
    real = _real_directories(site_packages, manifest["files"])
    leaving = [
        entry["path"]
        for entry in manifest["files"]
        if entry["path"].split("/", 1)[0] not in packages or not real[os.path.dirname(entry["path"])]
    ]
    if leaving:
        message = "%d file(s) would leave the package" % len(leaving)
        fix = "capture the overlay anew; one overlay changes one package"
        wanted = "below " + ", ".join(sorted(packages))
        return [Finding("overlay.path", ERROR, subject, message, expected=wanted, evidence=records.listing(leaving), fix=fix)], {}
    now = _current(site_packages, manifest["files"])
    return _base_findings(manifest, site_packages, subject, now), now


def version_finding(manifest: t.Mapping[str, t.Any], version: t.Optional[str], rows: t.Mapping[str, records.Row]) -> t.Optional[Finding]:
    """Why a bundle does not fit the version of its base that is or will be installed; None where it was made for that one.

    :param version: None where the base is not installed.
    :param rows: the RECORD of that version, to name the files that moved; empty where it is not at hand.
    """
    base = manifest["base"]
    if version == base["version"]:
        return None
    others = moved(manifest, rows) if rows else []
    message = "the overlay was made for another version of its base"
    if others:
        message += ": %d of its %d files are others there" % (len(others), len(manifest["files"]))
    return Finding(
        "overlay.base-version",
        ERROR,
        "overlay %s on %s" % (manifest["digest"], base["name"]),
        message,
        found="%s %s" % (base["name"], version or "not installed"),
        expected="%s %s" % (base["name"], base["version"]),
        evidence=records.listing(others),
        fix="deploy engine version %s; or carry the overlay over to the other version with playbooks/rebase.yml; or capture one from a "
        "reference that has it" % base["version"],
    )


def moved(manifest: t.Mapping[str, t.Any], rows: t.Mapping[str, records.Row]) -> list[str]:
    """What another version of the base, of which these are the RECORD's rows, did to the files that an overlay is about."""
    found = []
    for entry in manifest["files"]:
        row = rows.get(entry["path"])
        if (row.digest if row else None) == entry["result"]:
            found.append("%s: upstream has it" % entry["path"])
        elif entry["base"] is None and row is not None:
            found.append("%s: is in the package there" % entry["path"])
        elif entry["base"] is not None and row is None:
            found.append("%s: is gone" % entry["path"])
        elif row is not None and row.digest != entry["base"]:
            found.append("%s: is changed" % entry["path"])
    return found


def _real_directories(site_packages: Path, entries: t.Iterable[t.Mapping[str, t.Any]]) -> dict[str, bool]:
    """Whether each directory that entries lie in is where its path says: no part of it is a link."""
    top = os.path.realpath(site_packages)
    directories = {os.path.dirname(entry["path"]) for entry in entries}
    return {one: os.path.realpath(os.path.join(top, one)) == os.path.join(top, one) for one in directories}


def _current(site_packages: Path, entries: t.Iterable[t.Mapping[str, t.Any]]) -> dict[str, t.Optional[str]]:
    return records.hash_files({entry["path"]: (os.path.join(site_packages, entry["path"]), "sha256") for entry in entries})


def _base_findings(
    manifest: t.Mapping[str, t.Any], site_packages: Path, subject: str, now: t.Mapping[str, t.Optional[str]]
) -> list[Finding]:
    wrong = [
        entry["path"]
        for entry in manifest["files"]
        if now[entry["path"]] not in (entry["base"], entry["result"]) or _obstructed(manifest, entry, site_packages)
    ]
    if not wrong:
        return []
    bases = {entry["path"]: entry["base"] for entry in manifest["files"]}
    return [
        Finding(
            "overlay.base-hash",
            ERROR,
            subject,
            "%d file(s) are not the ones the overlay was made for" % len(wrong),
            found=records.listing("%s %s" % (path, now[path] or "missing") for path in wrong),
            expected=records.listing("%s %s" % (path, bases[path] or "no file") for path in wrong),
            evidence=str(site_packages),
            cause="another overlay or a hand edit changed them, or the base was built anew under the same version",
            fix="apply the overlay to the untouched base, or capture it anew",
        )
    ]


def _obstructed(manifest: t.Mapping[str, t.Any], entry: t.Mapping[str, t.Any], site_packages: Path) -> bool:
    """Whether a directory stands where a file is to be, or be gone: not where the overlay itself has files in its place, laid already."""
    path = entry["path"]
    own = entry["action"] == "delete" and any(one["path"].startswith(path + "/") for one in manifest["files"])
    return os.path.isdir(os.path.join(site_packages, path)) and not own


def not_python(manifests: t.Sequence[t.Mapping[str, t.Any]], wrong: t.Mapping[str, str]) -> list[Finding]:
    """``overlay.not-python`` for each overlay, applied in this order, that left a file which does not compile.

    :param wrong: path → what the interpreter says.
    """
    last = {entry["path"]: manifest for manifest in manifests for entry in manifest["files"]}
    found = []
    for manifest in manifests:
        lines = ["%s: %s" % pair for pair in sorted(wrong.items()) if last.get(pair[0]) is manifest]
        subject = "overlay %s on %s" % (manifest["digest"], manifest["base"]["name"])
        message, fix = "%d file(s) cannot be compiled" % len(lines), "correct them on the reference, then capture again"
        found += [Finding("overlay.not-python", ERROR, subject, message, evidence=records.listing(lines), fix=fix)] if lines else []
    return found


def apply(bundle: Bundle, site_packages: Path, dists: t.Optional[t.Sequence[records.Distribution]] = None) -> list[str]:
    """Put a bundle's files in place and take away those it deletes; return the paths that changed.

    Raises FindingError with the first of :func:`check`'s findings before anything is written. Files are written
    new and renamed, and their bytecode is removed.
    """
    site_packages = Path(site_packages)
    found, now = _checked(bundle, site_packages, dists)
    for finding in found:
        raise FindingError(finding)
    targets = {entry["path"]: os.path.join(site_packages, entry["path"]) for entry in bundle.manifest["files"]}
    due = [entry for entry in bundle.manifest["files"] if _difference(entry, now[entry["path"]], targets[entry["path"]])]
    remove_bytecode(targets[entry["path"]] for entry in due)
    for entry in due:
        target = targets[entry["path"]]
        if entry["action"] == "delete":
            os.unlink(target)
            _remove_empty(Path(target).parent, site_packages / entry["path"].split("/", 1)[0])
        else:
            replace(target, bundle.files[entry["path"]], int(entry["mode"], 8))
    return [entry["path"] for entry in due]


def upstream(manifest: t.Mapping[str, t.Any], changed: t.Collection[str]) -> list[Finding]:
    """``overlay.upstream``: what a bundle that was applied to a fresh package did not have to change, for the package has it."""
    changed = set(changed)
    same = [entry["path"] for entry in manifest["files"] if entry["path"] not in changed]
    if not same:
        return []
    return [
        Finding(
            "overlay.upstream",
            WARNING,
            "overlay %s on %s" % (manifest["digest"], manifest["base"]["name"]),
            "upstream has it: %d of its %d files are in the package as the overlay makes them" % (len(same), len(manifest["files"])),
            evidence=records.listing(same),
            fix="none is needed; take them out of the reference or the directory and capture again, and the overlay is smaller",
        )
    ]


def replace(target: t.Union[str, Path], data: bytes, mode: int) -> None:
    """Give a path new content in a file of its own: whoever shares the old one keeps it. Raises OSError."""
    directory = os.path.dirname(target)
    if not os.path.isdir(directory):
        for parent in reversed(list(itertools.takewhile(lambda parent: not parent.exists(), Path(target).parents))):
            parent.mkdir()
            parent.chmod(0o755)
    new = os.path.join(directory, ".specdec-%s.new" % secrets.token_hex(4))
    try:
        with open(new, "xb") as stream:
            stream.write(data)
            os.fchmod(stream.fileno(), mode)
        # a rename over a file has ext4 write the new one to the disk at once, one by one; all of it is flushed before the marker
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target)
        os.rename(new, target)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def remove_bytecode(sources: t.Iterable[str]) -> None:
    """Remove what interpreters compiled from files: two versions of the same size and second look the same to them."""
    stems: dict[str, set[str]] = {}
    for source in sources:
        directory, name = os.path.split(source)
        stems.setdefault(os.path.join(directory, "__pycache__"), set()).add(os.path.splitext(name)[0])
    for cache, names in stems.items():
        for name in os.listdir(cache) if os.path.isdir(cache) else ():
            compiled = _COMPILED.fullmatch(name)
            if compiled and compiled["stem"] in names:
                os.unlink(os.path.join(cache, name))


def _remove_empty(directory: Path, top: Path) -> None:
    """An empty directory is an importable namespace package, which the reference does not have."""
    while directory != top and not [entry for entry in os.listdir(directory) if entry != "__pycache__"]:
        shutil.rmtree(directory)
        directory = directory.parent


def audit(manifests: t.Sequence[t.Mapping[str, t.Any]], site_packages: Path) -> list[Finding]:
    """Whether every file is as the overlays, applied in this order, left it: one finding for each overlay.

    A file that a later overlay replaced is that one's alone.
    """
    site_packages = Path(site_packages)
    last = {entry["path"]: number for number, manifest in enumerate(manifests) for entry in manifest["files"]}
    return [
        _audit(manifest, [entry for entry in manifest["files"] if last[entry["path"]] == number], site_packages)
        for number, manifest in enumerate(manifests)
    ]


def _audit(manifest: t.Mapping[str, t.Any], entries: t.Sequence[t.Mapping[str, t.Any]], site_packages: Path) -> Finding:
    now = _current(site_packages, entries)
    wrong = []
    for entry in entries:
        difference = _difference(entry, now[entry["path"]], os.path.join(site_packages, entry["path"]))
        if difference:
            wrong.append("%s: %s" % (entry["path"], difference))
    subject = "overlay %s on %s %s" % (manifest["digest"], manifest["base"]["name"], manifest["base"]["version"])
    if not wrong:
        return Finding("overlay.applied", OK, subject, "all files are as the overlay left them", "%d files" % len(entries))
    return Finding(
        "overlay.applied",
        ERROR,
        subject,
        "%d file(s) are not as the overlay left them" % len(wrong),
        evidence=records.listing(wrong),
        cause="they were edited, replaced or removed after the environment was built",
        fix="build the environment anew; nothing inside it is repaired in place",
    )


def _difference(entry: t.Mapping[str, t.Any], now: t.Optional[str], target: str) -> str:
    """In which way a file with this hash now (None: none that can be read) is not as an overlay leaves it; empty where it is."""
    # where a file was taken away, others may lie in a directory of its name
    if now != entry["result"] or (now is None and os.path.lexists(target) and (os.path.islink(target) or not os.path.isdir(target))):
        return "other bytes" if now else "missing"
    mode = stat.S_IMODE(os.stat(target).st_mode) if entry["result"] else None
    return "" if mode in (None, int(entry["mode"], 8)) else "mode %04o instead of %s" % (mode, entry["mode"])


def layering(manifests: t.Sequence[t.Mapping[str, t.Any]]) -> list[dict[str, t.Any]]:
    """What the overlays after the first of a package, applied in this order, replaced.

    Each: path, ``layer`` (digest of the one that counts), ``result`` (its hash, None for a deletion), ``replaces`` (digest of the
    overlay before, or name and version of the package) and ``replaced`` (the hash there).
    """
    found = []
    before: dict[str, tuple[str, t.Optional[str]]] = {}
    packages: set[str] = set()
    for manifest in manifests:
        package = "%(name)s %(version)s" % manifest["base"]
        later = package in packages
        packages.add(package)
        for entry in manifest["files"]:
            path = entry["path"]
            digest, replaced = before.get(path, (package, entry["base"]))
            if later and (path in before or replaced):
                one = {"path": path, "layer": manifest["digest"], "result": entry["result"], "replaces": digest, "replaced": replaced}
                found.append(one)
            before[path] = (manifest["digest"], entry["result"])
    return found


def layering_text(file: t.Mapping[str, t.Any]) -> str:
    """What a later layer replaced (one of :func:`layering`), for a person."""
    hashes = [value[:12] if value else "deleted" for value in (file["replaced"], file["result"])]
    return "%s: overlay %s replaces what %s left: %s → %s" % (file["path"], file["layer"], file["replaces"], *hashes)
