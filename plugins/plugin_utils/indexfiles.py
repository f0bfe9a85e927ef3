# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the files of a lock lie: an index is asked anew, for the lock keeps no address."""

from __future__ import annotations

import tempfile
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils import locks, pylocks
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed, Runner

_TIMEOUT = 600.0


def ask(
    lock: locks.Lock, wanted: t.Mapping[str, t.Any], runner: Runner, uv: str, env: t.Optional[t.Mapping[str, str]] = None
) -> tuple[dict[str, pylocks.File], Completed]:
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
        named = {name: one["index"] for name, one in wanted["sources"].items() if "index" in one}
        links = [*locks.pages(wanted, local), *("%s/%s/" % (index.rstrip("/"), name) for name, index in named.items())]
        done = runner(argv, env=locks.settings(links, env), timeout=_TIMEOUT)
    if done.rc != 0:
        return {}, done
    ranked = pylocks.tags(wanted["python"], wanted["platform"])
    known = {name: files for name, files in pylocks.read(done.stdout).items() if name in packages}
    chosen = {name: pylocks.taken(files, packages[name].hashes, ranked) for name, files in known.items()}
    return {name: one for name, one in chosen.items() if one}, done
