# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Leave in an environment what people leave: half of it matters, half must not be taken for an edit.

usage: handmade.py SITE_PACKAGES EXPECTED      (EXPECTED: the content of expected.yml as JSON)

An installed file may be a hard link into uv's cache, so even a mode is changed on a copy that is renamed over the file.
Prints ``changed PATH`` for what it did; a second run prints nothing.
"""

from __future__ import annotations

import json
import pathlib
import py_compile
import sys

NOTE = b"# looked at while debugging, harmless\n"


def replace(path: pathlib.Path, content: bytes, mode: int = 0o644) -> None:
    """Write a new file and rename it over ``path``."""
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    part.chmod(mode)
    part.replace(path)
    print("changed", path)


def main(site_packages: pathlib.Path, expected: dict) -> None:
    for name in expected["overlay"]["delete"]:
        path = site_packages / name
        if path.exists():
            path.unlink()
            print("changed", path)

    left = {what: site_packages / name for what, name in expected["left_alone"].items()}
    bytecode = left["stray_bytecode"]
    if not bytecode.exists():
        py_compile.compile(str(bytecode.with_suffix(".py")), cfile=str(bytecode), doraise=True)
        print("changed", bytecode)
    backup = left["editor_backup"]
    if not backup.exists():
        replace(backup, backup.with_name(backup.name.rstrip("~")).read_bytes())
    writable = left["mode_only"]
    if writable.stat().st_mode & 0o777 != 0o664:
        replace(writable, writable.read_bytes(), 0o664)
    other = left["other_package"]
    if not other.read_bytes().endswith(NOTE):
        replace(other, other.read_bytes() + NOTE)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]))
