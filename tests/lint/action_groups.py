# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action group ``specdec`` holds every module, so that ``module_defaults`` reaches all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

CHECKOUT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Print what differs; 1 if anything does."""
    group = yaml.safe_load((CHECKOUT / "meta" / "runtime.yml").read_text())["action_groups"]["specdec"]
    modules = sorted(path.stem for path in (CHECKOUT / "plugins" / "modules").glob("[!_]*.py"))
    if group == modules:
        print("%d modules" % len(modules))
        return 0
    print("meta/runtime.yml: action_groups.specdec is %s; plugins/modules holds %s" % (group, modules))
    return 1


if __name__ == "__main__":
    sys.exit(main())
