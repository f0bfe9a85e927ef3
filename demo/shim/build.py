# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the demo's wheels: every directory here with a METADATA file becomes one.

usage: build.py [DIRECTORY]        (default: demo/.state/wheels)

The standard library is enough. The same sources give the same bytes everywhere, so a lock can hold
the wheels' hashes: fixed time, sorted names, fixed mode, no compression. Wheels of ours that are
already there and not made any more are removed.
"""

from __future__ import annotations

import base64
import csv
import email
import hashlib
import io
import pathlib
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
WHEEL = "Wheel-Version: 1.0\nGenerator: specdec demo\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
EPOCH = (1980, 1, 1, 0, 0, 0)


def contents(source: pathlib.Path) -> tuple[str, dict[str, bytes]]:
    """Return a wheel's file name and its files, path inside the archive to bytes."""
    metadata = email.message_from_bytes((source / "METADATA").read_bytes())
    stem = f"{metadata['Name'].replace('-', '_')}-{metadata['Version']}"
    info = f"{stem}.dist-info"
    files = {str(path.relative_to(source)): path.read_bytes() for path in source.rglob("*.py")}
    files |= {f"{info}/{path.name}": path.read_bytes() for path in source.iterdir() if path.is_file()}
    files[f"{info}/WHEEL"] = WHEEL.encode()
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for name in sorted(files):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        rows.writerow((name, f"sha256={digest}", len(files[name])))
    rows.writerow((f"{info}/RECORD", "", ""))
    files[f"{info}/RECORD"] = record.getvalue().encode()
    return f"{stem}-py3-none-any.whl", files


def build(source: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """Write one wheel under a temporary name, then rename it into place."""
    name, files = contents(source)
    part = target / f".{name}.part"
    with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as wheel:
        # RECORD is the last file of a wheel by convention; the rest is sorted.
        for path in sorted(files, key=lambda path: (path.endswith("/RECORD"), path)):
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.create_system = 3  # Unix, wherever this runs
            entry.external_attr = 0o100644 << 16
            wheel.writestr(entry, files[path])
    return part.rename(target / name)


def main(arguments: list[str]) -> None:
    target = pathlib.Path(arguments[0]) if arguments else HERE.parent / ".state" / "wheels"
    target.mkdir(parents=True, exist_ok=True)
    made = {build(path.parent, target) for path in sorted(HERE.glob("*/METADATA"))}
    ours = {path.name.split("-")[0] for path in made}
    for old in set(target.glob("*.whl")) - made:
        if old.name.split("-")[0] in ours:
            old.unlink()
    for wheel in sorted(made):
        print(f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel}")


if __name__ == "__main__":
    main(sys.argv[1:])
