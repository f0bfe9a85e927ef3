# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking one instance, or everything, off a host again: unit, user, keys, releases, caches; models only when asked.

What is there decides what is to be done, so that a removal that was cut short goes on where it stopped, and one that has nothing
to do does nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import grp
import pwd
import re
import typing as t
from pathlib import Path

from . import pruning, registrations, releases, transactions
from .findings import ERROR, OK, WARNING, Finding, FindingError
from .layout import RECOVER_UNIT, UNITS, Layout, unit_name, user_name
from .pruning import Doomed
from .runners import Progress, Runner


@dataclasses.dataclass
class Removal:
    """What a removal has to do.

    :param instances: names; :param services: their units that systemd knows or that have files.
    :param units: unit files and the links that enable them.
    :param users: system users that exist.
    :param items: the rest, in the order in which it goes.
    :param findings: what could not be decided.
    """

    instances: list[str]
    services: list[str]
    units: list[Path]
    users: list[str]
    items: list[Doomed]
    findings: list[Finding]

    def lines(self) -> list[str]:
        """What goes, for a person."""
        named = ["unit %s" % path.name for path in self.units if path.is_file() and not path.is_symlink()]
        return [*named, *("system user %s" % user for user in self.users), *(item.what for item in self.items)]


def find(spec: t.Mapping[str, t.Any], runner: Runner) -> Removal:
    """What is there of what a spec names: ``instance``, or ``everything``; ``models`` go too when asked. Raises FindingError."""
    if bool(spec.get("instance")) == bool(spec.get("everything")):
        raise FindingError(
            Finding(
                "remove.what",
                ERROR,
                "specdec_remove_instance, specdec_remove_everything",
                "say %s" % ("two different things" if spec.get("instance") else "nothing"),
                expected="exactly one of them",
                fix="set specdec_remove_instance to a name, or specdec_remove_everything to true",
            )
        )
    layout = Layout(spec["root"])
    models = bool(spec.get("models"))
    return _everything(layout, models) if spec.get("everything") else _one(layout, spec["instance"], models)


def _one(layout: Layout, instance: str, models: bool) -> Removal:
    if not re.fullmatch(r"[a-z][a-z0-9-]*", instance):
        fix = "name one of the instances that the host holds"
        raise FindingError(Finding("remove.instance", ERROR, "specdec_remove_instance", "is no name", found=instance, fix=fix))
    found = _of([instance], layout)
    findings = []
    with_models = "models stay" if not models else "models go too"
    if layout.instance(instance).exists():
        try:
            before = set(pruning.doomed(layout))
            shared = [one for one in pruning.doomed(layout, without=[instance]) if one not in before]
            found[:0] = [one for one in shared if models or not one.what.startswith("model ")]
        except FindingError as error:
            message = "what only %s used cannot be told from what others use, and stays" % instance
            fix = "mend that, then prune"
            findings.append(
                Finding("remove.shared", WARNING, "the host", message, found=error.finding.text(), evidence=with_models, fix=fix)
            )
    return _removal([instance], found, findings)


def _everything(layout: Layout, models: bool) -> Removal:
    instances = _known(layout)
    places = [layout.environments, layout.instances, layout.state, layout.cache, layout.python, *([layout.models] if models else ())]
    found = [Doomed("%s and all in it" % place, (place,)) for place in [*places, layout.bin] if place.exists()]
    users = [Doomed("declaration of user %s" % user_name(name), (_sysusers(name),)) for name in instances if _sysusers(name).exists()]
    removal = _removal(instances, [*users, *found], [])
    removal.units += [path for path in _unit_files(RECOVER_UNIT) if _mentions(Path(UNITS) / RECOVER_UNIT, layout.root)]
    return removal


def _removal(instances: list[str], items: list[Doomed], findings: list[Finding]) -> Removal:
    paths = [path for name in instances for path in _unit_files(unit_name(name))]
    users = [user_name(name) for name in instances if _exists(user_name(name))]
    return Removal(instances, [unit_name(name) for name in instances], paths, users, items, findings)


def _of(instances: t.Iterable[str], layout: Layout) -> list[Doomed]:
    """What is an instance's own, beside its unit and user; what names the rest goes last."""
    found = []
    for name in instances:
        places = (
            ("caches of %s" % name, layout.state / name),
            ("declaration of user %s" % user_name(name), _sysusers(name)),
            ("releases, keys and history of %s" % name, layout.instance(name)),
        )
        found += [Doomed(what, (path,)) for what, path in places if path.exists()]
    return found


def _known(layout: Layout) -> list[str]:
    """Instances of which anything is left on the host."""
    names = {path.name for top in (layout.instances, layout.state) if top.is_dir() for path in top.iterdir() if path.is_dir()}
    for path in Path(UNITS).glob("specdec-*.service"):
        if path.name != RECOVER_UNIT and _mentions(path, layout.instances):
            names.add(path.name[len("specdec-") : -len(".service")])
    for path in releases.SYSUSERS.glob("specdec-*.conf"):
        if _mentions(path, layout.state):
            names.add(path.name[len("specdec-") : -len(".conf")])
    return sorted(names)


