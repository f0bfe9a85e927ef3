# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Captures over SSH from a real host that is edited, changed under the capture's hands, or gone in the middle of it."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import tarfile
import typing as t
from pathlib import Path

import pytest
from flow import CHECKOUT, Fleet

from tests.unit.module_utils import wheels

HOST, SECOND = "ct129", "ct201"
SITE = "/srv/venv/lib/python3.11/site-packages"
VERSION = "0.5.12"
FILES = {
    "engine/__init__.py": b"",
    "engine/spec_info.py": b"class SpeculativeAlgorithm:\n    NGRAM = 1\n",
    "engine/run.sh": b"#!/bin/sh\n",
    "engine/old.py": b"O = 1\n",
}
PLAYBOOK = """
- hosts: ct129
  gather_facts: false
  become: true
  tasks:
    - specdec.serving.capture:
        reference: ct129
        target: ct200
        package: engine
        venv: /srv/venv
        pins_dir: "{{ pins }}"
        wheel_directories: ["{{ wheels }}"]
        replace: true
"""


@dataclasses.dataclass
class Reference:
    """The host, and the pins of one test."""

    fleet: Fleet
    top: Path
    pins: Path

    def command(self) -> tuple[list[str], dict[str, str]]:
        playbook = self.top / "capture.yml"
        playbook.write_text(PLAYBOOK)
        extra = {"pins": str(self.pins), "wheels": str(self.top)}
        return ["ansible-playbook", str(playbook), "-e", json.dumps(extra)], {
            "XDG_CACHE_HOME": str(self.top / "cache"),
            "ANSIBLE_COLLECTIONS_PATH": str(CHECKOUT / "collections"),
        }

    def capture(self) -> tuple[int, str]:
        argv, env = self.command()
        done = self.fleet.command(*argv, env=env)
        return done.returncode, done.stdout

    def manifest(self) -> dict[str, t.Any]:
        (digest,) = json.loads((self.pins / "references" / "ct129.json").read_text())["overlays"].values()
        return json.loads((self.pins / "overlays" / digest / "manifest.json").read_text())

    def kept(self) -> list[str]:
        return sorted(str(path.relative_to(self.pins)) for path in self.pins.rglob("*"))

    def sh(self, script: str) -> str:
        return self.fleet.sh(HOST, script)

    def lay(self, files: t.Mapping[str, bytes], below: str, host: str = HOST) -> None:
        """Put files below a directory of a host."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for path, data in files.items():
                member = tarfile.TarInfo(path)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        command = ["demo/hosts/hosts", "exec", host, "--", "sh", "-c", "mkdir -p %s && tar -x -C %s" % (below, below)]
        subprocess.run(command, cwd=CHECKOUT, env=self.fleet.environment, input=buffer.getvalue(), check=True)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("hosts"), "specdec-capture", "10.89.86")
    try:
        made.must("demo/hosts/hosts", "up", HOST, SECOND)
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """The package's wheel beside its playbook, and its members."""
    directory = tmp_path_factory.mktemp("controller")
    path = wheels.make(directory, "engine", VERSION, FILES)
    members = wheels.members("engine", VERSION, FILES)
    return path, members


@pytest.fixture
def reference(fleet: Fleet, wheel: tuple[Path, dict[str, bytes]], tmp_path: Path) -> Reference:
    """As installed, with nothing edited."""
    made = Reference(fleet, wheel[0].parent, tmp_path / "pins")
    fleet.sh(HOST, "rm -rf /srv/venv /srv/src; mkdir -p /srv/venv/bin; echo home = /usr/bin > /srv/venv/pyvenv.cfg")
    made.lay(wheel[1], SITE)
    return made


