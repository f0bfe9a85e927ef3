# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Environments built on a real host from an index of stand-ins: full disks, killed jobs, a cache that was poisoned, no network at all."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
import typing as t

import pytest
import yaml
from flow import CHECKOUT, ROOT, Fleet, Run, cut_off, refused_routes
from index import Index

from ansible_collections.specdec.serving.plugins.module_utils import environments, locks, wheelhouses
from ansible_collections.specdec.serving.plugins.module_utils.layout import SCHEMA
from ansible_collections.specdec.serving.plugins.plugin_utils import controller, gathering, hosttools

PREFIX, SUBNET = "specdec-env", "10.89.71"
#: Seconds that everything here waits for something to happen, on a machine that may be busy: also uv, for the file that is held back.
PATIENCE = 600
SMALL = "/opt/small"
#: More than the small file system has, and nothing that a file system could make smaller.
LARGE = 48_000_000

WANTED: dict[str, t.Any] = {
    "platform": "x86_64-manylinux_2_28",
    "builds": [],
    "exclude_newer": "",
    "excludes": [],
    "indexes": [],
    "sources": {},
}


class Slow(Index):
    """An index that keeps one file back until it is told to give it."""

    def __init__(self, *arguments: t.Any, **options: t.Any) -> None:
        self.held = ""
        self.asked_for_it, self.given = threading.Event(), threading.Event()
        super().__init__(*arguments, **options)

    def answer(self, path: str, accept: str) -> tuple[int, str, bytes]:
        if self.held and path.endswith(self.held):
            self.asked_for_it.set()
            self.given.wait(PATIENCE)
        return super().answer(path, accept)

    def downloads(self) -> set[str]:
        """The wheels that were asked for since the last time."""
        asked = {path.rpartition("/")[2] for method, path in self.seen if method == "GET" and path.endswith(".whl")}
        self.seen.clear()
        return asked


