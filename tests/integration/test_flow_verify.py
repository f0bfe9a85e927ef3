# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The audit of hosts: what it finds, what it does not touch, and that its parts work in anybody's playbook."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import typing as t
from pathlib import Path

import pytest
import yaml
from flow import CHECKOUT, FILES, ROOT, Fleet, Run

COLLECTIONS = {"ANSIBLE_COLLECTIONS_PATH": str(CHECKOUT / "collections")}
#: In a shell on a host: the environment that serves.
CURRENT = "import json; print(json.load(open('%s/instances/main/current/release.json'))['environment'])" % ROOT
ENVIRONMENT = '%s/environments/$(python3 -c "%s")/venv' % (ROOT, CURRENT)
REFERENCES = ("-e", "specdec_hosts=references")
PLUGINS = CHECKOUT / "plugins"

#: Files, the units' states, and who serves since when.
UNTOUCHED = (
    FILES + "systemctl list-units --all --no-legend --plain --type=service --state=active,failed --no-pager; systemctl is-system-running; "
    "systemctl show --property=MainPID,ActiveEnterTimestamp,NRestarts specdec-main.service sglang.service"
)


@pytest.fixture(scope="module")
def served(fleet: Fleet) -> Fleet:
    """The hosts, with ct200 as the demo's inventory wants it, whatever other tests made of it."""
    run = fleet.deploy()
    assert run.rc == 0, run.why
    return fleet


def verify(fleet: Fleet, *arguments: str, limit: str = "ct200") -> Run:
    return fleet.deploy(*arguments, playbook="specdec.serving.verify", limit=limit, env=COLLECTIONS)


def report(directory: Path, host: str) -> dict[str, t.Any]:
    return json.loads((directory / (host + ".json")).read_text())


def wrong(directory: Path, host: str) -> list[dict[str, str]]:
    return [one for one in report(directory, host)["findings"] if one["verdict"] == "error"]


def test_healthy_hosts_are_left_alone_and_found_good(served: Fleet, tmp_path: Path) -> None:
    before = served.sh("ct200", UNTOUCHED)
    said = served.sh("ct200", "journalctl --unit=specdec-main --output=cat | grep -vc 'GET /\\|POST /'")
    run = verify(served, "-e", "specdec_verify_against=ct129", "-e", "specdec_verify_report=%s" % tmp_path)
    assert run.rc == 0, run.why
    assert run.recap("ct200")["changed"] == 0
    assert served.sh("ct200", UNTOUCHED) == before
    assert served.sh("ct200", "journalctl --unit=specdec-main --output=cat | grep -vc 'GET /\\|POST /'") == said
    found = report(tmp_path, "ct200")
    ids = {one["id"]: one["verdict"] for one in found["findings"]}
    assert ids["arguments.accepted"] == ids["record.changed"] == ids["parity.hosts"] == ids["parity.source"] == ids["lock.pins"] == "ok"
    assert "could not check" not in ids.values()
    assert found["environments"][0]["engine"]["name"] == "sglang"


def test_the_host_program_leaves_nothing_behind_and_says_how_it_went(served: Fleet) -> None:
    before = served.sh("ct200", UNTOUCHED)
    said = served.sh("ct200", "%s/bin/specdec verify; echo status $?" % ROOT)
    assert said.endswith("status 0") and re.search(r"main, release \w+: \d+ ok, \d+ not applicable", said)
    seen = json.loads(served.sh("ct200", "%s/bin/specdec verify --json 2>/dev/null" % ROOT))
    assert seen["verdict"] == "ok" and seen["instances"]["main"]["engine"]["name"] == "sglang"
    assert served.sh("ct200", UNTOUCHED) == before
    assert served.sh("ct200", "systemctl list-units --all --no-legend 'specdec-probe*'") == ""
    assert "3 there is no" in re.sub(r"\s+", " ", served.sh("ct200", "%s/bin/specdec verify --help" % ROOT))


