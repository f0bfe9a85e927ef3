# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Layers: single patched files of a directory on the controller, as a bundle of their own over the overlays before it."""

from __future__ import annotations

import typing as t
from pathlib import Path

from . import additions, bundles, overlays, records
from .bundles import Base, Bundle
from .findings import ERROR, Finding, FindingError


def bundle(
    directory: Path,
    package: records.Distribution,
    original: Base,
    python: str,
    below: t.Sequence[t.Mapping[str, t.Any]] = (),
    binaries: t.Collection[str] = (),
) -> Bundle:
    """The bundle of a directory that holds patched files under their paths below site-packages, or that is a bundle already.

    The base of a file is what the layers before it left there, or what the package has; a file that is the same as that is
    left out. The same directory over the same layers gives the same digest.

    :param package: the unmodified package, with its RECORD; :param original: gives its texts.
    :param python: minor version of the interpreter (``3.11``).
    :param below: manifests of the layers before it, in order.
    :param binaries: paths of compiled libraries that may be inside.

    Raises FindingError (``overlay.layer``) when the directory is none, holds nothing for the package, or holds what no layer may.
    """
    directory = Path(directory)
    if (directory / bundles.MANIFEST).is_file():
        return bundles.read_bundle(directory)
    there: dict[str, t.Optional[str]] = {path: row.digest for path, row in package.rows.items()}
    there.update(overlays.expected(below))
    tops = package.packages()
    entries, files, refused = [], {}, []
    for path in sorted(records.tree(directory)):
        source = directory / path
        if bundles.leftover(path):
            continue
        reason = _refused(path, source, tops)
        try:
            data = b"" if reason else source.read_bytes()
        except OSError as error:
            reason = "cannot be read: %s" % error.strerror
        if not reason and bundles.is_compiled(data) and path not in binaries:
            reason = "is compiled, and not named in binaries"
        if reason:
            refused.append("%s %s" % (path, reason))
            continue
        entry = bundles.entry(path, "change" if there.get(path) else "add", there.get(path), data, bool(source.stat().st_mode & 0o111))
        if entry["result"] != entry["base"]:
            entries.append(entry)
            files[path] = data
    if refused or not files:
        raise FindingError(_finding(directory, package, refused))
    manifest = {
        "base": {"name": package.name, "version": package.version},
        "python": python,
        "files": entries,
        **additions.notes(files, original),
        "reference_versions": {},
    }
    return bundles.seal(manifest, files)


def _refused(path: str, source: Path, tops: t.Collection[str]) -> str:
    if not bundles.is_plain(path):
        return "has a name that no bundle holds, or lies above the package's directory"
    if path.split("/", 1)[0] not in tops:
        return "lies outside the package"
    if source.is_symlink() or not source.is_file():
        return "is no plain file"
    return ""


def _finding(directory: Path, package: records.Distribution, refused: t.Sequence[str]) -> Finding:
    if not directory.is_dir():
        message, found = "is no directory", "nothing at %s" % directory
    elif refused:
        message, found = "%d file(s) cannot be laid over %s" % (len(refused), package.name), ""
    else:
        message, found = "holds no file that differs from what is there already", ""
    tops = " or ".join("%s/%s/" % (directory, top) for top in sorted(package.packages()))
    fix = "put the patched files, and nothing else, under their paths below site-packages: %s…" % tops
    return Finding(
        "overlay.layer", ERROR, "overlays[].directory %s" % directory, message, found, evidence=records.listing(refused), fix=fix
    )
