# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small compiled libraries that are to each other what torch and a kernel package are."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

#: What torch changed between two versions: the type of one parameter.
CHECK = "namespace c10::cuda { void c10_cuda_check_implementation(int, const char*, const char*, %s, bool) %s }\n"
OLD = CHECK % ("int", "{}")
NEW = CHECK % ("unsigned", "{}")
#: A kernel that was built against the old one.
KERNEL = CHECK % ("int", ";") + 'extern "C" void go() { c10::cuda::c10_cuda_check_implementation(0, "", "", 0, false); }\n'

#: Functions of a driver, and a library that takes one of them; the older driver has none of that name.
DRIVER = 'extern "C" { void cuInit() {} void cuGreenCtxStreamCreate() {} }\n'
OLD_DRIVER = 'extern "C" { void cuInit() {} }\n'
DRIVEN = 'extern "C" { void cuInit(); void cuGreenCtxStreamCreate(); void run() { cuInit(); cuGreenCtxStreamCreate(); } }\n'


def device_code(*pieces: tuple[int, int, bool]) -> str:
    """C++ that leaves device code for architectures as CUDA's compiler does: of each piece kind, architecture, and whether for it alone.

    The payloads are noise that says nothing.
    """
    entries = b"".join(
        struct.pack("<HHIQ", kind, 0x101, 64, 8) + struct.pack("<12xIQQQQ", architecture, 0, 0x11 | specific << 20, 0, 0)[:48] + b"noise..."
        for kind, architecture, specific in pieces
    )
    content = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries
    data = ",".join(map(str, content))
    return 'asm(".section .nv_fatbin, \\"a\\"\\n.align 8\\n.byte %s\\n.text\\n");\n' % data


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
