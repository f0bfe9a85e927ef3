# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bytecode that is compiled once per host and package, and shared by all its environments.

Compiling takes ten times as long as installing from a warm cache, and an engine without bytecode takes twice as long to
start: its user cannot write any. So what was compiled for a package is kept, as links, under its RECORD and the interpreter's
build. Every file is compared with its hash before it is used again, and with the time of its source, by which Python
judges it: an edit in place of either is found, and the package is compiled anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import secrets
import shutil
import typing as t
from pathlib import Path

from . import records
from .layout import digest
from .releases import write_durably

#: Names the package (``dist``) and its ``files``; written last.
INDEX = "index.json"

#: An eighth of what a large engine installs, and never imported by it.
_TESTS = frozenset(("test", "tests"))

#: The last line of what COMPILE says begins with this.
WRONG = "wrong: "

#: Run by the environment's own interpreter: compiles the files on stdin on all processors, and says every few seconds how far it is;
#: at its end, as JSON, what does not compile and why.
COMPILE = """
import compileall, concurrent.futures, json, multiprocessing, os, sys, time, warnings
warnings.simplefilter("ignore")
wrong = {}
def some(paths):
    failed = {path: why(path) for path in paths if not compileall.compile_file(path, quiet=2)}
    return len(paths), {path: reason for path, reason in failed.items() if reason}
def why(path):
    try:
        with open(path, "rb") as stream:
            compile(stream.read(), path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return str(error)
paths = sys.stdin.read().splitlines()
workers = len(os.sched_getaffinity(0))
if len(paths) < 200 or workers < 2:
    wrong = some(paths)[1]
else:
    count = max(workers * 8, len(paths) // 200)
    told, done = time.monotonic(), 0
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        for part, failed in pool.map(some, [paths[start::count] for start in range(count)]):
            done += part
            wrong.update(failed)
            if time.monotonic() - told > 4:
                told = time.monotonic()
                print("compiled %d of %d files" % (done, len(paths)), flush=True)
print(WRONG + json.dumps(wrong))
""".replace("WRONG", repr(WRONG))


class Store:
    """The bytecode of packages on a host.

    :param directory: where it is kept, on the file system of the environments.
    :param python: implementation, version and build of the interpreter.
    """

    def __init__(self, directory: Path, python: t.Mapping[str, str]) -> None:
        self.directory = directory
        self.python = {key: python[key] for key in ("implementation", "version", "build")}
        self.tag = "%s-%s" % (python["implementation"], "".join(python["version"].split(".")[:2]))

    def _entry(self, site_packages: Path, dist: records.Distribution) -> Path:
        record = records.hash_file(site_packages / dist.directory / "RECORD")
        return self.directory / digest([self.python, record])

    def compiled(self, source: str) -> str:
        """Where Python looks for the bytecode of a source."""
        directory, name = posixpath.split(source)
        return posixpath.join(directory, "__pycache__", "%s.%s.pyc" % (name[: -len(".py")], self.tag))

    def take(self, site_packages: Path, dists: t.Iterable[records.Distribution]) -> list[str]:
        """Link what is kept into an environment; the sources that are still to be compiled."""
        missing = []
        for dist in dists:
            own = sources(dist)
            if own and not self._link(site_packages, self._entry(site_packages, dist)):
                missing += own
        return missing

    def _link(self, site_packages: Path, entry: Path) -> bool:
        try:
            index = json.loads((entry / INDEX).read_bytes())["files"]
        except (OSError, ValueError, KeyError):
            shutil.rmtree(entry, ignore_errors=True)
            return False
        files = {path: entry / str(number) for number, path in enumerate(index)}
        hashes = records.hash_files({path: (str(place), "sha256") for path, place in files.items()})
        if any(hashes[path] != one["sha256"] or _stamp(site_packages / one["source"]) != one["stamp"] for path, one in index.items()):
            shutil.rmtree(entry, ignore_errors=True)
            return False
        made: set[Path] = set()
        for path, place in files.items():
            target = site_packages / path
            if target.parent not in made:
                target.parent.mkdir(exist_ok=True)
                made.add(target.parent)
            with contextlib.suppress(FileExistsError):
                os.link(place, target)
        return True

    def keep(self, site_packages: Path, dists: t.Iterable[records.Distribution]) -> None:
        """Keep the bytecode of packages that are as their RECORDs say. What cannot be kept is compiled again next time."""
        for dist in dists:
            entry = self._entry(site_packages, dist)
            pairs = {self.compiled(source): source for source in sources(dist)}
            there = {path: source for path, source in pairs.items() if (site_packages / path).is_file()}
            if not there or entry.exists():
                continue
            hashes = records.hash_files({path: (str(site_packages / path), "sha256") for path in there})
            index = {
                path: {"source": source, "stamp": _stamp(site_packages / source), "sha256": hashes[path]} for path, source in there.items()
            }
            scratch = self.directory / (".new-" + secrets.token_hex(4))
            try:
                scratch.mkdir(parents=True)
                for number, path in enumerate(index):
                    os.link(site_packages / path, scratch / str(number))
                write_durably(scratch / INDEX, json.dumps({"dist": dist.directory, "files": index}))
                scratch.rename(entry)
            except OSError:
                shutil.rmtree(scratch, ignore_errors=True)


def sources(dist: records.Distribution) -> list[str]:
    """The Python files of a distribution that are worth compiling, below site-packages: its own tests are not."""
    return [path for path in dist.rows if path.endswith(".py") and not path.startswith("../") and _TESTS.isdisjoint(path.split("/"))]


def _stamp(source: Path) -> t.Optional[list[int]]:
    """What Python compares bytecode with: the source's time in whole seconds, and its size."""
    try:
        status = source.stat()
    except OSError:
        return None
    return [int(status.st_mtime), status.st_size]
