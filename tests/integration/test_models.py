# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Models from a hub by the hub's own client, as the demo's engine is locked with it, against a double of a hub."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import time
import typing as t
from pathlib import Path

import pytest
from authority import Authority
from hub import Hub, Repository
from proxy import Proxy

from ansible_collections.specdec.serving.plugins.module_utils import models, networks
from ansible_collections.specdec.serving.plugins.module_utils.findings import FindingError
from ansible_collections.specdec.serving.plugins.module_utils.layout import MARKER
from ansible_collections.specdec.serving.plugins.module_utils.runners import Runner
from ansible_collections.specdec.serving.plugins.plugin_utils.processes import run

CHECKOUT = Path(__file__).resolve().parents[2]
WEIGHTS = random.Random(1).randbytes(3_000_000)
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS, "sub/vocab.txt": b"a\nb\n", "pytorch_model.bin": b"the same again"}
TOKEN = "hf_tokenOfTheseTests"
COMMIT = Repository({}).commit


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with the client in the version of the demo's lock."""
    venv = tmp_path_factory.mktemp("client") / "venv"
    lock = (CHECKOUT / "demo" / "reference" / "requirements.txt").read_text()
    wanted = re.search(r"^huggingface-hub==\S+", lock, re.MULTILINE).group(0)
    subprocess.run(["uv", "venv", "--quiet", "--no-project", str(venv)], check=True)
    subprocess.run(["uv", "pip", "install", "--quiet", "--python", str(venv / "bin" / "python"), wanted], check=True)
    return str(venv / "bin" / "python")


class Host:
    """A root directory, a hub, and what was told."""

    def __init__(self, root: Path, client: str) -> None:
        self.root = root
        self.client = client
        self.repository = Repository(dict(FILES), large=frozenset({"model.safetensors"}))
        self.hub = Hub({"org/target": self.repository})
        self.told: list[str] = []

    @property
    def place(self) -> Path:
        return self.root / "models" / "org--target" / COMMIT

    @property
    def partial(self) -> Path:
        return self.place.with_name(COMMIT + ".partial")

    def fetch(self, token: str = "", runner: Runner = run, **change: t.Any) -> dict[str, t.Any]:
        spec = {"root": str(self.root), "repo": "org/target", "revision": COMMIT, "python": self.client, "endpoint": self.hub.endpoint}
        if token:
            (self.root / "token").write_text(token)
            spec["secret_files"] = {models.TOKEN: str(self.root / "token")}
        return models.fetch({**spec, **change}, runner, lambda _stage, message, **_data: self.told.append(message))

    def refused(self, **change: t.Any) -> t.Any:
        with pytest.raises(FindingError) as caught:
            self.fetch(**change)
        assert not self.place.exists()
        return caught.value.finding

    def downloads(self, path: str) -> list[t.Optional[str]]:
        """The ranges asked of one file, one per transfer."""
        return [range_ for method, asked, range_ in self.hub.seen if method == "GET" and asked.endswith("/" + path)]


@pytest.fixture
def host(tmp_path: Path, client: str) -> t.Iterator[Host]:
    made = Host(tmp_path, client)
    yield made
    made.hub.close()


def test_a_revision_comes_whole_readable_and_with_its_marker(host: Host) -> None:
    result = host.fetch()
    assert result["changed"] and {one["id"]: one["verdict"] for one in result["findings"]} == {"model.complete": "ok"}
    found = {str(path.relative_to(host.place)): path.read_bytes() for path in host.place.rglob("*") if path.is_file()}
    marker = json.loads(found.pop(MARKER))
    assert found == {name: content for name, content in FILES.items() if name != "pytorch_model.bin"}
    assert (marker["repo"], marker["commit"]) == ("org/target", COMMIT)
    assert {one["path"]: one["size"] for one in marker["files"]} == {name: len(content) for name, content in found.items()}
    assert {path.stat().st_mode & 0o777 for path in (host.place, *host.place.rglob("*")) if path.is_dir()} == {0o755}
    assert {path.stat().st_mode & 0o777 for path in host.place.rglob("*") if path.is_file()} == {0o644}
    assert not host.partial.exists()
    asked = len(host.hub.seen)
    assert not host.fetch()["changed"]
    assert len(host.hub.seen) == asked


class Killed(Exception):
    """What a job that is killed does to its caller: it never comes back."""


def test_an_interrupted_fetch_keeps_what_came_whole(host: Host) -> None:
    host.repository.files["second.safetensors"] = WEIGHTS[::-1]
    host.repository.held["second.safetensors"] = 1000

    def begun() -> list[Path]:
        return list(host.partial.rglob("*.incomplete"))

    def killed(argv: t.Sequence[str], *, stdin: str, env: dict[str, str], **options: t.Any) -> t.Any:
        if "files" not in json.loads(stdin):
            return run(argv, stdin=stdin, env=env, **options)
        with subprocess.Popen(argv, stdin=subprocess.PIPE, env={**os.environ, **env}, text=True) as process:
            process.stdin.write(stdin)
            process.stdin.close()
            while not host.downloads("second.safetensors") or not begun():
                assert process.poll() is None
                time.sleep(0.05)
            process.kill()
        raise Killed

    with pytest.raises(Killed):
        host.fetch(runner=killed)
    assert not host.place.exists() and len(begun()) == 1
    host.fetch()
    assert len(host.downloads("model.safetensors")) == len(host.downloads("config.json")) == 1
    assert (host.place / "second.safetensors").read_bytes() == WEIGHTS[::-1]
    assert not host.partial.exists() and not list(host.place.rglob("*.incomplete"))


