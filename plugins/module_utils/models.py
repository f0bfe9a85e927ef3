# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetch a model's revision from a hub onto a host: what is there is continued, every file is proven, the marker is last.

The hub's own client does the transfer; it comes with every engine. What it brought is compared with what the
hub says of each file, for the client itself compares only sizes.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import errno
import hashlib
import json
import os
import re
import shutil
import time
import typing as t
from pathlib import Path, PurePosixPath

from . import networks
from .findings import ERROR, OK, WARNING, Finding, FindingError
from .layout import MARKER, Layout
from .releases import redact, write_durably
from .runners import Progress, Runner

#: Name of the token among a job's secrets.
TOKEN = "hub_token"

#: Run by the environment's Python: reads what is asked for, prints JSON lines. Without ``files`` it lists the revision, with
#: them it fetches them and ends by itself when nothing has come for ``patience`` seconds: transfers are known to stall.
_CLIENT = """
import json, os, sys, threading, time
def tell(**what):
    print(json.dumps(what), flush=True)
def held(directory):
    return sum(os.lstat(os.path.join(top, name)).st_size for top, _, names in os.walk(directory) for name in names)
def watch(directory, patience):
    before, since = -1, time.monotonic()
    while True:
        time.sleep(5)
        try:
            now = held(directory)
        except OSError:
            continue
        if now != before:
            before, since = now, time.monotonic()
            tell(held=now)
        elif time.monotonic() - since > patience:
            tell(error=["Stalled"], status=None, text="nothing came for %d s" % patience)
            os._exit(1)
try:
    asked = json.load(sys.stdin)
    from huggingface_hub import HfApi, hf_hub_download
    if "files" not in asked:
        info = HfApi().model_info(asked["repo"], revision=asked["revision"], files_metadata=True)
        files = [
            {"path": one.rfilename, "size": one.size, "git": one.blob_id, "sha256": one.lfs["sha256"] if one.lfs else None}
            for one in info.siblings
        ]
        tell(commit=info.sha, files=files)
    else:
        threading.Thread(target=watch, args=(asked["directory"], asked["patience"]), daemon=True).start()
        for path in asked["files"]:
            hf_hub_download(asked["repo"], path, revision=asked["revision"], local_dir=asked["directory"])
except BaseException as error:
    status = getattr(getattr(error, "response", None), "status_code", None)
    causes = []
    while error is not None:
        text = "%s: %s" % (type(error).__name__, error)
        causes.append(([one.__name__ for one in type(error).__mro__], text))
        error = error.__cause__ or error.__context__
    tell(error=[name for names, _ in causes for name in names], status=status, text="\\n".join(text for _, text in causes))
    sys.exit(1)
"""

#: The first that fits: names of the exception's classes and causes, HTTP status → check. Only the last rows may be tried again.
#: Classes as of huggingface_hub 0.23 to 1.33, read 2026-11-30.
_FAILURES: tuple[tuple[tuple[str, ...], tuple[int, ...], str], ...] = (
    (("ImportError",), (), "client"),
    (("GatedRepoError",), (), "gated"),
    (("RevisionNotFoundError",), (), "revision"),
    ((), (401, 403), "access"),
    (("RepositoryNotFoundError", "RemoteEntryNotFoundError", "HFValidationError"), (), "repo"),
    (("HfHubHTTPError",), (), "answer"),
    (("ConnectError", "ConnectionError", "TimeoutException", "TransportError", "LocalEntryNotFoundError", "Stalled"), (), "unreachable"),
)
_AGAIN = ("answer", "unreachable", "failed")