@contextlib.contextmanager
def edited(fleet: Fleet, host: str, *files: str) -> t.Iterator[None]:
    """A line more in each file of an environment's packages, as an engineer adds it; taken back whatever happens."""

    def each(do: str) -> None:
        place = "cd %s/lib/python3*/site-packages" % ENVIRONMENT
        fleet.sh(
            host, "set -e; mkdir -p /srv/kept; %s; for f in %s; do k=/srv/kept/$(echo $f | tr / @); %s; done" % (place, " ".join(files), do)
        )

    each("cp -a $f $k; sed -i '$ a # by hand' $f")
    try:
        yield
    finally:
        each("mv $k $f")
        fleet.sh(host, "rmdir /srv/kept")


def test_hand_edits_are_named_all_three_and_nothing_else(served: Fleet, tmp_path: Path) -> None:
    files = ("sglang/srt/speculative/ddtree_worker.py", "sglang/version.py", "requests/help.py")
    with edited(served, "ct200", *files):
        run = verify(served, "-e", "specdec_verify_report=%s" % tmp_path)
        assert served.sh("ct200", "%s/bin/specdec verify >/dev/null 2>&1; echo $?" % ROOT) == "1"
    assert run.rc == 2
    found = wrong(tmp_path, "ct200")
    told = {one["evidence"].partition(":")[0]: one["id"] for one in found}
    assert told == {files[0]: "overlay.applied", files[1]: "record.changed", files[2]: "record.changed"}
    assert all(name in run.text for name in files)


def test_an_environment_made_by_hand_is_audited_without_a_trace(served: Fleet, tmp_path: Path) -> None:
    before = served.sh("ct129", UNTOUCHED)
    pins = {"specdec_pins": {"torch": "2.0.0"}, "specdec_host_pins": {"torch": "2.13.0+cpu"}}
    options = [*REFERENCES, "-e", json.dumps({**pins, "specdec_verify_report": str(tmp_path)})]
    run = verify(served, *options, limit="ct129")
    assert run.rc == 2
    found = wrong(tmp_path, "ct129")
    assert {one["id"] for one in found} == {"record.changed", "record.missing", "record.foreign"}
    assert any("sglang/srt/speculative/spec_info.py" in one["evidence"] for one in found)
    ids = {one["id"]: one["verdict"] for one in report(tmp_path, "ct129")["findings"]}
    assert ids["import.engine"] == ids["lock.pins"] == ids["unit.bypass"] == "ok"
    assert served.sh("ct129", UNTOUCHED) == before
    assert served.sh("ct129", "ls %s 2>&1 || true" % ROOT).endswith("No such file or directory")
    # without the declaration a resolver's refusal is one of them
    again = tmp_path / "again"
    verify(
        served,
        "-e",
        "specdec_hosts=references",
        "-e",
        "specdec_verify_imports=false",
        "-e",
        "specdec_verify_report=%s" % again,
        limit="ct129",
    )
    assert [one["subject"] for one in wrong(again, "ct129") if one["id"] == "lock.unsatisfiable"] == ["torch"]


#: What an engineer did to an environment: packages of the index, packages that are written here (name, version, its file, what it
#: requires), and the finding with what follows from it.
FLASHINFER = ("apache-tvm-ffi", "nvidia-cutlass-dsl==4.3.5", "nvidia-ml-py", "nvidia-cudnn-frontend", "einops", "tabulate", "click")
EPISODES: dict[str, tuple[tuple[str, ...], tuple[str, str, str, str], str, str, str]] = {
    "1: the engine's source takes a name that this flashinfer does not have": (
        ("flashinfer-python==0.6.3", *FLASHINFER),
        ("sglang", "0.5.9", "from flashinfer import bmm_mxfp8, mm_mxfp8", "flashinfer-python==0.6.3"),
        "api.missing-name",
        "flashinfer.mm_mxfp8",
        "import.engine: engine: ImportError: cannot import name 'mm_mxfp8'",
    ),
    "3: one part of flashinfer moved": (
        ("flashinfer-python==0.6.4", *FLASHINFER),
        ("flashinfer-cubin", "0.6.3", '__version__ = "0.6.3"', ""),
        "parity.flashinfer",
        "flashinfer",
        "import.flashinfer: flashinfer: RuntimeError: flashinfer-cubin version (0.6.3) does not match flashinfer version (0.6.4)",
    ),
}


