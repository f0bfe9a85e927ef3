# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that reaches an index only through a proxy with a login, where a private authority signs for it; and each source of Python."""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import json
import textwrap
import typing as t
from pathlib import Path

import pytest
import yaml
from authority import Authority
from flow import CHECKOUT, ROOT, Fleet, Run
from index import Index
from proxy import Proxy

from ansible_collections.specdec.serving.plugins.module_utils import environments, locks, stacks, wheelhouses
from ansible_collections.specdec.serving.plugins.module_utils.layout import SCHEMA

PREFIX, SUBNET = "specdec-way", "10.89.74"
NAME, MIRROR = "index.internal", "mirror.internal"
LOGIN = "bob:indexPassword/@%"
PROXY_LOGIN = "carol:proxyPassword @"
#: What nobody may see, in any of its spellings.
SECRETS = ("indexPassword", "proxyPassword")
VERSIONS = ("0.5.9", "0.5.10", "0.5.11", "0.5.12")

#: Every command line that the host sees while this runs.
SAMPLER = "systemd-run --quiet --collect --unit=sampler sh -c 'while :; do cat /proc/[0-9]*/cmdline; done > /run/argv 2>/dev/null'"

#: The host's Python as an archive in the form of those that uv installs, with a header.
ARCHIVE = """
set -e
cd "$(mktemp -d)"
version=$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
mkdir -p python/bin python/lib python/include/python$version
cp -a /usr/bin/python$version python/bin/
cp -a /usr/lib/python$version python/lib/
find python -name __pycache__ -prune -exec rm -r {} +
find python -type l -lname '/*' -delete
[ -e python/include/python$version/Python.h ] || touch python/include/python$version/Python.h
tar -c --owner=0 --group=0 python | gzip -1 | base64 -w0
"""


