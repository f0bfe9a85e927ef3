# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP client: what it makes of answers that are not what they should be."""

from __future__ import annotations

import socket
import threading
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import engines_http


def test_metrics_are_summed_over_labels() -> None:
    text = '# HELP x y\n# TYPE x counter\nx{a="1"} 2\nx{a="}"} 3.5\nsglang:n_total 1e3\nbad{ 1\nnan_total oops\n'
    assert engines_http.parse_metrics(text) == {"x": 5.5, "sglang:n_total": 1000.0}


@pytest.mark.parametrize(("host", "reached"), [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("10.0.0.1", "10.0.0.1")])
def test_listener_is_reached_from_its_own_host(host: str, reached: str) -> None:
    assert engines_http.reachable(host) == reached


@pytest.fixture
def answering() -> t.Iterator[t.Callable[[bytes], engines_http.Client]]:
    """A server that answers its one connection with these bytes, whatever it is asked; with none it keeps silent."""
    servers: list[socket.socket] = []

    def start(answer: bytes) -> engines_http.Client:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def serve() -> None:
            connection, _address = server.accept()
            with connection:
                if answer:
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                # Closing with something unread would reset the connection.
                while connection.recv(65536):
                    pass

        threading.Thread(target=serve, daemon=True).start()
        return engines_http.Client("127.0.0.1", server.getsockname()[1], "key")

    yield start
    for server in servers:
        server.close()


def http(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.0 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


@pytest.mark.parametrize(
    "answer",
    [
        http(b"not json"),
        http(b'{"choices": []}'),
        http(b'{"choices": [{"text": "x"}]}'),
        http(b"[]"),
        http(b"out of memory", "500 Internal Server Error"),
        b"garbage\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 99\r\n\r\nshort",
    ],
)
def test_unusable_completion_is_one_kind_of_error(answering: t.Callable[[bytes], engines_http.Client], answer: bytes) -> None:
    with pytest.raises(engines_http.HttpError):
        answering(answer).completion("m", "p", 4, 5)


def test_engine_s_own_words_are_kept(answering: t.Callable[[bytes], engines_http.Client]) -> None:
    with pytest.raises(engines_http.HttpError, match="500: out of memory"):
        answering(http(b"out of memory", "500 Internal Server Error")).completion("m", "p", 4, 5)


def test_silence_is_told_from_refusal(answering: t.Callable[[bytes], engines_http.Client]) -> None:
    with pytest.raises(engines_http.TimedOut):
        answering(b"").completion("m", "p", 4, 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(engines_http.Disconnected):
        engines_http.Client("127.0.0.1", port).completion("m", "p", 4, 5)


@pytest.mark.parametrize(("answer", "status"), [(http(b""), 200), (http(b"", "503 Service Unavailable"), 503)])
def test_status(answering: t.Callable[[bytes], engines_http.Client], answer: bytes, status: int) -> None:
    assert answering(answer).status("/health", 5) == status


def test_no_proxy_answers_for_the_engine(answering: t.Callable[[bytes], engines_http.Client], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert answering(http(b"")).status("/health", 5) == 200
