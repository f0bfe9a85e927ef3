# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file by its address, through a proxy from an origin with a login and a private authority; each failure by its name."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from authority import Authority
from index import File, Index
from proxy import Proxy

from ansible_collections.specdec.serving.plugins.action import wheel
from ansible_collections.specdec.serving.plugins.module_utils import networks
from ansible_collections.specdec.serving.plugins.module_utils.findings import Finding, FindingError
from ansible_collections.specdec.serving.plugins.plugin_utils import fetching

NAME = "files.internal"


class Site:
    """A file that only a proxy reaches, and ``specdec_network``."""

    def __init__(self, directory: Path, strict: bool = True) -> None:
        self.directory = directory
        authority = Authority(directory, strict)
        self.index = Index(context=authority.context(NAME), name=NAME, login="bob:indexPassword")
        self.file: File = self.index.add("kernel", "1.0")
        self.proxy = Proxy({NAME: ("127.0.0.1", self.index.server.server_port)}, login="carol:proxyPassword")
        login = {"username": "bob", "password": "indexPassword"}
        self.network = {"index": self.index.url, **login, "proxy": self.proxy.url(), "ca": str(authority.pem)}

    def fetch(self, sha256: t.Optional[str] = None, explained: t.Optional[fetching.Explained] = None, **change: t.Any) -> Path:
        ready = networks.prepared(networks.described({**self.network, **change}), self.directory, {})
        wanted = fetching.Wanted(self.index.link(self.file), sha256 or self.file.sha256, None, self.directory / "kernel.whl")
        explained = explained or wheel.explained("ct200: specdec_pins.kernel")
        fetching.fetch(wanted, fetching.Client(ready.environment()), lambda _count: None, explained)
        return wanted.dest

    def refused(self, **change: t.Any) -> Finding:
        with pytest.raises(FindingError) as caught:
            self.fetch(**change)
        assert "Password" not in caught.value.finding.text()
        assert not (self.directory / "kernel.whl").exists()
        return caught.value.finding


@pytest.fixture(params=[True, False], ids=["strict", "older"])
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> t.Iterator[Site]:
    monkeypatch.setattr(fetching, "_ATTEMPTS", 1)
    made = Site(tmp_path, request.param)
    yield made
    made.proxy.close()
    made.index.close()


def test_it_comes_through_the_proxy_with_the_indexes_login(site: Site) -> None:
    assert site.fetch().read_bytes() == site.file.content
    assert [method for method, _host in site.proxy.seen] == ["CONNECT"]


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"proxy": "http://carol:wrongPassword@%s"}, "network.proxy"),
        ({"ca": None}, "network.certificate"),
        ({"password": "wrongPassword"}, "wheel.download"),
        ({"proxy": None}, "wheel.download"),
        ({"sha256": "0" * 64}, "wheel.hash"),
    ],
    ids=["407", "unknown authority", "401", "no way", "other bytes"],
)
def test_what_goes_wrong_is_named_for_the_pin(site: Site, change: dict[str, t.Any], check: str) -> None:
    if change.get("proxy"):
        change = {"proxy": change["proxy"] % site.proxy.address}
    finding = site.refused(**change)
    assert (finding.id, finding.subject) == (check, "ct200: specdec_pins.kernel")


def test_the_wheelhouse_tells_the_same_in_its_own_words(site: Site) -> None:
    own = fetching.Explained()
    assert site.refused(explained=own, password="wrongPassword").id == "network.credentials"
    assert site.refused(explained=own, ca=None).subject == "the controller, fetching kernel.whl"
    assert site.refused(explained=own, sha256="0" * 64).id == "wheelhouse.hash"
