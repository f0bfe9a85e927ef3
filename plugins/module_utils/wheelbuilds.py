# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build a wheel from a commit, on the host that was chosen for it; every other host then installs that wheel."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import os
import re
import shutil
import time
import typing as t
from pathlib import Path

from . import networks
from .findings import ERROR, OK, Finding, FindingError
from .layout import Layout
from .runners import Completed, Progress, Runner

_EVIDENCE_LINES = 25
#: Seconds: kernels for several architectures take hours on a small host.
_TIMEOUT = 6 * 3600.0
#: Seconds between two lines of progress, for a compiler says a great deal.
_PAUSE = 1.0

#: Words of git, or of uv and what it starts → check, message, way out; the first that fits.
#: As of git 2.39, uv 0.13, setuptools 80, CMake 3.31; tried 2026-11-30.
_GIT_FAILURES = (
    (
        r"not our ref|couldn't find remote ref|not a tree|unable to read tree|bad object|did not match any",
        "commit",
        "the repository has no such commit",
        "name a commit that is on a branch or tag of that repository",
    ),
    ("", "repository", "the repository cannot be read", "check the address, and that this host may read it without a password"),
)
_BUILD_FAILURES = (
    (r"No space left on device|Disk quota exceeded", "disk", "the file system is full", "free some space on the build host"),
    (
        r"does not appear to be a Python project|no such file or directory.*pyproject|is not a (valid )?directory|does not exist",
        "project",
        "there is no Python project at that place of the repository",
        "set subdirectory to where its pyproject.toml lies",
    ),
    (
        r"Python\.h: No such file|Could NOT find Python\S* .*Development|PYTHON_INCLUDE_DIR",
        "headers",
        "the headers of Python are not on the build host",
        "install them there (Debian: python3-dev), or name another build_host",
    ),
    (
        r"(?:command|execute|No such file or directory:?) '?\S*(?:gcc|g\+\+|cc|c\+\+|clang\S*|nvcc)'?"
        r"(?: failed: No such file|: No such file|$|\n)|No CMAKE_\w+_COMPILER|(?:gcc|g\+\+|nvcc): (?:command )?not found"
        r"|CUDA_HOME.*not set",
        "compiler",
        "a compiler is missing on the build host",
        "install it there (Debian: build-essential; for CUDA its toolkit, with CUDA_HOME in environment), or name another build_host",
    ),
    ("", "build", "it does not build", "see the evidence; try another commit, or other values in environment"),
)


def build(spec: t.Mapping[str, t.Any], runner: Runner, progress: Progress) -> dict[str, t.Any]:
    """The wheel job.

    :param spec: root, ``package``, ``git``, ``commit``, ``python`` (path of the interpreter it is built for); where given
        ``subdirectory``, ``environment`` (variables of the build, such as a list of architectures); ``secret_files`` may name
        the network (see networks.packed).
    :return: changed, findings (as dictionaries), ``wheel`` (name, version, filename, sha256, size in bytes, glibc, path), ``seconds``.

    Raises FindingError naming what went wrong; nothing is left then.
    """
    umask = os.umask(0o022)
    layout = Layout(spec["root"])
    work = layout.cache / "builds"
    # one job at a time: what lies there is of one that was killed
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    started = time.monotonic()
    made = _Build(spec, layout, work, runner, progress)
    try:
        wheel = made.run()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise FindingError(made.failure("disk", "the file system is full", str(error), "free some space on the build host")) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.umask(umask)
    found = Finding("wheel.built", OK, spec["package"], "built from %s" % spec["commit"], wheel["filename"])
    return {"changed": True, "findings": [found.as_dict()], "wheel": wheel, "seconds": round(time.monotonic() - started, 1)}


