# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the core needs of other projects, on a host: it lies in the host program, which may not be there."""

from __future__ import annotations

import importlib
import os
import sys
import typing as t

from .layout import Layout

_NEEDED = ("packaging.requirements", "elftools.elf.elffile")


def provide(root: str, program: str = "") -> list[str]:
    """Put the host program's libraries on the search path; the names of those that are not to be had even so.

    :param root: ``specdec_root``, whose own program is taken where there is one.
    :param program: another copy of it.
    """
    for place in (str(Layout(root).specdec), program):
        if place and os.path.isfile(place) and place not in sys.path:
            sys.path.insert(0, place)
    importlib.invalidate_caches()
    return [name for name in _NEEDED if not _there(name)]


def _there(name: str) -> bool:
    try:
        found: t.Any = importlib.import_module(name)
    except (ImportError, OSError):
        return False
    return found is not None
