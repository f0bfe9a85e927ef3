# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare what plugins/module_utils/data/engines.yml says of arguments with the parsers of released engines.

    argumenttable.py [ENGINE VERSION ...]

Without a version every engine is read in the versions that the table names. A line a version: equal, drift (what differs), or
not reachable; status 1 on drift. Of a wheel only the files of its parser are fetched.
"""

from __future__ import annotations

import re
import sys
import typing as t
from pathlib import Path

import engineparsers
import yaml
from packageindex import Index, Unreachable, default_index
from packaging.version import Version

from ansible_collections.specdec.serving.plugins.module_utils import arguments
from ansible_collections.specdec.serving.plugins.plugin_utils import hosttools

TABLE = Path(__file__).resolve().parents[1] / "plugins" / "module_utils" / "data" / "engines.yml"

Engine = t.Mapping[str, t.Any]


def published(index: Index, engine: Engine, version: str) -> set[str]:
    """The arguments that the configuration file of a released engine may hold. Raises Unreachable."""
    wheels = [wheel for wheel in index.wheels(engine["package"]) if wheel.version == Version(version)]
    if not wheels:
        raise Unreachable("the index holds no wheel of %s %s" % (engine["package"], version))
    where = engine["parser"]
    pattern = "|".join([*where["files"], where["reader"]])
    files = index.members(wheels[-1], pattern)
    reader = next(content for name, content in files.items() if re.fullmatch(where["reader"], name))
    sources = [content for name, content in files.items() if any(re.fullmatch(one, name) for one in where["files"])]
    return engineparsers.accepted(engineparsers.parser(sources, where["whole"]), reader)


def written(engine: Engine, version: str) -> set[str]:
    """Every argument that a release of this version may be configured with."""
    names = {*engine["fixed"], *engine["secrets"].values(), engine["memory_share"]}
    names |= {name for lane in engine["lanes"].values() for name in lane.get("arguments", {})}
    entries = [*engine["options"].values(), *(() if engine.get("joined") else engine["speculative"].values())]
    for row in filter(None, (arguments.row_of(entry, version) for entry in entries)):
        names |= {row["name"], *row.get("also", {})}
    return names | ({engine["joined"]} if engine.get("joined") else set())


def differences(engine: Engine, version: str, known: t.Collection[str]) -> list[str]:
    """What the table says otherwise than the parser."""
    wrong = ["%s is written, and not known" % name for name in sorted(written(engine, version) - set(known))]
    for name, life in engine["life"].items():
        alive = arguments.alive(life, version)
        if alive != (name in known):
            wrong.append("%s is %s, and the table says otherwise" % (name, "gone" if alive else "there"))
    return wrong


def main(argv: t.Sequence[str]) -> int:
    """Check what the command line names, or everything; 0 without drift."""
    table = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    asked = [(argv[0], version) for version in argv[1:]] or [(name, one) for name in table for one in table[name]["parser"]["versions"]]
    index = Index(default_index(hosttools.find_uv()))
    drift = False
    for name, version in asked:
        try:
            known = published(index, table[name], version)
            wrong = differences(table[name], version, known)
        except Unreachable as error:
            print("not reachable  %s %s: %s" % (name, version, error))
            continue
        drift |= bool(wrong)
        print("%-14s %s %s: %s" % ("drift" if wrong else "equal", name, version, "; ".join(wrong) or "%d arguments read" % len(known)))
    return 1 if drift else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
