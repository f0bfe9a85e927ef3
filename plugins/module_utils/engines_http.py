# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The few HTTP calls that say whether an engine serves: health, one completion, its counters."""

from __future__ import annotations

import http.client
import json
import re
import socket
import typing as t
import urllib.error
import urllib.request


class HttpError(Exception):
    """No usable answer: refused, timed out, another status than 200, or not what the protocol says."""


class TimedOut(HttpError):
    """No answer within the time given."""


class Disconnected(HttpError):
    """The connection was refused or broke: the engine may be about to end."""


#: Straight to the engine: a proxy of the environment must not answer for it.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{.*\})?\s+(\S+)")


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus text → metric name → sum over all label sets."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match:
            try:
                values[match[1]] = values.get(match[1], 0.0) + float(match[2])
            except ValueError:
                continue
    return values


def reachable(host: str) -> str:
    """The address at which a listener is reached from its own host."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return "[%s]" % host if ":" in host else host


class Client:
    """One engine's HTTP interface.

    :param host: the address it listens on, as configured.
    :param key: API key, sent as a bearer token.
    """

    def __init__(self, host: str, port: int, key: t.Optional[str] = None) -> None:
        self.base = "http://%s:%d" % (reachable(host), port)
        self._headers = {"Authorization": "Bearer %s" % key} if key else {}

    def status(self, path: str, timeout: float) -> t.Union[int, str]:
        """The HTTP status of a GET, or in words why there is none."""
        try:
            self._open(path, None, timeout)
        except urllib.error.HTTPError as error:
            return error.code
        except HttpError as error:
            return str(error)
        return 200

    def completion(self, model: str, prompt: str, max_tokens: int, timeout: float) -> tuple[str, int]:
        """Text and number of tokens of one greedy completion. Raises HttpError."""
        answer = self._json("/v1/completions", {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}, timeout)
        try:
            return str(answer["choices"][0]["text"]), int(answer["usage"]["completion_tokens"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise HttpError("the completion has no text or token count: %.200r" % (answer,)) from error

    def generate(self, prompt: str, max_tokens: int, timeout: float) -> tuple[str, int, int]:
        """Text, tokens and verify calls of one greedy generation by SGLang's own call. Raises HttpError."""
        answer = self._json("/generate", {"text": prompt, "sampling_params": {"max_new_tokens": max_tokens, "temperature": 0}}, timeout)
        try:
            meta = answer["meta_info"]
            return str(answer["text"]), int(meta["completion_tokens"]), int(meta.get("spec_verify_ct", 0))
        except (KeyError, TypeError, ValueError) as error:
            raise HttpError("the answer has no text or token count: %.200r" % (answer,)) from error

    def metrics(self, timeout: float) -> dict[str, float]:
        """The engine's counters. Raises HttpError."""
        try:
            return parse_metrics(self._open("/metrics", None, timeout).decode("utf-8", "replace"))
        except urllib.error.HTTPError as error:
            raise HttpError("/metrics answered %d" % error.code) from error

    def _json(self, path: str, body: t.Mapping[str, t.Any], timeout: float) -> t.Any:
        try:
            return json.loads(self._open(path, json.dumps(body).encode(), timeout))
        except urllib.error.HTTPError as error:
            raise HttpError("%s answered %d: %.300s" % (path, error.code, error.read(300).decode("utf-8", "replace"))) from error
        except ValueError as error:
            raise HttpError("%s answered something that is no JSON" % path) from error

    def _open(self, path: str, body: t.Optional[bytes], timeout: float) -> bytes:
        headers = {**self._headers, "Content-Type": "application/json"} if body else self._headers
        try:
            with _OPENER.open(urllib.request.Request(self.base + path, body, headers), timeout=timeout) as answer:
                return answer.read()
        except urllib.error.HTTPError:
            raise
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            kind = TimedOut if isinstance(reason, (TimeoutError, socket.timeout)) else Disconnected
            raise kind("%s%s: %s" % (self.base, path, reason or type(error).__name__)) from error
