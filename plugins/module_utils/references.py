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

from . import bundles, captures, records, sources
from .findings import ERROR, Finding, FindingError
from .layout import MARKER, UNITS, Layout
from .runners import Runner

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

#: Paths that are listed for one reason.
_SHOWN = 20


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
    found.update(dict.fromkeys(deployed(Layout(root))))
    return list(found)


def deployed(layout: Layout) -> t.Iterator[Path]:
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


def capture(
    venv: str,
    package: str,
    archive: t.Optional[str],
    root: str,
    runner: Runner,
    binaries: t.Collection[str] = (),
    base: t.Optional[t.Mapping[str, t.Any]] = None,
) -> dict[str, t.Any]:
    """Capture the overlay of a package and write it to ``archive``.

    :param venv: the environment; found by itself when empty.
    :param root: directory that holds what was deployed to this host, if anything was.
    :param binaries: paths of compiled libraries and large files that are captured nevertheless.
    :param base: of a package that is not installed from a wheel, ``version`` of its release and the ``files`` of that one's wheel
        (path → sha256).
    :returns: machine, source (None for a wheel), digest, manifest, ignored, executable, uncommitted, venv, versions (of the critical
        packages), packages (version of every one); where the base is needed and not given, instead of all but the first two ``wanted``:
        the base's name and version, and the minor version of Python.

    Raises FindingError when there is nothing to capture from.
    """
    place = Path(venv) if venv else find(package, Path(root))
    packages = site_packages(place)
    dist = records.find(records.distributions(packages), package) if packages else None
    if packages is None or dist is None:
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
    source = sources.find(packages, dist, runner)
    facts = {"machine": platform.machine(), "source": source.facts() if source else None}
    if source and base is None:
        wanted = {"name": dist.name, "version": sources.release(dist, source), "python": captures.python_version(packages)}
        return {**facts, "wanted": wanted}
    release = captures.Release(_wheel(dist.name, base), source) if source and base else None
    captured = captures.capture(packages, package, binaries, CRITICAL, release)
    if archive:
        path = Path(archive)
        path.write_bytes(bundles.pack(captured.bundle))
        path.chmod(0o644)  # fetched by the user that logged in; source code, no secret
    manifest = dict(captured.bundle.manifest)
    versions = {one.name: one.version for one in records.distributions(packages)}
    return {
        **facts,
        "digest": captured.bundle.digest,
        "manifest": manifest,
        "ignored": [dict(one) for one in captured.ignored],
        "executable": list(captured.executable),
        "uncommitted": list(captured.uncommitted),
        "venv": str(place),
        "versions": manifest["reference_versions"],
        # a source's own version is in no index: its release's is
        "packages": {**versions, **({dist.name: base["version"]} if base else {})},
    }


def _wheel(name: str, base: t.Mapping[str, t.Any]) -> records.Distribution:
    """A distribution that is not installed here, from what the controller read of its wheel."""
    rows = {path: records.Row(path, "sha256", sha256, None) for path, sha256 in base["files"].items()}
    return records.Distribution(name, base["version"], "", rows)


def _holds(venv: Path, package: str) -> bool:
    packages = site_packages(venv)
    return packages is not None and records.find(records.distributions(packages), package) is not None


def summary(
    manifest: t.Mapping[str, t.Any],
    ignored: t.Sequence[t.Mapping[str, str]],
    source: t.Optional[t.Mapping[str, str]] = None,
    uncommitted: t.Sequence[str] = (),
) -> list[str]:
    """What was captured and what was not, in lines for a person."""
    base = manifest["base"]
    lines = ["overlay %s on %s %s:" % (manifest["digest"], base["name"], base["version"])]
    if source:
        lines.append("  from %s, commit %s, after %s" % (source["url"], source["commit"] or "unknown", source["tag"] or "no known tag"))
    lines += ["  in no commit: %s" % path for path in uncommitted]
    lines += ["  %-6s %s" % (entry["action"], entry["path"]) for entry in manifest["files"]]
    lines += ["  adds %s: %s" % (kind, ", ".join(names)) for kind, names in manifest["adds"].items() if names]
    lines += ["  needs of %s: %s" % (package, ", ".join(names)) for package, names in manifest.get("needs", {}).items()]
    reasons: dict[str, list[str]] = {}
    for one in ignored:
        reasons.setdefault(one["reason"], []).append(one["path"])
    for reason, paths in reasons.items():
        lines += ["  not captured: %s (%s)" % (path, reason) for path in paths[:_SHOWN]]
        lines += ["  not captured: %d more (%s)" % (len(paths) - _SHOWN, reason)] if len(paths) > _SHOWN else []
    return lines