@dataclasses.dataclass(eq=False)
class Site:
    """A host, an index that it reaches only through a proxy, and how."""

    fleet: Fleet
    index: Index
    proxy: Proxy
    network: dict[str, t.Any]
    version: str
    row: dict[str, t.Any]
    archive: Path

    def play(self, *tasks: t.Mapping[str, t.Any], arguments: t.Sequence[str] = (), **variables: t.Any) -> Run:
        """Tasks on ct200, as loud as they can be made; nothing of it shows a secret."""
        playbook = self.fleet.state / "play.yml"
        play = {"hosts": "ct200", "gather_facts": False, "become": True, "tasks": list(tasks)}
        playbook.write_text(yaml.safe_dump([play]))
        written = self.fleet.state / "variables.json"
        common = {"specdec_instances": [], "specdec_pins_dir": str(self.fleet.state / "pins"), "specdec_network": self.network}
        written.write_text(json.dumps({**common, **variables}))
        run = self.fleet.deploy("--diff", *arguments, "-e", "@%s" % written, playbook=str(playbook))
        assert not [secret for secret in SECRETS if secret in run.text]
        return run

    def must(self, *tasks: t.Mapping[str, t.Any], **variables: t.Any) -> Run:
        """The same; it has to succeed."""
        run = self.play(*tasks, **variables)
        assert run.rc == 0, run.why
        return run

    def pythons(self, wheelhouse: str = "", **wanted: t.Any) -> list[dict[str, t.Any]]:
        """The Pythons of the host once ``specdec_python`` is there."""
        facts = self.fleet.state / "pythons.json"
        content = "{{ gpu_host_plan.state.pythons | to_json }}"
        kept = {"ansible.builtin.copy": {"dest": str(facts), "content": content}, "delegate_to": "localhost", "become": False}
        self.must(role("gpu_host"), kept, **({"specdec_python": wanted, "specdec_wheelhouse": wheelhouse} if wanted else {}))
        return json.loads(facts.read_text())

    @functools.cached_property
    def system(self) -> dict[str, t.Any]:
        """The distribution's own Python."""
        (one,) = [one for one in self.pythons() if one["source"] == "system"]
        return one

    @functools.cached_property
    def locks(self) -> dict[str, locks.Lock]:
        """The locks of the engine's versions, made by the module on the controller."""
        wanted = {}
        for version in VERSIONS:
            stack = dataclasses.replace(STACK, version=version, python=self.minor, requirements=("sglang==" + version,))
            wanted[version] = locks.inputs(stack)
        common = {"pins_dir": "{{ specdec_pins_dir }}", "network": "{{ specdec_network }}"}
        self.must(*({"specdec.serving.lock": {**common, "inputs": inputs}} for inputs in wanted.values()))
        kept = self.fleet.state / "pins" / "locks"
        return {version: locks.parse((kept / locks.file_name(inputs)).read_text()) for version, inputs in wanted.items()}

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])

    def build(self, lock: locks.Lock, python: t.Mapping[str, t.Any], **variables: t.Any) -> tuple[str, Run]:
        """The environment's id, and the run that builds it."""
        content = {
            "schema": SCHEMA,
            "lock": lock.id,
            "overlays": [],
            "python": {key: python[key] for key in ("path", "implementation", "version", "build")},
            "engine": {"name": "sglang", "version": lock.versions["sglang"]},
            "lane": "cpu",
            "wheels": [],
        }
        content["id"] = environments.environment_id(content)
        spec = {"schema": SCHEMA, "kind": "build", "root": ROOT, "who": "a test", "why": "", "environment": content, "lock": lock.text()}
        task = {"specdec.serving.job": {"spec": {**spec, "python": python["path"]}, "network": "{{ specdec_network }}"}}
        return content["id"], self.play(task, **variables)

    def built(self, lock: locks.Lock, python: t.Mapping[str, t.Any]) -> None:
        """An environment of this Python is built."""
        environment, run = self.build(lock, python)
        assert run.rc == 0, run.why
        home = self.fleet.sh("ct200", "sed -n 's/^home = //p' %s/environments/%s/venv/pyvenv.cfg" % (ROOT, environment))
        assert home == str(Path(python["path"]).parent)
        show = "%s/environments/%s/venv/bin/python -c 'import sglang, torch; print(sglang.__version__)'"
        assert self.fleet.sh("ct200", show % (ROOT, environment)) == lock.versions["sglang"]

    def environments(self) -> str:
        return self.fleet.sh(
            "ct200", "find %s/environments/* %s/python/* -printf '%%p %%s %%T@\\n' 2>/dev/null | sort; true" % (ROOT, ROOT)
        )


#: A stack for the CPU of nothing but an engine and its torch.
STACK = stacks.Stack(
    engine="sglang",
    version="",
    lane="cpu",
    machine="x86_64",
    python="",
    platform="x86_64-manylinux_2_28",
    requirements=(),
    overrides=(),
    excludes=(),
    builds=(),
    indexes=(),
    torch="2.9.1",
    torch_builds={"2.9.1": "cpu"},
    flashinfer=None,
    parts=(),
    kernel=None,
    kernels=(),
    lacks=("flashinfer", "kernel", "cuda"),
    package="sglang",
    label="cpu",
)


