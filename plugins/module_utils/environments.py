# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build an environment on a host: interpreter, locked packages, overlays, library links, bytecode; the marker last.

Without the marker an environment does not exist, and whatever lies at its place is removed before it is built.
With the marker it is never touched again.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import errno
import json
import os
import re
import secrets
import shutil
import threading
import time
import typing as t
from pathlib import Path

from . import bundles, bytecode, libraries, networks, overlays, parity, records
from .findings import ERROR, OK, WARNING, Finding, FindingError, errors
from .layout import MARKER, Layout, digest
from .releases import write_durably
from .runners import Completed, Progress, Runner

#: What of an interpreter decides what is built with it; where it lies does not.
PYTHON = ("implementation", "version", "build")

_PYTHON_FACTS = (
    "import json,platform,sys;"
    "print(json.dumps({'implementation':sys.implementation.name,'version':platform.python_version(),'build':sys.version}))"
)

#: uv's words, where they are not about the network → check, message, way out; the first that fits. Words as of uv 0.13, tried 2026-11-30.
_UV_FAILURES = (
    (
        "No space left on device|Disk quota exceeded",
        "disk",
        "the file system is full",
        "free some space on the file system of the root directory",
    ),
    (
        "Read-only file system",
        "read-only",
        "the file system takes no writes",
        "look into the kernel's messages why it was remounted (dmesg), mount it writable, then run the deploy again",
    ),
    ("Hash mismatch", "hash", "a package is not the one that was locked", "find out who changed it; only then lock anew"),
    (
        "ZIP structure|[Ii]nvalid zip|Failed to extract archive",
        "damaged",
        "a package's wheel is cut off or damaged",
        "fetch the wheel that the evidence names again from where it came; where the lock was made with the damaged one, lock anew",
    ),
    (
        "No solution found|not found in|no version of|no wheels|[Nn]etwork connectivity is disabled|not be downloaded",
        "unavailable",
        "a locked package cannot be had",
        "add the index or the wheel directory that has it, or lock anew for this host's Python and platform",
    ),
    (
        "interpreter|Python",
        "python",
        "the interpreter cannot be used",
        "install that Python on the host again",
    ),
    ("", "uv", "the packages cannot be installed", "see uv's own words in the evidence"),
)
_EVIDENCE_LINES = 20

#: Seconds of silence after which a person is told that work goes on.
HEARTBEAT = 5.0


def environment_id(content: t.Mapping[str, t.Any]) -> str:
    """The id of an environment.json: over schema, lock, overlays and the interpreter's build, never over a path."""
    return digest(
        {
            "schema": content["schema"],
            "lock": content["lock"],
            "overlays": list(content["overlays"]),
            "python": {key: content["python"][key] for key in PYTHON},
        }
    )


def build(spec: t.Mapping[str, t.Any], runner: Runner, progress: Progress) -> dict[str, t.Any]:
    """The build job.

    :param spec: root; ``environment`` (the content of environment.json), ``lock`` (text), ``python`` (path), ``uv_env``
        (UV_... variables); ``secret_files`` may name the network (see networks.packed); where given ``critical``, names of distributions
        besides engine and flashinfer that serving depends on (the kernel package), ``wheels``, all files of the lock where they were
        sent rather than left to be downloaded, and ``pages``, addresses of pages
        with wheels that the default index does not have.
    :return: changed, findings (as dictionaries), timings (seconds by step).

    Raises FindingError naming what went wrong; nothing is left at the environment's place then.
    """
    # the service's user reads what root makes here
    umask = os.umask(0o022)
    try:
        return _Build(spec, runner, progress).run()
    finally:
        os.umask(umask)


