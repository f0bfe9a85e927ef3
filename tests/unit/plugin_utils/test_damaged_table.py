# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A damaged table of stacks stops a deploy on the controller."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.action import plan
from ansible_collections.specdec.serving.plugins.plugin_utils import controller

TEXT = (controller.DATA / "stacks.yml").read_text(encoding="utf-8")


class Plan(plan.ActionModule):
    """The action without Ansible around it; it must not reach a host."""

    def __init__(self, arguments: dict[str, t.Any]) -> None:
        self._task = t.cast("t.Any", type("Task", (), {"args": arguments, "async_val": 0, "check_mode": False, "diff": False})())
        shell = type("Shell", (), {"tmpdir": None})()
        self._connection = t.cast("t.Any", type("Connection", (), {"_shell": shell})())

    def _execute_module(self, *_arguments: t.Any, **_options: t.Any) -> dict[str, t.Any]:
        raise AssertionError("a host was asked")


def test_a_deploy_is_refused_before_a_host_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stacks.yml").write_text(TEXT.replace("kernel_name: sgl-kernel", "kernel_name: sgl-kernal", 1), encoding="utf-8")
    monkeypatch.setattr(controller, "DATA", tmp_path)
    controller.stacks.cache_clear()
    try:
        result = Plan({}).run(None, {"inventory_hostname": "ct200"})
    finally:
        controller.stacks.cache_clear()
    assert result["failed"] and "ct200: nothing was changed; the table of stacks" in result["msg"]
    assert "stacks.yml:" in result["msg"] and "Write sgl-kernel." in result["msg"]
