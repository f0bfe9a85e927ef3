# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small wheels and site-packages made on the spot, with true RECORDs."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import sys
import typing as t
import zipfile
from pathlib import Path


def members(name: str, version: str, files: t.Mapping[str, bytes]) -> dict[str, bytes]:
    """All files of a wheel: those given, its metadata, and a RECORD over them."""
    info = "%s-%s.dist-info/" % (name.replace("-", "_"), version)
    whole = {
        **files,
        info + "METADATA": ("Metadata-Version: 2.1\nName: %s\nVersion: %s\n" % (name, version)).encode(),
        info + "WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = io.StringIO(newline="")
    rows = csv.writer(record, lineterminator="\n")
    rows.writerows([path, "sha256=" + b64(data), len(data)] for path, data in whole.items())
    rows.writerow([info + "RECORD", "", ""])
    whole[info + "RECORD"] = record.getvalue().encode()
    return whole


def b64(data: bytes) -> str:
    """sha256 the way RECORD writes it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def sha256(data: bytes) -> str:
    """sha256, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def make(directory: Path, name: str, version: str, files: t.Mapping[str, bytes]) -> Path:
    """Write a wheel, the same bytes every time."""
    path = directory / ("%s-%s-py3-none-any.whl" % (name.replace("-", "_"), version))
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in members(name, version, files).items():
            archive.writestr(zipfile.ZipInfo(member, (1980, 1, 1, 0, 0, 0)), data)
    return path


def install(site_packages: Path, name: str, version: str, files: t.Mapping[str, bytes]) -> None:
    """Lay a wheel's files out as an installer does."""
    for member, data in members(name, version, files).items():
        path = site_packages / member
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o644)


def venv(directory: Path) -> Path:
    """The site-packages of an empty virtual environment, without an interpreter."""
    site_packages = directory / "lib" / ("python%d.%d" % sys.version_info[:2]) / "site-packages"
    site_packages.mkdir(parents=True)
    (directory / "bin").mkdir()
    (directory / "pyvenv.cfg").write_text("home = /usr/bin\n", encoding="utf-8")
    return site_packages
