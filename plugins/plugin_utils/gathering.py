# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fill a wheelhouse: ask uv which files a lock's host takes, download those that are missing, write the manifest last."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils import artifacts, locks, pylocks, pythons, wheelhouses
from ansible_collections.specdec.serving.plugins.module_utils.findings import FindingError
from ansible_collections.specdec.serving.plugins.module_utils.runners import Runner

from . import fetching, hosttools, indexfiles

#: What a host's own tools are taken for: uv's wheels ask for no newer C library.
_TOOLS_PLATFORM = "%s-manylinux_2_17"


class Gathering:
    """One run over one wheelhouse.

    :param env: environment variables for uv and for downloads (index, proxy, certificates, credentials).
    :param say: shows a line to the person who waits.
    """

    def __init__(self, directory: Path, runner: Runner, uv: str, env: t.Mapping[str, str], say: t.Callable[[str], None]) -> None:
        self.directory = directory
        self.runner = runner
        self.uv = uv
        self.env = env
        self.say = say
        self.fetched: list[str] = []
        try:
            self.manifest = wheelhouses.read(directory)
        except FindingError as error:
            if error.finding.id != "wheelhouse.none":
                raise
            self.manifest = wheelhouses.empty()

    def lock(self, text: str, name: str, wanted: t.Mapping[str, t.Any], directories: t.Sequence[Path]) -> None:
        """Every file of a lock.

        :param wanted: its inputs, with the addresses of extra indexes; :param directories: where local wheels lie.

        Raises FindingError.
        """
        lock = locks.parse(text, name)
        local, absent = locks.locate(lock, [*directories, *self._held(lock)])
        for finding in absent:
            raise FindingError(finding)
        records = [self._local(wheel, local[wheel["sha256"]]) for wheel in lock.wheels]
        records += self._of_index(lock, wanted, name)
        self.manifest["locks"][lock.id] = {"name": name, "files": sorted(records, key=lambda one: one["name"])}
        self.say("%s: %d files, %s" % (name, len(records), wheelhouses.total(records)))

    def _held(self, lock: locks.Lock) -> list[Path]:
        """Where local wheels lie that were gathered before."""
        return [self.directory / wheelhouses.WHEELS / wheel["sha256"] for wheel in lock.wheels]

    def _local(self, wheel: t.Mapping[str, str], source: Path) -> dict[str, t.Any]:
        record = {key: wheel[key] for key in ("name", "version", "filename", "sha256")}
        dest = wheelhouses.place(self.directory, record)
        if not dest.exists():
            dest.parent.mkdir(parents=True, exist_ok=True)
            new = dest.with_name(dest.name + ".part")
            shutil.copyfile(source, new)
            new.replace(dest)
            self.fetched.append(dest.name)
        return {**record, "bytes": dest.stat().st_size}

    def _of_index(self, lock: locks.Lock, wanted: t.Mapping[str, t.Any], name: str) -> list[dict[str, t.Any]]:
        here = self._known(lock)
        asked = [package for package in lock.packages if package.name not in here]
        local = {wheel["name"] for wheel in lock.wheels}
        if all(package.name in local for package in asked):
            return list(here.values())
        found, done = indexfiles.ask(lock, wanted, self.runner, self.uv, self.env)
        lacking = [package.name for package in lock.packages if package.name not in found and package.name not in local]
        if lacking:
            raise FindingError(wheelhouses.unavailable(name, lacking, done.stderr))
        sources = [one.filename for one in found.values() if not one.filename.endswith(".whl")]
        if sources:
            raise FindingError(wheelhouses.source(name, sources))
        files = {package.name: found[package.name] for package in asked if package.name in found}
        self._fetch([_wanted(one, wheelhouses.place(self.directory, _record(one))) for one in files.values()])
        made = {key: {**_record(one), "bytes": self._size(_record(one))} for key, one in files.items()}
        return [*here.values(), *made.values()]

    def _known(self, lock: locks.Lock) -> dict[str, dict[str, t.Any]]:
        """Of a lock that was gathered before, the files that are whole; others are fetched again."""
        records = self.manifest["locks"].get(lock.id, {}).get("files", ())
        local = {wheel["name"] for wheel in lock.wheels}
        return {one["name"]: one for one in records if one["name"] not in local and self._whole(one)}

    def _whole(self, record: t.Mapping[str, t.Any], kind: str = wheelhouses.WHEELS) -> bool:
        path = wheelhouses.place(self.directory, record, kind)
        return path.is_file() and artifacts.file_digest(path) == record["sha256"]

    def _size(self, record: t.Mapping[str, t.Any]) -> int:
        return wheelhouses.place(self.directory, record).stat().st_size

    def tools(self, machine: str) -> None:
        """What the controller needs to make the host's tools: uv for the machine, libraries of the host program. Raises FindingError."""
        packages = hosttools.packages()
        wanted = {"python": "%d.%d" % sys.version_info[:2], "platform": _TOOLS_PLATFORM % machine}
        wanted.update({"builds": [], "exclude_newer": "", "indexes": [], "excludes": [], "sources": {}})
        kept = self.manifest["tools"]
        accepted = {sha256 for package in packages for sha256 in package.hashes}
        whole = {
            name
            for name, one in kept.items()
            if one["sha256"] in accepted and self._tool(name).is_file() and artifacts.file_digest(self._tool(name)) == one["sha256"]
        }
        if machine in {one["machine"] for name, one in kept.items() if name in whole} and len(whole) == len(kept):
            return
        found, done = indexfiles.ask(locks.Lock(tuple(packages), {}), wanted, self.runner, self.uv, self.env)
        lacking = [package.name for package in packages if package.name not in found]
        if lacking:
            raise FindingError(wheelhouses.unavailable("the host tools", lacking, done.stderr))
        self._fetch([_wanted(one, self._tool(one.filename)) for one in found.values() if one.filename not in whole])
        for one in found.values():
            kept[one.filename] = {"sha256": one.sha256, "bytes": self._tool(one.filename).stat().st_size, "machine": machine}

    def _tool(self, filename: str) -> Path:
        return self.directory / wheelhouses.TOOLS / filename

    def metadata(self, downloads: str, host: str) -> t.Mapping[str, t.Any]:
        """uv's metadata of the Pythons that can be downloaded, from a file or an address. Raises FindingError (``python.downloads``)."""
        if not downloads.startswith(("http://", "https://")):
            return pythons.metadata(downloads, host)
        with tempfile.TemporaryDirectory(prefix="specdec-downloads-") as scratch:
            path = Path(scratch, "downloads.json")
            with self._client().open(downloads, 0) as answer:
                path.write_bytes(answer.read())
            return pythons.metadata(str(path), host)

    def _client(self) -> fetching.Client:
        return fetching.Client({**os.environ, **self.env})

    def python(self, archive: t.Mapping[str, t.Any]) -> None:
        """An archive of Python: ``url``, ``sha256``, ``filename`` and what else its source says of it. Raises FindingError."""
        record = {key: value for key, value in archive.items() if key != "url"}
        dest = wheelhouses.place(self.directory, record, wheelhouses.PYTHON)
        if not self._whole(record, wheelhouses.PYTHON):
            self._fetch([fetching.Wanted(archive["url"], archive["sha256"], None, dest)])
        others = [one for one in self.manifest["python"] if one["sha256"] != record["sha256"]]
        self.manifest["python"] = [*others, {**record, "bytes": dest.stat().st_size}]

    def _fetch(self, wanted: t.Sequence[fetching.Wanted]) -> None:
        """Download what is not there; a file that is damaged goes first."""
        missing = []
        for one in {one.dest: one for one in wanted}.values():
            if one.dest.is_file() and artifacts.file_digest(one.dest) == one.sha256:
                continue
            one.dest.unlink(missing_ok=True)
            missing.append(one)
        if missing:
            fetching.fetch_all(missing, self._client(), self.say)
            self.fetched += [one.dest.name for one in missing]

    def keep(self) -> bool:
        """Write the manifest where it changed; whether anything did."""
        path = self.directory / wheelhouses.MANIFEST
        text = wheelhouses.text(self.manifest)
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            return bool(self.fetched)
        self.directory.mkdir(parents=True, exist_ok=True)
        new = path.with_name(path.name + ".new")
        new.write_text(text, encoding="utf-8")
        new.replace(path)
        return True


@contextlib.contextmanager
def exclusive(directory: Path) -> t.Iterator[None]:
    """Hold a wheelhouse against other processes that would fill it."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _record(file: pylocks.File) -> dict[str, t.Any]:
    return {"name": file.name, "version": file.version, "filename": file.filename, "sha256": file.sha256}


def _wanted(file: pylocks.File, dest: Path) -> fetching.Wanted:
    return fetching.Wanted(file.url, file.sha256, file.size, dest)