def test_what_was_edited_is_captured_and_nothing_stays_on_the_reference(reference: Reference) -> None:
    reference.lay({"spec_info.py": FILES["engine/spec_info.py"] + b"    DDTREE = 2\n"}, SITE + "/engine")
    reference.lay({"it's new.py": b"from flashinfer.tree import build\r\n"}, SITE + "/engine")
    reference.sh("cd %s/engine && rm old.py && chmod +x run.sh && touch \"$(printf 'latin\\351.py')\"" % SITE)
    rc, text = reference.capture()
    assert rc == 0, text[-4000:]
    manifest = reference.manifest()
    assert [(entry["path"], entry["action"], entry["mode"]) for entry in manifest["files"]] == [
        ("engine/it's new.py", "add", "0644"),
        ("engine/old.py", "delete", "0644"),
        ("engine/run.sh", "change", "0755"),
        ("engine/spec_info.py", "change", "0644"),
    ]
    assert manifest["adds"]["algorithms"] == ["DDTREE"]
    assert manifest["needs"] == {"flashinfer": ["flashinfer.tree.build"]}
    assert "not captured: engine/latin\\udce9.py (its name holds characters that no bundle holds)" in text
    assert reference.sh("find /tmp /home /root -name overlay.tar") == ""
    kept = reference.kept()
    rc, text = reference.capture()
    assert (rc, reference.kept()) == (0, kept), text[-3000:]
    assert "changed=0" in text


def test_a_checkout_is_captured_over_the_wheel_of_its_release(reference: Reference) -> None:
    info = "engine-%s.dist-info" % VERSION
    direct = json.dumps({"url": "file:///srv/src", "dir_info": {"editable": True}})
    reference.sh("cd %s && rm -r engine && echo '%s/RECORD,,' > %s/RECORD" % (SITE, info, info))
    reference.lay({"direct_url.json": direct.encode()}, "%s/%s" % (SITE, info))
    reference.lay({**FILES, "engine/spec_info.py": b"# ours\n", "engine/tree.py": b"T = 1\n"}, "/srv/src/python")
    rc, text = reference.capture()
    assert rc == 0, text[-4000:]
    manifest = reference.manifest()
    assert manifest["base"] == {"name": "engine", "version": VERSION}
    assert [entry["path"] for entry in manifest["files"]] == ["engine/spec_info.py", "engine/tree.py"]
    assert "from file:///srv/src, commit unknown, after no known tag" in text


def test_of_two_references_each_file_that_differs_is_named_with_what_it_is_on_either(reference: Reference) -> None:
    members = wheels.members("sglang", VERSION, {path.replace("engine/", "sglang/"): data for path, data in FILES.items()})
    edits = {
        HOST: {"spec_info.py": b"# both\n", "tree.py": b"T = 1\n", "old.py": b"O = 2\n"},
        SECOND: {"spec_info.py": b"# both\n", "tree.py": b"T = 2\n"},
    }
    hashes = {host: {name: wheels.sha256(data)[:8] for name, data in files.items()} for host, files in edits.items()}
    for host, files in edits.items():
        reference.fleet.sh(host, "rm -rf /srv/venv; mkdir -p /srv/venv/bin; echo home = /usr/bin > /srv/venv/pyvenv.cfg")
        reference.lay(members, SITE, host)
        reference.lay(files, SITE + "/sglang", host)
    reference.fleet.sh(SECOND, "rm %s/sglang/old.py" % SITE)
    look = "find /srv -xdev -printf '%p %i %m %s %T@\\n' | sort"
    before = [reference.fleet.sh(host, look) for host in edits]
    wanted = {
        "specdec_hosts": "%s,%s" % (HOST, SECOND),
        "specdec_reference": {"venv": "/srv/venv"},
        "specdec_verify_against": "hosts",
        "specdec_verify_imports": False,
        "specdec_verify_report": str(reference.top / "report"),
    }
    env = {"ANSIBLE_COLLECTIONS_PATH": str(CHECKOUT / "collections")}
    run = reference.fleet.deploy(playbook="specdec.serving.verify", limit=wanted["specdec_hosts"], variables=wanted, env=env)
    assert run.rc == 2, run.why
    report = json.loads((reference.top / "report" / (SECOND + ".json")).read_text())
    (found,) = [one for one in report["findings"] if one["id"] == "parity.source"]
    assert (found["verdict"], found["message"]) == ("error", "the engine's source differs in 2 file(s)")
    assert found["subject"] == "%s:/srv/venv against %s:/srv/venv" % (SECOND, HOST)
    assert found["found"].splitlines() == [
        "sglang/old.py: removed here, edited (%s) there" % hashes[HOST]["old.py"],
        "sglang/tree.py: edited (%s) here, edited (%s) there" % (hashes[SECOND]["tree.py"], hashes[HOST]["tree.py"]),
    ]
    assert all(line in run.text for line in found["found"].splitlines())
    assert "playbooks/capture.yml" in found["fix"]
    assert [reference.fleet.sh(host, look) for host in edits] == before


