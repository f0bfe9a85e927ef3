# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The texts of an overlay side by side with its base and with what a host has, for ``--diff``."""

from __future__ import annotations

import difflib
import hashlib
import json
import typing as t
from pathlib import Path

from . import bundles
from .bundles import Base, Bundle
from .findings import FindingError
from .layout import MARKER, Layout


def text(data: t.Optional[bytes]) -> t.Optional[str]:
    """The text of a file, empty for none; None where it is no text."""
    try:
        return (data or b"").decode("utf-8")
    except UnicodeDecodeError:
        return None


def captured(bundle: Bundle, base: Base) -> list[dict[str, str]]:
    """Each text file of a bundle before and after the edit, as Ansible shows a difference."""
    shown = []
    for entry in bundle.manifest["files"]:
        path = entry["path"]
        before, after = text(base(path)), text(bundle.files.get(path))
        if before is not None and after is not None and before != after:
            shown.append({"before_header": "%s (wheel)" % path, "after_header": "%s (overlay)" % path, "before": before, "after": after})
    return shown


def foreign(bundle: Bundle, paths: t.Iterable[str], site_packages: Path, base: Base) -> list[str]:
    """Unified differences of files that somebody edited after the overlay was applied: base → overlay → host, in lines.

    :param paths: those of the bundle's files that are looked at; a file that is as the overlay left it has no lines.
    :param base: the unmodified texts, as far as they are at hand.
    """
    lines: list[str] = []
    for path in paths:
        wanted = bundle.files.get(path)
        file = site_packages / path
        found = file.read_bytes() if file.is_file() else None
        if found == wanted:
            continue
        lines += _unified(path, ("wheel", "overlay"), base(path), wanted) if base(path) is not None else []
        lines += _unified(path, ("overlay", "host"), wanted, found)
    return lines


def _unified(path: str, names: tuple[str, str], before: t.Optional[bytes], after: t.Optional[bytes]) -> list[str]:
    old, new = text(before), text(after)
    if old is None or new is None:
        return ["%s: %s and %s differ, and are no text" % (path, *names)]
    headers = ["%s (%s)" % (path, name) for name in names]
    return [line.rstrip("\n") for line in difflib.unified_diff(old.splitlines(True), new.splitlines(True), *headers)]


def edits(layout: Layout, environment: str) -> list[str]:
    """What somebody edited of an environment's overlaid files, as unified differences in lines; empty where nothing was.

    The texts of the overlays are those of their bundles on this host; the base's come from another overlay or another
    environment of this host that has them, and are left out where none has. Raises OSError and ValueError where the environment
    cannot be read.
    """
    directory = layout.environment(environment)
    site_packages = next((directory / "venv" / "lib").glob("python3*/site-packages"))
    manifests = json.loads((directory / "overlay.json").read_text(encoding="utf-8"))
    last = {entry["path"]: number for number, manifest in enumerate(manifests) for entry in manifest["files"]}
    held: list[Bundle] = []
    lines: list[str] = []
    for number, manifest in enumerate(manifests):
        try:
            bundle = bundles.read_bundle(layout.overlays / manifest["digest"])
        except (OSError, FindingError):
            lines.append("overlay %s: its texts are no longer on this host" % manifest["digest"])
            continue
        base = _elsewhere(layout, manifest, tuple(held))
        lines += foreign(bundle, [path for path, winner in sorted(last.items()) if winner == number], site_packages, base)
        held.append(bundle)
    return lines


def _elsewhere(layout: Layout, manifest: t.Mapping[str, t.Any], held: t.Sequence[Bundle]) -> Base:
    """The base texts of an overlay, recognised by their hash, in the overlays before it and in other environments."""
    wanted = {entry["path"]: entry["base"] for entry in manifest["files"]}

    def read(path: str) -> t.Optional[bytes]:
        places = [place for place in sorted(layout.environments.glob("*/venv/lib/python3*/site-packages")) if (place / path).is_file()]
        files = [place / path for place in places if (place.parents[3] / MARKER).exists()]
        candidates = [*(bundle.files[path] for bundle in held if path in bundle.files), *(file.read_bytes() for file in files)]
        return next((data for data in candidates if hashlib.sha256(data).hexdigest() == wanted[path]), None)

    return read
