# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which file of an index a host takes, by the real uv against a local index."""

from __future__ import annotations

import functools
import http.server
import json
import threading
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import locks, pylocks
from ansible_collections.specdec.serving.plugins.plugin_utils import controller, hosttools, indexfiles

WANTED = {
    "python": "3.12",
    "platform": "x86_64-manylinux_2_28",
    "builds": [],
    "exclude_newer": "",
    "excludes": [],
    "indexes": [],
    "sources": {},
}
FILES = {
    "example": {
        "example-1.0-py3-none-any.whl": ("a" * 64, 100),
        "example-1.0-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl": ("b" * 64, 200),
        "example-1.0-cp312-cp312-manylinux_2_34_x86_64.whl": ("c" * 64, 300),
        "example-1.0-cp312-cp312-manylinux_2_17_aarch64.whl": ("d" * 64, 400),
        "example-1.0-cp311-abi3-manylinux_2_17_x86_64.whl": ("e" * 64, 500),
    },
    "silent": {"silent-2.0-py3-none-any.whl": ("f" * 64, None)},
}


@pytest.fixture
def index(tmp_path: Path) -> t.Iterator[str]:
    """A simple index in JSON; nothing is downloaded from it."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def guess_type(self, path: t.Any) -> str:
            return "application/vnd.pypi.simple.v1+json"

        def log_message(self, *_words: t.Any) -> None:
            """Say nothing."""

    for name, files in FILES.items():
        listed = [
            {"filename": file, "url": "../../files/" + file, "hashes": {"sha256": sha256}, **({"size": size} if size else {})}
            for file, (sha256, size) in files.items()
        ]
        page = {"meta": {"api-version": "1.1"}, "name": name, "versions": [], "files": listed}
        (tmp_path / "simple" / name).mkdir(parents=True)
        (tmp_path / "simple" / name / "index.html").write_text(json.dumps(page))
    serve = functools.partial(Handler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield "http://127.0.0.1:%d/simple" % server.server_port
        server.shutdown()


def lock(**versions: str) -> locks.Lock:
    packages = [
        locks.Package(name, version, tuple(sorted(sha256 for sha256, _size in FILES[name].values()))) for name, version in versions.items()
    ]
    return locks.Lock(tuple(packages), {})


def ask(lock_: locks.Lock, index: str, tmp_path: Path, **wanted: t.Any) -> dict[str, pylocks.File]:
    env = {"UV_DEFAULT_INDEX": index, "UV_CACHE_DIR": str(tmp_path / "cache"), "UV_FIND_LINKS": ""}
    found, done = indexfiles.ask(lock_, {**WANTED, **wanted}, controller.run, hosttools.find_uv(), env)
    assert done.rc == 0, done.stderr
    return found


@pytest.mark.parametrize(
    ("wanted", "sha256"),
    [
        ({}, "b"),
        ({"platform": "x86_64-manylinux_2_36"}, "c"),
        ({"platform": "aarch64-manylinux_2_28"}, "d"),
        ({"python": "3.13"}, "e"),
        ({"python": "3.10"}, "a"),
    ],
)
def test_the_file_is_the_one_of_the_hosts_best_tag(index: str, tmp_path: Path, wanted: dict[str, str], sha256: str) -> None:
    found = ask(lock(example="1.0", silent="2.0"), index, tmp_path, **wanted)
    assert found["example"].sha256 == sha256 * 64
    assert found["example"].url.startswith(index.removesuffix("simple") + "files/example-1.0-")
    assert (found["silent"].size, found["silent"].filename) == (None, "silent-2.0-py3-none-any.whl")


def test_a_file_that_the_lock_does_not_accept_is_not_taken(index: str, tmp_path: Path) -> None:
    narrow = locks.Lock((locks.Package("example", "1.0", ("a" * 64,)),), {})
    assert ask(narrow, index, tmp_path)["example"].sha256 == "a" * 64
