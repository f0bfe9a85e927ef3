# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan (see plans.py) in lines, for a person."""

from __future__ import annotations

import os
import typing as t

from . import overlays, packagelists
from .layout import Layout

#: Of more artifacts than this a person only reads how many they are.
_NAMED = 8


def changes(plan: t.Mapping[str, t.Any]) -> list[str]:
    """The plan in lines, for a person."""
    lines = ["%s: %s: %s" % (one["verdict"], one["subject"], one["message"]) for one in plan["findings"]]
    lines += [_lacking(pin, plan["root"]) for pin in plan["missing_pins"]]
    for kind, artifacts_ in plan["artifacts"].items():
        if artifacts_:
            named = ", ".join(_short(one["dest"], plan["root"]) for one in artifacts_)
            lines.append("send %s: %s" % (kind, named if len(artifacts_) <= _NAMED else "%d files" % len(artifacts_)))
    for one in plan["environments"]:
        if not one["present"]:
            lines.append("build environment %s: %s, lane %s, %d packages" % (one["id"], one["engine"], one["lane"], one["packages"]))
            lines += ["  " + line for line in packagelists.summary(one["changes"], one["previous"], one["sent"])]
            lines += ["  overlay %(digest)s on %(package)s, %(origin)s" % overlay for overlay in one["overlays"]]
            lines += ["  " + overlays.layering_text(file) for file in one["replaced"]]
    lines += ["fetch %s at %s from the hub" % (one["repo"], one["revision"]) for one in plan["fetches"]]
    lines += ["take over %(unit)s as release %(id)s of %(instance)s, without a restart" % one for one in plan["adoptions"]]
    for one in plan["releases"]:
        if one["switch_needed"]:
            lines.append("switch %s from %s to release %s" % (one["instance"], one["current"] or "nothing", one["id"]))
            lines.append("  limits: %s" % one["limits"])
    return [plan["hardware"], *(lines or ["nothing to do"]), *(gone_text(one) for one in plan["gone"])]


def gone_text(gone: t.Mapping[str, t.Any]) -> str:
    """An instance that is not in the inventory, for a person."""
    port = " on port %s" % gone["port"] if gone["port"] else ""
    advice = "left alone; the playbook remove takes it off with specdec_remove_instance=%s" % gone["instance"]
    return "instance %s is on the host (%s%s) and not in the inventory: %s" % (gone["instance"], gone["state"], port, advice)


def package_changes(plan: t.Mapping[str, t.Any]) -> list[str]:
    """One line for each package that an environment to be built has in another version than what serves."""
    wanted = [one for one in plan["environments"] if not one["present"]]
    return ["%s: %s" % (one["id"], line) for one in wanted for line in packagelists.listed(one["changes"])]


def _lacking(pin: t.Mapping[str, t.Any], root: str) -> str:
    """What is to be made first, for a person."""
    if pin["kind"] == "python":
        place = Layout(root).python
        return "could not check: Python is not installed yet; would install %s below %s, then look again" % (pin["name"], place)
    return "pins lack %s" % (pin.get("name") or "the overlay of %s on %s" % (pin["package"], pin["reference"]))


def _short(dest: str, root: str) -> str:
    """A destination for a person: wheels by their file name, the rest below the root."""
    return os.path.basename(dest) if dest.endswith(".whl") else os.path.relpath(dest, root)