@pytest.mark.parametrize("name", list(EPISODES))
def test_an_episode_made_by_hand_is_one_finding(served: Fleet, tmp_path: Path, name: str) -> None:
    packages, (dist, version, text, requires), id_, subject, follows = EPISODES[name]
    module = dist.replace("-", "_")
    info = "%s-%s.dist-info" % (module, version)
    metadata = "Name: %s\nVersion: %s\n%s" % (dist, version, "Requires-Dist: %s\n" % requires if requires else "")
    uv = {key: os.environ[key] for key in ("UV_INDEX", "UV_DEFAULT_INDEX", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY") if key in os.environ}
    script = [
        "set -e; mkdir -p /srv/episode; cp -al /opt/sglang/venv /srv/episode/venv; cd /srv/episode/venv/lib/python3*/site-packages",
        "rm -rf sglang sglang-*.dist-info",
        *("export %s=%s" % (key, shlex.quote(value)) for key, value in {**uv, "UV_SYSTEM_CERTS": "1"}.items()),
        "uv pip install --quiet --no-config --python /srv/episode/venv/bin/python --no-deps %s" % " ".join(packages),
        "mkdir %s %s" % (module, info),
        "echo %s > %s/__init__.py" % (shlex.quote(text), module),
        "printf %%s %s > %s/METADATA" % (shlex.quote(metadata), info),
        "for f in %s/__init__.py %s/METADATA %s/RECORD; do echo $f,, >> %s/RECORD; done" % (module, info, info, info),
    ]
    options = [*REFERENCES, "-e", json.dumps({"specdec_reference": {"venv": "/srv/episode/venv"}, "specdec_verify_report": str(tmp_path)})]
    try:
        served.sh("ct129", "\n".join(script))
        run = verify(served, *options, limit="ct129")
    finally:
        served.sh("ct129", "rm -rf /srv/episode")
    assert run.rc == 2
    # what the reference's engineer edited elsewhere is there, too
    found = [one for one in wrong(tmp_path, "ct129") if one["evidence"] != "easydict/__init__.py"]
    assert [(one["id"], one["subject"]) for one in found] == [(id_, subject)]
    assert "from which follows: %s" % follows in found[0]["evidence"]
    assert found[0]["cause"] and found[0]["fix"]


def test_a_reference_that_does_not_answer_could_not_be_compared(served: Fleet, tmp_path: Path) -> None:
    with served.without("ct129"):
        run = verify(served, "-e", "specdec_verify_against=ct129", "-e", "specdec_verify_report=%s" % tmp_path)
    ids = {one["id"]: one for one in report(tmp_path, "ct200")["findings"]}
    assert ids["parity.hosts"]["verdict"] == "could not check" and ids["parity.hosts"]["fix"].startswith("Start that host")
    assert run.rc == 0, run.why


def play(fleet: Fleet, directory: Path, hosts: str, tasks: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    """Run a play of somebody else's; what it printed."""
    content = [{"hosts": hosts, "become": True, "gather_facts": False, "tasks": tasks}]
    (directory / "play.yml").write_text(yaml.safe_dump(content, sort_keys=False))
    return fleet.must("ansible-playbook", str(directory / "play.yml"), env=COLLECTIONS)


#: What torch does at its import → the finding, and a word of it.
FAULTS = {
    "segfault": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "import.died", "killed by SIGSEGV"),
    "exit": ("import os; os._exit(0)", "import.died", "ended by itself with status 0"),
    "leave": ("raise SystemExit(3)", "import.torch", "SystemExit: 3"),
    "hang": ("import time; time.sleep(3600)", "import.hang", "still running at the deadline"),
    "fork": ("import os, time\nif not os.fork(): os.setsid(); time.sleep(3600)", "import.stray", "-"),
    "child": ("import subprocess; subprocess.Popen(['sleep', '3600'], start_new_session=True)", "import.stray", "sleep 3600"),
    "chain": (
        "try:\n    import absent_part\nexcept ImportError as e:\n    raise RuntimeError('no backend') from e",
        "import.torch",
        "absent_part",
    ),
    "library": ("raise ImportError('libnuma.so.1: cannot open shared object file')", "import.torch", "libnuma.so.1"),
    "write": ("open(__file__ + '.cache', 'w')", "import.torch", "Read-only file system"),
    "network": ("import socket; socket.create_connection(('10.89.0.1', 9), 3)", "import.torch", "OSError"),
}


def test_faulty_packages_on_a_real_host_are_findings_and_nothing_stays(served: Fleet, tmp_path: Path) -> None:
    make = ["set -e"]
    for name, (code, _id, _word) in FAULTS.items():
        site = "/srv/faulty/%s/lib/python3.*/site-packages" % name
        make += ["python3 -m venv --without-pip /srv/faulty/%s" % name, "cd %s" % site, "mkdir torch torch-1.0.dist-info"]
        make += ["cat > torch/__init__.py <<'EOT'\n%s\nEOT" % code, "printf 'Name: torch\\nVersion: 1.0\\n' > torch-1.0.dist-info/METADATA"]
    served.sh("ct129", "\n".join(make))
    kept = {"content": "{{ health.results | to_json }}", "dest": str(tmp_path / "health.json"), "mode": "0644"}
    fault = {"path": "/srv/faulty/{{ item }}", "deadline": 4}
    tasks = [
        {"specdec.serving.import_health": fault, "loop": list(FAULTS), "register": "health"},
        {"ansible.builtin.copy": kept, "delegate_to": "localhost", "become": False},
    ]
    before = served.sh("ct129", "find /srv/faulty /tmp -xdev ! -path '*systemd-private*' -printf '%p %T@\\n' | grep -v '^/tmp ' | sort")
    try:
        play(served, tmp_path, "ct129", tasks)
        after = served.sh("ct129", "find /srv/faulty /tmp -xdev ! -path '*systemd-private*' -printf '%p %T@\\n' | grep -v '^/tmp ' | sort")
        assert after == before
        assert served.sh("ct129", "pgrep -x sleep || true") == ""
    finally:
        served.sh("ct129", "rm -rf /srv/faulty")
    for result in json.loads((tmp_path / "health.json").read_text()):
        _code, id_, word = FAULTS[result["item"]]
        found = {one["id"]: one for one in result["findings"] if one["verdict"] not in ("ok", "not applicable")}
        assert list(found) == [id_], (result["item"], found)
        assert word in found[id_]["found"] + found[id_]["evidence"] or word == "-"
        assert found[id_]["fix"]


EXAMPLES = [
    *(("modules", name) for name in ("env_snapshot", "version_parity", "import_health")),
    *(("filter", name) for name in ("parity", "findings")),
]


@pytest.mark.parametrize(("kind", "name"), EXAMPLES)
def test_the_examples_run_as_they_are_written(served: Fleet, tmp_path: Path, kind: str, name: str) -> None:
    text = (PLUGINS / kind / (name + ".py")).read_text()
    match = re.search(r'^EXAMPLES = r"""\n(.*?)"""', text, re.MULTILINE | re.DOTALL)
    assert match
    venv = served.sh("ct200", "echo %s" % ENVIRONMENT)
    # ct200 has its environment elsewhere; for the comparison the reference is seen as well
    tasks = yaml.safe_load(match[1].replace("/opt/sglang/venv", venv))
    hosts = "ct200,ct129" if name == "parity" else "ct200"
    (tmp_path / "play.yml").write_text(
        yaml.safe_dump([{"hosts": hosts, "become": True, "gather_facts": False, "tasks": tasks}], sort_keys=False)
    )
    run = served.command("ansible-playbook", str(tmp_path / "play.yml"), env=COLLECTIONS)
    assert run.returncode == 0, run.stdout[-4000:]
    assert "changed=0" in run.stdout
