# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Environments built for real, by uv, from small wheels and without a network."""

from __future__ import annotations

import dataclasses
import http.server
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import threading
import typing as t
from pathlib import Path

import pytest
import uv

from ansible_collections.specdec.serving.plugins.module_utils import bundles, bytecode, captures, environments, overlays, records
from ansible_collections.specdec.serving.plugins.module_utils.findings import OK, FindingError, worst
from ansible_collections.specdec.serving.plugins.module_utils.layout import MARKER, SCHEMA, Layout
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed
from ansible_collections.specdec.serving.plugins.plugin_utils import processes as real

from . import wheels

ENGINE = {"engine/__init__.py": b"VALUE = 'wheel'\n", "engine/core.py": b"CORE = 1\n", "engine/table.json": b"{}\n"}
OTHER = {"other/__init__.py": b"O = 1\n", "other/template.py": b"{{ not python }}\n"}


@dataclasses.dataclass
class Host:
    """A root directory with uv and pushed wheels, and what was run and told."""

    layout: Layout
    wheels: list[dict[str, str]]
    lock: str
    told: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    ran: list[list[str]] = dataclasses.field(default_factory=list)

    def push(self, directory: Path, name: str, files: t.Mapping[str, bytes]) -> None:
        """Put a wheel where the controller's push does, and lock it."""
        wheel = wheels.make(directory, name, "1.0", files)
        sha256 = wheels.sha256(wheel.read_bytes())
        self.wheels.append({"name": name, "version": "1.0", "filename": wheel.name, "sha256": sha256})
        self.lock += "%s==1.0 --hash=sha256:%s\n" % (name, sha256)
        (self.layout.wheels / sha256).mkdir(parents=True)
        wheel.rename(self.layout.wheels / sha256 / wheel.name)

    def spec(self, *layers: bundles.Bundle, **changes: t.Any) -> dict[str, t.Any]:
        for bundle in layers:
            bundles.write_bundle(self.layout.overlays / bundle.digest, bundle)
        content = {
            "schema": SCHEMA,
            "lock": "0" * 16,
            "overlays": [bundle.digest for bundle in layers],
            "python": {
                "path": sys.executable,
                "implementation": sys.implementation.name,
                "version": platform.python_version(),
                "build": sys.version,
            },
            "engine": {"name": "engine", "version": "1.0"},
            "lane": "cpu",
            "wheels": self.wheels,
        }
        content["id"] = environments.environment_id(content)
        whole = {"root": str(self.layout.root), "environment": content, "lock": self.lock, "python": sys.executable}
        return {**whole, "uv_env": {"UV_OFFLINE": "1", "UV_NO_INDEX": "1"}, **changes}

    def run(self, argv: t.Sequence[str], **options: t.Any) -> Completed:
        self.ran.append(list(argv))
        return real.run(argv, **options)

    def build(self, spec: t.Mapping[str, t.Any], runner: t.Any = None) -> dict[str, t.Any]:
        return environments.build(spec, runner or self.run, lambda stage, message, **data: self.told.append((stage, message)))

    def site(self, spec: t.Mapping[str, t.Any]) -> Path:
        return next((self.layout.environment(spec["environment"]["id"]) / "venv/lib").glob("python3*/site-packages"))

    def refusal_beside(self, spec: t.Mapping[str, t.Any]) -> t.Any:
        """The finding of a build that must fail and leave what else is built."""
        before = os.listdir(self.layout.environments)
        with pytest.raises(FindingError) as caught:
            self.build(spec)
        assert os.listdir(self.layout.environments) == before
        return caught.value.finding

    def refusal(self, spec: t.Mapping[str, t.Any], runner: t.Any = None) -> t.Any:
        """The finding of a build that must fail and leave nothing behind."""
        with pytest.raises(FindingError) as caught:
            self.build(spec, runner)
        assert not self.layout.environments.exists() or os.listdir(self.layout.environments) == []
        return caught.value.finding


