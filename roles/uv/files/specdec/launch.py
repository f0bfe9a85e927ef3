# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start the engine of the release this file lies in, and keep its secrets out of the journal.

The release is resolved once, from the real path of this file: a flip of ``current`` changes nothing for
a process that runs. The engine's configuration is composed in the runtime directory from config.json and
the credentials systemd hands over. Engines log their own keys, so their output goes through this process,
which stays the unit's main process and replaces them. It is the parent and not a helper beside: the engine
cannot end it by ending its children, and systemd, which kills what is left once the main process is gone,
cannot cut off the last lines, which say why the engine died.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_BLOCK = 65536
#: Workers may outlive the engine and hold its output open; systemd kills them after this.
_DRAIN_SECONDS = 2.0


def credentials(release: dict) -> dict[str, str]:
    """Secret name → value, from the directory systemd names."""
    names = release["secrets"]
    directory = Path(os.environ["CREDENTIALS_DIRECTORY"]) if names else Path()
    return {name: (directory / name).read_text(encoding="utf-8") for name in names}


def write_private(path: Path, text: str) -> None:
    """Write new with mode 0600 and rename over."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)
    new.replace(path)


def spellings(secret: str) -> set[bytes]:
    """How a secret may stand in a log line: as it is, in JSON, as a Python literal, in base64."""
    raw = secret.encode()
    forms = {
        raw,
        json.dumps(secret)[1:-1].encode(),
        repr(secret)[1:-1].encode(),
        base64.b64encode(raw).rstrip(b"="),
        base64.urlsafe_b64encode(raw).rstrip(b"="),
    }
    return {form for form in forms if form}


class Redactor:
    """Copies lines from one descriptor to another without the secrets."""

    def __init__(self, secrets: list[str]) -> None:
        forms = set().union(*(spellings(secret) for secret in secrets))
        self.forms = sorted(forms, key=len, reverse=True)
        self._keep = max([len(form) for form in self.forms], default=1) - 1
        self._rest = b""

    def feed(self, block: bytes) -> bytes:
        """What can be shown so far: whole lines, and of an unfinished one all but what may begin a secret."""
        text = self._rest + block
        for form in self.forms:
            text = text.replace(form, b"***")
        kept = 0 if text.endswith(b"\n") else min(self._keep, len(text))
        self._rest = text[len(text) - kept :]
        return text[: len(text) - kept]

    def copy(self, source: int, target: int) -> None:
        """Until the source ends."""
        with os.fdopen(source, "rb") as stream:
            for block in iter(lambda: stream.readline(_BLOCK), b""):
                _write(target, self.feed(block))
        _write(target, self._rest)


def _write(target: int, text: bytes) -> None:
    # A log that cannot be written must not stop the engine, which would block on a full pipe.
    with contextlib.suppress(OSError):
        while text:
            text = text[os.write(target, text) :]


def engine_command(root: Path, release: dict, config: Path) -> list[str]:
    """The engine's argument vector; no secret is in it."""
    python = root / "environments" / release["environment"] / "venv" / "bin" / "python"
    return [str(python), *release["command"], release["config_option"], str(config)]


def supervise(command: list[str], secrets: list[str]) -> int:
    """Run the engine, pass signals on and output through; return its status as subprocess gives it."""
    source, sink = os.pipe()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True)
    os.close(sink)
    for number in _FORWARDED:
        signal.signal(number, lambda received, _frame: process.send_signal(received))
    reader = threading.Thread(target=Redactor(secrets).copy, args=(source, sys.stdout.fileno()), daemon=True)
    reader.start()
    status = process.wait()
    reader.join(_DRAIN_SECONDS)
    return status


def end_alike(status: int) -> None:
    """End as the engine did, so that systemd sees the signal that killed it."""
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -status)
    os._exit(status)


def main() -> None:
    """Compose the configuration, say which release runs, and run it."""
    release_directory = Path(__file__).resolve().parent
    root = release_directory.parents[3]
    release = json.loads((release_directory / "release.json").read_text(encoding="utf-8"))
    config = json.loads((release_directory / "config.json").read_text(encoding="utf-8"))
    runtime = Path(os.environ["RUNTIME_DIRECTORY"])
    secrets = credentials(release)
    config.update({release["secrets"][name]["option"]: value for name, value in secrets.items()})
    write_private(runtime / "config.yaml", json.dumps(config))  # JSON is YAML
    write_private(runtime / "release", release["id"])
    command = engine_command(root, release, runtime / "config.yaml")
    if not Path(command[0]).exists():
        sys.exit("specdec: environment %s is not on this host: run the deploy again" % release["environment"])
    end_alike(supervise(command, list(secrets.values())))


if __name__ == "__main__":
    main()
