# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A reference host: where its engine is installed, and what of it is captured."""

from __future__ import annotations

import json
import platform
import re
import typing as t
from pathlib import Path

from . import bundles, captures, records
from .findings import ERROR, Finding, FindingError
from .layout import MARKER, UNITS, Layout

#: Versions that the manifest notes, for a target is compared with them.
CRITICAL = (
    "torch",
    "triton",
    "flashinfer-python",
    "flashinfer-cubin",
    "flashinfer-jit-cache",
    "sgl-kernel",
    "sglang-kernel",
    "transformers",
)


def site_packages(venv: Path) -> t.Optional[Path]:
    """The site-packages of a virtual environment; None where it has none."""
    return next(iter(sorted(venv.glob("lib/python3*/site-packages"))), None)


def environments(root: Path, units: Path = Path(UNITS)) -> list[Path]:
    """The virtual environments whose Python a unit of this host starts, and those its instances under ``root`` serve from, each once."""
    found: dict[Path, None] = {}
    for unit in sorted(units.glob("*.service")):
        try:
            text = unit.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for program in re.findall(r"^ExecStart=[-@:+!]*(/\S+)", text, re.MULTILINE):
            venv = Path(program).parent.parent
            if (venv / "pyvenv.cfg").exists():
                found[venv] = None
    found.update(dict.fromkeys(_deployed(Layout(root))))
    return list(found)


def _deployed(layout: Layout) -> t.Iterator[Path]:
    """The environments of the current releases: no unit names them, for a launcher starts them."""
    for release in sorted(layout.instances.glob("*/current/release.json")):
        try:
            environment = layout.environment(json.loads(release.read_text(encoding="utf-8"))["environment"])
        except (OSError, ValueError, KeyError):
            continue
        if (environment / MARKER).exists():
            yield environment / "venv"


def find(package: str, root: Path, units: Path = Path(UNITS)) -> Path:
    """The one environment of this host that a unit or an instance uses and that holds ``package``; raises FindingError otherwise."""
    known = environments(root, units)
    holding = [venv for venv in known if _holds(venv, package)]
    if len(holding) == 1:
        return holding[0]
    raise FindingError(
        Finding(
            "capture.environment",
            ERROR,
            "specdec_reference.venv",
            "several environments hold %s" % package if holding else "no environment that a unit starts holds %s" % package,
            found=", ".join(str(venv) for venv in holding or known)
            or "no unit in %s starts a Python of an environment, and %s has no instance" % (units, root),
            expected="one environment with %s" % package,
            fix="set specdec_reference: {venv: /path/of/the/environment} for the reference",
        )
    )


def capture(venv: str, package: str, archive: t.Optional[str], root: str, binaries: t.Collection[str] = ()) -> dict[str, t.Any]:
    """Capture the overlay of a package and write it to ``archive``.

    :param venv: the environment; found by itself when empty.
    :param root: directory that holds what was deployed to this host, if anything was.
    :param binaries: paths of compiled libraries that are captured nevertheless.
    :returns: digest, manifest, ignored, venv, versions (of the critical packages), packages (version of every one), machine.

    Raises FindingError when there is nothing to capture from.
    """
    place = Path(venv) if venv else find(package, Path(root))
    packages = site_packages(place)
    if packages is None or not _holds(place, package):
        raise FindingError(
            Finding(
                "capture.no-package",
                ERROR,
                "specdec_reference.venv",
                "%s is not installed there" % package,
                found="no %s below %s" % (package, place),
                expected="an environment with %s installed from a wheel" % package,
                fix="set specdec_reference.venv of the reference to the environment that holds %s, or name another package in overlays"
                % package,
            )
        )
    captured = captures.capture(packages, package, binaries, CRITICAL)
    if archive:
        path = Path(archive)
        path.write_bytes(bundles.pack(captured.bundle))
        path.chmod(0o644)  # fetched by the user that logged in; source code, no secret
    manifest = dict(captured.bundle.manifest)
    return {
        "digest": captured.bundle.digest,
        "manifest": manifest,
        "ignored": [dict(one) for one in captured.ignored],
        "venv": str(place),
        "versions": manifest["reference_versions"],
        "packages": {dist.name: dist.version for dist in records.distributions(packages)},
        "machine": platform.machine(),
    }


def _holds(venv: Path, package: str) -> bool:
    packages = site_packages(venv)
    return packages is not None and records.find(records.distributions(packages), package) is not None


def summary(manifest: t.Mapping[str, t.Any], ignored: t.Sequence[t.Mapping[str, str]]) -> list[str]:
    """What was captured and what was not, in lines for a person."""
    base = manifest["base"]
    lines = ["overlay %s on %s %s:" % (manifest["digest"], base["name"], base["version"])]
    lines += ["  %-6s %s" % (entry["action"], entry["path"]) for entry in manifest["files"]]
    lines += ["  adds %s: %s" % (kind, ", ".join(names)) for kind, names in manifest["adds"].items() if names]
    lines += ["  needs of %s: %s" % (package, ", ".join(names)) for package, names in manifest.get("needs", {}).items()]
    lines += ["  not captured: %s (%s)" % (one["path"], one["reason"]) for one in ignored]
    return lines
