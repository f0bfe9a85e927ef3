# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the loader is told of an environment's libraries, with an ldconfig that is a double and does what the real one does."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import registrations, releases
from ansible_collections.specdec.serving.plugins.module_utils.findings import OK, WARNING
from ansible_collections.specdec.serving.plugins.module_utils.layout import Layout
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed

FLAG = {"x86_64": "libc6,x86-64", "aarch64": "libc6,AArch64"}[os.uname().machine]


class Ldconfig:
    """The cache holds what the directories of the configuration held when it was last made."""

    def __init__(self, configuration: Path) -> None:
        self.configuration = configuration
        self.cache: dict[str, str] = {"libc.so.6": "/lib/libc.so.6"}
        self.system = dict(self.cache)
        self.made = 0
        self.broken = False

    def __call__(self, argv: t.Sequence[str], **_options: t.Any) -> Completed:
        if argv == ["/sbin/ldconfig", "-X"]:
            if self.broken:
                return Completed(1, "", "Can't create temporary cache file")
            self.made += 1
            self.cache = dict(self.system)
            lines = self.configuration.read_text().splitlines() if self.configuration.exists() else []
            for line in lines:
                for name in sorted(os.listdir(line)):
                    self.cache.setdefault(name, "%s/%s" % (line, name))
            return Completed(0, "", "")
        assert argv == ["/sbin/ldconfig", "-p"]
        return Completed(0, "".join("\t%s (%s) => %s\n" % (name, FLAG, path) for name, path in self.cache.items()), "")


class Place:
    def __init__(self, root: Path) -> None:
        self.layout = Layout(root / "opt")
        self.configuration = root / "etc" / "ld.so.conf.d" / "specdec.conf"
        self.configuration.parent.parent.mkdir()
        self.ldconfig = Ldconfig(self.configuration)

    def environment(self, name: str, *libraries: str) -> None:
        directory = self.layout.environment(name) / "lib"
        directory.mkdir(parents=True)
        for library in libraries:
            (directory / library).write_text("")

    def serve(self, instance: str, environment: t.Optional[str]) -> None:
        if environment is None:
            releases.flip(self.layout, instance, None)
            return
        gate = {"health": "/health", "timeout": 1}
        facts = {"instance": instance, "environment": environment, "engine": {"name": "e", "version": "1"}, "command": [], "gate": gate}
        release = releases.compose(str(self.layout.root), facts, {}, "")
        releases.store(self.layout, release)
        releases.flip(self.layout, instance, release.id)

    def settle(self) -> list[tuple[str, str]]:
        found = registrations.settle(self.layout, self.ldconfig, self.configuration)
        return [(one.verdict, one.message) for one in found]

    def known(self, name: str) -> t.Optional[str]:
        """Where the loader finds a library, links resolved."""
        path = self.ldconfig.cache.get(name)
        return str(Path(path).resolve().relative_to(self.layout.root)) if path else None

    def clean(self) -> bool:
        return not self.configuration.exists() and not self.layout.libraries.is_symlink() and self.ldconfig.cache == self.ldconfig.system


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.environment("e1", "libnvrtc.so.13", "libcublas.so.13")
    made.environment("e2", "libnvrtc.so.13")
    return made


def test_one_environment_is_registered_by_a_path_that_does_not_change(place: Place) -> None:
    place.serve("main", "e1")
    assert place.settle() == [(OK, "2 libraries are registered with the loader")]
    assert place.configuration.read_text() == "%s/lib\n" % place.layout.root
    assert place.known("libnvrtc.so.13") == "environments/e1/lib/libnvrtc.so.13"
    line = place.configuration.stat()
    place.serve("main", "e2")
    assert place.settle() == [(OK, "1 libraries are registered with the loader")]
    assert place.known("libnvrtc.so.13") == "environments/e2/lib/libnvrtc.so.13"
    assert place.known("libcublas.so.13") is None
    assert place.configuration.stat() == line, "a flip needs no new line"


def test_nothing_is_done_twice(place: Place) -> None:
    place.serve("main", "e1")
    place.settle()
    assert place.settle() == [(OK, "2 libraries are registered with the loader")]
    assert place.ldconfig.made == 1


def test_two_instances_on_one_environment_are_one(place: Place) -> None:
    place.serve("main", "e1")
    place.serve("other", "e1")
    assert place.settle()[0][0] == OK
    assert place.known("libnvrtc.so.13")


def test_two_environments_are_given_to_their_units_alone(place: Place) -> None:
    place.serve("main", "e1")
    place.settle()
    place.serve("other", "e2")
    assert place.settle() == [(OK, "the libraries are given to the units alone: 2 environments serve")]
    assert place.clean()
    place.serve("other", None)
    assert place.settle() == [(OK, "2 libraries are registered with the loader")]


def test_removal_takes_it_back(place: Place) -> None:
    place.serve("main", "e1")
    place.settle()
    place.serve("main", None)
    assert place.settle() == []
    assert place.clean()


def test_what_would_shadow_another_library_is_refused(place: Place) -> None:
    place.ldconfig.system["libnvrtc.so.13"] = place.ldconfig.cache["libnvrtc.so.13"] = "/usr/local/cuda-13.0/lib64/libnvrtc.so.13"
    place.serve("main", "e1")
    ((verdict, message),) = place.settle()
    assert verdict == WARNING and "would shadow what others find elsewhere" in message
    assert place.clean() and place.ldconfig.made == 0


def test_environment_that_needs_none_registers_nothing(place: Place) -> None:
    place.environment("e3")
    place.serve("main", "e3")
    assert place.settle() == []
    assert place.clean()


def test_what_cannot_be_registered_leaves_nothing_and_is_told(place: Place) -> None:
    place.serve("main", "e1")
    place.ldconfig.broken = True
    ((verdict, message),) = place.settle()
    assert verdict == WARNING and "could not be registered" in message
    assert not place.configuration.exists()


@pytest.mark.parametrize("state", ["link", "line", "line without cache", "cache without line"])
def test_what_was_cut_off_is_finished_or_taken_back(place: Place, state: str) -> None:
    for environment, verdict in (("e1", OK), (None, None)):
        place.serve("main", "e1")
        place.settle()
        if state in ("link", "cache without line"):
            place.configuration.unlink()
        if state == "line":
            place.layout.libraries.unlink()
        if state != "cache without line":
            place.ldconfig.cache = dict(place.ldconfig.system)
        place.serve("main", environment)
        found = place.settle()
        if verdict:
            assert [one for one, _message in found] == [verdict]
            assert place.known("libnvrtc.so.13") == "environments/e1/lib/libnvrtc.so.13"
        else:
            assert found == []
            assert place.clean()
