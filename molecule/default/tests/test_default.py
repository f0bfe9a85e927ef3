# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a deploy leaves on a host, seen from outside the collection's own modules."""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

ROOT = "/opt/specdec"


def read(host: t.Any, path: str) -> t.Any:
    return json.loads(host.file(path).content_string)


def release(host: t.Any) -> dict[str, t.Any]:
    return read(host, ROOT + "/instances/main/current/release.json")


def test_the_service_runs_as_its_own_user_and_is_enabled(host: t.Any) -> None:
    service = host.service("specdec-main.service")
    assert service.is_running
    assert service.is_enabled
    pid = host.check_output("systemctl show --property MainPID --value specdec-main")
    assert host.check_output("stat -c %%U /proc/%s", pid) == "specdec-main"
    assert host.user("specdec-main").shell == "/usr/sbin/nologin"


def test_it_listens_where_the_inventory_says(host: t.Any) -> None:
    assert host.check_output("python3 -c %s", "import socket; socket.create_connection(('127.0.0.1', 30000), 5); print('open')") == "open"


def test_the_environment_is_complete_and_not_the_services_to_write(host: t.Any) -> None:
    environment = "%s/environments/%s" % (ROOT, release(host)["environment"])
    assert host.file(environment + "/.complete").exists
    listed = host.check_output("find %s/venv/lib -name '*.py' '(' -not -user root -o -perm /022 ')' -print -quit", environment)
    assert listed == ""


def test_the_overlay_is_in_the_environment_under_its_digest(host: t.Any) -> None:
    environment = "%s/environments/%s" % (ROOT, release(host)["environment"])
    (manifest,) = read(host, environment + "/overlay.json")
    assert manifest["base"] == {"name": "sglang", "version": "0.5.23"}
    (site_packages,) = host.check_output("echo %s/venv/lib/python3*/site-packages", environment).split()
    for entry in manifest["files"]:
        file = host.file("%s/%s" % (site_packages, entry["path"]))
        if entry["action"] == "delete":
            assert not file.exists
        else:
            assert file.sha256sum == entry["result"]
            assert file.mode == int(entry["mode"], 8)


#: Reads the key from its file on the host and prints where else it is, so that this very test does not put it anywhere.
LEAKS = r"""
import glob, os, subprocess, sys
key = open(sys.argv[1], "rb").read()
places = ["/etc/systemd/system", "/etc/sysusers.d", "/run/specdec", "/opt/specdec/instances", "/opt/specdec/state", "/opt/specdec/bin"]
files = [os.path.join(top, name) for place in places for top, _dirs, names in os.walk(place) for name in names]
files += glob.glob("/opt/specdec/environments/*/*.json") + glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ")
for path in files:
    try:
        if path != sys.argv[1] and key in open(path, "rb").read():
            print(path)
    except OSError:
        pass
for command in (["journalctl", "--no-pager"], ["systemctl", "show", "specdec-main"], ["systemctl", "cat", "specdec-main"]):
    if key in subprocess.run(command, capture_output=True).stdout:
        print(*command)
"""


def test_the_key_is_in_one_file_that_root_alone_reads_and_nowhere_else(host: t.Any) -> None:
    version = release(host)["secrets"]["api_key"]["version"]
    stored = host.file("%s/instances/main/secrets/%s" % (ROOT, version))
    assert (stored.user, stored.mode) == ("root", 0o600)
    assert stored.content_string == Path(os.environ["SPECDEC_DEMO_STATE"], "api_key").read_text()
    assert host.check_output("/usr/bin/python3 -c %s %s", LEAKS, stored.path) == ""


def test_the_history_says_who_switched_to_what_and_what_it_brought(host: t.Any) -> None:
    lines = host.file(ROOT + "/instances/main/history").content_string.splitlines()
    entry = json.loads(lines[0])
    assert len(lines) == 1
    assert (entry["what"], entry["verdict"], entry["from"], entry["to"]) == ("switch", "committed", None, release(host)["id"])
    assert "@" in entry["who"]
    assert entry["acceptance"] > 1.3


def test_the_sandbox_is_strict(host: t.Any) -> None:
    said = host.check_output("systemd-analyze security --no-pager specdec-main.service")
    assert float(said.rpartition("specdec-main.service: ")[2].split()[0]) <= 1.5


def test_the_program_on_the_host_says_that_it_serves(host: t.Any) -> None:
    said = host.check_output(ROOT + "/bin/specdec status")
    assert said.startswith("main: healthy")
    assert release(host)["id"] in said
