# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-test sanity over a copy of the tracked and new files.

    python tests/sanity/run.py [SERIES [OPTION ...]]     another ansible-core than the controller's, for example 2.20;
                                                         options are ansible-test's

It refuses a tree that does not lie below ``ansible_collections``, hence the copy. Prints ``ok NAME``,
``skipped NAME: why`` or ``not ok NAME: why`` for each test.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import typing as t
from pathlib import Path
from xml.etree import ElementTree

CHECKOUT = Path(__file__).resolve().parents[2]
STATE = CHECKOUT / ".state" / "sanity"
#: The oldest Python a host may have. Tests for an interpreter that is not found are silently left out.
OLDEST = "3.9"
#: What stands in for the script that fetches pip where it cannot be downloaded: Python's own copy.
BOOTSTRAP = "import ensurepip\n\nensurepip.bootstrap()\n"


def copy_tree(destination: Path) -> None:
    """Copy what git tracks, or would if it were added."""
    listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=CHECKOUT, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (CHECKOUT / name).exists():
            (destination / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, destination / name, follow_symlinks=False)


def link_pythons(directory: Path) -> set[str]:
    """Link the machine's real interpreters into a directory (shims answer for versions they do not have); their versions."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for _attempt in range(2):
        listed = subprocess.run([str(CHECKOUT / "scripts" / "pythons"), str(directory)], check=True, capture_output=True, text=True)
        versions = {line.split()[0] for line in listed.stdout.splitlines()}
        if OLDEST in versions:
            break
        install = ["uv", "python", "install", "--quiet", OLDEST]
        places = {"UV_PYTHON_INSTALL_DIR": str(CHECKOUT / ".state" / "python"), "UV_PYTHON_INSTALL_BIN": "0"}
        subprocess.run(install, env={**os.environ, **places}, check=False)
    return versions


def ansible_test(tree: Path, command: t.Sequence[str], pythons: Path) -> int:
    """Run the tests; once more where they only lacked the download of pip's installer."""
    home = STATE / "home"
    (home / ".ansible" / "test" / "cache").mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(pythons), os.environ["PATH"]])
    environment = {**os.environ, "HOME": str(home), "PATH": path, "ANSIBLE_HOME": str(home / ".ansible")}
    status = 1
    for _attempt in range(2):
        process = subprocess.Popen(
            [*command, "--color", "no", "--junit"],
            cwd=tree,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        missing = None
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            missing = re.search(r"manually downloaded and saved to: (\S+)", line) or missing
        status = process.wait()
        if not status or not missing:
            break
        Path(missing[1]).write_text(BOOTSTRAP)
    return status


def report(results: Path) -> int:
    """Print each test's verdict; how many there were."""
    cases = [case for file in sorted(results.glob("*.xml")) for case in ElementTree.parse(file).iter("testcase")]
    for case in cases:
        failed, skipped = case.find("failure"), case.find("skipped")
        if failed is not None:
            print("not ok %s: %s" % (case.get("name"), " ".join((failed.text or failed.get("message") or "").split())[:300]))
        elif skipped is not None:
            print("skipped %s: %s" % (case.get("name"), skipped.text))
        else:
            print("ok %s" % case.get("name"))
    return len(cases)


def main(series: str = "", *options: str) -> int:
    """Run it all; 0 when every test that can run here passed."""
    STATE.mkdir(parents=True, exist_ok=True)
    command = ["uv", "tool", "run", "--quiet", "--from", "ansible-core~=%s.0rc0" % series, "ansible-test"] if series else ["ansible-test"]
    # outside the checkout: below it, ansible-test asks git, which ignores the copy
    with tempfile.TemporaryDirectory(prefix="specdec-sanity-") as scratch:
        tree = Path(scratch, "ansible_collections", "specdec", "serving")
        tree.mkdir(parents=True)
        copy_tree(tree)
        pythons = STATE / "python"  # always the same: its virtual environments are kept per interpreter path
        versions = link_pythons(pythons)
        status = ansible_test(tree, [*command, "sanity", *options], pythons)
        seen = report(tree / "tests" / "output" / "junit")
    if OLDEST not in versions:
        print("not ok python%s: not found, so nothing was imported on it; install it: uv python install %s" % (OLDEST, OLDEST))
    return 1 if status or not seen or OLDEST not in versions else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
