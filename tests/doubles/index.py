# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A double of a package index for tests: small stand-in wheels with the names and versions of real ones, over HTTP, faults on demand.

It answers as a real one does: pages in HTML or JSON, with hashes, sizes, times of upload, and the metadata of a wheel beside it.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import html
import io
import json
import re
import ssl
import threading
import typing as t
import urllib.parse
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

JSON = "application/vnd.pypi.simple.v1+json"
UPLOADED = "2026-01-01T00:00:00.000000Z"


def wheel(
    name: str,
    version: str,
    requires: t.Sequence[str] = (),
    files: t.Optional[t.Mapping[str, bytes]] = None,
    tag: str = "py3-none-any",
    extras: t.Sequence[str] = (),
) -> tuple[str, bytes]:
    """The file name and the bytes of a wheel with a true RECORD; the same arguments give the same bytes.

    :param requires: lines of Requires-Dist; :param files: content by path; a module of the package's name when None.
    """
    plain = re.sub(r"[-_.]+", "_", name)
    info = "%s-%s.dist-info/" % (plain, version)
    metadata = ["Metadata-Version: 2.1", "Name: " + name, "Version: " + version]
    metadata += ["Provides-Extra: " + one for one in extras] + ["Requires-Dist: " + one for one in requires]
    content = {
        **({plain + "/__init__.py": ("__version__ = %r\n" % version).encode()} if files is None else files),
        info + "METADATA": "\n".join(metadata).encode() + b"\n",
        info + "WHEEL": ("Wheel-Version: 1.0\nGenerator: double\nRoot-Is-Purelib: true\nTag: %s\n" % tag).encode(),
    }
    rows = ["%s,sha256=%s,%d" % (path, _record_hash(data), len(data)) for path, data in content.items()]
    content[info + "RECORD"] = "".join(row + "\n" for row in [*rows, info + "RECORD,,"]).encode()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as whole:
        for path, data in content.items():
            whole.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), data)
    return "%s-%s-%s.whl" % (plain, version, tag), archive.getvalue()


