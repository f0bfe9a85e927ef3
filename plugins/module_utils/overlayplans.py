# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Of a host's plan the overlays: which an instance wants, in their order, and what of them is to be captured and to be sent."""

from __future__ import annotations

import contextlib
import dataclasses
import typing as t
from pathlib import Path

from . import artifacts, bundles, locks, overlays, stacks
from .findings import ERROR, Finding, FindingError
from .layout import Layout


class Pins(t.Protocol):
    """What the plan reads of a pins directory (plugin_utils/pins.py)."""

    def lock(self, name: str) -> t.Optional[str]: ...

    def reference(self, host: str) -> dict[str, t.Any]: ...

    def manifest(self, digest: str) -> t.Optional[dict[str, t.Any]]: ...

    def bundle(self, digest: str) -> t.Any: ...

    def wheel(self, key: str) -> t.Optional[dict[str, t.Any]]: ...

    def wheel_file(self, record: t.Mapping[str, t.Any]) -> Path: ...

    def verify(self, digest: str) -> None: ...


class Layers(t.Protocol):
    """Makes the bundle of a directory on the controller (plugin_utils/layers.py): its manifest, and where it lies. Raises FindingError.

    ``record`` gives the RECORD of a package, empty where that cannot be had.
    """

    def __call__(
        self,
        directory: str,
        base: t.Mapping[str, str],
        hashes: t.Sequence[str],
        python: str,
        below: t.Sequence[t.Mapping[str, t.Any]],
        binaries: t.Collection[str],
    ) -> tuple[t.Mapping[str, t.Any], Path]: ...

    def record(self, base: t.Mapping[str, str], hashes: t.Sequence[str], python: str) -> t.Mapping[str, t.Any]: ...


@dataclasses.dataclass(frozen=True)
class Overlay:
    """One overlay of an instance: its manifest, where its bundle lies on the controller, and where it comes from, for a person."""

    manifest: t.Mapping[str, t.Any]
    place: Path
    origin: str


@dataclasses.dataclass(frozen=True)
class Captured:
    """The captured overlays of an instance by reference and package, None while one is missing; the pins that are, and what is wrong."""

    known: t.Optional[t.Mapping[tuple[str, str], Overlay]]
    missing: t.Sequence[dict[str, t.Any]]
    findings: t.Sequence[Finding]


