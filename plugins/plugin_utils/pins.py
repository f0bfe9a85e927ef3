# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pins directory: locks, overlay bundles, which bundle came from which reference, and wheels that were built from a commit.

Files appear by a rename and are never changed unless told to; several hosts of a play may add to it
at the same time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils import bundles
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, Finding, FindingError


class Pins:
    """One pins directory; it need not exist before something is kept in it."""

    def __init__(self, directory: t.Union[str, Path]) -> None:
        self.directory = Path(directory)

    def lock(self, name: str) -> t.Optional[str]:
        """The text of a lock, None where there is none."""
        return self._read(self.directory / "locks" / name)

    def keep_lock(self, name: str, text: str) -> Path:
        """Keep a lock under its name."""
        return self._write(self.directory / "locks" / name, text)

    def reference(self, host: str) -> dict[str, t.Any]:
        """What was captured from a reference; an empty mapping where nothing was."""
        text = self._read(self.directory / "references" / (host + ".json"))
        return json.loads(text) if text else {}

    def keep_reference(self, host: str, package: str, digest: str, facts: t.Mapping[str, t.Any]) -> Path:
        """Remember that ``package``'s overlay on ``host`` is the bundle ``digest``."""
        known = self.reference(host)
        overlays = {**known.get("overlays", {}), package: digest}
        data = {**known, **facts, "overlays": overlays}
        return self._write(self.directory / "references" / (host + ".json"), json.dumps(data, indent=1, sort_keys=True) + "\n")

    @property
    def overlays(self) -> Path:
        """Where the bundles lie, each under its digest."""
        return self.directory / "overlays"

    def bundle(self, digest: str) -> Path:
        """Where the bundle of a digest lies or would lie."""
        return self.overlays / digest

    def manifest(self, digest: str) -> t.Optional[dict[str, t.Any]]:
        """The manifest of a bundle, None where the bundle is not there; raises FindingError (``overlay.digest``) for another one's."""
        text = self._read(self.bundle(digest) / bundles.MANIFEST)
        if text is None:
            return None
        found = "no manifest"
        with contextlib.suppress(ValueError, AttributeError):
            manifest = json.loads(text)
            found = bundles.manifest_digest(manifest)
            if found == digest == manifest.get("digest"):
                return manifest
        message = "the manifest was changed after it was made"
        fix = "restore the bundle from version control, or remove it and capture it anew with playbooks/capture.yml"
        raise FindingError(Finding("overlay.digest", ERROR, str(self.bundle(digest)), message, found, digest, fix=fix))

    def verify(self, digest: str) -> None:
        """Read a whole bundle, as it is sent to hosts; raises FindingError (see bundles.read_bundle)."""
        bundles.read_bundle(self.bundle(digest))

    def wheel(self, key: str) -> t.Optional[dict[str, t.Any]]:
        """What is known of a built wheel (name, version, filename, sha256, glibc, source), None where none was built."""
        text = self._read(self.directory / "wheels" / (key + ".json"))
        return json.loads(text) if text else None

    def wheel_file(self, record: t.Mapping[str, t.Any]) -> Path:
        """Where a built wheel lies or would lie."""
        return self.directory / "wheels" / record["sha256"] / record["filename"]

    def keep_wheel(self, key: str, record: t.Mapping[str, t.Any], file: Path) -> Path:
        """Keep a built wheel: the file first, so that no record is without one."""
        place = self.wheel_file(record)
        place.parent.mkdir(parents=True, exist_ok=True)
        new = place.with_name(place.name + ".new")
        shutil.copyfile(file, new)
        os.rename(new, place)
        self._write(self.directory / "wheels" / (key + ".json"), json.dumps(record, indent=1, sort_keys=True) + "\n")
        return place

    @contextlib.contextmanager
    def exclusive(self) -> t.Iterator[None]:
        """Hold the directory against other processes that would add to it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.directory, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _read(self, path: Path) -> t.Optional[str]:
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def _write(self, path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(path.name + ".new")
        new.write_text(text, encoding="utf-8")
        os.rename(new, path)
        return path