@pytest.fixture
def host(tmp_path: Path) -> Host:
    layout = Layout(tmp_path / "root")
    layout.bin.mkdir(parents=True)
    layout.uv.symlink_to(uv.find_uv_bin())
    host = Host(layout, [], "# specdec: {}\n")
    host.push(tmp_path, "engine", ENGINE)
    host.push(tmp_path, "other", OTHER)
    return host


@pytest.fixture
def bundle(tmp_path: Path) -> bundles.Bundle:
    reference = wheels.venv(tmp_path / "reference")
    wheels.install(reference, "engine", "1.0", {**ENGINE})
    (reference / "engine/__init__.py").write_bytes(b"VALUE = 'edits'\n")
    (reference / "engine/tree.py").write_bytes(b"TREE = 1\n")
    (reference / "engine/table.json").write_bytes(b"[1]\n")
    return captures.capture(reference, "engine").bundle


@pytest.fixture
def page(host: Host, tmp_path: Path) -> t.Iterator[str]:
    """A page of an extra index on this machine; the locked package it has is nowhere else."""
    host.push(tmp_path, "specdecpaged", {"specdecpaged/__init__.py": b"P = 1\n"})
    wheel = host.wheels.pop()
    content = (host.layout.wheels / wheel["sha256"] / wheel["filename"]).read_bytes()
    shutil.rmtree(host.layout.wheels / wheel["sha256"])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = content if self.path.endswith(".whl") else b'<a href="%s">a wheel</a>' % wheel["filename"].encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream" if self.path.endswith(".whl") else "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: t.Any) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield "http://127.0.0.1:%d/whl/lane/specdecpaged/" % server.server_port
        server.shutdown()


def tree(directory: Path) -> dict[str, str]:
    return {path: records.hash_file(directory / path) for path in records.tree(directory) if (directory / path).is_file()}


def test_the_id_is_over_what_decides_and_not_over_paths(host: Host) -> None:
    content = host.spec()["environment"]
    moved = {**content, "python": {**content["python"], "path": "/elsewhere"}, "lane": "x", "wheels": []}
    assert environments.environment_id(moved) == content["id"]
    for change in ({"lock": "1" * 16}, {"overlays": ["a"]}, {"schema": 2}, {"python": {**content["python"], "build": "x"}}):
        assert environments.environment_id({**content, **change}) != content["id"]


def test_a_package_of_an_extra_index_comes_from_its_page(host: Host, page: str) -> None:
    assert host.refusal(host.spec()).id == "environment.unavailable"
    spec = host.spec(uv_env={}, pages=[page])
    host.build(spec)
    assert (host.site(spec) / "specdecpaged/__init__.py").read_bytes() == b"P = 1\n"


