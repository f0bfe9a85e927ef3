# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a rollback would do: which instance, from which release to which, within which time - or why there is none.

Reads the host alone, so that a rollback needs neither an inventory that is right nor a network.
"""

from __future__ import annotations

import typing as t
from pathlib import Path

from . import gates, pruning, releases, services, transactions, units
from .findings import ERROR, Finding, FindingError
from .layout import MARKER, Layout, unit_name
from .runners import Runner


def specification(spec: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """A rollback's spec with all that was left out: ``instance`` (the host's only one), ``release`` (the one before), ``deadline``.

    Raises FindingError when there is no such instance or release, or nothing to go back to.
    """
    layout = Layout(spec["root"])
    instance = spec.get("instance") or _only_instance(layout)
    _check_instance(layout, instance)
    wanted = releases.load(layout, instance, _target(layout, instance, spec.get("release")))
    now = releases.current(layout, instance)
    previous = _readable(layout, instance, now)
    return {**spec, "instance": instance, "release": wanted.id, "deadline": transactions.deadline(wanted.facts, previous).total}


def preview(spec: t.Mapping[str, t.Any], runner: Runner) -> dict[str, t.Any]:
    """What the job would do: its whole ``spec``, whether anything would be ``changed``, ``lines`` and ``diff`` for a person."""
    whole = specification(spec)
    layout, instance, target = Layout(whole["root"]), whole["instance"], whole["release"]
    now = releases.current(layout, instance)
    serves = now == target and _runs(layout, instance, target, runner)
    line = "%s goes back from %s to %s" % (instance, now or "nothing", target)
    return {
        "spec": whole,
        "changed": not serves,
        "lines": ["%s serves %s already" % (instance, target) if serves else line],
        "diff": [services.differences(whole["root"], releases.load(layout, instance, target))],
        "findings": [],
    }


def _runs(layout: Layout, instance: str, release: str, runner: Runner) -> bool:
    adopted = releases.adopted_unit(layout, instance, release)
    if adopted:
        return gates.unit_state(runner, adopted).get("ActiveState") == "active"
    try:
        running = Path(units.running_file(instance)).read_text(encoding="utf-8")
    except OSError:
        return False
    return running == release and gates.unit_state(runner, unit_name(instance)).get("ActiveState") == "active"


def _only_instance(layout: Layout) -> str:
    names = pruning.instance_names(layout)
    if len(names) == 1:
        return names[0]
    raise _refusal(
        "instance",
        "the instance",
        "is not named, and this host holds %s" % ("several" if names else "none"),
        found=", ".join(names) or "nothing was deployed here",
        expected="one instance",
        fix="name one with specdec_rollback_instance" if names else "deploy first",
    )


def _check_instance(layout: Layout, instance: str) -> None:
    names = pruning.instance_names(layout)
    if instance not in names:
        raise _refusal(
            "instance",
            "instance " + instance,
            "is not on this host",
            found=", ".join(names) or "none: nothing was deployed here",
            expected="one of these",
            fix="name one of these",
        )


def _target(layout: Layout, instance: str, asked: t.Optional[str]) -> str:
    if not asked:
        return transactions.way_back(layout, instance)
    known = _known(layout, instance)
    if asked in known:
        return asked
    raise _refusal(
        "release",
        "release %s of %s" % (asked, instance),
        "is not on this host",
        found="; ".join("%s (%s)" % item for item in known.items()) or "none",
        expected="one of these",
        fix="name one of these, or none to go back to the one before",
    )


def _known(layout: Layout, instance: str) -> dict[str, str]:
    """The releases one may name, each with what speaks for or against it."""
    entries = releases.history(layout, instance)
    served = {entry["to"] for entry in entries if entry["verdict"] == "committed"}
    known = {}
    for path in sorted((layout.instance(instance) / "releases").glob("*/release.json")):
        facts = _readable(layout, instance, path.parent.name)
        if facts is None:
            continue
        words = ["current"] * (facts["id"] == releases.current(layout, instance))
        words.append("served" if facts["id"] in served else "has not served")
        if releases.failed(layout, instance, facts["id"]):
            words.append("failed its gate")
        if not facts.get("adopted") and not (layout.environment(facts["environment"]) / MARKER).exists():
            words.append("its environment is not on the host")
        known[facts["id"]] = ", ".join([*words, "%s %s" % (facts["engine"]["name"], facts["engine"]["version"])])
    return known


def _readable(layout: Layout, instance: str, release: t.Optional[str]) -> t.Optional[dict[str, t.Any]]:
    """A release's facts; None where there is none, or it was changed by hand."""
    try:
        return releases.load(layout, instance, release).facts if release else None
    except FindingError:
        return None


def _refusal(id_: str, subject: str, message: str, **more: str) -> FindingError:
    return FindingError(Finding("rollback." + id_, ERROR, subject, message, **more))
