# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Do packages that must move together stand together?

Some projects ship one thing as several packages, and no resolver knows it: flashinfer in three
parts, the engine's kernels under an old and a new name, torch beside what was built for one of its
CUDA versions. Decided on metadata alone, because an import no longer complains (flashinfer from 0.7)
or compares by prefix (before).
"""

from __future__ import annotations

import re
import typing as t
from pathlib import Path

from . import records
from .findings import COULD_NOT_CHECK, ERROR, NOT_APPLICABLE, OK, WARNING, Finding

#: The parts of flashinfer; the last may have one provider per architecture, named after it.
FLASHINFER = ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache")

#: Built for one torch, and carrying its CUDA in the local label where their index gives one.
TORCH_FAMILY = ("torchvision", "torchaudio", "torchcodec", "triton")

#: What a lane of a stack may lack (``lacks``).
PARTS = ("flashinfer", "kernel", "cuda")

#: CUDA libraries; a compiler's own parts for several CUDA versions lie beside each other on purpose
#: (nvidia-cutlass-dsl 4.8 requires -libs-cu12 and -libs-cu13; read 2026-11-30).
_NVIDIA = re.compile(r"^nvidia-(?!cutlass-dsl-).+-cu(\d\d)$")
_TORCH_VERSION = re.compile(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


def findings(
    installed: t.Mapping[str, str],
    kernels: t.Sequence[str],
    lacks: t.Collection[str] = (),
    torch_label: t.Optional[str] = None,
) -> list[Finding]:
    """The four verdicts over one environment.

    :param installed: version by normalised name of distribution.
    :param kernels: the names under which the engine's kernel package exists, oldest first.
    :param lacks: which of :data:`PARTS` the stack says this lane does not have.
    :param torch_label: what torch was built for (:func:`torch_label`), where its metadata does not say.
    """
    torch = cuda_label(installed.get("torch", "")) or torch_label
    return [
        flashinfer(installed, torch, "flashinfer" in lacks),
        kernel(installed, kernels, "kernel" in lacks),
        torch_labels(installed, kernels, torch),
        cuda_major(installed, torch, "cuda" in lacks),
    ]


def flashinfer(installed: t.Mapping[str, str], torch: t.Optional[str], lacking: bool) -> Finding:
    """``parity.flashinfer``: the public versions of all parts are equal, their CUDA is torch's."""
    name = "parity.flashinfer"
    parts = {dist: version for dist, version in sorted(installed.items()) if dist in FLASHINFER or dist.startswith(FLASHINFER[-1] + "-")}
    found = _listed(parts)
    fix = "Pin all parts of flashinfer to one version (`specdec_pins: {flashinfer: VERSION}` moves them together) and build again."
    if not parts and lacking:
        return Finding(name, NOT_APPLICABLE, "flashinfer", "this lane has no flashinfer, and none is installed", evidence=records.METADATA)
    if FLASHINFER[0] not in parts:
        return Finding(
            name, ERROR, FLASHINFER[0], "flashinfer is not installed, or only a part of it is", found or "none", FLASHINFER[0], fix=fix
        )
    if len({public(version) for version in parts.values()}) > 1:
        return Finding(
            name,
            ERROR,
            "flashinfer",
            "the parts of flashinfer have different versions",
            found,
            "one public version in all parts",
            records.METADATA,
            "One part was moved alone: by an override, by an upgrade without dependencies, or because an index ends at an older version.",
            fix,
        )
    labels = {dist: label for dist, label in ((dist, cuda_label(version)) for dist, version in parts.items()) if label}
    return _against_torch(name, "flashinfer", labels, torch, found, "all parts at version %s" % public(parts[FLASHINFER[0]]))


def kernel(installed: t.Mapping[str, str], kernels: t.Sequence[str], lacking: bool) -> Finding:
    """``parity.kernel``: the kernel package is installed under exactly one of its names."""
    name = "parity.kernel"
    present = {dist: installed[dist] for dist in kernels if dist in installed}
    if not kernels:
        return Finding(name, NOT_APPLICABLE, "kernel package", "this engine has no kernel package of its own", evidence="data/engines.yml")
    if len(present) == 1:
        return Finding(name, OK, next(iter(present)), "the kernel package is installed once", _listed(present))
    expected = "exactly one of %s" % ", ".join(kernels)
    if present:
        return Finding(
            name,
            ERROR,
            " and ".join(present),
            "the kernel package is installed under both of its names",
            _listed(present),
            expected,
            records.METADATA,
            "Both write the same directory, so the files are those of whichever came last.",
            "Leave the one the engine requires in the lock, exclude the other, and build again.",
        )
    if lacking:
        return Finding(
            name, NOT_APPLICABLE, "kernel package", "this lane has no kernel package, and none is installed", evidence=records.METADATA
        )
    fix = "Make the lock anew and build again."
    return Finding(name, ERROR, "kernel package", "the kernel package is missing", "none", expected, fix=fix)


