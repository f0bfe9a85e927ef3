# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller half of ``capture``: one call on the reference, one transfer back, kept in the pins."""

from __future__ import annotations

import contextlib
import os
import tempfile
import typing as t
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

from ansible_collections.specdec.serving.plugins.module_utils import additions, bundles, differences, findings, locks, references
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, Finding, FindingError
from ansible_collections.specdec.serving.plugins.plugin_utils import basewheels, controller
from ansible_collections.specdec.serving.plugins.plugin_utils.pins import Pins


class ActionModule(ActionBase):
    def run(self, tmp: t.Any = None, task_vars: t.Any = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        arguments = {"package": "sglang", **self._task.args}
        # the reference has no use for it
        self._network = arguments.pop("network", None) or {}
        target = arguments.get("target") or task_vars["inventory_hostname"]
        pins = Pins(arguments["pins_dir"])
        reference, package = arguments["reference"], arguments["package"]
        headline = "%s: the overlay of %s on %s could not be captured; nothing was changed:" % (target, package, reference)
        try:
            # Hosts that need the same overlay come here at the same time: the first captures, the others find it.
            with contextlib.nullcontext() if self._task.check_mode else pins.exclusive():
                known = pins.reference(reference).get("overlays", {}).get(package)
                if known and not arguments.get("replace"):
                    return {**result, "changed": False, "digest": known, "manifest": pins.manifest(known), "ignored": []}
                return {**result, **self._capture(pins, target, headline, arguments, task_vars)}
        except AnsibleConnectionFailure as error:
            return {**result, **controller.refusal(headline, [_unreachable(target, reference, pins, str(error))])}
        except FindingError as error:
            return {**result, **controller.refusal(headline, [error.finding])}

    def _capture(self, pins: Pins, target: str, headline: str, arguments: dict[str, t.Any], task_vars: t.Any) -> dict[str, t.Any]:
        reference, package = arguments["reference"], arguments["package"]
        self._display.display("%s | capture| comparing %s on %s with its RECORD" % (target, package, reference))
        check_mode, diff = self._task.check_mode, self._task.diff
        before = pins.reference(reference).get("overlays", {}).get(package)
        archive = self._connection._shell.join_path(self._make_tmp_path(), "overlay.tar")
        arguments["archive"] = archive
        answer = self._execute_module(module_name="specdec.serving.capture", module_args=arguments, task_vars=task_vars)
        if answer.get("failed"):
            finding = answer.get("finding")
            return controller.refusal(headline, [findings.from_dict(finding)]) if finding else answer
        with tempfile.TemporaryDirectory(prefix="specdec-capture-") as scratch:
            local = os.path.join(scratch, "overlay.tar")
            self._connection.fetch_file(archive, local)
            self._remove_tmp_path(self._connection._shell.tmpdir)
            bundle = bundles.unpack(Path(local).read_bytes())
        shown: list[dict[str, str]] = []
        try:
            base = self._base(bundle, arguments, answer["machine"])
            bundle = additions.described(bundle, base)
            shown = differences.captured(bundle, base) if diff else []
        except FindingError as error:
            self._display.warning("%s: what the overlay adds to %s is not known: %s" % (target, package, error.finding.text()))
        if not check_mode:
            bundles.write_bundle(pins.bundle(bundle.digest), bundle)
            pins.keep_reference(
                reference,
                package,
                bundle.digest,
                {"captured_from": answer["venv"], "versions": answer["versions"], "packages": answer["packages"]},
            )
        for line in references.summary(bundle.manifest, answer["ignored"]):
            self._display.display("%s | capture| %s" % (target, line))
        return {**answer, "manifest": dict(bundle.manifest), "changed": bundle.digest != before, "diff": shown}

    def _base(self, bundle: bundles.Bundle, arguments: t.Mapping[str, t.Any], machine: str) -> bundles.Base:
        """The wheel that the bundle lies over; the reference itself has it no longer."""
        manifest = bundle.manifest
        places = locks.wheel_directories(arguments.get("wheel_directories") or [], controller.environment())
        runner = controller.networked(self._network)
        fetched = basewheels.fetch(
            controller.cache_directory(), runner, manifest["base"], manifest["python"], machine, wheel_directories=places
        )
        return basewheels.reader(fetched)


def _unreachable(target: str, reference: str, pins: Pins, reason: str) -> Finding:
    return Finding(
        "capture.unreachable",
        ERROR,
        "specdec_instances of %s: overlays[].reference %s" % (target, reference),
        "the reference cannot be reached, and the pins hold no overlay of it",
        found=reason,
        expected="a reference that answers, or its bundle in %s" % pins.directory,
        fix="start %s or mend its ansible_host; or copy a pins directory that holds its overlay; or take it out of overlays" % reference,
    )
