# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock of the controller environment satisfies what is asked for, with a hash for each package."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from packaging.requirements import Requirement

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"


def asked(path: Path) -> list[Requirement]:
    """The requirements of a file, comments left out."""
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return [Requirement(line) for line in lines if line]


def main() -> int:
    """Print what the lock misses; 1 if it misses anything."""
    lock = (REQUIREMENTS / "controller.txt").read_text()
    locked = dict(re.findall(r"^([a-z0-9.-]+)==([^ ;\\]+)", lock, re.MULTILINE))
    faults = [
        "%s: locked is %s; run make requirements" % (wanted, locked.get(wanted.name, "nothing"))
        for wanted in asked(REQUIREMENTS / "controller.in")
        if not wanted.specifier.contains(locked.get(wanted.name, "0"), prereleases=True)
    ]
    faults += [
        "%s has no hash" % block.split(" ")[0]
        for block in re.split(r"\n(?=[a-z])", lock)
        if re.match(r"[a-z]", block) and "--hash=sha256:" not in block
    ]
    faults += ["a URL in the lock: %s" % url for url in re.findall(r"\w+://\S+", lock)]
    print("\n".join(faults) or "%d packages locked" % len(locked))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
