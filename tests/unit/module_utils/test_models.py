# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is done with what a hub's client says; the client itself is tried in tests/integration/test_models.py."""

from __future__ import annotations

import hashlib
import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import models
from ansible_collections.specdec.serving.plugins.module_utils.findings import FindingError
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed

CONTENT = b"weights"
FILE = {"path": "model.safetensors", "size": len(CONTENT), "git": None, "sha256": hashlib.sha256(CONTENT).hexdigest()}
SPEC = {"repo": "org/target", "revision": "c" * 40, "python": "/venv/bin/python", "endpoint": ""}


class Client:
    """The client: answers from ``says``, one line for each call; keeps how it was called."""

    def __init__(self, root: Path, *says: t.Union[bytes, dict[str, t.Any]]) -> None:
        self.partial = root / "models" / "org--target" / ("c" * 40 + ".partial")
        self.says = list(says)
        self.calls: list[tuple[list[str], dict[str, str]]] = []

    def __call__(self, argv: t.Sequence[str], *, stdin: str, env: dict[str, str], on_line: t.Callable[[str], None]) -> Completed:
        self.calls.append((list(argv), env))
        if "files" not in json.loads(stdin):
            on_line(json.dumps({"commit": "c" * 40, "files": [FILE]}))
            return Completed(0, "", "")
        said = self.says.pop(0)
        if isinstance(said, bytes):
            (self.partial / FILE["path"]).write_bytes(said)
            return Completed(0, "", "")
        on_line(json.dumps(said))
        return Completed(1, "", "")


def fetch(root: Path, client: Client, **more: t.Any) -> dict[str, t.Any]:
    return models.fetch({**SPEC, "root": str(root), **more}, client, lambda *_words, **_data: None)


def refused(root: Path, client: Client, **more: t.Any) -> t.Any:
    with pytest.raises(FindingError) as caught:
        fetch(root, client, **more)
    return caught.value.finding


def test_what_stalls_or_comes_damaged_is_tried_again_by_the_plain_protocol(tmp_path: Path) -> None:
    client = Client(tmp_path, {"error": ["Stalled"], "status": None, "text": "nothing came"}, b"weighty", CONTENT)
    result = fetch(tmp_path, client)
    assert result["changed"] and [(one["id"], one["verdict"]) for one in result["findings"]] == [("model.complete", "ok")]
    assert [call[1].get("HF_HUB_DISABLE_XET") for call in client.calls] == [None, None, "1", "1"]


def test_it_gives_up_in_the_end_and_keeps_what_is_there(tmp_path: Path) -> None:
    finding = refused(tmp_path, Client(tmp_path, *[{"error": ["Stalled"], "status": None, "text": "nothing came"}] * 3))
    assert (finding.id, finding.evidence) == ("model.unreachable", "nothing came")
    assert "org--target/" + "c" * 40 + " by hand" in finding.fix


@pytest.mark.parametrize(
    ("names", "status", "check"),
    [
        (["ModuleNotFoundError", "ImportError"], None, "client"),
        (["GatedRepoError", "RepositoryNotFoundError", "HfHubHTTPError"], 403, "gated"),
        (["RepositoryNotFoundError", "HfHubHTTPError"], 401, "access"),
        (["RepositoryNotFoundError", "HfHubHTTPError"], 404, "repo"),
        (["RevisionNotFoundError", "HfHubHTTPError"], 404, "revision"),
        (["HfHubHTTPError", "OSError"], 403, "access"),
        (["HfHubHTTPError", "OSError"], 503, "answer"),
        (["LocalEntryNotFoundError", "HfHubHTTPError", "OSError", "ConnectError"], None, "answer"),
        (["LocalEntryNotFoundError", "OSError", "ConnectError"], None, "unreachable"),
        (["ValueError"], None, "failed"),
    ],
)
def test_the_clients_exceptions_are_told_apart(tmp_path: Path, names: list[str], status: t.Optional[int], check: str) -> None:
    finding = refused(tmp_path, Client(tmp_path, *[{"error": names, "status": status, "text": "words"}] * 3))
    assert finding.id == "model." + check and finding.evidence == "words" and finding.fix


def test_neither_token_nor_signed_addresses_are_evidence_or_arguments(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("hf_secretValue")
    text = "Forbidden: hf_secretValue at https://store.example/x?Signature=abc"
    client = Client(tmp_path, {"error": ["HfHubHTTPError"], "status": 403, "text": text})
    finding = refused(tmp_path, client, secret_files={models.TOKEN: str(token)})
    assert finding.evidence == "Forbidden: *** at https://store.example/x?…"
    assert all(env["HF_TOKEN_PATH"] == str(token) for _argv, env in client.calls)
    assert "hf_secretValue" not in json.dumps(client.calls)


def test_a_login_of_root_does_not_count(tmp_path: Path) -> None:
    client = Client(tmp_path, CONTENT)
    fetch(tmp_path, client)
    assert {env["HF_TOKEN_PATH"] for _argv, env in client.calls} == {"/dev/null"}
    assert all(env["HF_HOME"].startswith(str(tmp_path)) for _argv, env in client.calls)


def test_a_file_is_compared_with_what_the_hub_says_of_it(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"hello\n")
    assert models.File("x", 6, None, "ce013625030ba8dba906f756967f9e9ca394464a").whole(tmp_path)
    assert not models.File("x", 6, None, "0" * 40).whole(tmp_path)
    assert not models.File("x", 7, None, None).whole(tmp_path)
    assert not models.File("absent", None, None, None).whole(tmp_path)