class Site:
    """A host with the tools, and an index on the controller's side of its network."""

    def __init__(self, fleet: Fleet, index: Slow) -> None:
        self.fleet = fleet
        self.index = index
        facts = "import json,platform,sys;print(json.dumps([sys.implementation.name,platform.python_version(),sys.version]))"
        implementation, version, build = json.loads(fleet.sh("ct200", "/usr/bin/python3 -c '%s'" % facts))
        minor = version.rpartition(".")[0]
        self.python = {"path": "/usr/bin/python" + minor, "implementation": implementation, "version": version, "build": build}
        self.wanted = {**WANTED, "python": minor}

    def lock(self, *names: str) -> locks.Lock:
        """The newest file of each."""
        files = {name: self.index.packages[name][-1] for name in names}
        packages = [locks.Package(name, one.filename.split("-")[1], (one.sha256,)) for name, one in sorted(files.items())]
        return locks.Lock(tuple(packages), {})

    def spec(self, lock: locks.Lock, root: str = ROOT, **more: t.Any) -> dict[str, t.Any]:
        content = {"schema": SCHEMA, "lock": lock.id, "overlays": [], "python": self.python, "wheels": [], "packages": lock.versions}
        content.update(engine={"name": "engine", "version": lock.versions["engine"]}, lane="cpu")
        content["id"] = environments.environment_id(content)
        spec = {"schema": SCHEMA, "kind": "build", "root": root, "who": "a test", "why": "", "environment": content, "lock": lock.text()}
        return {
            **spec,
            "python": self.python["path"],
            "uv_env": {"UV_DEFAULT_INDEX": self.index.url, "UV_HTTP_TIMEOUT": str(PATIENCE)},
            **more,
        }

    def command(self, *tasks: t.Mapping[str, t.Any]) -> list[str]:
        playbook = self.fleet.state / "play.yml"
        playbook.write_text(yaml.safe_dump([{"hosts": "ct200", "gather_facts": False, "become": True, "tasks": list(tasks)}]))
        return ["ansible-playbook", str(playbook)]

    def play(self, *tasks: t.Mapping[str, t.Any]) -> Run:
        return self.fleet.deploy(playbook=self.command(*tasks)[1])

    def build(self, spec: t.Mapping[str, t.Any]) -> Run:
        return self.play({"specdec.serving.job": {"spec": spec}})

    def must(self, spec: t.Mapping[str, t.Any]) -> Run:
        run = self.build(spec)
        assert run.rc == 0, run.why
        return run

    def place(self, spec: t.Mapping[str, t.Any]) -> str:
        return "%s/environments/%s" % (spec["root"], spec["environment"]["id"])

    def complete(self, spec: t.Mapping[str, t.Any]) -> bool:
        return self.fleet.sh("ct200", "test -e %s/.complete && echo yes || echo no" % self.place(spec)) == "yes"

    def site_packages(self, spec: t.Mapping[str, t.Any]) -> str:
        return "%s/venv/lib/python%s/site-packages" % (self.place(spec), self.wanted["python"])

    def differences(self, spec: t.Mapping[str, t.Any]) -> dict[str, str]:
        """What verify finds: files that are not as they were installed, with the package of each."""
        core = "ansible_collections.specdec.serving.plugins.module_utils"
        program = "import json, pathlib, sys; sys.path.insert(0, %r); from %s import records; print(json.dumps(records.verify(%s).changed))"
        script = program % (ROOT + "/bin/specdec", core, "pathlib.Path(%r)" % self.site_packages(spec))
        return json.loads(self.fleet.hosts("exec", "ct200", "--", "/usr/bin/python3", "-I", "-B", "-c", script))

    def listing(self, directory: str = ROOT + "/environments") -> str:
        """Everything below a directory, with sizes and times."""
        return self.fleet.sh("ct200", "find %s -printf '%%p %%i %%s %%T@\\n' 2>/dev/null | sort" % directory)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Site]:
    fleet = Fleet(tmp_path_factory.mktemp("environments"), PREFIX, SUBNET)
    fleet.environment.update({"UV_HTTP_RETRIES": "0", "ANSIBLE_COLLECTIONS_PATH": str(CHECKOUT / "collections")})
    try:
        fleet.start("ct200")
        index = Slow(SUBNET + ".1")
        for name in ("engine", "other", "third"):
            index.add(name, "1.0", files={name + "/__init__.py": b"WHO = '%s'\n" % name.encode(), name + "/part.py": b"PART = 1\n"})
        index.add("large", "1.0", files={"large/data": os.urandom(LARGE)})
        made = Site(fleet, index)
        tools = hosttools.tools(controller.cache_directory(), controller.run, "x86_64")
        sent = [
            {"source": one["path"], "dest": "%s/bin/%s" % (ROOT, name), "digest": one["digest"], "mode": "0755"}
            for name, one in tools.items()
        ]
        run = made.play({"specdec.serving.push": {"artifacts": sent}})
        assert run.rc == 0, run.why
        yield made
        index.close()
    finally:
        fleet.down()


def test_an_edit_in_place_stays_in_its_environment_and_the_next_one_is_clean(site: Site) -> None:
    first, second = site.spec(site.lock("engine", "other")), site.spec(site.lock("engine", "other", "third"))
    site.must(first)
    edited = site.site_packages(first) + "/other/part.py"
    assert int(site.fleet.sh("ct200", "stat -c %%h %s" % edited)) > 1, "uv no longer links: this test would prove nothing"
    site.fleet.sh("ct200", "echo 'PART = 2  # in place' >> %s" % edited)
    site.index.downloads()
    run = site.must(second)
    assert "fetching anew what is damaged in the cache: other" in run.text
    assert site.index.downloads() == {"other-1.0-py3-none-any.whl", "third-1.0-py3-none-any.whl"}
    assert site.fleet.sh("ct200", "cat %s/other/part.py" % site.site_packages(second)) == "PART = 1"
    assert "in place" in site.fleet.sh("ct200", "cat %s" % edited)
    assert site.differences(first) == {"other/part.py": "other"}
    assert site.differences(second) == {}


