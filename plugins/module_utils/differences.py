# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The texts of an overlay side by side with its base and with what a host has, for ``--diff``."""

from __future__ import annotations

import difflib
import typing as t
from pathlib import Path

from .bundles import Base, Bundle


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
        if before is not None and after is not None:
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