def torch_labels(installed: t.Mapping[str, str], kernels: t.Sequence[str], torch: t.Optional[str]) -> Finding:
    """``parity.torch-labels``: what says for which CUDA it was built, was built for torch's."""
    name = "parity.torch-labels"
    family = {dist: installed[dist] for dist in (*TORCH_FAMILY, *kernels) if dist in installed}
    if "torch" not in installed:
        return Finding(name, ERROR, "torch", "torch is not installed", _listed(family), "torch", fix="Make the lock anew and build again.")
    labels = {dist: label for dist, label in ((dist, cuda_label(version)) for dist, version in family.items()) if label}
    found = _listed({"torch": installed["torch"], **family})
    if not torch:
        return _unknown(name, "torch", found)
    return _against_torch(name, "torch", labels, torch, found, "no label contradicts torch's %s" % torch)


def cuda_major(installed: t.Mapping[str, str], torch: t.Optional[str], lacking: bool) -> Finding:
    """``parity.cuda-major``: the CUDA libraries from packages have one major version, torch's."""
    name = "parity.cuda-major"
    majors: dict[str, list[str]] = {}
    for dist in sorted(installed):
        match = _NVIDIA.match(dist)
        if match:
            majors.setdefault(match.group(1), []).append(dist)
    found = "; ".join("CUDA %s: %s" % (major, ", ".join(dists)) for major, dists in sorted(majors.items()))
    fix = "Take torch and the engine from the same lane, make the lock anew and build again."
    if not majors:
        if lacking or torch == "cpu":
            return Finding(
                name, NOT_APPLICABLE, "CUDA libraries", "this lane has no CUDA, and no CUDA library is installed", evidence=records.METADATA
            )
        return Finding(name, COULD_NOT_CHECK, "CUDA libraries", "no CUDA library is installed as a package", fix=fix)
    if not torch:
        return _unknown(name, "CUDA libraries", found)
    wanted = _major(torch)
    if len(majors) > 1 or (wanted and wanted not in majors):
        return Finding(
            name,
            ERROR,
            "CUDA libraries",
            "libraries of another CUDA major version than torch's are installed",
            found,
            "only the major version of torch's %s" % torch,
            "names of the installed distributions",
            "Two packages were taken from lanes of different CUDA versions.",
            fix,
        )
    if not wanted:
        return Finding(
            name, WARNING, "CUDA libraries", "torch was built without CUDA, yet CUDA libraries are installed", found, "none", fix=fix
        )
    return Finding(name, OK, "CUDA libraries", "all have torch's CUDA major version", found)


def public(version: str) -> str:
    """A version without its local label, normalised where it is one by the standard."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version).public
    except InvalidVersion:
        return version.partition("+")[0]


def cuda_label(version: str) -> t.Optional[str]:
    """``cu128``, ``cu130``, ``cpu`` from a local label such as ``+cu130`` or ``+cu130.git1``; None without."""
    for part in re.split(r"[._-]", version.partition("+")[2].lower()):
        if part == "cpu" or re.match(r"cu\d{2,3}$", part):
            return part
    return None


def torch_label(site_packages: Path) -> t.Optional[str]:
    """What torch was built for, from the version in its own file: the index's metadata leaves it out."""
    try:
        text = (site_packages / "torch" / "version.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = _TORCH_VERSION.search(text)
    return cuda_label(match.group(1)) if match else None


def _against_torch(name: str, subject: str, labels: t.Mapping[str, str], torch: t.Optional[str], found: str, good: str) -> Finding:
    """Compare CUDA labels with torch's: another major (or none) is an error, another minor a warning."""
    different = {dist: label for dist, label in labels.items() if label != torch}
    if not different:
        return Finding(name, OK, subject, good, found)
    if not torch:
        return _unknown(name, subject, found)
    wrong = {dist: label for dist, label in different.items() if _major(label) != _major(torch)}
    shown = wrong or different
    return Finding(
        name,
        ERROR if wrong else WARNING,
        ", ".join(shown),
        "built for %s, torch for %s" % (", ".join(sorted(set(shown.values()))), torch),
        found,
        "the label of torch, %s" % torch,
        "local labels of the installed distributions",
        "They were taken from indexes of different lanes.",
        "Take them from the index of torch's lane, make the lock anew and build again.",
    )


def _unknown(name: str, subject: str, found: str) -> Finding:
    return Finding(
        name,
        COULD_NOT_CHECK,
        subject,
        "which CUDA torch was built for is not known",
        found,
        fix="Install a torch whose version carries the label of its CUDA (torch/version.py), or build the environment again.",
    )


def _major(label: str) -> str:
    """``cu128`` -> ``12``; nothing for ``cpu``."""
    return label[2:4] if label.startswith("cu") else ""


def _listed(versions: t.Mapping[str, str]) -> str:
    return ", ".join("%s %s" % item for item in versions.items())