def role(name: str, **more: t.Any) -> dict[str, t.Any]:
    return {"ansible.builtin.include_role": {"name": "specdec.serving." + name, **more}}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Site]:
    state = tmp_path_factory.mktemp("way")
    fleet = Fleet(state, PREFIX, SUBNET)
    # a try again would only take its time; what the tools are made of is not on this index
    fleet.environment.update({"UV_HTTP_RETRIES": "0", "ANSIBLE_COLLECTIONS_PATH": str(CHECKOUT / "collections")})
    fleet.start("ct200")
    authority = Authority(state)
    index = Index(context=authority.context(NAME), name=NAME, login=LOGIN)
    index.add("torch", "2.9.1")
    for version in VERSIONS:
        index.add("sglang", version, ["torch"])
    mirror = Index(context=authority.context(MIRROR), name=MIRROR)
    places = {NAME: ("127.0.0.1", index.server.server_port), MIRROR: ("127.0.0.1", mirror.server.server_port)}
    proxy = Proxy(places, PROXY_LOGIN, SUBNET + ".1")
    network = {
        "index": index.url,
        **dict(zip(("username", "password"), LOGIN.split(":"))),
        "proxy": proxy.url(),
        "ca": str(authority.pem),
    }
    version = fleet.sh("ct200", "/usr/bin/python3 -c 'import platform; print(platform.python_version())'")
    archive = state / "cpython.tar.gz"
    archive.write_bytes(base64.b64decode(fleet.sh("ct200", ARCHIVE)))
    major, minor, patch = (int(part) for part in version.split("."))
    row = {
        "name": "cpython",
        "os": "linux",
        "libc": "gnu",
        "arch": {"family": "x86_64", "variant": None},
        "prerelease": "",
        "variant": None,
        "major": major,
        "minor": minor,
        "patch": patch,
        "url": mirror.link(mirror.put("python", "cpython.tar.gz", archive.read_bytes())),
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
    }
    made = Site(fleet, index, proxy, network, version, row, archive)
    try:
        made.must(role("gpu_host"), role("uv"), specdec_network={})
        yield made
    finally:
        proxy.close()
        index.close()
        mirror.close()
        fleet.down()


def test_controller_and_host_go_through_the_proxy_and_no_secret_is_seen(site: Site) -> None:
    assert site.fleet.sh("ct200", "getent hosts %s || echo unknown" % NAME) == "unknown"
    lock = site.locks[VERSIONS[0]]
    assert NAME not in lock.text() and not [secret for secret in SECRETS if secret in lock.text()]
    asked = len(site.proxy.seen)
    assert asked > 0
    site.fleet.sh("ct200", SAMPLER)
    site.built(lock, site.system)
    site.fleet.sh("ct200", "systemctl stop sampler")
    assert len(site.proxy.seen) > asked
    assert "pip\0sync" in site.fleet.sh("ct200", "cat /run/argv")
    for secret in SECRETS:
        seen = "journalctl --no-pager | cat - /run/argv | grep -c %s; grep -rl %s /run/specdec %s /root /tmp /var /etc /home; true"
        assert site.fleet.sh("ct200", seen % (secret, secret, ROOT)) == "0"
    assert not [secret for secret in SECRETS for path in (site.fleet.state / "pins").rglob("*.txt") if secret in path.read_text()]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"password": "wrong"}, ("network.credentials", "specdec_network.username and specdec_network.password")),
        ({"ca": None}, ("network.certificate", "set specdec_network.ca")),
        ({"proxy": "http://carol:wrong@%s"}, ("network.proxy", "the proxy asks for a login")),
    ],
    ids=["401", "unknown authority", "407"],
)
def test_what_goes_wrong_on_the_host_is_named_and_nothing_is_left(site: Site, change: dict[str, t.Any], said: tuple[str, ...]) -> None:
    if change.get("proxy"):
        change = {"proxy": change["proxy"] % site.proxy.address}
    before = site.environments()
    # an index's page that the host's uv has kept would be taken again
    site.fleet.sh("ct200", "rm -rf %s/cache/uv" % ROOT)
    _environment, run = site.build(site.locks[VERSIONS[1]], site.system, specdec_network={**site.network, **change})
    assert run.rc != 0
    for words in ("ct200: the build found:", "on this host", *said):
        assert words in run.text, run.why
    assert site.environments() == before


def test_bad_input_is_refused_before_the_host_is_asked(site: Site) -> None:
    inside = {"index": "https://bob:indexPassword@%s/simple" % NAME, "password": "indexPassword"}
    run = site.play(role("gpu_host"), specdec_network={**inside, "ca": "/nowhere/ca.pem"}, specdec_python={"source": "conda"})
    assert run.rc != 0 and run.calls == {}
    for words in (
        "specdec_network.index on ct200: has credentials inside",
        "specdec_network.username on ct200: is not set",
        "specdec_network.ca on ct200: cannot be used as certificate authority",
        "specdec_python.source on ct200: is not allowed",
    ):
        assert words in run.text, run.why


