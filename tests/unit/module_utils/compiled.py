# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small compiled libraries that are to each other what torch and a kernel package are."""

from __future__ import annotations

import subprocess
from pathlib import Path

#: What torch changed between two versions: the type of one parameter.
CHECK = "namespace c10::cuda { void c10_cuda_check_implementation(int, const char*, const char*, %s, bool) %s }\n"
OLD = CHECK % ("int", "{}")
NEW = CHECK % ("unsigned", "{}")
#: A kernel that was built against the old one.
KERNEL = CHECK % ("int", ";") + 'extern "C" void go() { c10::cuda::c10_cuda_check_implementation(0, "", "", 0, false); }\n'


def build(target: Path, source: str, *needed: str) -> bytes:
    """Compile C++ into a shared library that needs others by soname, whether or not they give it anything; its content."""
    stubs = target.parent / "stubs"
    stubs.mkdir(parents=True, exist_ok=True)
    for soname in needed:
        _compile(stubs / soname, "", "-Wl,-soname," + soname)
    _compile(target, source, "-Wl,-soname," + target.name, "-Wl,--no-as-needed", "-L%s" % stubs, *("-l:" + soname for soname in needed))
    return target.read_bytes()


def _compile(target: Path, source: str, *options: str) -> None:
    argv = ["g++", "-std=c++17", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(target), *options]
    subprocess.run(argv, input=source, check=True, text=True)
