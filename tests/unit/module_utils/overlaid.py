# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An installed engine, and the same with hand edits: what the tests of overlays work on."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import bundles, records
from ansible_collections.specdec.serving.plugins.module_utils.findings import FindingError

from . import wheels

SPEC_INFO = b"class SpeculativeAlgorithm(Enum):\n    NGRAM = auto()\n"
ENGINE = {
    "engine/__init__.py": b"",
    "engine/spec_info.py": SPEC_INFO,
    "engine/server_args.py": b"class ServerArgs:\n    port: int = 1\n",
    "engine/old/gone.py": b"G = 1\n",
    "engine/kernel.so": b"\x7fELF-base",
    "engine/crlf.py": b"a = 1\r\n",
}


def lay(directory: Path) -> Path:
    """A site-packages directory with the engine and another package."""
    site_packages = wheels.venv(directory)
    wheels.install(site_packages, "engine", "0.5.23", ENGINE)
    wheels.install(site_packages, "other", "2.0", {"other/a.py": b"x = 1\n"})
    return site_packages


def edited(directory: Path) -> Path:
    """What an engineer made of it."""
    site = lay(directory)
    (site / "engine/spec_info.py").write_bytes(SPEC_INFO + b"    DDTREE = auto()\n")
    (site / "engine/server_args.py").write_bytes(ENGINE["engine/server_args.py"] + b"    speculative_ddtree_budget: int = 8\n")
    (site / "engine/tree").mkdir()
    (site / "engine/tree/utils.py").write_bytes(b"#!/usr/bin/python3\r\nT = 1\r\n")
    (site / "engine/tree/utils.py").chmod(0o755)
    (site / "engine/old/gone.py").unlink()
    return site


def sealed(bundle: bundles.Bundle, **changes: t.Any) -> bundles.Bundle:
    """A bundle with another manifest that is whole nevertheless."""
    manifest = {**bundle.manifest, **changes}
    return bundles.Bundle({**manifest, "digest": bundles.manifest_digest(manifest)}, bundle.files)


def content(site: Path) -> dict[str, bytes]:
    """Every file but bytecode."""
    return {path: (site / path).read_bytes() for path in records.tree(site)}


def refused(call: t.Callable[..., t.Any], *arguments: t.Any) -> t.Any:
    """The finding of a call that must be refused."""
    with pytest.raises(FindingError) as caught:
        call(*arguments)
    return caught.value.finding