def _record_hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@dataclasses.dataclass
class File:
    """One file of a package; ``sha256`` is what the index says, which a test may make a lie."""

    filename: str
    content: bytes
    sha256: str
    uploaded: str = UPLOADED

    def metadata(self) -> bytes:
        """METADATA of a wheel."""
        with zipfile.ZipFile(io.BytesIO(self.content)) as archive:
            return archive.read(next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA")))


class Index:
    """Serves its packages below ``url`` until it is closed.

    ``seen`` holds (method, path) of each request. ``fault`` makes every answer one: ``garbage`` (a page of something else),
    ``error`` (status 500), or nothing when empty; :meth:`close` makes it unreachable.

    :param name: the host name that its links say, where that is not its address.
    :param login: ``user:password`` that a client has to show; none is asked for when empty.
    """

    def __init__(
        self, address: str = "127.0.0.1", port: int = 0, context: t.Optional[ssl.SSLContext] = None, name: str = "", login: str = ""
    ) -> None:
        self.login = "Basic " + base64.b64encode(login.encode()).decode() if login else ""
        self.packages: dict[str, list[File]] = {}
        self.seen: list[tuple[str, str]] = []
        self.fault = ""
        self.server = ThreadingHTTPServer((address, port), _handler(self))
        if context:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.origin = "%s://%s:%d" % ("https" if context else "http", name or address, self.server.server_port)
        self.url = self.origin + "/simple"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def add(self, name: str, version: str, requires: t.Sequence[str] = (), uploaded: str = UPLOADED, **how: t.Any) -> File:
        """Add a stand-in wheel (see :func:`wheel`)."""
        return self.put(name, *wheel(name, version, requires, **how), uploaded=uploaded)

    def put(self, name: str, filename: str, content: bytes, uploaded: str = UPLOADED) -> File:
        """Add a file of any content."""
        made = File(filename, content, hashlib.sha256(content).hexdigest(), uploaded)
        self.packages.setdefault(re.sub(r"[-_.]+", "-", name).lower(), []).append(made)
        return made

    def link(self, file: File) -> str:
        """The address of a file."""
        return "%s/files/%s" % (self.origin, urllib.parse.quote(file.filename))

    def asked(self) -> set[str]:
        """The packages whose page was asked for."""
        return {found.group(1) for _method, path in self.seen for found in [re.fullmatch(r"/simple/([^/]+)/?", path)] if found}

    def close(self) -> None:
        """Stop serving; a second time does nothing."""
        self.server.shutdown()
        self.server.server_close()

    def page(self, name: str, as_json: bool) -> bytes:
        """The page of a package."""
        listed = self.packages[name]
        if not as_json:
            return "".join(self._anchor(one) for one in listed).encode()
        files = [
            {
                "filename": one.filename,
                "url": self.link(one),
                "hashes": {"sha256": one.sha256},
                "size": len(one.content),
                "upload-time": one.uploaded,
                **({"core-metadata": {"sha256": hashlib.sha256(one.metadata()).hexdigest()}} if one.filename.endswith(".whl") else {}),
            }
            for one in listed
        ]
        return json.dumps({"meta": {"api-version": "1.1"}, "name": name, "files": files}).encode()

    def _anchor(self, file: File) -> str:
        return '<a href="%s#sha256=%s">%s</a><br>\n' % (html.escape(self.link(file)), file.sha256, html.escape(file.filename))

    def file(self, filename: str) -> t.Optional[bytes]:
        """The content of a file, or of the metadata beside it."""
        known = {one.filename: one for files in self.packages.values() for one in files}
        if filename.endswith(".metadata") and filename[: -len(".metadata")] in known:
            return known[filename[: -len(".metadata")]].metadata()
        return known[filename].content if filename in known else None

    def answer(self, path: str, accept: str) -> tuple[int, str, bytes]:
        """Status, type and body for a request; the place to put more faults."""
        if self.fault == "garbage":
            return 200, "text/html", b"<html><body><h1>Welcome to the hotel's network</h1> Please log in.</body></html>"
        if self.fault:
            return 500, "text/plain", b"the index is broken"
        as_json = JSON in accept
        page = re.fullmatch(r"/simple/([^/]+)/?", path)
        if page and page.group(1) in self.packages:
            return 200, JSON if as_json else "text/html", self.page(page.group(1), as_json)
        named = re.fullmatch(r"/files/([^/]+)", path)
        content = self.file(urllib.parse.unquote(named.group(1))) if named else None
        return (404, "text/plain", b"not found") if content is None else (200, "application/octet-stream", content)


def _handler(index: Index) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle(self) -> None:
            # who asks may have heard enough
            with contextlib.suppress(ConnectionError):
                super().handle()

        def do_HEAD(self) -> None:
            self.respond()

        def do_GET(self) -> None:
            self.respond()

        def do_CONNECT(self) -> None:
            """Somebody takes it for a proxy: that is seen, and refused."""
            index.seen.append((self.command, self.path))
            self.send_error(403)

        def respond(self) -> None:
            index.seen.append((self.command, self.path))
            status, kind, body = index.answer(self.path.partition("?")[0], self.headers.get("Accept", ""))
            if index.login and self.headers.get("Authorization") != index.login:
                status, kind, body = 401, "text/plain", b"who are you?"
            wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
            self.send_response(206 if wanted and status == 200 else status)
            if wanted and status == 200:
                whole = len(body)
                first = int(wanted.group(1)) if wanted.group(1) else whole - int(wanted.group(2))
                last = int(wanted.group(2)) if wanted.group(1) and wanted.group(2) else whole - 1
                body = body[first : last + 1]
                self.send_header("Content-Range", "bytes %d-%d/%d" % (first, first + len(body) - 1, whole))
            if status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="index"')
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            """Requests are kept in ``seen``, not logged."""

    return Handler
