# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The loader of a real host, and its real ldconfig: what it knows of an environment's libraries whatever becomes of a switch."""

from __future__ import annotations

import subprocess
import typing as t
from pathlib import Path

import pytest
from switchhost import ENVIRONMENT, ROOT, Host

OTHER = "fedcba9876543210"
NAME = "libspecdec-example.so.13"
CONFIGURATION = "/etc/ld.so.conf.d/specdec.conf"
LOAD = "import ctypes; print(ctypes.CDLL('%s').which())" % NAME

#: Stands in for ldconfig: says that it was reached, and does its work only when it is let.
HELD = """#!/bin/sh
if [ "$1" = -X ] && [ -e /run/hold-ldconfig ]; then
  mv /run/hold-ldconfig /run/held-ldconfig
  sleep 60
fi
exec /sbin/ldconfig.real "$@"
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Host]:
    """A host with two environments, each with a library of its own under the same name."""
    made = Host(tmp_path_factory.mktemp("hosts"), "ct211", "specdec-libraries", "10.89.83")
    try:
        made.up()
        made.add_environment(OTHER)
        for number, environment in enumerate((ENVIRONMENT, OTHER), 1):
            library = _library(tmp_path_factory.mktemp("library"), number)
            place = "%s/environments/%s" % (ROOT, environment)
            made.put({"%s/venv/%s" % (place, NAME): (library, 0o644), "%s/lib/%s" % (place, NAME): "../venv/" + NAME})
        yield made
    finally:
        made.down()


def _library(directory: Path, number: int) -> bytes:
    path = directory / NAME
    argv = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path), "-Wl,-soname," + NAME]
    subprocess.run(argv, input="int which(void) { return %d; }\n" % number, text=True, check=True)
    return path.read_bytes()


def loads(host: Host) -> str:
    """Which library a program finds that has none of the service's variables; empty where it finds none."""
    return host.sh("env", "-i", "/usr/bin/python3", "-c", LOAD, check=False)


def registered(host: Host) -> str:
    """Where the loader's cache has the library."""
    return host.sh("sh", "-c", "/sbin/ldconfig -p | sed -n 's/.*%s .* => //p'" % NAME)


def told(result: t.Mapping[str, t.Any]) -> tuple[str, str]:
    """Verdict and message on the registration."""
    (finding,) = [one for one in result["findings"] if one["id"] == "libraries.registered"]
    return finding["verdict"], finding["message"]


def nothing_is_registered(host: Host) -> None:
    assert loads(host) == "" and registered(host) == ""
    assert host.sh("sh", "-c", "ls %s %s/lib 2>/dev/null" % (CONFIGURATION, ROOT), check=False) == ""


def test_first_deploy_registers_and_one_that_fails_takes_it_back(host: Host) -> None:
    nothing_is_registered(host)
    refused = host.switch(host.release("main", mode="unhealthy"))
    assert not refused["committed"]
    nothing_is_registered(host)
    release = host.release("main")
    result = host.switch(release)
    assert result["committed"] and told(result) == ("ok", "1 libraries are registered with the loader")
    assert (loads(host), registered(host)) == ("1", "%s/lib/%s" % (ROOT, NAME))
    assert host.sh("cat", CONFIGURATION) == ROOT + "/lib"
    listed = host.sh("ls", "-l", "%s/environments/%s/lib" % (ROOT, ENVIRONMENT)).count(NAME + " ->")
    assert listed == 1, "ldconfig made links of its own"


def test_a_flip_moves_what_is_found_and_not_where(host: Host) -> None:
    host.switch(host.release("main"))
    before = host.sh("stat", "-c", "%Y %i", CONFIGURATION)
    assert host.switch(host.release("main", environment=OTHER))["committed"]
    assert (loads(host), registered(host)) == ("2", "%s/lib/%s" % (ROOT, NAME))
    assert host.sh("stat", "-c", "%Y %i", CONFIGURATION) == before
    host.specdec("rollback", "main")
    assert loads(host) == "1"


def test_gate_that_fails_takes_it_back(host: Host) -> None:
    host.switch(host.release("main"))
    result = host.switch(host.release("main", mode="crash", environment=OTHER), force=True)
    assert not result["committed"] and told(result)[0] == "ok"
    assert loads(host) == "1"