def test_what_an_ended_job_or_a_person_left_is_taken_up(host: Host) -> None:
    host.place.mkdir(parents=True)
    (host.place / "model.safetensors").write_bytes(WEIGHTS)
    (host.place / "config.json").write_bytes(b"{ }")
    host.fetch()
    assert host.downloads("model.safetensors") == [] and len(host.downloads("config.json")) == 1
    assert (host.place / "config.json").read_bytes() == FILES["config.json"] and (host.place / MARKER).exists()


def test_a_token_opens_what_is_gated_and_is_never_told(host: Host, tmp_path: Path) -> None:
    host.repository.token, host.repository.gated = TOKEN, True
    finding = host.refused()
    assert finding.id == "model.gated" and "specdec_hub.token" in finding.fix and finding.found == "no token is set"
    wrong = host.refused(token="hf_anotherToken")
    assert wrong.id == "model.gated" and wrong.found == "a token was given" and "hf_anotherToken" not in wrong.text()
    result = host.fetch(token=TOKEN)
    assert result["changed"]
    (tmp_path / "token").unlink()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert TOKEN not in json.dumps(result) + "".join(host.told)


@pytest.mark.parametrize(
    ("change", "check", "way_out"),
    [
        ({"repo": "org/absent"}, "access", "spelling of repo"),
        ({"repo": "org/absent", "token": TOKEN}, "repo", "spelling of repo"),
        ({"revision": "f" * 40}, "revision", "name a commit"),
        ({"endpoint": "http://127.0.0.1:9"}, "unreachable", "by hand"),
    ],
    ids=["unknown", "unknown to a known reader", "revision", "offline"],
)
def test_what_the_hub_does_not_give_is_named_with_a_way_out(host: Host, change: dict[str, t.Any], check: str, way_out: str) -> None:
    finding = host.refused(**change)
    assert finding.id == "model." + check, finding.text()
    assert way_out in finding.fix and finding.evidence


def test_a_file_that_is_not_the_hubs_is_refused_and_the_rest_kept(host: Host) -> None:
    host.repository.damaged = frozenset({"model.safetensors"})
    finding = host.refused()
    assert finding.id == "model.damaged" and finding.evidence == "model.safetensors"
    host.repository.damaged = frozenset()
    host.hub.seen.clear()
    host.fetch()
    assert hashlib.sha256((host.place / "model.safetensors").read_bytes()).digest() == hashlib.sha256(WEIGHTS).digest()
    assert host.downloads("config.json") == []


def test_a_full_disk_is_seen_before_anything_comes(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(host.root)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=1_000_000))
    finding = host.refused()
    assert finding.id == "model.disk" and finding.found.startswith("0.0 GB free")
    assert host.downloads("model.safetensors") == []


def test_a_branch_is_fetched_and_its_commit_named(host: Host) -> None:
    result = host.fetch(revision="main")
    (warning,) = [one for one in result["findings"] if one["verdict"] == "warning"]
    assert warning["id"] == "model.moving" and COMMIT in warning["fix"]
    assert (host.place.with_name("main") / MARKER).exists()


def test_a_file_that_leaves_its_directory_is_refused(host: Host) -> None:
    host.repository.files["../../evil"] = b"x"
    assert host.refused().id == "model.path"
    assert not list(host.root.rglob("evil"))


@pytest.fixture
def private(host: Host, tmp_path: Path) -> t.Iterator[dict[str, t.Any]]:
    """``specdec_network`` for a hub that only a proxy reaches and that a private authority signs for."""
    authority = Authority(tmp_path)
    host.hub.close()
    host.hub = Hub({"org/target": host.repository}, name="hub.internal", context=authority.context("hub.internal"))
    proxy = Proxy({"hub.internal": ("127.0.0.1", host.hub.server.server_port)}, login="carol:proxyPassword")
    yield {"proxy": proxy.url(), "ca": str(authority.pem)}
    proxy.close()


def network(host: Host, values: dict[str, t.Any]) -> dict[str, t.Any]:
    """The part of a job's spec that names the network."""
    secret = host.root / "secrets" / networks.SECRET
    secret.parent.mkdir(exist_ok=True)
    secret.write_text(networks.packed(values)[networks.SECRET])
    return {"secret_files": {networks.SECRET: str(secret)}}


def test_a_hub_behind_a_proxy_with_a_private_authority(host: Host, private: dict[str, t.Any]) -> None:
    finding = host.refused(**network(host, {**private, "ca": None}))
    assert (finding.id, "specdec_network.ca" in finding.fix) == ("network.certificate", True)
    finding = host.refused(**network(host, {**private, "proxy": private["proxy"].replace("proxyPassword", "wrongPassword")}))
    assert (finding.id, "Password" in finding.text()) == ("network.proxy", False)
    finding = host.refused(**network(host, {"ca": private["ca"]}))
    assert finding.id == "model.unreachable"
    result = host.fetch(**network(host, private))
    assert result["changed"] and "proxyPassword" not in json.dumps(result) + "".join(host.told)