_BY_HAND = "put the files into %s by hand and leave an empty file " + MARKER + " there; or use path or directory instead of repo"
_MESSAGES: t.Mapping[str, tuple[str, str]] = {
    "client": (
        "the environment has no huggingface_hub that can be imported",
        "add huggingface_hub to specdec_extra_packages, or " + _BY_HAND,
    ),
    "gated": (
        "the hub gives it only to those who have accepted its terms",
        "accept them on the hub, then set specdec_hub.token (from a vault) to a token of that account; or " + _BY_HAND,
    ),
    "revision": ("the hub has no such revision", "name a commit of that repository"),
    "access": (
        "the hub refuses: it is private or gated, does not exist, or the token is not accepted",
        "check the spelling of repo, and set specdec_hub.token (from a vault) to a token that may read it",
    ),
    "repo": ("the hub has no such repository", "check the spelling of repo; a private one needs specdec_hub.token"),
    "answer": ("the hub answers with an error", "run the deploy again later: what has been fetched is kept"),
    "unreachable": (
        "the hub cannot be reached from the host, or what it sends stopped coming",
        "check name resolution, proxy and certificates on the host, or name a mirror in specdec_hub.endpoint, and run the deploy "
        "again: what has been fetched is kept. For a host without a way to a hub: " + _BY_HAND,
    ),
    "failed": ("the download failed", "see the evidence; run the deploy again: what has been fetched is kept"),
    "damaged": (
        "files that came are not what the hub says they are",
        "look for a proxy that changes what passes, or a failing disk; run the deploy again",
    ),
    "disk": ("too little space is free", "free some space, or set specdec_root to a directory on a larger file system"),
    "path": ("the repository holds a file that may not lie where it says", "do not use this repository"),
}

#: Formats of weights that no engine reads where safetensors lie beside them; they would double what is fetched.
_OTHER_WEIGHTS = (".bin", ".pth", ".gguf", ".onnx", ".msgpack", ".h5", ".ot")
#: The newer transfer protocol stalls or fails on some hosts; then the plain one continues.
_ATTEMPTS: tuple[dict[str, str], ...] = ({}, {"HF_HUB_DISABLE_XET": "1"}, {"HF_HUB_DISABLE_XET": "1"})
_PATIENCE = 180
#: A file that was begun, under a name that the client never takes up again (from 1.3x on; before, it continued them).
_ABANDONED = re.compile(r"\.[0-9a-f]{8}\.incomplete$")
_CHUNK = 1 << 20
_EVIDENCE_LINES = 12


def place(repo: str, revision: str) -> str:
    """Where a revision lies, below the directory of models."""
    return "%s/%s" % (repo.replace("/", "--"), revision)


@dataclasses.dataclass(frozen=True)
class File:
    """A file as the hub describes it: size in bytes, sha256 of the content or else git's own hash of it."""

    path: str
    size: t.Optional[int]
    sha256: t.Optional[str]
    git: t.Optional[str]

    def whole(self, directory: Path) -> bool:
        """Whether the file in ``directory`` is this one; what the hub does not say is not compared."""
        path = directory / self.path
        try:
            size = path.stat().st_size
            if self.size is not None and size != self.size:
                return False
            if not (self.sha256 or self.git):
                return True
            # a git object is its header and its content
            hasher = hashlib.sha256() if self.sha256 else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
            with path.open("rb") as stream:
                while chunk := stream.read(_CHUNK):
                    hasher.update(chunk)
        except OSError:
            return False
        return hasher.hexdigest() == (self.sha256 or self.git)


def fetch(spec: t.Mapping[str, t.Any], runner: Runner, progress: Progress) -> dict[str, t.Any]:
    """The fetch job.

    :param spec: root, ``repo``, ``revision``, ``python`` (with huggingface_hub), ``endpoint`` (empty: the client's own);
        ``secret_files`` may name the file of :data:`TOKEN`.
    :return: changed, findings (as dictionaries), ``directory``, ``bytes``, ``seconds``.

    Raises FindingError naming what went wrong; what has been fetched is kept beside the model's place then.
    """
    umask = os.umask(0o022)  # the service's user reads what root makes here
    try:
        return _Fetch(spec, runner, progress).run()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise FindingError(_finding(spec, "disk", evidence=str(error))) from error
    finally:
        os.umask(umask)


