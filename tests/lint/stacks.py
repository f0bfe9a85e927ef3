# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of stacks holds nothing that nobody knows."""

from __future__ import annotations

import sys
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils import stackfiles

TABLE = Path("plugins/module_utils/data/stacks.yml")


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    found = stackfiles.load(TABLE.read_text(encoding="utf-8"), str(TABLE))[1]
    print("\n".join(one.text() for one in found) or "%s is good" % TABLE)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
