# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of this repository that no other linter knows, over its tracked and its new files.

Nothing names a package index or a path of one machine; nothing is suppressed or skipped; the core
imports nothing of Ansible and holds no version numbers; Python files say what licence they are under.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import typing as t
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]

#: Where a rule looks (a pattern over the path), what it must not find there, and what is wrong with it.
#: The patterns are written so that they do not match themselves.
FORBIDDEN = (
    (r".*", r"py[p]i\.org|python[h]osted\.org|deb\.debi[a]n|security\.debi[a]n|registry\.npm[j]s", "names a package index or mirror"),
    (r".*", r"(?<![\w.])/(?:ro[o]t/\.|wo[r]k/|ho[m]e/\w+/|opt/wh[e]els|opt/py[p]i)", "names a path of one machine"),
    (r"tests/sanity/ignore-.*", r"^\s*[^#\s]", "ignores a sanity test"),
    (
        r"(?!docs/|README).*",
        r"no[q]a|skip_l[i]st|warn_l[i]st|pytest\.mark\.sk[i]p|xf[a]il|pytest\.sk[i]p|# type: ig[n]ore",
        "suppresses a finding",
    ),
    (r"(roles|playbooks|molecule)/.*", r"ignore_errors: *(true|yes)|failed_when: *false", "hides a failure"),
    (r"(roles|playbooks)/.*\.yml", r"ansible\.builtin\.(shell|raw):", "starts a shell"),
    (r"(roles|playbooks)/.*\.yml", r"any_errors_fatal: *true", "rolls healthy hosts back"),
    (r"plugins/module_utils/.*\.py", r"^\s*(from|import) ansible(?!_collections\b)", "imports Ansible in the core"),
)
#: A version or a lane as a constant of its own; addresses have four parts.
VERSION = re.compile(r"cu1\d\d|\d+\.\d+\.\d+((\.post|\.dev|rc|a|b)\d+)?(\+\w+)?")
LICENCE = "SPDX-License-Identifier: GPL-3.0-or-later"


def files() -> list[str]:
    """Tracked and new files, without those that git ignores."""
    listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=CHECKOUT, check=True, capture_output=True, text=True)
    return sorted(name for name in listed.stdout.split("\0") if name and (CHECKOUT / name).is_file() and not (CHECKOUT / name).is_symlink())


def faults(name: str, text: str) -> t.Iterator[str]:
    """What is wrong with one file, a line each."""
    for where, forbidden, wrong in FORBIDDEN:
        if re.fullmatch(where, name):
            for match in re.finditer(forbidden, text, re.MULTILINE):
                line = text.count("\n", 0, match.start()) + 1
                yield "%s:%d: %s: %s" % (name, line, wrong, match[0].strip())
    if re.fullmatch(r"plugins/.*\.py", name):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and VERSION.fullmatch(node.value):
                yield "%s:%d: holds a version (data belongs in plugins/module_utils/data): %s" % (name, node.lineno, node.value)
    if name.endswith(".py") and text.strip() and LICENCE not in text[:600]:
        yield "%s:1: says no licence (%s)" % (name, LICENCE)


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    found, seen = [], 0
    for name in files():
        content = (CHECKOUT / name).read_bytes()
        if b"\0" not in content:
            seen += 1
            found += faults(name, content.decode(errors="replace"))
    print("\n".join(found) or "%d files" % seen)
    return 1 if found or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
