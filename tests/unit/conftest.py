# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make ``ansible_collections.specdec.serving`` importable from a plain checkout.

Nothing of Ansible is needed: ``ansible_collections`` and ``specdec`` are namespace packages found
through the same git-ignored link that playbooks use. In a tree that already lies under
``ansible_collections`` (an installed collection) that tree is used. The host program's own package,
``specdec``, lies beside, as it does in the zipapp. The doubles of tests/doubles and the programs of scripts are modules, too.
"""

from __future__ import annotations

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def collection_root() -> Path:
    """The directory that holds ``ansible_collections``; the link is made where it is missing."""
    if CHECKOUT.parts[-3:] == ("ansible_collections", "specdec", "serving"):
        return CHECKOUT.parents[2]
    link = CHECKOUT / "collections" / "ansible_collections" / "specdec" / "serving"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(Path("..", "..", ".."), target_is_directory=True)
    return CHECKOUT / "collections"


for path in (CHECKOUT / "roles" / "uv" / "files", CHECKOUT / "tests" / "doubles", CHECKOUT / "scripts", collection_root()):
    sys.path.insert(0, str(path))
