# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half of what another host has to give, with a connection that is a double: a reference, a build host."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

import pytest
from ansible.errors import AnsibleConnectionFailure

from ansible_collections.specdec.serving.plugins.action import capture, wheel
from ansible_collections.specdec.serving.plugins.module_utils.findings import Finding, FindingError
from ansible_collections.specdec.serving.plugins.plugin_utils.pins import Pins

TARGET = {"inventory_hostname": "ct200"}
WHEEL = {"package": "kernel", "python": "3.12", "machine": "x86_64", "root": "/opt/specdec", "network": {}}
SOURCE = {"git": "https://git.internal/kernel", "commit": "1" * 40, "build_host": "ct201"}


class Connection:
    """A host from which one file comes, or that is away."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = content
        self._shell = type("Shell", (), {"tmpdir": None, "join_path": staticmethod(os.path.join)})()

    def fetch_file(self, _path: str, local: str) -> None:
        Path(local).write_bytes(self.content)


class Alone:
    """An action without Ansible around it."""

    def __init__(self, arguments: dict[str, t.Any], answer: t.Any = None, content: bytes = b"") -> None:
        self._task = type("Task", (), {"args": arguments, "async_val": 0, "check_mode": False, "diff": False})()
        self._display = type("Display", (), {"display": staticmethod(lambda _text: None)})()
        self._connection = Connection(content)
        self.answer = answer

    def _make_tmp_path(self, *_words: t.Any) -> str:
        return "/tmp"

    def _remove_tmp_path(self, *_words: t.Any, **_options: t.Any) -> None: ...

    def _execute_module(self, *_words: t.Any, **_options: t.Any) -> t.Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Capture(Alone, capture.ActionModule): ...


class Wheel(Alone, wheel.ActionModule): ...


@pytest.mark.parametrize("known", [False, True], ids=["nothing known", "overlay known"])
def test_a_reference_that_is_away_is_named_with_what_the_pins_keep(tmp_path: Path, known: bool) -> None:
    if known:
        Pins(tmp_path).keep_reference("ct129", "sglang", "d" * 16, {})
    before = sorted(tmp_path.rglob("*"))
    arguments = {"pins_dir": str(tmp_path), "reference": "ct129", "replace": True}
    result = Capture(arguments, AnsibleConnectionFailure("no route to host")).run(None, TARGET)
    (finding,) = result["findings"]
    assert result["failed"] and (finding["id"], finding["verdict"]) == ("capture.unreachable", "error")
    assert finding["subject"] == "specdec_instances of ct200: overlays[].reference ct129"
    assert ("the pins keep overlay %s of it" % ("d" * 16) if known else "the pins hold no overlay of it") in finding["message"]
    assert finding["found"] == "no route to host" and finding["fix"].startswith("start ct129 or mend its ansible_host")
    assert [path for path in sorted(tmp_path.rglob("*")) if path.suffix == ".json"] == [path for path in before if path.suffix == ".json"]


def state(**changes: t.Any) -> dict[str, t.Any]:
    python = {"implementation": "cpython", "version": "3.11.2", "path": "/usr/bin/python3.11"}
    return {"state": {"os": {"machine": "x86_64"}, "pythons": [python], "tools": {}, **changes}}


@pytest.mark.parametrize(
    ("answer", "message", "found"),
    [
        (AnsibleConnectionFailure("no route to host"), "the build host cannot be reached", "no route to host"),
        ({"failed": True, "msg": "no python"}, "the build host cannot be asked", "no python"),
        (state(os={"machine": "aarch64"}), "the build host is another machine than the host", "ct201 is aarch64"),
        (state(), "the build host has no Python 3.12", "ct201 has 3.11.2"),
    ],
)
def test_a_build_host_that_cannot_build_is_named(tmp_path: Path, answer: t.Any, message: str, found: str) -> None:
    result = Wheel({**WHEEL, "pins_dir": str(tmp_path), "source": SOURCE}, answer).run(None, TARGET)
    (finding,) = result["findings"]
    assert result["failed"] and (finding["id"], finding["verdict"]) == ("wheel.build-host", "error")
    assert finding["subject"] == "ct200: specdec_pins.kernel.build_host"
    assert (finding["message"], finding["found"]) == (message, found)
    assert finding["fix"] == "name another build_host, or prepare ct201"
    assert not (tmp_path / "wheels").exists()


def test_a_wheel_that_does_not_come_whole_is_not_kept(tmp_path: Path) -> None:
    built = {"filename": "kernel-1.0-py3-none-any.whl", "sha256": "a" * 64, "size": 5, "path": "/opt/specdec/kernel.whl"}
    with pytest.raises(FindingError) as caught:
        Wheel({}, content=b"torn")._brought(Pins(tmp_path), "key", built, {**WHEEL, "source": SOURCE})
    finding: Finding = caught.value.finding
    assert (finding.id, finding.verdict, finding.subject) == ("wheel.transfer", "error", "specdec_pins.kernel")
    assert finding.expected == "sha256 " + "a" * 64 and finding.found != finding.expected
    assert finding.fix == "run the deploy again"
    assert not (tmp_path / "wheels").exists()
