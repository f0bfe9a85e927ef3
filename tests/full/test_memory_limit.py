# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A service that the kernel kills for lack of memory, on a host whose limit is enforced: what its journal says, and what is made of it.

Where hosts have the memory controller, the unit's own limit is it, and systemd tells what happened. Where the machine keeps that
controller to itself (cgroup v1), the service's process gets its limit there: then systemd sees a signal, and only the kernel tells.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import typing as t
from pathlib import Path

import pytest
import switchhost

from ansible_collections.specdec.serving.plugins.module_utils import diagnosis

UNIT = "specdec-memory.service"
LIMIT = 64 << 20
MACHINE = Path("/sys/fs/cgroup/memory")
#: Loads three times what the limit allows, as soon as it is told to.
EATER = b"""import os, sys, time
print("loading weights", flush=True)
while not os.path.exists("/run/go"):
    time.sleep(0.05)
kept = [b"x" * (1 << 20) for _ in range(%d)]
print("loaded", flush=True)
time.sleep(600)
""" % (3 * LIMIT >> 20)
SERVICE = "[Service]\nExecStart=/usr/bin/python3 /srv/eater.py\nMemoryMax=%d\nMemorySwapMax=0\n" % LIMIT


@pytest.fixture
def host(tmp_path: Path) -> t.Iterator[switchhost.Host]:
    made = switchhost.Host(tmp_path, "ct230", "specdec-memory", "10.89.190")
    try:
        made.hosts("up", made.name)
        program = (switchhost.program(), 0o755)
        made.put({"/srv/specdec": program, "/srv/eater.py": (EATER, 0o644), "/etc/systemd/system/" + UNIT: (SERVICE.encode(), 0o644)})
        yield made
    finally:
        made.down()


def on_this_machine(process: str) -> str:
    """The number that the machine knows a host's process of this name by."""
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            own = (status.parent / "cmdline").read_bytes().split(b"\0")
            if own[1:2] == [b"/srv/eater.py"] and re.search(r"^NSpid:.*\t%s$" % process, status.read_text(), re.MULTILINE):
                return status.parent.name
    raise AssertionError("no process %s" % process)


@contextlib.contextmanager
def limited(process: str) -> t.Iterator[None]:
    """The machine's own limit for a process of a host, in a group that is called like the unit."""
    own = re.search(r"^\d+:memory:(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    assert own
    group = Path("%s%s" % (MACHINE, own[1]), UNIT)
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(LIMIT))
        (group / "cgroup.procs").write_text(on_this_machine(process))
        yield
    finally:
        group.rmdir()


def test_a_kill_for_lack_of_memory_is_certain_only_where_systemd_or_the_kernel_say_so(host: switchhost.Host) -> None:
    host.sh("systemctl", "start", UNIT)
    enforced = "memory" in host.sh("cat", "/sys/fs/cgroup/cgroup.controllers").split()
    with contextlib.nullcontext() if enforced else limited(host.show(UNIT, "MainPID")):
        host.sh("touch", "/run/go")
        host.sh("timeout", "60", "sh", "-c", "while systemctl is-active --quiet %s; do sleep 0.1; done" % UNIT)
    told = host.sh("python3", "/srv/specdec", "diagnose", UNIT, check=False)
    journal = host.sh("journalctl", "--unit=" + UNIT, "--output=short-iso")
    assert "loading weights" in journal and "loaded" not in journal and "code=killed, status=9/KILL" in journal
    assert told.startswith("ERROR: %s: " % UNIT) and told.count("ERROR: ") == 1 and "MemoryMax" in told
    if enforced:
        assert "killed for lack of memory" in told and "oom-kill" in journal
        return
    assert "killed by signal 9, memory limit likely" in told and "the journal does not say it" in told
    said = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
    kernel = re.sub(r"^\[ *[\d.]+\] ", "2026-11-30T03:00:00+0000 gpu kernel: ", said, flags=re.MULTILINE)
    finding = diagnosis.diagnose(journal + "\n" + diagnosis.kernel_lines(kernel, UNIT), UNIT).finding
    assert (finding.id, finding.message) == ("failure.memory", "killed for lack of memory")
    assert UNIT in finding.found and "Killed process" in finding.evidence