def test_a_file_that_changes_while_it_is_captured_is_refused_and_then_captured(reference: Reference) -> None:
    # so much to read that the editor gets its turn meanwhile, however busy the machine is
    reference.sh("cd %s/engine && for n in $(seq 5000); do echo $n > many$n.py; done" % SITE)
    write = "import itertools; [open('%s/engine/core.py', 'w').write(str(n)) for n in itertools.count()]" % SITE
    reference.sh('systemd-run --quiet --collect --unit=editor python3 -c "%s"' % write)
    try:
        rc, text = reference.capture()
    finally:
        reference.sh("systemctl stop editor; rm %s/engine/many*.py" % SITE)
    assert rc != 0
    assert "the overlay of engine on ct129 could not be captured; nothing was changed" in text
    assert "its files change while they are read" in text
    assert "capture again" in text
    assert reference.kept() == []
    rc, text = reference.capture()
    assert rc == 0, text[-3000:]
    assert [entry["path"] for entry in reference.manifest()["files"]] == ["engine/core.py"]


def test_a_file_that_cannot_be_read_is_named(reference: Reference) -> None:
    # a plain file that gives an error at its first byte, to root too
    reference.sh("rm %s/engine/old.py; ln -s /proc/self/mem %s/engine/old.py" % (SITE, SITE))
    rc, text = reference.capture()
    assert rc != 0
    assert "1 file(s) of it cannot be read" in text
    assert "engine/old.py: Input/output error" in text
    assert reference.kept() == []


def test_a_reference_that_vanishes_while_it_is_captured_leaves_the_pins_as_they_were(reference: Reference) -> None:
    reference.sh("echo 'M = 1' > %s/engine/mine.py" % SITE)
    assert reference.capture()[0] == 0
    kept = reference.kept()
    # so much to read that the capture lasts
    large = "for n in $(seq 12); do truncate -s 4G $n.bin; echo engine/$n.bin,sha256=00,4294967296 >> ../engine-%s.dist-info/RECORD; done"
    reference.sh("cd %s/engine && %s" % (SITE, large % VERSION))
    argv, env = reference.command()
    output = reference.pins.with_name("output")
    with output.open("w") as stream:
        process = subprocess.Popen(argv, env={**reference.fleet.environment, **env}, cwd=CHECKOUT, stdout=stream, stderr=subprocess.STDOUT)
    reference.sh("timeout 60 sh -c 'until ls -l /proc/[0-9]*/fd 2>/dev/null | grep -q engine/.*[.]bin; do sleep 0.1; done'")
    reference.fleet.hosts("kill", HOST)
    try:
        assert process.wait(timeout=120) != 0
    finally:
        reference.fleet.hosts("start", HOST)
    text = output.read_text()
    assert "the overlay of engine on ct129 could not be captured; nothing was changed" in text
    assert "the reference cannot be reached, and the pins keep overlay" in text
    assert "start ct129" in text
    assert reference.kept() == kept