@pytest.mark.parametrize("step", ["stopped", "flipped", "starting", "gating"])
def test_killed_switch_leaves_what_serves_registered(host: Host, step: str) -> None:
    previous = host.release("main", mode="stubborn" if step == "stopped" else "ok")
    assert host.switch(previous)["committed"]
    job = host.start(_hanging(host, step, patience=600), force=True)
    host.wait_for_step("main", step)
    host.sh("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "specdec-job.service")
    host.follow(job)
    seen = host.describe("main")
    assert (seen["release"], seen["healthy"]) == (previous.id, True)
    assert (loads(host), registered(host)) == ("1", "%s/lib/%s" % (ROOT, NAME))


def _hanging(host: Host, step: str, **facts: t.Any) -> t.Any:
    """A release that does not start; another one for each step."""
    return host.release("main", mode="hang", acceptance=3 + len(step), environment=OTHER, **facts)


@pytest.mark.parametrize("way", ["there", "back"])
def test_killed_in_the_middle_of_ldconfig(host: Host, way: str) -> None:
    release = host.release("main")
    assert host.switch(release)["committed"]
    host.put({"/run/ldconfig.held": (HELD.encode(), 0o755)})
    host.sh("sh", "-c", "mv /sbin/ldconfig /sbin/ldconfig.real && mv /run/ldconfig.held /sbin/ldconfig")
    try:
        if way == "there":
            host.sh("touch", "/run/hold-ldconfig")
            job = host.start(host.release("main", acceptance=4, environment=OTHER), force=True)
        else:
            job = host.start(_hanging(host, "back"), force=True)
            host.wait_for_step("main", "gating")
            host.sh("touch", "/run/hold-ldconfig")
        host.sh("timeout", "30", "sh", "-c", "until [ -e /run/held-ldconfig ]; do sleep 0.05; done")
        host.sh("systemctl", "kill", "--signal=KILL", "specdec-job.service")
        host.follow(job)
        host.wait_until_idle()
    finally:
        host.sh("sh", "-c", "mv /sbin/ldconfig.real /sbin/ldconfig; rm -f /run/hold-ldconfig /run/held-ldconfig")
    assert host.describe("main")["release"] == release.id
    assert (loads(host), registered(host)) == ("1", "%s/lib/%s" % (ROOT, NAME))


def test_power_cut_leaves_what_serves_registered(host: Host) -> None:
    release = host.release("main")
    host.switch(release)
    host.start(_hanging(host, "power", patience=600), force=True)
    host.wait_for_step("main", "gating")
    host.power_cycle()
    host.wait_until_idle()
    assert host.describe("main")["release"] == release.id
    assert loads(host) == "1"


def test_second_environment_is_given_to_its_unit_alone_and_removal_registers_again(host: Host) -> None:
    host.switch(host.release("main"))
    result = host.switch(host.release("other", environment=OTHER))
    assert told(result) == ("ok", "the libraries are given to the units alone: 2 environments serve")
    nothing_is_registered(host)
    spec = {"schema": 1, "kind": "remove", "root": ROOT, "who": "tester", "why": "test", "instance": "other", "confirmed": True}
    gone = host.agent(spec=spec, wait=True)
    assert gone["result"]["ok"], gone
    assert loads(host) == "1"


def test_what_others_find_elsewhere_is_not_shadowed(host: Host) -> None:
    host.switch(host.release("main"))
    host.sh("cp", "%s/environments/%s/venv/%s" % (ROOT, ENVIRONMENT, NAME), "/usr/local/lib/" + NAME)
    host.sh("sh", "-c", "rm -f %s; ldconfig" % CONFIGURATION)
    result = host.switch(host.release("main", acceptance=2))
    assert result["committed"]
    verdict, message = told(result)
    assert verdict == "warning" and "would shadow what others find elsewhere" in message
    assert registered(host) == "/usr/local/lib/" + NAME
    host.sh("sh", "-c", "rm /usr/local/lib/%s && ldconfig" % NAME)
    assert told(host.switch(host.release("main"), force=True))[0] == "ok"
    assert loads(host) == "1"
