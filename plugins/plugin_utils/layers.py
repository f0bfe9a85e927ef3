# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bundles of directories on the controller, made while a plan is made."""

from __future__ import annotations

import dataclasses
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils import bundles, layers, records, wheelhouses
from ansible_collections.specdec.serving.plugins.module_utils.findings import FindingError
from ansible_collections.specdec.serving.plugins.module_utils.runners import Runner

from . import basewheels


@dataclasses.dataclass(frozen=True)
class Layers:
    """Makes the bundle of a directory, and keeps it.

    :param kept: directory that the bundles are kept in, each under its digest.
    :param cache: where unmodified packages are kept; :param machine: the host's.
    :param wheelhouse: where packages come from, instead of from an index.
    """

    kept: Path
    cache: Path
    runner: Runner
    machine: str
    wheel_directories: t.Sequence[Path]
    wheelhouse: t.Optional[Path] = None

    def __call__(
        self,
        directory: str,
        base: t.Mapping[str, str],
        hashes: t.Sequence[str],
        python: str,
        below: t.Sequence[t.Mapping[str, t.Any]],
        binaries: t.Collection[str],
    ) -> tuple[t.Mapping[str, t.Any], Path]:
        """The manifest of the directory's bundle and where it lies; raises FindingError (see layers.bundle, basewheels.fetch)."""
        fetched, package = self._package(base, hashes, python)
        made = layers.bundle(Path(directory), package, basewheels.reader(fetched), python, below, binaries)
        place = self.kept / made.digest
        bundles.write_bundle(place, made)
        return made.manifest, place

    def record(self, base: t.Mapping[str, str], hashes: t.Sequence[str], python: str) -> t.Mapping[str, records.Row]:
        """The RECORD of a package; empty where it cannot be fetched."""
        try:
            return self._package(base, hashes, python)[1].rows
        except FindingError:
            return {}

    def _package(self, base: t.Mapping[str, str], hashes: t.Sequence[str], python: str) -> tuple[Path, records.Distribution]:
        held = [self.wheelhouse / wheelhouses.WHEELS / one for one in hashes] if self.wheelhouse else []
        places = [*self.wheel_directories, *held]
        fetched = basewheels.fetch(self.cache, self.runner, base, python, self.machine, hashes, places)
        return fetched, basewheels.package(fetched, base["name"])
