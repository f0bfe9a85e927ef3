# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A double of a model hub for tests: the endpoints that its client uses, over repositories in memory; faults on demand."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
import ssl
import threading
import typing as t
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclasses.dataclass
class Repository:
    """One commit of a repository.

    :param large: paths kept outside git, known by their sha256.
    :param token: what a reader has to show; :param gated: without it the list is public and the files are not.
    :param held: path → bytes after which its transfer stops, once, until the client goes.
    :param damaged: paths of which every transfer is wrong in its last byte.
    """

    files: dict[str, bytes]
    commit: str = "0123456789abcdef0123456789abcdef01234567"
    branch: str = "main"
    large: frozenset[str] = frozenset()
    token: str = ""
    gated: bool = False
    held: dict[str, int] = dataclasses.field(default_factory=dict)
    damaged: frozenset[str] = frozenset()

    def described(self, path: str) -> dict[str, t.Any]:
        """A file as the list of a revision shows it."""
        content = self.files[path]
        shown: dict[str, t.Any] = {"rfilename": path, "size": len(content), "blobId": git_hash(content)}
        if path in self.large:
            shown["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        return shown

    def etag(self, path: str) -> str:
        """What the hub calls a file's content."""
        content = self.files[path]
        return hashlib.sha256(content).hexdigest() if path in self.large else git_hash(content)


def git_hash(content: bytes) -> str:
    """The name git gives a file's content."""
    return hashlib.sha1(b"blob %d\0%s" % (len(content), content), usedforsecurity=False).hexdigest()


class Hub:
    """Serves repositories by ``organisation/name`` until it is closed; ``seen`` holds (method, path, Range) of each request.

    :param name: the host name in its endpoint, where that is not its address; :param context: for TLS.
    """

    def __init__(
        self, repositories: dict[str, Repository], address: str = "127.0.0.1", name: str = "", context: t.Optional[ssl.SSLContext] = None
    ) -> None:
        self.repositories = repositories
        self.seen: list[tuple[str, str, t.Optional[str]]] = []
        self.server = ThreadingHTTPServer((address, 0), _handler(self))
        if context:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.endpoint = "%s://%s:%d" % ("https" if context else "http", name or address, self.server.server_port)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.server.server_close()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.respond()

        def do_GET(self) -> None:
            self.respond()

        def respond(self) -> None:
            hub.seen.append((self.command, self.path, self.headers.get("Range")))
            listing = re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/([^/?]+)(\?.*)?", self.path)
            content = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/([^?]+)(\?.*)?", self.path)
            found = listing or content
            if found is None:
                self.fail(404, "NotFound")
                return
            repository = hub.repositories.get(found.group(1))
            if repository is None:
                # a stranger is not told whether it is there
                self.fail(404 if "Authorization" in self.headers else 401, "RepoNotFound")
                return
            shown = self.headers.get("Authorization") == "Bearer " + repository.token
            if repository.token and not shown and not (repository.gated and listing):
                self.fail(401, "GatedRepo" if repository.gated else "RepoNotFound")
            elif found.group(2) not in (repository.commit, repository.branch):
                self.fail(404, "RevisionNotFound")
            elif listing:
                siblings = [repository.described(path) for path in repository.files]
                body = {"id": found.group(1), "modelId": found.group(1), "sha": repository.commit, "siblings": siblings}
                self.answer(200, json.dumps(body).encode(), {"Content-Type": "application/json"})
            elif found.group(3) not in repository.files:
                self.fail(404, "EntryNotFound")
            else:
                self.send(repository, found.group(3))

        def send(self, repository: Repository, path: str) -> None:
            whole = repository.files[path]
            headers = {"ETag": '"%s"' % repository.etag(path), "X-Repo-Commit": repository.commit, "Accept-Ranges": "bytes"}
            if path in repository.large:
                headers.update({"X-Linked-Size": str(len(whole)), "X-Linked-Etag": headers["ETag"]})
            if path in repository.damaged:
                whole = whole[:-1] + bytes([whole[-1] ^ 1])
            wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
            first = int(wanted.group(1)) if wanted else 0
            if wanted:
                headers["Content-Range"] = "bytes %d-%d/%d" % (first, len(whole) - 1, len(whole))
            end = repository.held.pop(path, None) if self.command == "GET" else None
            self.answer(206 if wanted else 200, whole[first:], headers, end)

        def answer(self, status: int, body: bytes, headers: dict[str, str], end: t.Optional[int] = None) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.close_connection = end is not None
            with contextlib.suppress(ConnectionError):
                if self.command == "GET":
                    self.wfile.write(body[:end])
                if end is not None:
                    self.connection.recv(1)

        def fail(self, status: int, code: str) -> None:
            self.answer(status, b"", {"X-Error-Code": code, "X-Error-Message": code})

        def log_message(self, *_args: object) -> None:
            """Requests are kept in ``seen``, not logged."""

    return Handler