def _finding(spec: t.Mapping[str, t.Any], check: str, **more: str) -> Finding:
    message, fix = _MESSAGES[check]
    if "%s" in fix:
        fix %= Layout(spec["root"]).models / place(spec["repo"], spec["revision"])
    return Finding("model." + check, ERROR, "model %s at %s" % (spec["repo"], spec["revision"]), message, **more, fix=fix)


class _Fetch:
    def __init__(self, spec: t.Mapping[str, t.Any], runner: Runner, progress: Progress) -> None:
        self.spec = spec
        self.runner = runner
        self.progress = progress
        self.directory = Layout(spec["root"]).models / place(spec["repo"], spec["revision"])
        self.partial = self.directory.with_name(self.directory.name + ".partial")
        self.token = spec.get("secret_files", {}).get(TOKEN)
        self.network = networks.of_job(spec)
        self.started = time.monotonic()

    def run(self) -> dict[str, t.Any]:
        if (self.directory / MARKER).exists():
            return self._result(False, "is there already", 0)
        self.progress("fetch", "asking the hub for %s at %s" % (self.spec["repo"], self.spec["revision"]))
        commit, files = self._list()
        self._take_up()
        absent = self._not_whole(files)
        self._check_disk(absent)
        self._bring(commit, absent)
        self._finish(commit, files)
        result = self._result(True, "fetched and compared with the hub's hashes", sum(one.size or 0 for one in files))
        if commit != self.spec["revision"]:
            message = "names no commit: another host, or this one later, may get other files under the same name"
            subject = "model %s at %s" % (self.spec["repo"], self.spec["revision"])
            moving = Finding("model.moving", WARNING, subject, message, found="commit %s" % commit, fix="write revision: %s" % commit)
            result["findings"].append(moving.as_dict())
        return result

    def _result(self, changed: bool, message: str, size: int) -> dict[str, t.Any]:
        done = Finding("model.complete", OK, "model %s" % self.spec["repo"], message, evidence=str(self.directory))
        seconds = round(time.monotonic() - self.started, 1)
        return {"changed": changed, "findings": [done.as_dict()], "directory": str(self.directory), "bytes": size, "seconds": seconds}

    # The hub's client

    def _ask(self, asked: t.Mapping[str, t.Any], environment: t.Mapping[str, str]) -> dict[str, t.Any]:
        """Its last word: the answer, or ``error`` with the check it is about."""
        words: list[str] = []
        last: dict[str, t.Any] = {}

        def hear(line: str) -> None:
            try:
                said = json.loads(line)
            except ValueError:
                words.append(line)
                return
            if isinstance(said, dict):
                self._tell(said)
                last.update(said)

        environment = {
            # its own caches, logs and locks go with the partial directory; no login of root's counts
            "HF_HOME": str(self.partial / ".cache" / "home"),
            "HF_TOKEN_PATH": self.token or os.devnull,
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DOWNLOAD_TIMEOUT": "30",
            **({"HF_ENDPOINT": self.spec["endpoint"]} if self.spec.get("endpoint") else {}),
            **self.network.connection(),
            **environment,
        }
        stdin = json.dumps({"repo": self.spec["repo"], **asked})
        answer = self.runner([self.spec["python"], "-I", "-c", _CLIENT], stdin=stdin, env=environment, on_line=hear)
        if answer.rc == 0:
            return last
        names, status = last.get("error", ()), last.get("status")
        check = next((check for known, codes, check in _FAILURES if status in codes or set(known) & set(names)), "failed")
        text = last.get("text") or "\n".join(words) or "the client ended with %d" % answer.rc
        return {"error": check, "text": self._shown(text)}

    def _shown(self, text: str) -> str:
        """Evidence without the token, and without the signatures that addresses of storage carry."""
        token = [Path(self.token).read_text(encoding="utf-8")] if self.token else []
        return "\n".join(re.sub(r"\?[^\s'\"]+", "?…", redact(self.network.hidden(text), token)).splitlines()[-_EVIDENCE_LINES:])

    def _tell(self, said: t.Mapping[str, t.Any]) -> None:
        if "held" in said:
            self.progress("fetch", "%.2f GB are here" % (said["held"] / 1e9), held=said["held"])

    def _refused(self, answer: t.Mapping[str, str]) -> FindingError:
        of_network = networks.diagnose(answer["text"], "model %s, fetched by this host" % self.spec["repo"], ("proxy", "certificate"))
        if of_network and answer["error"] in ("answer", "unreachable", "failed"):
            return FindingError(of_network)
        found = "a token was given" if self.token else "no token is set"
        return FindingError(_finding(self.spec, answer["error"], evidence=answer["text"], found=found))

    def _list(self) -> tuple[str, list[File]]:
        """The commit and its files, without what no engine reads."""
        answer = self._ask({"revision": self.spec["revision"]}, {})
        if "error" in answer:
            raise self._refused(answer)
        files = [File(**one) for one in answer["files"]]
        for one in files:
            parts = PurePosixPath(one.path).parts
            if one.path.startswith("/") or ".." in parts or parts[:1] in ((MARKER,), (".cache",)):
                raise FindingError(_finding(self.spec, "path", found=one.path))
        if any(one.path.endswith(".safetensors") for one in files):
            files = [one for one in files if not one.path.endswith(_OTHER_WEIGHTS)]
        return answer["commit"], files

    # On disk

    def _take_up(self) -> None:
        """Continue what an interrupted fetch left, or what somebody put there without the marker."""
        if self.directory.exists() and not self.partial.exists():
            self.directory.rename(self.partial)
        self.partial.mkdir(parents=True, exist_ok=True)
        for path in self.partial.glob(".cache/**/*.incomplete"):
            if _ABANDONED.search(path.name):
                path.unlink()

    def _not_whole(self, files: t.Sequence[File]) -> list[File]:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            return [one for one, whole in zip(files, pool.map(lambda one: one.whole(self.partial), files)) if not whole]

    def _check_disk(self, absent: t.Sequence[File]) -> None:
        begun = sum(path.stat().st_size for path in self.partial.glob(".cache/**/*.incomplete"))
        needed = sum(one.size or 0 for one in absent) - begun
        free = shutil.disk_usage(self.partial).free
        if free < needed:
            found = "%.1f GB free on %s" % (free / 1e9, self.partial.parent)
            raise FindingError(_finding(self.spec, "disk", found=found, expected="%.1f GB" % (needed / 1e9)))
        self.progress("fetch", "fetching %d files, %.2f GB" % (len(absent), needed / 1e9), needed=needed)

    def _bring(self, commit: str, absent: list[File]) -> None:
        """Fetch until every file is what the hub says, a few times."""
        answer: dict[str, t.Any] = {}
        for environment in _ATTEMPTS if absent else ():
            for one in absent:
                # what is not the hub's would be taken for it: the client compares little
                (self.partial / one.path).unlink(missing_ok=True)
            asked = {"revision": commit, "directory": str(self.partial), "files": [one.path for one in absent], "patience": _PATIENCE}
            answer = self._ask(asked, environment)
            if answer.get("error", _AGAIN[0]) not in _AGAIN:
                raise self._refused(answer)
            self.progress("fetch", "comparing with the hub's hashes")
            absent = self._not_whole(absent)
            if not absent:
                return
        if "error" in answer:
            raise self._refused(answer)
        if absent:
            raise FindingError(_finding(self.spec, "damaged", evidence="\n".join(one.path for one in absent[:_EVIDENCE_LINES])))

    def _finish(self, commit: str, files: t.Sequence[File]) -> None:
        shutil.rmtree(self.partial / ".cache", ignore_errors=True)
        for top, _directories, names in os.walk(self.partial):
            os.chmod(top, 0o755)
            for name in names:
                os.chmod(os.path.join(top, name), 0o644)
        self.partial.parent.chmod(0o755)
        # the marker must not reach the disk before what it vouches for
        os.sync()
        self.partial.rename(self.directory)
        content = {"repo": self.spec["repo"], "commit": commit, "files": [dataclasses.asdict(one) for one in files]}
        write_durably(self.directory / MARKER, json.dumps(content, indent=1))