@dataclasses.dataclass(frozen=True)
class Overlays:
    """The overlays of one host's instances.

    :param host: inventory name.
    :param packages: name of its distribution by engine.
    :param present: digests of the bundles that the host holds.
    :param update: whether what the pins hold is captured anew.
    """

    host: str
    layout: Layout
    packages: t.Mapping[str, str]
    present: t.Collection[str]
    update: bool
    wheel_directories: t.Sequence[Path]
    pins: Pins
    layers: Layers

    def captured(self, instance: t.Mapping[str, t.Any]) -> Captured:
        """What the pins hold of the references that an instance names."""
        known: dict[tuple[str, str], Overlay] = {}
        missing: list[dict[str, t.Any]] = []
        findings: list[Finding] = []
        captured = [overlay for overlay in instance.get("overlays") or () if overlay.get("reference")]
        for overlay in captured:
            package = self._package(instance, overlay)
            digest = self.pins.reference(overlay["reference"]).get("overlays", {}).get(package)
            if digest is None or self.update:
                missing.append(self._missing(overlay, package, replace=digest is not None))
                continue
            try:
                known[overlay["reference"], package] = self._known(digest, overlay["reference"])
            except FindingError as error:
                findings.append(error.finding)
        return Captured(None if missing or findings else known, missing, findings)

    def _missing(self, overlay: t.Mapping[str, t.Any], package: str, replace: bool) -> dict[str, t.Any]:
        return {
            "kind": "overlay",
            "reference": overlay["reference"],
            "package": package,
            "root": str(self.layout.root),
            "binaries": list(overlay.get("binaries") or ()),
            "wheel_directories": [str(one) for one in self.wheel_directories],
            "replace": replace,
        }

    def _known(self, digest: str, reference: str) -> Overlay:
        manifest = self.pins.manifest(digest)
        if manifest is None:
            raise FindingError(
                Finding(
                    "plan.bundle-gone",
                    ERROR,
                    "overlay %s of %s on %s" % (digest, reference, self.host),
                    "is named by the pins, but its bundle is not there",
                    found="nothing at %s" % self.pins.bundle(digest),
                    expected="the bundle",
                    fix="restore the pins directory from version control, or capture anew with playbooks/capture.yml",
                )
            )
        if digest not in self.present:
            self.pins.verify(digest)
        return Overlay(manifest, self.pins.bundle(digest), "captured from %s" % reference)

    def layered(
        self, instance: t.Mapping[str, t.Any], captured: t.Mapping[tuple[str, str], Overlay], stack: stacks.Stack, lock: locks.Lock
    ) -> list[Overlay]:
        """The instance's overlays in order, the directories among them made into bundles. Raises FindingError where one is refused."""
        layered: list[Overlay] = []
        for overlay in instance.get("overlays") or ():
            name = self._package(instance, overlay)
            locked = next((one for one in lock.packages if one.name == name), None)
            if overlay.get("reference"):
                one = captured[overlay["reference"], name]
                self._check_version(one.manifest, locked, stack)
                layered.append(one)
            else:
                layered.append(self._layer(overlay, name, locked, stack, [one.manifest for one in layered]))
        return layered

    def _layer(
        self,
        overlay: t.Mapping[str, t.Any],
        name: str,
        locked: t.Optional[locks.Package],
        stack: stacks.Stack,
        below: t.Sequence[t.Mapping[str, t.Any]],
    ) -> Overlay:
        if locked is None:
            fix = "name a package of the lock in overlays[].package"
            raise FindingError(Finding("overlay.layer", ERROR, "overlays[].package %s" % name, "is not in the lock", fix=fix))
        base, hashes, python = self._base(locked, stack)
        below = [manifest for manifest in below if manifest["base"]["name"] == locked.name]
        binaries = overlay.get("binaries") or ()
        manifest, place = self.layers(overlay["directory"], base, hashes, python, below, binaries)
        self._check_version(manifest, locked, stack)
        return Overlay(manifest, place, "directory %s" % overlay["directory"])

    def _base(self, locked: locks.Package, stack: stacks.Stack) -> tuple[dict[str, str], tuple[str, ...], str]:
        """The locked package that overlays lie over: name and version, accepted hashes, minor version of Python."""
        python = ".".join(stack.interpreter["version"].split(".")[:2]) if stack.interpreter else ""
        return {"name": locked.name, "version": locked.version}, locked.hashes, python

    def _check_version(self, manifest: t.Mapping[str, t.Any], locked: t.Optional[locks.Package], stack: stacks.Stack) -> None:
        """Refuse an overlay for another version than the locked one before anything is built, and name the files that moved."""
        version = locked.version if locked else None
        if overlays.version_finding(manifest, version, {}):
            rows = self.layers.record(*self._base(locked, stack)) if locked else {}
            raise FindingError(t.cast("Finding", overlays.version_finding(manifest, version, rows)))

    def _package(self, instance: t.Mapping[str, t.Any], overlay: t.Mapping[str, t.Any]) -> str:
        return overlay.get("package") or self.packages[instance["engine"]["name"]]

    def lacking(self, layered: t.Sequence[Overlay]) -> t.Iterator[artifacts.Artifact]:
        """The bundles that the host lacks, as they are sent."""
        for overlay in layered:
            digest = overlay.manifest["digest"]
            if digest not in self.present:
                held = self._held(overlay.manifest)
                tree = artifacts.tree_digest(overlay.place)
                yield artifacts.Artifact(str(overlay.place), str(self.layout.overlays / digest), tree, held=held)

    def _held(self, manifest: t.Mapping[str, t.Any]) -> dict[str, str]:
        """The files of a bundle that other bundles on the host hold: path in it → path there."""
        places: dict[str, str] = {}
        for digest in self.present:
            known: t.Optional[t.Mapping[str, t.Any]] = None
            with contextlib.suppress(FindingError):
                known = self.pins.manifest(digest)
            for entry in known["files"] if known else ():
                places[entry["result"]] = str(self.layout.overlays / digest / bundles.FILES / entry["path"])
        wanted = {entry["path"]: entry["result"] for entry in manifest["files"] if entry["result"]}
        return {"%s/%s" % (bundles.FILES, path): places[result] for path, result in wanted.items() if result in places}