def test_a_managed_python_is_installed_first_and_the_host_read_again(site: Site) -> None:
    downloads = site.fleet.state / "downloads.json"
    downloads.write_text(json.dumps({"cpython-%s" % site.version: site.row}))
    wanted = {"source": "managed", "version": site.minor, "downloads": str(downloads)}
    before = site.environments()

    checked = site.play(role("gpu_host"), arguments=["--check"], specdec_python=wanted)
    assert checked.rc == 0, checked.why
    said = "could not check: Python is not installed yet; would install managed Python %s below %s/python" % (site.minor, ROOT)
    assert said in checked.text and site.environments() == before

    downloads.write_text(json.dumps({"cpython-%s" % site.version: {**site.row, "sha256": "0" * 64}}))
    refused = site.play(role("gpu_host"), specdec_python=wanted)
    assert refused.rc != 0 and "specdec_python on ct200: the archive is not the one that its metadata names" in refused.text
    assert site.environments() == before

    downloads.write_text(json.dumps({"cpython-%s" % site.version: site.row}))
    (python,) = [one for one in site.pythons(**wanted) if one["source"] == "managed"]
    assert python["path"].startswith("%s/python/managed-%s-" % (ROOT, site.minor)) and python["headers"]
    site.built(site.locks[VERSIONS[1]], python)
    (again,) = [one for one in site.pythons(**wanted) if one["source"] == "managed"]
    assert again == python


def test_a_python_of_the_wheelhouse_is_gathered_sent_and_installed(site: Site) -> None:
    house = site.fleet.state / "wheelhouse"
    downloads = site.fleet.state / "wheelhouse-downloads.json"
    downloads.write_text(json.dumps({"cpython-%s" % site.version: site.row}))
    wanted = {"source": "wheelhouse", "version": site.minor, "downloads": str(downloads)}
    fill = role("engine_env", tasks_from="wheelhouse.yml")
    site.must(fill, specdec_network={}, specdec_wheelhouse=str(house))  # the host's tools: the index of this test does not have them

    early = site.play(role("gpu_host"), specdec_python=wanted, specdec_wheelhouse=str(house))
    assert early.rc != 0 and "specdec_python on ct200: the wheelhouse does not hold it" in early.text
    site.must(fill, specdec_python=wanted, specdec_wheelhouse=str(house))
    (kept,) = wheelhouses.archives(str(house))
    assert (kept["sha256"], kept["version"]) == (site.row["sha256"], site.version)

    site.fleet.sh("ct200", "rm -r %s/python/wheelhouse-*" % ROOT)  # filling needed it for the plan
    before = site.environments()
    archive = wheelhouses.place(house, kept, wheelhouses.PYTHON)
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-1000] + bytes(1000))
    damaged = site.play(role("gpu_host"), specdec_python=wanted, specdec_wheelhouse=str(house))
    assert damaged.rc != 0 and "1 file(s) are damaged" in damaged.text and archive.name in damaged.text
    assert site.environments() == before
    archive.write_bytes(whole)

    asked = len(site.proxy.seen)
    (python,) = [one for one in site.pythons(wheelhouse=str(house), **wanted) if one["source"] == "wheelhouse"]
    assert len(site.proxy.seen) == asked
    site.built(site.locks[VERSIONS[2]], python)


def test_a_prefix_is_used_where_it_is(site: Site) -> None:
    script = """
        mkdir -p /srv/python/bin /srv/python/lib
        cp -a /usr/bin/python%(minor)s /srv/python/bin/
        cp -a /usr/lib/python%(minor)s /srv/python/lib/
    """
    site.fleet.sh("ct200", textwrap.dedent(script % {"minor": site.minor}))
    (python,) = [one for one in site.pythons(source="prefix", prefix="/srv/python") if one["source"] == "prefix"]
    assert python["path"] == "/srv/python/bin/python" + site.minor
    site.built(site.locks[VERSIONS[3]], python)
    run = site.play(role("gpu_host"), specdec_python={"source": "prefix", "prefix": "/srv/nowhere"})
    assert run.rc != 0 and "specdec_python.prefix on ct200: holds no Python" in run.text
