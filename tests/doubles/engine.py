# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A double of an inference server for tests: SGLang's endpoints, no model, faults on demand.

Started like the engine, with ``--config FILE`` (JSON). Of the configuration it reads host, port and
api-key, and what starts with ``double-``:

  double-mode         ok; crash (ends while starting); ends (status 0 while starting); orphan (a child of its own session keeps the
                      port and ignores SIGTERM); hang (never listens); unhealthy (/health is 503);
                      wedge (healthy, never answers a completion); error (completions are 500);
                      dies (ends at the first completion); garbage (one token repeated); empty (no text);
                      stubborn (ignores SIGTERM)
  double-acceptance   acceptance length that its counters show; 0: it does not speculate
  double-start        seconds from its start until it listens

A model whose config.json holds ``double-crash`` ends it at its start, with that as its last words.

Like the real one it prints its arguments, the key among them, when it starts.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "it", "rains", "in", "spain"]


class Counters:
    """What /metrics shows."""

    def __init__(self, acceptance: float) -> None:
        self.acceptance = acceptance
        self.lock = threading.Lock()
        self.values = {"generation_tokens_total": 0.0, "num_requests_total": 0.0, "spec_verify_calls_total": 0.0}

    def count(self, tokens: int) -> None:
        """Count one request; its first token comes from prefill."""
        with self.lock:
            self.values["generation_tokens_total"] += tokens
            self.values["num_requests_total"] += 1
            if self.acceptance:
                self.values["spec_verify_calls_total"] += (tokens - 1) / self.acceptance

    def text(self) -> str:
        """Prometheus text."""
        with self.lock:
            return "".join('sglang:%s{model_name="tiny"} %r\n' % item for item in self.values.items())


def handler(config: dict, counters: Counters) -> type[BaseHTTPRequestHandler]:
    """The request handler of one server."""
    mode = config.get("double-mode", "ok")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/health":
                self.answer(503 if mode == "unhealthy" else 200, "")
            elif self.path == "/metrics":
                self.answer(200, counters.text())
            else:
                self.answer(404, "")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            key = config.get("api-key")
            if key and self.headers.get("Authorization") != "Bearer " + key:
                self.answer(401, "")
            elif mode == "wedge":
                threading.Event().wait()
            elif mode == "error":
                self.answer(500, "CUDA error: an illegal memory access was encountered")
            elif mode == "dies":
                print("RuntimeError: scheduler died", flush=True)
                os._exit(1)
            else:
                self.complete(body)

        def complete(self, body: dict) -> None:
            native = self.path == "/generate"
            tokens = body["sampling_params"]["max_new_tokens"] if native else body["max_tokens"]
            words = [WORDS[number % len(WORDS)] for number in range(tokens)]
            text = {"garbage": "!" * tokens, "empty": ""}.get(mode, " ".join(words))
            counters.count(tokens)
            if native:
                verified = round((tokens - 1) / counters.acceptance) if counters.acceptance else 0
                answer = {"text": text, "meta_info": {"completion_tokens": tokens, "spec_verify_ct": verified}}
            else:
                answer = {"choices": [{"text": text}], "usage": {"completion_tokens": tokens}}
            self.answer(200, json.dumps(answer))

        def answer(self, status: int, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            """Requests are not logged."""

    return Handler


def main() -> None:
    """Serve until a SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    config = json.loads(parser.parse_args().config.read_text(encoding="utf-8"))
    mode = config.get("double-mode", "ok")
    print("server_args=%r" % config, flush=True)
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    model = json.loads((Path(config["model-path"]) / "config.json").read_text(encoding="utf-8")) if "model-path" in config else {}
    if mode == "crash":
        print("Traceback (most recent call last):\nRuntimeError: flashinfer-cubin does not match", file=sys.stderr, flush=True)
        os._exit(1)
    if model.get("double-crash"):
        print("Traceback (most recent call last):\n" + model["double-crash"], file=sys.stderr, flush=True)
        os._exit(1)
    if mode == "ends":
        os._exit(0)
    if mode == "hang":
        threading.Event().wait()
    time.sleep(config.get("double-start", 0))
    counters = Counters(config.get("double-acceptance", 0))
    if mode == "orphan" and os.fork():
        signal.pause()
    if mode == "orphan":
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ThreadingHTTPServer((config["host"], config["port"]), handler(config, counters)).serve_forever()


if __name__ == "__main__":
    main()