def test_a_build_is_complete_verified_compiled_and_done_once(host: Host, bundle: bundles.Bundle) -> None:
    spec = host.spec(bundle)
    result = host.build(spec)
    directory = host.layout.environment(spec["environment"]["id"])
    assert result["changed"]
    assert {one["verdict"] for one in result["findings"]} == {"ok"}
    assert sorted(os.listdir(directory)) == sorted([MARKER, "environment.json", "lib", "lock.txt", "overlay.json", "venv"])
    assert json.loads((directory / "environment.json").read_bytes()) == spec["environment"]
    assert json.loads((directory / "overlay.json").read_bytes()) == [bundle.manifest]
    assert (directory / "lock.txt").read_text("utf-8") == host.lock
    site = host.site(spec)
    assert worst(records.findings(records.verify(site, overlay=overlays.expected([bundle.manifest])))) == OK
    shown = subprocess.run(
        [directory / "venv/bin/python", "-I", "-v", "-c", "import engine.tree; print(engine.VALUE)"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.stdout == "edits\n"
    assert "matches" in next(line for line in shown.stderr.splitlines() if "engine/__pycache__/__init__" in line)
    assert (site / "engine/__pycache__").stat().st_mode & 0o005 == 0o005
    assert ("build", "installing the locked packages") in host.told
    assert any(message.startswith("Installed 2 packages") for stage, message in host.told)

    host.ran.clear()
    assert not host.build(spec)["changed"]
    assert host.ran == []


def shared_before_and_after(host: Host, bundle: bundles.Bundle) -> tuple[dict[str, str], dict[str, str]]:
    """What one cache and an environment of it hold before and after another environment got an overlay."""
    plain = host.spec()
    host.build(plain)
    linked = host.site(plain) / "engine/table.json"
    assert linked.stat().st_nlink > 1, "uv no longer links: this test would prove nothing"

    def shared() -> dict[str, str]:
        cached = {path: value for path, value in tree(host.layout.uv_cache).items() if not path.startswith("interpreter")}
        return {**cached, **{"environment/" + path: value for path, value in tree(host.site(plain)).items()}}

    before = shared()
    host.build(host.spec(bundle))
    return before, {path: value for path, value in shared().items() if path in before}


def test_an_overlay_reaches_neither_the_cache_nor_another_environment(host: Host, bundle: bundles.Bundle) -> None:
    before, after = shared_before_and_after(host, bundle)
    assert (host.site(host.spec(bundle)) / "engine/table.json").read_bytes() == b"[1]\n"
    assert after == before


def test_the_test_before_finds_an_overlay_that_is_written_in_place(
    host: Host, bundle: bundles.Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlays, "replace", lambda target, data, mode: Path(target).write_bytes(data))
    before, after = shared_before_and_after(host, bundle)
    poisoned = [path for path in before if after[path] != before[path]]
    assert "environment/engine/table.json" in poisoned
    assert len(poisoned) == 2  # and the cache's own


def test_without_its_overlay_an_environment_is_the_wheel_as_its_record_proves(host: Host, bundle: bundles.Bundle) -> None:
    overlaid, undone = host.spec(bundle), host.spec()
    host.build(overlaid)
    assert {"engine/__init__.py", "engine/table.json"} == set(records.verify(host.site(overlaid)).changed)
    result = host.build(undone)
    state = records.verify(host.site(undone))
    assert (state.changed, state.missing, state.foreign) == ({}, {}, ())
    assert worst(records.findings(state)) == OK
    assert {path: (host.site(undone) / path).read_bytes() for path in ENGINE} == ENGINE
    assert result["changed"]


def test_layers_are_applied_in_order_and_audited_together(host: Host, bundle: bundles.Bundle) -> None:
    files = {"engine/table.json": b"[2]\n"}
    entries = [bundles.entry("engine/table.json", "change", wheels.sha256(b"[1]\n"), files["engine/table.json"])]
    notes = {key: bundle.manifest[key] for key in ("base", "python", "adds", "reference_versions")}
    layer = bundles.seal({**notes, "files": entries}, files)
    spec = host.spec(bundle, layer)
    host.build(spec)
    assert (host.site(spec) / "engine/table.json").read_bytes() == b"[2]\n"
    assert (host.site(spec) / "engine/__init__.py").read_bytes() == b"VALUE = 'edits'\n"
    assert host.refusal_beside(host.spec(layer, bundle)).id == "overlay.base-hash"


def test_the_engines_files_are_its_own_so_that_an_edit_stays_where_it_is(host: Host) -> None:
    spec = host.spec()
    host.build(spec)
    engine = host.site(spec) / "engine/core.py"
    assert engine.stat().st_nlink == 1
    engine.write_bytes(b"CORE = 'edited in place'\n")
    cached = [path for path in host.layout.uv_cache.rglob("engine/core.py") if path.read_bytes() != ENGINE["engine/core.py"]]
    assert cached == []


def test_a_damaged_cache_is_evicted_and_fetched_once_more(host: Host) -> None:
    first = host.spec()
    host.build(first)
    (host.site(first) / "other/__init__.py").write_bytes(b"O = 'edited in place'\n")
    second = host.spec()
    second["environment"]["lock"] = "1" * 16
    second["environment"]["id"] = environments.environment_id(second["environment"])
    result = host.build(second)
    assert (host.site(second) / "other/__init__.py").read_bytes() == OTHER["other/__init__.py"]
    assert [one["subject"] for one in result["findings"] if one["id"] == "environment.cache"] == ["other"]
    assert (host.site(second) / "other/__pycache__").is_dir()


def beside(host: Host, lock: str = "1" * 16) -> dict[str, t.Any]:
    """Another environment of the same packages."""
    spec = host.spec()
    spec["environment"]["lock"] = lock
    spec["environment"]["id"] = environments.environment_id(spec["environment"])
    return spec


def compiled(host: Host) -> list[str]:
    """What was compiled since the last time, by the interpreters that did it."""
    ran, host.ran[:] = list(host.ran), []
    return [argv[0] for argv in ran if bytecode.COMPILE in argv]


def test_bytecode_is_compiled_once_and_good_in_every_environment(host: Host) -> None:
    first, second = host.spec(), beside(host)
    host.build(first)
    assert len(compiled(host)) == 1
    host.build(second)
    assert compiled(host) == []
    (code,) = (host.site(second) / "engine/__pycache__").glob("core.*.pyc")
    assert code.stat().st_nlink > 2
    python = host.layout.environment(second["environment"]["id"]) / "venv/bin/python"
    shown = subprocess.run([python, "-I", "-v", "-c", "import engine.core"], capture_output=True, text=True, check=True)
    assert "matches" in next(line for line in shown.stderr.splitlines() if "engine/__pycache__/core" in line)


@pytest.mark.parametrize("damage", ["bytecode", "source", "index"])
def test_bytecode_that_is_not_as_it_was_kept_is_compiled_anew(host: Host, damage: str) -> None:
    first, second = host.spec(), beside(host)
    host.build(first)
    compiled(host)
    (code,) = (host.site(first) / "other/__pycache__").glob("__init__.*.pyc")
    if damage == "bytecode":
        code.write_bytes(code.read_bytes()[:-3] + b"xxx")  # in place: also what is kept
    elif damage == "source":
        (host.site(first) / "other/__init__.py").write_bytes(b"O = 'in place'\n")
    else:
        for index in host.layout.bytecode.glob("*/index.json"):
            index.write_text("{}")
    host.build(second)
    assert compiled(host) != []
    (fresh,) = (host.site(second) / "other/__pycache__").glob(code.name)
    assert b"xxx" not in fresh.read_bytes()
    python = host.layout.environment(second["environment"]["id"]) / "venv/bin/python"
    shown = subprocess.run([python, "-I", "-v", "-c", "import other; print(other.O)"], capture_output=True, text=True, check=True)
    assert shown.stdout == "1\n"
    assert "matches" in next(line for line in shown.stderr.splitlines() if "other/__pycache__" in line)
    host.build(beside(host, "2" * 16))
    assert compiled(host) == []


def test_while_uv_is_silent_a_person_is_told_that_work_goes_on(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "HEARTBEAT", 0.5)
    told = threading.Event()

    def runner(argv: t.Sequence[str], **options: t.Any) -> Completed:
        if "sync" in argv:
            assert told.wait(30)
        return host.run(argv, **options)

    def progress(stage: str, message: str, **data: t.Any) -> None:
        if "written so far" in message:
            told.set()

    assert environments.build(host.spec(), runner, progress)["changed"]


def test_what_a_killed_build_left_is_removed_and_built_anew(host: Host) -> None:
    spec = host.spec()
    directory = host.layout.environment(spec["environment"]["id"])
    (directory / "venv/lib/python3.99/site-packages").mkdir(parents=True)
    (directory / "lib").mkdir()
    aside = host.layout.environments / ".removed-earlier"
    aside.mkdir()
    assert host.build(spec)["changed"]
    assert os.listdir(host.layout.environments) == [spec["environment"]["id"]]
    assert len(list((directory / "venv/lib").glob("python3*"))) == 1


def test_no_marker_when_the_overlay_does_not_fit(host: Host, bundle: bundles.Bundle) -> None:
    manifest = {**bundle.manifest, "base": {"name": "engine", "version": "2.0"}}
    other = bundles.Bundle({**manifest, "digest": bundles.manifest_digest(manifest)}, bundle.files)
    assert host.refusal(host.spec(other)).id == "overlay.base-version"


def test_a_bundle_that_was_edited_on_the_host_is_refused_and_taken_away_so_that_it_is_sent_anew(host: Host, bundle: bundles.Bundle) -> None:
    spec = host.spec(bundle)
    place = host.layout.overlays / bundle.digest
    (place / "files/engine/tree.py").write_bytes(b"TREE = 2\n")
    finding = host.refusal(spec)
    assert (finding.id, finding.evidence) == ("overlay.digest", "engine/tree.py")
    assert "sends the bundle anew" in finding.fix
    assert not place.exists()
    assert host.build(host.spec(bundle))["changed"]


def test_the_environments_interpreter_judges_the_overlays_syntax(host: Host, bundle: bundles.Bundle) -> None:
    broken = {**bundle.files, "engine/tree.py": b"def broken(:\n"}
    files = [{**one, "result": wheels.sha256(broken[one["path"]])} for one in bundle.manifest["files"]]
    manifest = {**bundle.manifest, "python": "99.0", "files": files}
    spec = host.spec(bundles.Bundle({**manifest, "digest": bundles.manifest_digest(manifest)}, broken))
    finding = host.refusal(spec)
    assert finding.id == "overlay.not-python"
    assert re.fullmatch(r"engine/tree\.py: .+ \(tree\.py, line 1\)", finding.evidence)


def test_inputs_that_cannot_end_well_are_refused_before_anything_runs(host: Host) -> None:
    spec = host.spec()
    assert host.refusal({**spec, "python": "/nowhere/python3"}).id == "environment.python"
    assert host.refusal({**spec, "environment": {**spec["environment"], "lock": "1" * 16}}).id == "environment.id"
    shutil.rmtree(host.layout.wheels / host.wheels[0]["sha256"])
    finding = host.refusal(spec)
    assert (finding.id, host.wheels[0]["filename"] in finding.evidence) == ("environment.wheels", True)
    assert host.ran == []


def test_another_interpreter_than_planned_is_refused(host: Host) -> None:
    spec = host.spec()
    spec["environment"]["python"]["build"] = "another"
    spec["environment"]["id"] = environments.environment_id(spec["environment"])
    finding = host.refusal(spec)
    assert (finding.id, sys.version in finding.found or repr(sys.version) in finding.found) == ("environment.python", True)


def test_bytecode_that_cannot_be_compiled_is_a_warning(host: Host) -> None:
    def runner(argv: t.Sequence[str], **options: t.Any) -> Completed:
        return Completed(1, "engine/core.py: killed", "") if bytecode.COMPILE in argv else host.run(argv, **options)

    spec = host.spec()
    found = {one["id"]: one for one in host.build(spec, runner)["findings"]}
    finding = found["environment.bytecode"]
    assert (finding["verdict"], finding["subject"], finding["evidence"]) == ("warning", str(host.site(spec)), "engine/core.py: killed")
    assert "the engine starts slower" in finding["fix"]
    assert found["environment.complete"]["verdict"] == "ok"


def test_a_lock_with_another_version_of_the_engine_is_refused(host: Host) -> None:
    spec = host.spec()
    finding = host.refusal({**spec, "environment": {**spec["environment"], "engine": {"name": "engine", "version": "2.0"}}})
    assert (finding.id, finding.verdict, finding.subject) == ("environment.engine", "error", "environment " + spec["environment"]["id"])
    assert (finding.found, finding.expected, finding.fix) == ("1.0", "2.0", "lock anew for the wanted version")


def test_uvs_reason_is_told(host: Host) -> None:
    finding = host.refusal({**host.spec(), "lock": host.lock.replace("sha256:" + host.wheels[1]["sha256"], "sha256:" + "0" * 64)})
    assert (finding.id, "Hash mismatch" in finding.evidence) == ("environment.hash", True)
    finding = host.refusal({**host.spec(), "lock": host.lock + "absent==1.0 --hash=sha256:%s\n" % ("0" * 64)})
    assert (finding.id, "absent" in finding.evidence) == ("environment.unavailable", True)
    host.layout.uv.unlink()
    assert host.refusal(host.spec()).id == "environment.uv"


@pytest.mark.parametrize(
    "cut_before",
    [pytest.param(True, id="the lock was made with it"), pytest.param(False, id="it was cut off on its way")],
)
def test_a_wheel_that_is_cut_off_is_told_by_name(host: Host, cut_before: bool) -> None:
    wheel = host.wheels[1]
    whole = host.layout.wheels / wheel["sha256"] / wheel["filename"]
    cut = whole.read_bytes()[:-40]
    place = wheels.sha256(cut) if cut_before else wheel["sha256"]
    host.lock = host.lock.replace(wheel["sha256"], place)
    host.wheels[1] = {**wheel, "sha256": place}
    shutil.rmtree(whole.parent)
    (host.layout.wheels / place).mkdir()
    (host.layout.wheels / place / wheel["filename"]).write_bytes(cut)
    finding = host.refusal(host.spec())
    assert (finding.id, finding.message) == ("environment.damaged", "a package's wheel is cut off or damaged")
    assert wheel["filename"] in finding.evidence and "fetch the wheel" in finding.fix


@pytest.mark.parametrize(
    ("words", "check"),
    [
        ("error: Failed to install\n  cause: No space left on device (os error 28)", "environment.disk"),
        ('error: Could not acquire lock\n  cause: Read-only file system (os error 30) at path "/x"', "environment.read-only"),
        (
            "error: Request failed after 3 retries\n  cause: Failed to fetch: `https://user:secret@index/x`\n  dns error",
            "network.unreachable",
        ),
        ("error: Failed to fetch\n  cause: HTTP status client error (401 Unauthorized)", "network.credentials"),
        ("error: something new", "environment.uv"),
    ],
)
def test_failures_are_told_apart_without_secrets(host: Host, words: str, check: str) -> None:
    def runner(argv: t.Sequence[str], **options: t.Any) -> Completed:
        return Completed(2, "Resolved 2 packages in 1ms\n" + words, "") if "sync" in argv else host.run(argv, **options)

    finding = host.refusal(host.spec(), runner)
    assert finding.id == check
    assert finding.evidence.startswith("error")
    assert "secret" not in finding.text()


def test_secrets_travel_in_the_environment_and_certificates_are_the_hosts(host: Host) -> None:
    seen: list[tuple[list[str], dict[str, str]]] = []

    def runner(argv: t.Sequence[str], **options: t.Any) -> Completed:
        seen.append((list(argv), options.get("env") or {}))
        return host.run(argv, **options)

    spec = host.spec()
    host.build({**spec, "uv_env": {**spec["uv_env"], "UV_INDEX_PRIVATE_PASSWORD": "hunter2"}}, runner)
    calls = [env for argv, env in seen if argv[0] == str(host.layout.uv)]
    assert all(env["UV_INDEX_PRIVATE_PASSWORD"] == "hunter2" and env["UV_SYSTEM_CERTS"] == "1" for env in calls)
    assert all(env["UV_CACHE_DIR"] == str(host.layout.uv_cache) and env["UV_PYTHON_DOWNLOADS"] == "never" for env in calls)
    assert not any("hunter2" in part for argv, env in seen for part in argv)


def test_files_are_readable_for_the_services_user_whatever_the_umask(host: Host, bundle: bundles.Bundle) -> None:
    spec = host.spec(bundle)
    before = os.umask(0o077)
    try:
        host.build(spec)
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)
    directory = host.layout.environment(spec["environment"]["id"])
    closed = [path for path in [directory, *directory.rglob("*")] if not path.is_symlink() and not path.stat().st_mode & stat.S_IROTH]
    assert closed == []
