# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``rebase`` runs on the controller alone: what captured overlays change is merged with the engine version that is wanted."""

from __future__ import annotations

import tempfile
import typing as t
from pathlib import Path

from ansible.plugins.action import ActionBase

from ansible_collections.specdec.serving.plugins.module_utils import bundles, locks, parity, rebases, schema
from ansible_collections.specdec.serving.plugins.module_utils.findings import FindingError
from ansible_collections.specdec.serving.plugins.plugin_utils import basewheels, controller
from ansible_collections.specdec.serving.plugins.plugin_utils.pins import Pins


class ActionModule(ActionBase):
    def run(self, tmp: t.Any = None, task_vars: t.Any = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        host, arguments = task_vars["inventory_hostname"], self._task.args
        instances, wrong = schema.instances(
            host, arguments.get("instances"), arguments.get("instance_defaults"), arguments.get("host_defaults")
        )
        if wrong:
            return {**result, **controller.refusal("%s: nothing was changed; the inventory has to be mended first:" % host, wrong)}
        pins = Pins(arguments["pins_dir"])
        made: dict[str, dict[str, t.Any]] = {}
        try:
            with pins.exclusive():
                for digest, version in self._wanted(pins, instances):
                    made[digest] = self._rebase(host, pins, digest, version, arguments)
        except FindingError as error:
            return {**result, **controller.refusal("%s: an overlay could not be carried over:" % host, [error.finding])}
        if not made:
            self._display.display("%s | rebase | every captured overlay is for the wanted engine version" % host)
        return {**result, "changed": any(one["changed"] for one in made.values()), "proposals": list(made.values())}

    def _wanted(self, pins: Pins, instances: t.Sequence[t.Mapping[str, t.Any]]) -> t.Iterator[tuple[str, str]]:
        """The captured overlays that were made for another version than their instance's: digest, wanted version."""
        for instance in instances:
            engine = instance["engine"]
            package = controller.table("engines")[engine["name"]]["package"]
            for overlay in instance.get("overlays") or ():
                if not overlay.get("reference") or overlay.get("package", package) != package or not engine.get("version"):
                    continue
                digest = pins.reference(overlay["reference"]).get("overlays", {}).get(package)
                manifest = pins.manifest(digest) if digest else None
                if manifest and parity.public(manifest["base"]["version"]) != parity.public(engine["version"]):
                    yield manifest["digest"], engine["version"]

    def _rebase(self, host: str, pins: Pins, digest: str, version: str, arguments: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        bundle = bundles.read_bundle(pins.bundle(digest))
        places = locks.wheel_directories(arguments.get("wheel_directories") or [], controller.environment())
        base = bundle.manifest["base"]
        old, new = (
            basewheels.reader(
                basewheels.fetch(
                    controller.cache_directory(),
                    controller.networked(arguments.get("network") or {}),
                    {**base, "version": one},
                    bundle.manifest["python"],
                    arguments.get("machine", "x86_64"),
                    wheel_directories=places,
                )
            )
            for one in (base["version"], version)
        )
        with tempfile.TemporaryDirectory(prefix="specdec-rebase-") as scratch:
            made = rebases.rebase(bundle, old, new, version, controller.run, Path(scratch))
        directory = pins.directory / "proposals" / ("%s-%s" % (digest, version))
        changed = False if self._task.check_mode else rebases.write(directory, made)
        lines = [
            "overlay %s from %s to %s: %s" % (digest, base["version"], version, directory),
            *made.report().splitlines(),
            made.advice(directory),
        ]
        for line in lines:
            self._display.display("%s | rebase | %s" % (host, line))
        files = [{"path": one.path, "verdict": one.verdict, "conflicts": one.conflicts} for one in made.files]
        return {"overlay": digest, "version": version, "directory": str(directory), "clean": made.clean, "files": files, "changed": changed}
