# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A release put on its host beside what serves: user, state directory, secrets, files, recovery unit.

Nothing here touches a unit that runs or the release that is current.
"""

from __future__ import annotations

import typing as t

from . import releases, transactions
from .findings import ERROR, Finding, FindingError
from .layout import MARKER, Layout, unit_name
from .runners import Runner


def install(root: str, release: releases.Release, secrets: t.Mapping[str, str], runner: Runner) -> bool:
    """Put one release in place; whether anything was written.

    :param secrets: values by name, for those versions that the host does not hold yet.

    Raises FindingError when its environment is not on the host, a value is missing or a tool of systemd's refuses.
    """
    layout = Layout(root)
    facts = release.facts
    _need_environment(layout, facts)
    transactions.prepare_user(layout, facts, runner)
    changed = False
    for name, secret in facts["secrets"].items():
        changed |= _secret(layout, facts["instance"], name, secret["version"], secrets)
    changed |= releases.store(layout, release)
    transactions.guard_boots(layout, runner)
    return changed


def differences(root: str, release: releases.Release) -> dict[str, str]:
    """What changes against the current release: ``before`` and ``after`` as Ansible's diff wants them."""
    layout = Layout(root)
    before = {}
    current = releases.current(layout, release.instance)
    if current is not None:
        directory = layout.release(release.instance, current)
        before = {name: (directory / name).read_text(encoding="utf-8") for name in release.files() if (directory / name).exists()}
    shown = ("config.json", unit_name(release.instance))
    return {
        "before_header": "%s, release %s" % (release.instance, current or "none"),
        "after_header": "%s, release %s" % (release.instance, release.id),
        "before": "".join("# %s\n%s" % (name, before[name]) for name in shown if name in before),
        "after": "".join("# %s\n%s" % (name, release.files()[name]) for name in shown),
    }


def _need_environment(layout: Layout, facts: t.Mapping[str, t.Any]) -> None:
    """A stage that is run alone must not leave releases of what was never built."""
    marker = layout.environment(facts["environment"]) / MARKER
    if not marker.exists():
        raise FindingError(
            Finding(
                "release.not-built",
                ERROR,
                "environment %s of instance %s" % (facts["environment"], facts["instance"]),
                "is not built on this host yet; nothing was changed",
                evidence="%s is not there" % marker,
                fix="run the stage before this one: deploy with --tags build, or without --tags",
            )
        )


def _secret(layout: Layout, instance: str, name: str, version: str, values: t.Mapping[str, str]) -> bool:
    if releases.secret_path(layout, instance, version).exists():
        return False
    if name not in values:
        raise FindingError(
            Finding(
                "release.secret",
                ERROR,
                "%s of instance %s" % (name, instance),
                "its value is not there",
                expected="a value for version %s" % version,
                fix="set %s of the instance in the inventory" % name,
            )
        )
    releases.store_secret(layout, instance, version, values[name])
    return True