def _mentions(path: Path, place: Path) -> bool:
    """Whether a file is of this root, and not of another one on the same host."""
    try:
        return str(place) + "/" in path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def _sysusers(instance: str) -> Path:
    return releases.SYSUSERS / ("%s.conf" % user_name(instance))


def _unit_files(unit: str) -> list[Path]:
    """A unit's file and the links that enable it."""
    paths = [*Path(UNITS).glob("*.wants/" + unit), Path(UNITS) / unit]
    return [path for path in paths if path.is_symlink() or path.exists()]


def _exists(user: str) -> bool:
    try:
        return bool(pwd.getpwnam(user))
    except KeyError:
        return False


def preview(spec: t.Mapping[str, t.Any], runner: Runner) -> dict[str, t.Any]:
    """What a removal would do (see previews.py); ``refusal`` says why it is not started. Raises FindingError."""
    removal = find(spec, runner)
    listed = removal.lines()
    lines = ["would remove %s" % line for line in listed]
    if listed:
        freed = sum(pruning.sizes(removal.items))
        lines.append("would free %s (%d bytes)" % (pruning.size(freed), freed))
    else:
        lines.append(_nothing(spec))
    return {
        "spec": dict(spec),
        "changed": bool(listed),
        "lines": lines,
        "diff": [{"before_header": "on the host", "after_header": "after", "before": "\n".join(listed) + "\n", "after": ""}]
        if listed
        else [],
        "findings": [one.as_dict() for one in removal.findings],
        "refusal": None if spec.get("confirmed") else _unconfirmed(listed).as_dict(),
    }


def _nothing(spec: t.Mapping[str, t.Any]) -> str:
    if spec.get("everything"):
        return "nothing to remove: the host holds nothing"
    names = pruning.instance_names(Layout(spec["root"]))
    return "nothing to remove of %s: the host holds %s" % (spec["instance"], ", ".join(names) or "no instance")


def _unconfirmed(listed: t.Sequence[str]) -> Finding:
    return Finding(
        "remove.unconfirmed",
        ERROR,
        "specdec_remove_confirm",
        "is not set: nothing is removed before somebody has seen what goes",
        found="\n".join(listed),
        fix="read the list, then run it again with -e specdec_remove_confirm=true",
    )


def remove(spec: t.Mapping[str, t.Any], runner: Runner, progress: Progress) -> dict[str, t.Any]:
    """Job kind *remove*: instance or everything, models, confirmed.

    :returns: changed, removed (for a person), freed (bytes), findings. Raises FindingError when a unit does not stop.
    """
    removal = find(spec, runner)
    if not spec.get("confirmed"):
        raise FindingError(_unconfirmed(removal.lines()))
    listed = removal.lines()
    for unit in removal.services:
        progress("remove", "stopping %s" % unit)
        transactions.stop(unit, runner)
    _forget_units(removal, runner)
    findings = list(removal.findings)
    for user in removal.users:
        findings += _remove_user(user, runner)
    done = pruning.remove_all(removal.items, progress, "remove.failed")
    findings += done.findings
    findings += [one for one in registrations.settle(Layout(spec["root"]), runner) if one.verdict != OK]
    if spec.get("everything"):
        findings += _tidy(Layout(spec["root"]))
    message = "removed %d things, %s (%d bytes)" % (len(listed), pruning.size(done.freed), done.freed)
    progress("remove", message, bytes=done.freed)
    findings.insert(0, Finding("remove.done", OK, "the host", message))
    return {
        "changed": bool(listed),
        "removed": listed,
        "freed": done.freed,
        "findings": [one.as_dict() for one in findings],
    }


def _forget_units(removal: Removal, runner: Runner) -> None:
    """systemd is reloaded only where a unit's file went."""
    for path in removal.units:
        path.unlink(missing_ok=True)
    if removal.units:
        runner(["systemctl", "daemon-reload"], timeout=120)
    for unit in removal.services:
        runner(["systemctl", "reset-failed", unit], timeout=30)


def _remove_user(user: str, runner: Runner) -> list[Finding]:
    answer = runner(["userdel", user], timeout=60)
    with contextlib.suppress(KeyError):
        if grp.getgrnam(user):
            runner(["groupdel", user], timeout=60)
    if not _exists(user):
        return []
    fix = "end what runs as that user, then: userdel %s" % user
    return [Finding("remove.user", WARNING, "user " + user, "is still there", evidence=answer.stderr.strip(), fix=fix)]


def _tidy(layout: Layout) -> list[Finding]:
    """The root itself goes when it is empty; a file system that is mounted there, and what somebody put there, stay."""
    with contextlib.suppress(OSError):
        layout.root.rmdir()
    left = sorted(path.name for path in layout.root.iterdir()) if layout.root.is_dir() else []
    strange = [name for name in left if name != layout.models.name]
    if not strange:
        return []
    fix = "remove by hand what nobody needs"
    message = "holds what is not this collection's"
    return [Finding("remove.left", WARNING, str(layout.root), message, found=", ".join(strange), fix=fix)]