class _Build:
    def __init__(self, spec: t.Mapping[str, t.Any], runner: Runner, progress: Progress) -> None:
        self.spec = spec
        self.runner = runner
        self.progress = progress
        self.layout = Layout(spec["root"])
        self.network = networks.of_job(spec)
        self.content = spec["environment"]
        self.directory = self.layout.environment(self.content["id"])
        self.wheels = spec.get("wheels", self.content["wheels"])
        self.venv = self.directory / "venv"
        self.python = self.venv / "bin" / "python"
        self.critical = {
            records.normalized(name) for name in (self.content["engine"]["name"], *parity.FLASHINFER, *spec.get("critical", ()))
        }
        self.bytecode = bytecode.Store(self.layout.bytecode, self.content["python"])
        self.timings: dict[str, float] = {}
        self.found: list[Finding] = []
        self.replaced: set[str] = set()
        self.told = time.monotonic()

    def run(self) -> dict[str, t.Any]:
        if (self.directory / MARKER).exists():
            return self._result(False, "is built already")
        with self._step("inputs", "checking what was sent"):
            layers = self._inputs()
        self._remove_leftovers()
        try:
            self._make(layers)
        except BaseException as error:
            with contextlib.suppress(OSError):
                self._remove_leftovers()
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise FindingError(self._failure("disk", "the file system is full", str(error), _UV_FAILURES[0][3])) from error
            if isinstance(error, OSError) and error.errno == errno.EROFS:
                raise FindingError(self._failure("read-only", "the file system takes no writes", str(error), _UV_FAILURES[1][3])) from error
            raise
        return self._result(True, "built")

    def _result(self, changed: bool, message: str) -> dict[str, t.Any]:
        found = [*self.found, Finding("environment.complete", OK, self.content["id"], message, evidence=str(self.directory))]
        return {"changed": changed, "findings": [one.as_dict() for one in found], "timings": self.timings}

    def _make(self, layers: t.Sequence[bundles.Bundle]) -> None:
        with self._step("python", "making the virtual environment"):
            self._make_venv()
        with self._step("sync", "installing the locked packages"):
            self._sync()
        # compiling mostly waits for other processors, reading for the disk
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            dists = records.distributions(self.site_packages)
            compiling = pool.submit(self._bytecode, dists)
            with self._step("record", "comparing every file with its RECORD"):
                dists = self._verified(dists)
            with self._step("own", "giving the engine's files their own copies"):
                self._own_files(dists)
            with self._step("bytecode", "compiling"):
                fresh = compiling.result() | self.replaced
                self._compile([path for dist in dists if dist.name in self.replaced for path in bytecode.sources(dist)])
                self.bytecode.keep(self.site_packages, [dist for dist in dists if dist.name in fresh])
        with self._step("overlay", "laying %d overlay(s) over the engine" % len(layers)):
            sources = self._overlay(layers, dists)
        with self._step("overlay-bytecode", "compiling what they changed"):
            self._compile_overlay(layers, sources)
        with self._step("libraries", "computing what the loader does not find"):
            self._link_libraries(dists)
        with self._step("flush", "flushing to the disk"):
            self._finish(layers)

    @contextlib.contextmanager
    def _step(self, name: str, message: str) -> t.Iterator[None]:
        self.progress("build", message, step=name)
        started = time.monotonic()
        yield
        self.timings[name] = round(time.monotonic() - started, 3)

    # Before anything is written

    def _inputs(self) -> list[bundles.Bundle]:
        """Refuse what cannot end well; return the overlay bundles."""
        if environment_id(self.content) != self.content["id"]:
            raise FindingError(
                self._failure(
                    "id",
                    "the id is not the one of the content",
                    environment_id(self.content),
                    "run the whole deploy again with one version of the collection",
                )
            )
        if not Path(self.spec["python"]).exists():
            fix = "install that Python, or let the plan choose another one by running the deploy again"
            raise FindingError(self._failure("python", "the interpreter is not there", self.spec["python"], fix))
        absent = [wheel["filename"] for wheel in self.wheels if not (self._wheels(wheel) / wheel["filename"]).is_file()]
        if absent:
            raise FindingError(
                self._failure(
                    "wheels",
                    "local wheels of the lock are not on the host",
                    records.listing(absent),
                    "run the whole deploy again: it sends them",
                )
            )
        return [self._bundle(self.layout.overlays / name) for name in self.content["overlays"]]

    def _bundle(self, place: Path) -> bundles.Bundle:
        """A bundle that was sent; a damaged one is taken away, so that the next run sends it anew."""
        try:
            return bundles.read_bundle(place)
        except FindingError as error:
            shutil.rmtree(place, ignore_errors=True)
            raise FindingError(dataclasses.replace(error.finding, fix="run the whole deploy again: it sends the bundle anew")) from error

    def _wheels(self, wheel: t.Mapping[str, str]) -> Path:
        return self.layout.wheels / wheel["sha256"]

    def _remove_leftovers(self) -> None:
        """Whatever has no marker is moved aside first, so that a removal that is cut short leaves nothing at the environment's place."""
        self.layout.environments.mkdir(parents=True, exist_ok=True)
        if self.directory.exists():
            self.directory.rename(self.layout.environments / (".removed-" + secrets.token_hex(8)))
        for removed in self.layout.environments.glob(".removed-*"):
            shutil.rmtree(removed, ignore_errors=True)

    # Packages

    def _make_venv(self) -> None:
        self.directory.mkdir()
        write_durably(self.directory / "lock.txt", self.spec["lock"])
        self._uv(["venv", "--no-project", "--quiet", "--python", self.spec["python"], str(self.venv)])
        answer = self.runner([str(self.python), "-I", "-c", _PYTHON_FACTS], timeout=60)
        facts = json.loads(answer.stdout) if answer.rc == 0 else {}
        wanted = {key: self.content["python"][key] for key in PYTHON}
        if facts != wanted:
            finding = self._failure(
                "python",
                "the interpreter is not the one that was planned with",
                self.spec["python"],
                "run the deploy again: it plans with the interpreter that is there now",
            )
            raise FindingError(dataclasses.replace(finding, found=str(facts) if facts else answer.stderr.strip(), expected=str(wanted)))

    @property
    def site_packages(self) -> Path:
        """Found, not computed: its name holds the interpreter's minor version."""
        return next((self.venv / "lib").glob("python3*/site-packages"))

    def _sync(self, anew: t.Iterable[str] = ()) -> None:
        places = [*(str(self._wheels(wheel)) for wheel in self.wheels), *self.spec.get("pages", ())]
        links = [part for place in places for part in ("--find-links", place)]
        again = [part for name in anew for part in ("--reinstall-package", name)]
        lock = str(self.directory / "lock.txt")
        with self._heartbeat():
            self._uv(["pip", "sync", "--require-hashes", "--python", str(self.python), *links, *again, lock], self._tell)

    def _tell(self, line: str) -> None:
        # "+ name==version" comes for every package, all at once at the end
        if line.strip() and not re.match(r"\s*[-+~] ", line):
            self.told = time.monotonic()
            self.progress("build", self.network.hidden(line.strip()), step="sync")

    @contextlib.contextmanager
    def _heartbeat(self) -> t.Iterator[None]:
        """While uv is silent, as in a long download, say how much came to the disk."""
        free, done = shutil.disk_usage(self.directory).free, threading.Event()
        self.told = time.monotonic()

        def beat() -> None:
            while not done.wait(1):
                if time.monotonic() - self.told >= HEARTBEAT:
                    self.told = time.monotonic()
                    written = max(0, free - shutil.disk_usage(self.directory).free)
                    self.progress("build", "working; %.0f MB written so far" % (written / 1e6), step="sync")

        beating = threading.Thread(target=beat, daemon=True)
        beating.start()
        try:
            yield
        finally:
            done.set()
            beating.join()

    def _uv(self, arguments: t.Sequence[str], on_line: t.Optional[t.Callable[[str], None]] = None) -> None:
        environment = {
            "UV_CACHE_DIR": str(self.layout.uv_cache),
            "UV_NO_CONFIG": "1",
            "UV_NO_PROGRESS": "1",
            "UV_PYTHON_DOWNLOADS": "never",
            # the host's own certificate authorities count: the older name of the same switch, too
            "UV_SYSTEM_CERTS": "1",
            "UV_NATIVE_TLS": "1",
            **self.spec.get("uv_env", {}),
            **self.network.environment(),
        }
        answer = self.runner([str(self.layout.uv), *arguments], env=environment, on_line=on_line)
        if answer.rc != 0:
            raise FindingError(self._uv_failure(answer))

    def _uv_failure(self, answer: Completed) -> Finding:
        text = self.network.hidden("\n".join(part.strip("\n") for part in (answer.stdout, answer.stderr) if part.strip()))
        lines = [line for line in text.splitlines() if line.strip()]
        starts = [number for number, line in enumerate(lines) if re.match(r"\s*(error|\u00d7)", line)]
        start = starts[0] if starts else max(0, len(lines) - _EVIDENCE_LINES)
        evidence = "\n".join(lines[start : start + _EVIDENCE_LINES]) or "uv ended with %d" % answer.rc
        check, message, fix = next(row[1:] for row in _UV_FAILURES if re.search(row[0], evidence))
        own = self._failure(check, message, evidence, fix)
        return (
            own if check in ("disk", "read-only", "hash", "damaged") else networks.diagnose(evidence, own.subject + " on this host") or own
        )

    def _failure(self, check: str, message: str, evidence: str, fix: str) -> Finding:
        return Finding("environment." + check, ERROR, "environment " + self.content["id"], message, evidence=evidence, fix=fix)

    # Files

    def _verified(self, dists: list[records.Distribution]) -> list[records.Distribution]:
        """All files are their RECORDs'; a package whose cached copy was damaged is fetched once more."""
        state = records.verify(self.site_packages, dists)
        damaged = sorted({*state.changed.values(), *state.missing.values()})
        if damaged:
            self.progress("build", "fetching anew what is damaged in the cache: %s" % ", ".join(damaged), step="record")
            self._uv(["cache", "clean", "--quiet", *damaged])
            self._sync(damaged)
            self.replaced.update(damaged)
            dists = records.distributions(self.site_packages)
            state = records.verify(self.site_packages, dists)
            message = "the cache held damaged files of %d package(s); they were fetched anew" % len(damaged)
            fix = "look for who edits installed files in place: environments share them with the cache"
            self.found.append(
                Finding("environment.cache", WARNING, ", ".join(damaged), message, evidence=str(self.layout.uv_cache), fix=fix)
            )
        found = records.findings(state, self.critical)
        for finding in errors(found):
            raise FindingError(finding)
        self.found += found
        engine = self.content["engine"]
        # on some lanes the engine comes as a distribution of another name
        dist = records.find(dists, engine.get("package", engine["name"]))
        if dist is None or parity.public(dist.version) != parity.public(engine["version"]):
            found_version = dist.version if dist else "not installed"
            finding = self._failure("engine", "the lock has another engine version", "lock.txt", "lock anew for the wanted version")
            raise FindingError(dataclasses.replace(finding, found=found_version, expected=engine["version"]))
        return dists

    def _own_files(self, dists: t.Iterable[records.Distribution]) -> None:
        """Python files that people edit get an inode of their own: an edit then stays in this environment."""
        for dist in dists:
            for path in dist.rows if dist.name in self.critical else ():
                source = self.site_packages / path
                if path.endswith(".py") and source.stat().st_nlink > 1:
                    new = source.with_name(".%s.own" % source.name)
                    # with its times: what was compiled from it stays valid
                    shutil.copy2(source, new)
                    # a rename over a file has ext4 write the new one to the disk at once, one by one
                    source.unlink()
                    new.rename(source)

    def _bytecode(self, dists: t.Sequence[records.Distribution]) -> set[str]:
        """Bytecode for all packages, kept or compiled; the names of those that were compiled."""
        missing = set(self.bytecode.take(self.site_packages, dists))
        self._compile(sorted(missing))
        return {dist.name for dist in dists if not missing.isdisjoint(bytecode.sources(dist))}

    def _compile(self, paths: t.Sequence[str]) -> dict[str, str]:
        """Bytecode of these files; what has none, and why. In packages that is nobody's fault: they carry templates and old tests."""
        if not paths:
            return {}
        stdin = "".join("%s\n" % (self.site_packages / path) for path in paths)

        def tell(line: str) -> None:
            if line.startswith("compiled "):
                self.progress("build", line, step="bytecode")

        answer = self.runner([str(self.python), "-I", "-c", bytecode.COMPILE], stdin=stdin, on_line=tell)
        if answer.rc != 0:
            evidence = answer.stdout.strip()[-1000:] or "compiling ended with %d" % answer.rc
            fix = "none is needed: the engine starts slower; see the evidence"
            self.found.append(
                Finding(
                    "environment.bytecode", WARNING, str(self.site_packages), "not all bytecode is compiled", evidence=evidence, fix=fix
                )
            )
            return dict.fromkeys(paths, evidence)
        wrong = json.loads(answer.stdout.splitlines()[-1][len(bytecode.WRONG) :])
        return {os.path.relpath(path, self.site_packages): why for path, why in wrong.items()}

    def _overlay(self, layers: t.Sequence[bundles.Bundle], dists: t.Sequence[records.Distribution]) -> list[str]:
        """Lay the bundles over the packages; the Python files that are others now."""
        changed: list[str] = []
        for bundle in layers:
            done = overlays.apply(bundle, self.site_packages, dists)
            self.found += overlays.upstream(bundle.manifest, done)
            changed += done
        for finding in errors(overlays.audit([bundle.manifest for bundle in layers], self.site_packages)):
            raise FindingError(finding)
        return sorted({path for path in changed if path.endswith(".py") and (self.site_packages / path).exists()})

    def _compile_overlay(self, layers: t.Sequence[bundles.Bundle], sources: t.Sequence[str]) -> None:
        """Judged by the interpreter that will run them, not by the one that builds."""
        for finding in overlays.not_python([bundle.manifest for bundle in layers], self._compile(sources)):
            raise FindingError(finding)

    def _link_libraries(self, dists: t.Sequence[records.Distribution]) -> None:
        answer = self.runner(["/sbin/ldconfig", "-p"], timeout=60)
        found = libraries.compute(self.site_packages, dists, self.critical, answer.stdout, self.layout.root)
        libraries.write_links(self.directory / "lib", found, self.site_packages)
        # whether the engine can do without is decided by prove, which can be told to
        self.found += [
            dataclasses.replace(finding, verdict=WARNING) if finding.verdict == ERROR else finding for finding in libraries.findings(found)
        ]

    def _finish(self, layers: t.Iterable[bundles.Bundle]) -> None:
        write_durably(self.directory / "overlay.json", json.dumps([bundle.manifest for bundle in layers], indent=1))
        write_durably(self.directory / "environment.json", json.dumps(self.content, indent=1))
        # the marker must not reach the disk before what it vouches for
        os.sync()
        write_durably(self.directory / MARKER, "")
