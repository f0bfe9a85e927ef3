# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The unmodified package that an overlay lies over, on the controller: to read what the overlay adds, to lay files over it, to compare.

Fetched once by uv, for the Python and the machine of the host, and kept in the cache directory; a directory appears
there by a rename.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import tempfile
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils import artifacts, locks, networks, records
from ansible_collections.specdec.serving.plugins.module_utils.bundles import Base
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, Finding, FindingError
from ansible_collections.specdec.serving.plugins.module_utils.layout import digest
from ansible_collections.specdec.serving.plugins.module_utils.runners import Runner

from . import hosttools

#: Nothing of the package is run here: what the newest hosts take is good enough to be read.
_PLATFORM = "%s-manylinux_2_40"

#: Where an install into a plain directory puts scripts and data.
_OUTSIDE = ("bin", "etc", "include", "share")

_TIMEOUT = 1800.0


def fetch(
    cache: Path,
    runner: Runner,
    base: t.Mapping[str, str],
    python: str,
    machine: str,
    hashes: t.Sequence[str] = (),
    wheel_directories: t.Sequence[Path] = (),
    uv: t.Optional[str] = None,
) -> Path:
    """The files of a package as its wheel has them, below a directory like site-packages.

    :param base: name and version of the package.
    :param python: minor version (``3.11``); :param machine: ``x86_64``, ``aarch64``.
    :param hashes: sha256 of the wheels that are accepted; any when empty.
    :param wheel_directories: local directories with wheels; one that is accepted is taken before an index is asked.

    Raises FindingError (``overlay.base``) where it cannot be fetched.
    """
    requirement = "%s==%s" % (base["name"], base["version"])
    local = locks.local_wheel(wheel_directories, base["name"], base["version"], python, machine)
    sha256 = artifacts.file_digest(local) if local else ""
    if local and hashes and sha256 not in hashes:
        local = None
    accepted = [sha256] if local else sorted(hashes)
    kept = cache / ("base-%s-%s" % (base["name"], digest([requirement, python, machine, accepted])))
    if kept.is_dir():
        return kept
    cache.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".base-", dir=cache))
    try:
        argv = [uv or hosttools.find_uv(), "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--link-mode", "copy"]
        argv += ["--python", sys.executable, "--target", str(scratch), "--python-platform", _PLATFORM % machine]
        argv += ["--python-version", python] if python else []
        argv += ["--require-hashes"] if accepted else []
        wanted = "%s @ %s" % (base["name"], local.resolve().as_uri()) if local else requirement
        stdin = " ".join([wanted, *("--hash=sha256:" + one for one in accepted)]) + "\n"
        done = runner([*argv, "--requirements", "-"], stdin=stdin, env=hosttools.SETTINGS, timeout=_TIMEOUT)
        if done.rc != 0:
            raise FindingError(_unavailable(requirement, done.stderr))
        try:
            os.rename(scratch, kept)
        except OSError:
            # another process was first; what it fetched is the same
            if not kept.is_dir():
                raise
        return kept
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def package(directory: Path, name: str) -> records.Distribution:
    """A fetched package with its RECORD, but for what an environment has outside its site-packages."""
    (found,) = (dist for dist in records.distributions(directory) if dist.name == records.normalized(name))
    rows = {path: row for path, row in found.rows.items() if path.split("/", 1)[0] not in _OUTSIDE}
    return dataclasses.replace(found, rows=rows)


def reader(directory: Path) -> Base:
    """Gives the bytes of a path below a fetched package."""

    def read(path: str) -> t.Optional[bytes]:
        file = directory / path
        return file.read_bytes() if file.is_file() else None

    return read


def _unavailable(requirement: str, words: str) -> Finding:
    words = networks.hidden(words.strip())
    fix = "see the evidence; or name the directory of its wheel in specdec_wheel_directories; then run it again"
    message = "the unmodified package could not be fetched"
    failed = Finding("overlay.base", ERROR, requirement, message, evidence=words[-600:], fix=fix)
    return networks.diagnose(words, "the controller, fetching %s" % requirement) or failed
