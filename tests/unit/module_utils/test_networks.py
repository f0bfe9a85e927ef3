# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The way to an index: what may be written of it, and the real uv through a proxy to an index with TLS and a login."""

from __future__ import annotations

import dataclasses
import json
import typing as t
from pathlib import Path

import pytest
import uv
from authority import Authority
from index import Index
from proxy import Proxy

from ansible_collections.specdec.serving.plugins.module_utils import locks, networks, schema
from ansible_collections.specdec.serving.plugins.module_utils.findings import Finding, FindingError
from ansible_collections.specdec.serving.plugins.module_utils.layout import Layout
from ansible_collections.specdec.serving.plugins.plugin_utils import basewheels, controller, hosttools

from .test_environments import Host

NAME = "index.internal"
PASSWORD = "hunter2/@:%"
PROXY_PASSWORD = "pr0xy pa@ss"
SECRETS = (PASSWORD, "pr0xy", "carol")


@dataclasses.dataclass
class Site:
    """An index that only a proxy reaches, and how it is reached."""

    index: Index
    proxy: Proxy
    network: dict[str, t.Any]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> t.Iterator[Site]:
    # a try again would only take its time
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    authority = Authority(tmp_path)
    index = Index(context=authority.context(NAME), name=NAME, login="bob:" + PASSWORD)
    index.add("torch", "2.9.1")
    index.add("sglang", "0.5.9", ["torch"])
    proxy = Proxy({NAME: ("127.0.0.1", index.server.server_port)}, login="carol:" + PROXY_PASSWORD)
    network = {"index": index.url, "username": "bob", "password": PASSWORD, "proxy": proxy.url(), "ca": str(authority.pem)}
    yield Site(index, proxy, network)
    proxy.close()
    index.close()


INPUTS = {
    "engine": "sglang",
    "version": "0.5.9",
    "lane": "cpu",
    "machine": "x86_64",
    "python": "3.12",
    "platform": "x86_64-manylinux_2_28",
    "requirements": ["sglang==0.5.9"],
    "overrides": [],
    "excludes": [],
    "builds": [],
    "indexes": [],
    "sources": {},
    "exclude_newer": "",
}


def lock(network: t.Mapping[str, t.Any]) -> locks.Lock:
    return locks.lock(INPUTS, controller.networked(network), hosttools.find_uv())


def refusal(function: t.Callable[..., t.Any], *arguments: t.Any) -> Finding:
    with pytest.raises(FindingError) as caught:
        function(*arguments)
    shown = json.dumps(caught.value.finding.as_dict())
    assert not [secret for secret in SECRETS if secret in shown]
    return caught.value.finding


def test_an_unmodified_package_is_fetched_the_same_way(site: Site, tmp_path: Path) -> None:
    base = {"name": "sglang", "version": "0.5.9"}
    fetched = basewheels.fetch(tmp_path / "bases", controller.networked(site.network), base, "3.12", "x86_64")
    assert (fetched / "sglang" / "__init__.py").is_file()
    network = {**site.network, "password": "wrong"}
    finding = refusal(basewheels.fetch, tmp_path / "others", controller.networked(network), base, "3.12", "aarch64")
    assert (finding.id, finding.subject) == ("network.credentials", "the controller, fetching sglang==0.5.9")


def test_the_hosts_tools_are_fetched_the_same_way(site: Site, tmp_path: Path) -> None:
    finding = refusal(hosttools.host_uv, tmp_path / "tools", controller.networked({**site.network, "ca": None}), None, "x86_64")
    assert (finding.id, "uv==" in finding.subject) == ("network.certificate", True)


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        ({"proxy": "http://carol:wrong@%s"}, "network.proxy", ("asks for a login", "specdec_network.proxy")),
        ({"proxy": None, "no_proxy": [NAME]}, "network.unreachable", ("does not answer", "specdec_network")),
        ({"password": "wrong"}, "network.credentials", ("401", "specdec_network.password")),
        ({"username": None, "password": None}, "network.credentials", ("401", "specdec_network.username")),
        ({"ca": None}, "network.certificate", ("not trusted", "specdec_network.ca")),
        ({"index": "https://other.internal/simple"}, "network.proxy", ("does not reach the address", "no_proxy")),
    ],
)
def test_what_goes_wrong_on_the_way_is_told_apart(site: Site, change: dict[str, t.Any], check: str, words: tuple[str, ...]) -> None:
    if "%s" in (change.get("proxy") or ""):
        change = {"proxy": change["proxy"] % site.proxy.address}
    finding = refusal(lock, {**site.network, **change})
    assert finding.id == check
    assert finding.subject == "the controller, locking sglang 0.5.9 on lane cpu"
    for word in words:
        assert word in finding.text()


def test_an_index_that_is_broken_or_something_else_is_told(site: Site) -> None:
    site.index.fault = "error"
    assert refusal(lock, site.network).id == "network.answer"
    site.index.fault = "garbage"
    finding = refusal(lock, site.network)
    assert (finding.id, "login page" in finding.text()) == ("lock.missing-version", True)
    site.index.close()
    assert refusal(lock, site.network).id == "network.proxy"


