# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A double of a company's forward proxy for tests: CONNECT and plain requests, a login, names that only it knows, a log."""

from __future__ import annotations

import base64
import contextlib
import http.client
import selectors
import socket
import threading
import typing as t
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Proxy:
    """Passes on to the hosts of ``names`` (name → address and port) and to no other, until it is closed.

    ``seen`` holds (method, ``host:port`` or address) of each request that was passed on, ``refused`` of each without the login.

    :param login: ``user:password`` that a client has to show; none is asked for when empty.
    """

    def __init__(self, names: t.Mapping[str, tuple[str, int]], login: str = "", address: str = "127.0.0.1") -> None:
        self.names = names
        self.login = login
        self.seen: list[tuple[str, str]] = []
        self.refused: list[tuple[str, str]] = []
        self.server = ThreadingHTTPServer((address, 0), _handler(self))
        self.server.daemon_threads = True
        self.address = "%s:%d" % (address, self.server.server_port)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self, login: t.Optional[str] = None) -> str:
        """The proxy's address with the login in it, or with another."""
        shown = self.login if login is None else login
        return "http://%s%s" % (shown and ":".join(urllib.parse.quote(part, "") for part in shown.split(":", 1)) + "@", self.address)

    def close(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.server.server_close()


def _handler(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    expected = "Basic " + base64.b64encode(proxy.login.encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_CONNECT(self) -> None:
            host, _colon, _port = self.path.rpartition(":")
            target = self.passed(host)
            if target:
                try:
                    far = socket.create_connection(target, timeout=30)
                except OSError:
                    self.answer(502, b"it does not answer", "text/plain")
                    return
                with far:
                    self.send_response(200)
                    self.end_headers()
                    _join(self.connection, far)
                self.close_connection = True

        def do_GET(self) -> None:
            address = urllib.parse.urlsplit(self.path)
            target = self.passed(address.hostname or "")
            if target:
                connection = http.client.HTTPConnection(*target, timeout=30)
                headers = {name: value for name, value in self.headers.items() if not name.lower().startswith("proxy-")}
                connection.request(self.command, address._replace(scheme="", netloc="").geturl(), headers=headers)
                answer = connection.getresponse()
                self.answer(answer.status, answer.read(), answer.headers.get_content_type())

        do_HEAD = do_GET

        def passed(self, host: str) -> t.Optional[tuple[str, int]]:
            """Where a request goes; answered here when it goes nowhere."""
            request = (self.command, self.path)
            if proxy.login and self.headers.get("Proxy-Authorization") != expected:
                proxy.refused.append(request)
                self.answer(407, b"who are you?", "text/plain", {"Proxy-Authenticate": 'Basic realm="proxy"'})
            elif host not in proxy.names:
                self.answer(502, b"no such host", "text/plain")
            else:
                proxy.seen.append(request)
                return proxy.names[host]
            return None

        def answer(self, status: int, body: bytes, kind: str, headers: t.Optional[t.Mapping[str, str]] = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body if self.command != "HEAD" else b"")

        def log_message(self, *_args: object) -> None:
            """Requests are kept in ``seen``, not logged."""

    return Handler


def _join(near: socket.socket, far: socket.socket) -> None:
    """Copy both ways until one side closes."""
    with selectors.DefaultSelector() as selector, contextlib.suppress(OSError):
        selector.register(near, selectors.EVENT_READ, far)
        selector.register(far, selectors.EVENT_READ, near)
        while True:
            for key, _events in selector.select(30):
                data = t.cast("socket.socket", key.fileobj).recv(65536)
                if not data:
                    return
                key.data.sendall(data)
