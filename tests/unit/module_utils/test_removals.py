# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a removal refuses, and what it says of what went and what did not; a double stands for systemd and the user database."""

from __future__ import annotations

import types
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import pruning, registrations, releases, removals
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, OK, WARNING, Finding, FindingError, from_dict
from ansible_collections.specdec.serving.plugins.module_utils.layout import Layout
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed

UNIT = "specdec-main.service"


class Host:
    """A root with one instance, its unit, and its user."""

    def __init__(self, directory: Path) -> None:
        self.layout = Layout(directory / "root")
        self.units, self.sysusers = directory / "units", directory / "sysusers.d"
        for path in (self.units, self.sysusers, self.layout.instance("main"), self.layout.state / "main"):
            path.mkdir(parents=True)
        (self.units / UNIT).write_text("[Service]\nExecStart=/usr/bin/python3 %s/main/current/launch.py\n" % self.layout.instances)
        self.users = {"specdec-main"}
        self.calls: list[str] = []
        self.busy = False

    def runner(self, argv: t.Sequence[str], **_options: t.Any) -> Completed:
        self.calls.append(" ".join(argv[:2]))
        if argv[0] == "userdel":
            if self.busy:
                return Completed(8, "", "userdel: user %s is currently used by process 7" % argv[1])
            self.users.discard(argv[1])
        return Completed(0, "ActiveState=inactive\n" if "show" in argv else "", "")

    def getpwnam(self, user: str) -> str:
        if user not in self.users:
            raise KeyError(user)
        return user

    def spec(self, **asked: t.Any) -> dict[str, t.Any]:
        return {"kind": "remove", "root": str(self.layout.root), "instance": "main", "confirmed": True, **asked}

    def remove(self, **asked: t.Any) -> dict[str, Finding]:
        """The findings of a removal by id."""
        result = removals.remove(self.spec(**asked), self.runner, lambda *_words, **_data: None)
        return {one["id"]: from_dict(one) for one in result["findings"]}

    def refused(self, **asked: t.Any) -> Finding:
        """The finding of a removal that does nothing."""
        before = sorted(self.layout.root.parent.rglob("*"))
        with pytest.raises(FindingError) as caught:
            self.remove(**asked)
        assert sorted(self.layout.root.parent.rglob("*")) == before and self.calls == []
        return caught.value.finding


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.setattr(removals, "UNITS", str(made.units))
    monkeypatch.setattr(releases, "SYSUSERS", made.sysusers)
    monkeypatch.setattr(removals, "pwd", types.SimpleNamespace(getpwnam=made.getpwnam))
    monkeypatch.setattr(removals, "grp", types.SimpleNamespace(getgrnam=made.getpwnam))
    # the host's loader is the registrations' own to test
    monkeypatch.setattr(registrations, "settle", lambda *_words: [])
    return made


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"instance": ""}, "say nothing"),
        ({"everything": True}, "say two different things"),
    ],
    ids=["nothing", "both"],
)
def test_what_is_to_go_has_to_be_said(host: Host, asked: dict[str, t.Any], message: str) -> None:
    finding = host.refused(**asked)
    assert (finding.id, finding.verdict, finding.message) == ("remove.what", ERROR, message)
    assert finding.subject == "specdec_remove_instance, specdec_remove_everything"
    assert "specdec_remove_instance" in finding.fix and "specdec_remove_everything" in finding.fix


@pytest.mark.parametrize("name", ["Main", "../main", "main;x", "-main"])
def test_an_instance_is_a_name(host: Host, name: str) -> None:
    finding = host.refused(instance=name)
    assert (finding.id, finding.verdict, finding.found) == ("remove.instance", ERROR, name)
    assert (finding.subject, finding.fix) == ("specdec_remove_instance", "name one of the instances that the host holds")


def test_nothing_goes_before_somebody_has_seen_what(host: Host) -> None:
    finding = host.refused(confirmed=False)
    assert (finding.id, finding.verdict, finding.subject) == ("remove.unconfirmed", ERROR, "specdec_remove_confirm")
    assert "unit %s" % UNIT in finding.found and "system user specdec-main" in finding.found
    assert "specdec_remove_confirm=true" in finding.fix
    seen = removals.preview(host.spec(confirmed=False), host.runner)
    assert seen["changed"] and seen["refusal"] == finding.as_dict()
    assert removals.preview(host.spec(), host.runner)["refusal"] is None


def test_an_instance_goes_with_its_unit_and_user(host: Host) -> None:
    found = host.remove()
    assert list(found) == ["remove.done"]
    assert (found["remove.done"].verdict, found["remove.done"].subject) == (OK, "the host")
    assert found["remove.done"].message.startswith("removed 4 things")
    assert host.users == set() and not (host.units / UNIT).exists() and not host.layout.instance("main").exists()
    assert "systemctl daemon-reload" in host.calls


def test_what_does_not_go_is_named_and_does_not_keep_the_rest(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    remove, stays = pruning.remove, host.layout.state / "main"

    def busy(path: Path) -> None:
        if path == stays:
            raise OSError(16, "Device or resource busy")
        remove(path)

    monkeypatch.setattr(pruning, "remove", busy)
    finding = host.remove()["remove.failed"]
    assert (finding.verdict, finding.subject) == (ERROR, "caches of main")
    assert "busy" in finding.evidence and "run this again" in finding.fix
    assert stays.exists() and not host.layout.instance("main").exists()


def test_a_user_that_stays_is_told_with_its_reason(host: Host) -> None:
    host.busy = True
    finding = host.remove()["remove.user"]
    assert (finding.verdict, finding.subject, finding.message) == (WARNING, "user specdec-main", "is still there")
    assert "process 7" in finding.evidence and finding.fix.endswith("userdel specdec-main")


def test_what_others_may_share_stays_while_that_cannot_be_known(host: Host) -> None:
    facts = {"instance": "other", "environment": "e1", "engine": {"name": "e", "version": "1"}, "command": [], "gate": {"timeout": 1}}
    release = releases.compose(str(host.layout.root), facts, {}, "")
    releases.store(host.layout, release)
    releases.flip(host.layout, "other", release.id)
    (host.layout.release("other", release.id) / "config.json").write_text('{"changed": "by hand"}')
    gone = host.layout.environment("e2")
    gone.mkdir(parents=True)
    finding = host.remove()["remove.shared"]
    assert (finding.verdict, finding.subject, finding.evidence) == (WARNING, "the host", "models stay")
    assert "what only main used" in finding.message and release.id in finding.found
    assert finding.fix == "mend that, then prune"
    assert gone.exists() and not host.layout.instance("main").exists()


def test_what_somebody_else_put_into_the_root_stays_and_is_named(host: Host) -> None:
    (host.layout.root / "notes.txt").write_text("mine")
    host.layout.models.mkdir()
    finding = host.remove(instance="", everything=True)["remove.left"]
    assert (finding.verdict, finding.subject, finding.found) == (WARNING, str(host.layout.root), "notes.txt")
    assert finding.fix == "remove by hand what nobody needs"
    assert sorted(path.name for path in host.layout.root.iterdir()) == ["models", "notes.txt"]
