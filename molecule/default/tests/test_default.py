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


def test_the_key_is_in_one_file_that_root_alone_reads_and_nowhere_else(host: t.Any) -> None:
    key = Path(os.environ["SPECDEC_DEMO_STATE"], "api_key").read_text()
    version = release(host)["secrets"]["api_key"]["version"]
    stored = host.file("%s/instances/main/secrets/%s" % (ROOT, version))
    assert (stored.user, stored.mode, stored.content_string) == ("root", 0o600, key)
    places = "/etc/systemd/system /etc/sysusers.d %s/instances/main/releases %s/environments/*/environment.json" % (ROOT, ROOT)
    assert host.run("grep -rqF -e %s " + places, key).rc == 1
    assert host.run("journalctl --no-pager | grep -qF -e %s", key).rc == 1
    assert host.run("grep -qF -e %s /proc/[0-9]*/cmdline", key).rc != 0
    assert host.run("systemctl show specdec-main | grep -qF -e %s", key).rc == 1


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
