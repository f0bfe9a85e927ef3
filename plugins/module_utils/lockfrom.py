# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Versions taken over from a reference host: what it has, in the lane of the host that is deployed to."""

from __future__ import annotations

import re
import typing as t

from . import parity
from .findings import ERROR, Finding


def _engine(tables: t.Mapping[str, t.Any], packages: t.Container[str], engine: str) -> t.Optional[str]:
    """The name under which a reference has an engine: that on a CPU may be another one."""
    names = (engine, tables["engines"][engine].get("cpu", {}).get("package", engine))
    return next((name for name in names if name in packages), None)


def version(tables: t.Mapping[str, t.Any], packages: t.Mapping[str, str], engine: str) -> t.Optional[str]:
    """The public version of a reference's engine, None where it has none."""
    name = _engine(tables, packages, engine)
    return parity.public(packages[name]) if name else None


def versions(tables: t.Mapping[str, t.Any], packages: t.Mapping[str, str], engine: str) -> dict[str, str]:
    """The public versions of a reference's packages, without the engine and without what the lane decides itself.

    :param tables: ``data/stacks.yml``, parsed; :param packages: version by name as captured, with local labels.
    """
    family = tables["lane_family"]
    own = _engine(tables, packages, engine)
    return {
        name: parity.public(version)
        for name, version in sorted(packages.items())
        if name != own and (name in family["except"] or not re.match("|".join(family["names"]) + "$", name))
    }


def refusal(
    tables: t.Mapping[str, t.Any],
    reference: str,
    captured: t.Mapping[str, t.Any],
    engine: t.Mapping[str, t.Any],
    subject: t.Callable[[str], str],
) -> t.Optional[Finding]:
    """Why a reference's versions cannot be taken over; None when they can.

    :param captured: what the pins know of the reference; :param engine: as written; :param subject: names an option of it.
    """
    packages = captured.get("packages")
    again = "run playbooks/capture.yml while %s can be reached (it needs an overlays entry with reference: %s)" % (reference, reference)
    where = subject("lock_from")
    if not captured:
        return Finding("lock.from", ERROR, where, "nothing is known of this reference", reference, "a captured reference", fix=again)
    if not packages:
        message = "the reference was captured before its packages were recorded"
        return Finding("lock.from", ERROR, where, message, reference, "the versions of all its packages", fix=again)
    there = version(tables, packages, engine["name"])
    if there is None:
        fix = "name a reference that has %s, or take lock_from out" % engine["name"]
        found = "no %s in %s" % (engine["name"], captured.get("captured_from", "its environment"))
        return Finding("lock.from", ERROR, where, "the reference has another engine", found, engine["name"], fix=fix)
    wanted = engine.get("version")
    if wanted and parity.public(str(wanted)) != there:
        fix = "take version out: it is the reference's then; or take lock_from out, or set version to %s" % there
        message = "engine.version contradicts lock_from"
        return Finding("lock.from", ERROR, subject("version"), message, str(wanted), "%s, as on %s" % (there, reference), fix=fix)
    return None
