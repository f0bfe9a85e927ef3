# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Locks that are made through a proxy: what needs a controller's Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import networks

from ..module_utils.test_networks import NAME, SECRETS, Site, lock, site

__all__ = ["site"]


def test_a_lock_is_made_through_the_proxy_and_says_nothing_of_the_way(site: Site) -> None:
    made = lock(site.network)
    assert made.versions == {"sglang": "0.5.9", "torch": "2.9.1"}
    assert {host for _method, host in site.proxy.seen} == {"%s:%d" % (NAME, site.index.server.server_port)}
    text = made.text()
    assert not [word for word in (*SECRETS, NAME, "bob") if word in text]


def test_without_the_variable_the_controllers_own_environment_holds(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = networks.prepared(networks.described(site.network), tmp_path, {})
    for name, value in ready.environment().items():
        monkeypatch.setenv(name, value)
    assert lock({}).versions["torch"] == "2.9.1"
    assert lock({"no_proxy": ["elsewhere.internal"]}).versions["torch"] == "2.9.1"
