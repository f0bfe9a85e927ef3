# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which file a host takes of each package of a lock: its address, hash and size.

uv knows all that from the index; it says so in the form of a pylock.toml (PEP 751), which no host ever sees.
"""

from __future__ import annotations

import dataclasses
import re
import tempfile
import typing as t
import urllib.parse
from pathlib import Path

import tomllib
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from ansible_collections.specdec.serving.plugins.module_utils import locks
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed, Runner

_TIMEOUT = 600.0
#: The oldest manylinux that wheels are still built for, and the older names of some.
_OLDEST = 5
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclasses.dataclass(frozen=True)
class File:
    """A file of an index; ``sha256`` is empty and ``size`` (bytes) None where the index does not say."""

    name: str
    version: str
    filename: str
    url: str
    sha256: str
    size: t.Optional[int]


def tags(python: str, platform: str) -> list[Tag]:
    """The tags of a host, best first.

    :param python: minor version (``3.12``); :param platform: as uv names it (``x86_64-manylinux_2_36``).
    """
    machine, _dash, glibc = platform.partition("-")
    newest = int(glibc.rpartition("_")[2])
    platforms = []
    for minor in range(newest, _OLDEST - 1, -1):
        platforms += ["manylinux_2_%d_%s" % (minor, machine)] + (["%s_%s" % (_LEGACY[minor], machine)] if minor in _LEGACY else [])
    platforms.append("linux_" + machine)
    version = tuple(int(part) for part in python.split("."))
    interpreter = "cp" + "".join(str(part) for part in version)
    return [*cpython_tags(version, [interpreter], platforms), *compatible_tags(version, interpreter, platforms)]


def read(text: str) -> dict[str, list[File]]:
    """The files by package of a pylock.toml. Raises tomllib.TOMLDecodeError."""
    found: dict[str, list[File]] = {}
    for package in tomllib.loads(text).get("packages", ()):
        sources = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ())]
        found[package["name"]] = [_file(package, source) for source in sources]
    return found


def _file(package: t.Mapping[str, t.Any], source: t.Mapping[str, t.Any]) -> File:
    place = source.get("url") or source.get("path") or ""
    filename = source.get("name") or urllib.parse.unquote(urllib.parse.urlsplit(place).path.rpartition("/")[2])
    return File(package["name"], package["version"], filename, place, source.get("hashes", {}).get("sha256", ""), source.get("size"))


def taken(files: t.Iterable[File], hashes: t.Collection[str], ranked: t.Sequence[Tag]) -> t.Optional[File]:
    """Of a package's files the one that an installer takes: accepted by the lock, of the best tag; a source where there is no wheel."""
    order = {tag: number for number, tag in enumerate(ranked)}
    best: t.Optional[tuple[int, File]] = None
    for one in files:
        if one.sha256 and one.sha256 not in hashes:
            continue
        try:
            ranks = [order[tag] for tag in parse_wheel_filename(one.filename)[3] if tag in order]
        except InvalidWheelFilename:
            ranks = [len(order)]
        if ranks and (best is None or min(ranks) < best[0]):
            best = (min(ranks), one)
    return best[1] if best else None


def ask(
    lock: locks.Lock, wanted: t.Mapping[str, t.Any], runner: Runner, uv: str, env: t.Optional[t.Mapping[str, str]] = None
) -> tuple[dict[str, File], Completed]:
    """The file that a host takes of each package, without the local wheels; and uv's answer, for whoever misses one.

    :param wanted: the lock's inputs; with the addresses of extra indexes where it has any.
    """
    local = {wheel["name"] for wheel in lock.wheels}
    packages = {one.name: one for one in lock.packages if one.name not in local}
    with tempfile.TemporaryDirectory(prefix="specdec-files-") as scratch:
        requirements = Path(scratch, "requirements.txt")
        requirements.write_text("".join("%s==%s\n" % (one.name, one.version) for one in packages.values()), encoding="utf-8")
        argv = [uv, "pip", "compile", "--quiet", "--no-deps", "--format", "pylock.toml", "--no-header", "--color", "never"]
        argv += [*locks.target_options(wanted), str(requirements)]
        done = runner(argv, env=locks.settings(locks.pages(wanted, local), env), timeout=_TIMEOUT)
    if done.rc != 0:
        return {}, done
    ranked = tags(wanted["python"], wanted["platform"])
    chosen = {name: taken(files, packages[name].hashes, ranked) for name, files in read(done.stdout).items() if name in packages}
    return {name: one for name, one in chosen.items() if one}, done


def sizes(
    lock: locks.Lock,
    wanted: t.Mapping[str, t.Any],
    runner: Runner,
    uv: str,
    directories: t.Sequence[Path] = (),
    env: t.Optional[t.Mapping[str, str]] = None,
) -> dict[str, int]:
    """Bytes of each package's file, by name; those that the index does not tell are left out."""
    found, _done = ask(lock, wanted, runner, uv, env)
    places, _missing = locks.locate(lock, directories)
    known = {name: one.size for name, one in found.items() if one.size is not None}
    known.update({wheel["name"]: places[wheel["sha256"]].stat().st_size for wheel in lock.wheels if wheel["sha256"] in places})
    return known


def without_credentials(text: str) -> str:
    """An address or message that may be shown."""
    return re.sub(r"://[^/\s@]*@", "://***@", text)