# On a host


@pytest.fixture
def host(tmp_path: Path, site: Site) -> Host:
    layout = Layout(tmp_path / "root")
    layout.bin.mkdir(parents=True)
    layout.uv.symlink_to(uv.find_uv_bin())
    packages = [site.index.packages[name][0] for name in ("sglang", "torch")]
    versions = ("0.5.9", "2.9.1")
    lines = ["%s==%s --hash=sha256:%s\n" % (one.filename.split("-")[0], version, one.sha256) for one, version in zip(packages, versions)]
    return Host(layout, [], "".join(lines))


def job(host: Host, tmp_path: Path, network: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """A build's spec with the network as jobs.start puts it there."""
    spec = host.spec(uv_env={})
    spec["environment"]["engine"] = {"name": "sglang", "version": "0.5.9"}
    secret = tmp_path / "job" / "secrets" / networks.SECRET
    secret.parent.mkdir(parents=True, exist_ok=True)
    secret.write_text(networks.packed(network)[networks.SECRET])
    return {**spec, "secret_files": {networks.SECRET: str(secret)}}


def test_a_host_builds_through_the_proxy(site: Site, host: Host, tmp_path: Path) -> None:
    spec = job(host, tmp_path, site.network)
    assert host.build(spec)["changed"]
    assert (host.site(spec) / "torch" / "__init__.py").is_file()
    assert not [secret for secret in SECRETS for argv in host.ran if secret in " ".join(argv)]
    assert not [secret for secret in (*SECRETS, NAME) if secret in json.dumps(host.told)]
    assert len(list((tmp_path / "job" / "secrets").glob("authorities-*.pem"))) == 1


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"password": "wrong"}, "network.credentials"),
        ({"ca": None}, "network.certificate"),
        ({"proxy": None, "no_proxy": [NAME]}, "network.unreachable"),
    ],
)
def test_a_host_tells_what_is_wrong_and_keeps_nothing(site: Site, host: Host, tmp_path: Path, change: dict[str, t.Any], check: str) -> None:
    finding = refusal(host.build, job(host, tmp_path, {**site.network, **change}))
    assert (finding.id, "on this host" in finding.subject) == (check, True)
    assert list(host.layout.environments.iterdir()) == []


# What may be written


def checked(**network: t.Any) -> list[Finding]:
    found = schema.check_settings("ct200", {"root": "/opt/specdec", "network": network})
    return [one for one in found if "specdec_network" in one.subject] or networks.check("ct200", network)


def test_what_is_right_is_accepted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    whole = {"index": "https://mirror.internal/simple", "username": "bob", "password": PASSWORD, "ca": str(authority.pem)}
    assert checked(**whole, proxy="http://carol:x@proxy.internal:3128", no_proxy=["mirror.internal"]) == []
    assert checked() == []


@pytest.mark.parametrize(
    ("network", "subject", "words"),
    [
        (
            {"index": "https://bob:hunter2@mirror.internal/simple"},
            "index",
            ("credentials inside", ".password (from a vault)"),
        ),
        ({"index": "ftp://mirror.internal/simple"}, "index", ("scheme that is not supported", "https://")),
        ({"index": "https:///simple"}, "index", ("is no address",)),
        ({"proxy": "socks4://proxy.internal:1080"}, "proxy", ("scheme that is not supported",)),
        ({"proxy": "http://carol:hunter2@proxy.internal:port"}, "proxy", ("is no address",)),
        ({"index": "https://mirror.internal", "password": "hunter2"}, "username", ("a password is",)),
        ({"username": "bob"}, "index", ("a login for it is",)),
        ({"ca": "/nowhere/ca.pem"}, "ca", ("/nowhere/ca.pem", "PEM")),
        ({"ca": __file__}, "ca", ("PEM",)),
        ({"pasword": "hunter2"}, "pasword", ("is no option", "write password")),
        ({"no_proxy": "mirror.internal"}, "no_proxy", ("is not a list",)),
    ],
)
def test_what_is_wrong_names_host_and_variable(network: dict[str, t.Any], subject: str, words: tuple[str, ...]) -> None:
    (finding,) = checked(**network)
    by_schema = {"pasword": "variable.unknown", "no_proxy": "variable.type"}
    assert finding.id == by_schema.get(subject, "network.ca" if subject == "ca" else "network.value")
    assert finding.subject == "specdec_network.%s on ct200" % subject
    for word in words:
        assert word in finding.text()
    assert "hunter2" not in finding.text()


def test_a_private_authority_is_added_to_the_systems(tmp_path: Path) -> None:
    (tmp_path / "system").mkdir()
    system, own = Authority(tmp_path / "system"), Authority(tmp_path)
    environ = {"SSL_CERT_FILE": str(system.pem)}
    ready = networks.prepared(networks.described({"ca": str(own.pem)}), tmp_path / "kept", environ)
    bundle = Path(ready.environment()["SSL_CERT_FILE"]).read_text()
    assert system.pem.read_text() in bundle and own.pem.read_text() in bundle