def test_a_full_disk_is_named_leaves_nothing_and_what_is_there_alone(site: Site) -> None:
    site.fleet.sh("ct200", f"mkdir -p {SMALL} && mount -t tmpfs -o size=40m tmpfs {SMALL} && ln -s {ROOT}/bin {SMALL}/bin")
    spec = site.spec(site.lock("engine", "large"), SMALL)
    before = site.listing()
    run = site.build(spec)
    assert run.rc != 0
    assert "the file system is full" in run.text and "free some space" in run.text, run.why
    assert site.fleet.sh("ct200", "ls -A %s/environments" % SMALL) == ""
    assert site.listing() == before
    site.fleet.sh("ct200", "mount -o remount,size=400m %s" % SMALL)
    site.must(spec)
    assert site.complete(spec)


def test_a_build_that_was_killed_goes_on_with_what_it_had(site: Site) -> None:
    site.fleet.sh("ct200", "rm -rf %s/cache/uv" % ROOT)
    site.index.held, large = "large-1.0-py3-none-any.whl", site.spec(site.lock("engine", "third", "large"))
    site.index.downloads()
    with (site.fleet.state / "killed").open("w") as output:
        started = subprocess.Popen(
            site.command({"specdec.serving.job": {"spec": large}}),
            env=site.fleet.environment,
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        assert site.index.asked_for_it.wait(PATIENCE)
        small = "ls -d %s/cache/uv/archive-v0/*/engine %s/cache/uv/archive-v0/*/third 2>/dev/null | wc -l" % (ROOT, ROOT)
        limit = time.monotonic() + PATIENCE
        while site.fleet.sh("ct200", small) != "2" or "written so far" not in (site.fleet.state / "killed").read_text():
            assert time.monotonic() < limit, (site.fleet.state / "killed").read_text()[-2000:]
            time.sleep(0.2)
        site.fleet.sh("ct200", "systemctl kill --kill-whom=all --signal=KILL specdec-job")
        assert started.wait(PATIENCE) != 0
    assert "the build ended without a result" in (site.fleet.state / "killed").read_text()
    assert not site.complete(large)
    site.index.given.set()
    assert site.index.downloads() >= {"engine-1.0-py3-none-any.whl", "third-1.0-py3-none-any.whl"}
    site.must(large)
    assert site.complete(large)
    assert site.index.downloads() == {"large-1.0-py3-none-any.whl"}
    assert len(site.fleet.sh("ct200", "ls -A %s/environments" % ROOT).split()) == 3


def test_from_a_wheelhouse_nothing_asks_a_network(site: Site) -> None:
    lock = site.lock("engine", "other", "third", "large")
    house = site.fleet.state / "house"
    run = gathering.Gathering(house, controller.run, hosttools.find_uv(), {"UV_DEFAULT_INDEX": site.index.url, "UV_FIND_LINKS": ""}, print)
    run.lock(lock.text(), "a lock", site.wanted, [])
    assert run.keep()
    site.index.close()
    records = wheelhouses.files(house, wheelhouses.read(house), lock, "a lock")
    dest = ROOT + "/cache/wheels/%(sha256)s/%(filename)s"
    sent = [{"source": str(wheelhouses.place(house, one)), "dest": dest % one, "digest": one["sha256"]} for one in records]
    spec = site.spec(lock, wheels=records, uv_env=wheelhouses.HOST)
    site.fleet.sh("ct200", "rm -rf %s/cache/uv" % ROOT)
    cut_off(site.fleet, "ct200")
    before = refused_routes(site.fleet, "ct200")
    done = site.play({"specdec.serving.push": {"artifacts": sent}}, {"specdec.serving.job": {"spec": spec}})
    assert done.rc == 0, done.why
    assert refused_routes(site.fleet, "ct200") == before
    assert site.complete(spec)
    # the same build without them cannot be had, and its attempts are counted
    online = site.spec(site.lock("engine", "third", "other", "large"), uv_env={"UV_DEFAULT_INDEX": "http://192.0.2.1/simple"})
    site.fleet.sh("ct200", "rm -rf %s/cache/uv %s" % (ROOT, site.place(online)))
    assert site.build(online).rc != 0
    assert refused_routes(site.fleet, "ct200") > before