class _Build:
    def __init__(self, spec: t.Mapping[str, t.Any], layout: Layout, work: Path, runner: Runner, progress: Progress) -> None:
        self.spec = spec
        self.layout = layout
        self.source = work / "source"
        self.out = work / "out"
        self.home = work / "home"
        self.runner = runner
        self.progress = progress
        self.network = networks.of_job(spec)
        self.told = 0.0

    def run(self) -> dict[str, t.Any]:
        self.home.mkdir()
        self._check_out()
        self._make()
        return self._kept()

    # Source

    def _check_out(self) -> None:
        git, commit = self.spec["git"], self.spec["commit"]
        self.progress("wheel", "fetching %s at %s" % (git, commit[:12]))
        done = self._git("init", "--quiet", str(self.source))
        if done.rc == 127:
            fix = "install git there, or name another build_host"
            raise FindingError(self.failure("git", "git is not on the build host", done.stderr, fix))
        done = self._git("fetch", "--quiet", "--depth", "1", git, commit, inside=True)
        if done.rc != 0:
            # not every server hands out a commit by its name alone
            self._must("fetch", "--quiet", git, "+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
        self._must("checkout", "--quiet", "--detach", commit)
        self._must("submodule", "--quiet", "update", "--init", "--recursive", "--depth", "1")

    def _must(self, *words: str) -> None:
        done = self._git(*words, inside=True)
        if done.rc != 0:
            raise FindingError(self._classified(_GIT_FAILURES, done.stdout + done.stderr))

    def _git(self, *words: str, inside: bool = False) -> Completed:
        place = ["-C", str(self.source)] if inside else []
        # nobody is there to be asked for a password
        own = {"GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": "ssh -oBatchMode=yes", "LC_ALL": "C.UTF-8", "HOME": str(self.home)}
        env = {**self.network.connection(), **own}
        return self.runner(["git", "-c", "advice.detachedHead=false", *place, *words], env=env, timeout=_TIMEOUT)

    # Wheel

    def _make(self) -> None:
        variables = {str(name): str(value) for name, value in (self.spec.get("environment") or {}).items()}
        listed = "".join(", %s=%s" % item for item in sorted(variables.items()))
        self.progress("wheel", "building for %s%s" % (self.spec["python"], listed))
        env = {
            "HOME": str(self.home),
            "UV_CACHE_DIR": str(self.layout.uv_cache),
            "UV_NO_CONFIG": "1",
            "UV_NO_PROGRESS": "1",
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_SYSTEM_CERTS": "1",
            "UV_NATIVE_TLS": "1",
            **self.network.environment(),
            **variables,
        }
        place = self.source / (self.spec.get("subdirectory") or "")
        argv = [str(self.layout.uv), "build", "--wheel", "--python", self.spec["python"], "--out-dir", str(self.out), str(place)]
        done = self.runner(argv, env=env, timeout=_TIMEOUT, on_line=self._tell)
        if done.rc == 124:
            fix = "build for fewer architectures, or on a host with more processors"
            raise FindingError(self.failure("build", "it did not build in %d hours" % (_TIMEOUT / 3600), _tail(done.stdout), fix))
        if done.rc != 0:
            raise FindingError(self._classified(_BUILD_FAILURES, done.stdout + done.stderr))

    def _tell(self, line: str) -> None:
        if line.strip() and time.monotonic() - self.told >= _PAUSE:
            self.told = time.monotonic()
            self.progress("wheel", self.network.hidden(line.strip())[:200])

    def _kept(self) -> dict[str, t.Any]:
        from packaging.utils import canonicalize_name, parse_wheel_filename

        made = sorted(self.out.glob("*.whl"))
        name, version, _build, _tags = parse_wheel_filename(made[0].name) if made else ("", "", (), frozenset())
        if len(made) != 1 or name != canonicalize_name(self.spec["package"]):
            found = ", ".join(path.name for path in made) or "no wheel"
            fix = "name the package that the repository builds, or set subdirectory to where this one lies"
            finding = self.failure("package", "the repository does not build this package", "", fix)
            raise FindingError(dataclasses.replace(finding, found=found, expected="one wheel of %s" % self.spec["package"]))
        content = made[0].read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        place = self.layout.wheels / sha256 / made[0].name
        place.parent.mkdir(parents=True, exist_ok=True)
        made[0].replace(place)
        glibc = (os.confstr("CS_GNU_LIBC_VERSION") or "").rpartition(" ")[2]
        return {
            "name": name,
            "version": str(version),
            "filename": place.name,
            "sha256": sha256,
            "size": len(content),
            # a wheel of pure Python runs anywhere
            "glibc": "" if place.name.endswith("-any.whl") else glibc,
            "path": str(place),
        }

    # Failures

    def _classified(self, table: t.Iterable[tuple[str, str, str, str]], text: str) -> Finding:
        text = self.network.hidden(text)
        check, message, fix = next(row[1:] for row in table if re.search(row[0], text))
        own = self.failure(check, message, _tail(text), fix)
        # what the build itself needs comes from an index, too
        return networks.diagnose(_tail(text), own.subject + " on the build host") or own if check == "build" else own

    def failure(self, check: str, message: str, evidence: str, fix: str) -> Finding:
        """A finding about this build."""
        return Finding("wheel." + check, ERROR, "specdec_pins.%s" % self.spec["package"], message, evidence=evidence.strip(), fix=fix)


def _tail(text: str) -> str:
    return "\n".join([line for line in text.splitlines() if line.strip()][-_EVIDENCE_LINES:])
