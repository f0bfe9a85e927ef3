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

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.specdec.serving.plugins.module_utils import additions, bundles, captures, differences, findings, locks, references
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
        except AnsibleError as error:
            with contextlib.suppress(AnsibleError):
                self._remove_tmp_path(self._connection._shell.tmpdir)
            # what cannot be removed now would be tried again, and that failure stand in this one's place
            self._connection._shell.tmpdir = None
            known = pins.reference(reference).get("overlays", {}).get(package)
            return {**result, **controller.refusal(headline, [_unreachable(target, reference, pins, known, str(error))])}
        except FindingError as error:
            return {**result, **controller.refusal(headline, [error.finding])}

    def _capture(self, pins: Pins, target: str, headline: str, arguments: dict[str, t.Any], task_vars: t.Any) -> dict[str, t.Any]:
        reference, package = arguments["reference"], arguments["package"]
        self._display.display("%s | capture| comparing %s on %s with its RECORD" % (target, package, reference))
        check_mode, diff = self._task.check_mode, self._task.diff
        before = pins.reference(reference).get("overlays", {}).get(package)
        archive = self._connection._shell.join_path(self._make_tmp_path(), "overlay.tar")
        arguments["archive"] = archive
        fetched: t.Optional[Path] = None
        answer = self._ask(arguments, task_vars)
        if "wanted" in answer:
            wanted = answer["wanted"]
            fetched = self._fetch(wanted, wanted["python"], answer["machine"], arguments)
            files = {path: row.digest for path, row in basewheels.package(fetched, wanted["name"]).rows.items() if row.digest}
            answer = self._ask({**arguments, "base": {"version": wanted["version"], "files": files}}, task_vars)
        with tempfile.TemporaryDirectory(prefix="specdec-capture-") as scratch:
            local = os.path.join(scratch, "overlay.tar")
            self._connection.fetch_file(archive, local)
            self._remove_tmp_path(self._connection._shell.tmpdir)
            bundle = bundles.unpack(Path(local).read_bytes())
        shown: list[dict[str, str]] = []
        manifest = bundle.manifest
        try:
            fetched = fetched or self._fetch(manifest["base"], manifest["python"], answer["machine"], arguments)
            base = basewheels.reader(fetched)
            bundle = additions.described(bundle, base)
            bundle = captures.with_modes(bundle, answer["executable"], basewheels.package(fetched, manifest["base"]["name"]), fetched)
            shown = differences.captured(bundle, base) if diff else []
        except FindingError as error:
            self._display.warning("%s: what the overlay adds to %s is not known: %s" % (target, package, error.finding.text()))
        if not check_mode:
            bundles.write_bundle(pins.bundle(bundle.digest), bundle)
            facts = {"captured_from": answer["venv"], "versions": answer["versions"], "packages": answer["packages"]}
            if answer["source"]:
                facts["sources"] = {**pins.reference(reference).get("sources", {}), package: answer["source"]}
            pins.keep_reference(reference, package, bundle.digest, facts)
        for line in references.summary(bundle.manifest, answer["ignored"], answer["source"], answer["uncommitted"]):
            self._display.display("%s | capture| %s" % (target, line))
        changed = bundle.digest != before
        return {**answer, "digest": bundle.digest, "manifest": dict(bundle.manifest), "changed": changed, "diff": shown}

    def _ask(self, arguments: t.Mapping[str, t.Any], task_vars: t.Any) -> dict[str, t.Any]:
        """The module's answer; raises FindingError where it refuses, AnsibleError where it came to no end."""
        answer = self._execute_module(module_name="specdec.serving.capture", module_args=dict(arguments), task_vars=task_vars)
        if answer.get("finding"):
            raise FindingError(findings.from_dict(answer["finding"]))
        if answer.get("failed"):
            raise AnsibleError("%s\n%s" % (answer.get("msg", ""), answer.get("module_stderr", "")))
        return answer

    def _fetch(self, base: t.Mapping[str, str], python: str, machine: str, arguments: t.Mapping[str, t.Any]) -> Path:
        """The wheel that the bundle lies over; the reference itself has it no longer."""
        places = locks.wheel_directories(arguments.get("wheel_directories") or [], controller.environment())
        runner = controller.networked(self._network)
        return basewheels.fetch(controller.cache_directory(), runner, base, python, machine, wheel_directories=places)


def _unreachable(target: str, reference: str, pins: Pins, known: t.Optional[str], reason: str) -> Finding:
    kept = "the pins keep overlay %s of it" % known if known else "the pins hold no overlay of it"
    return Finding(
        "capture.unreachable",
        ERROR,
        "specdec_instances of %s: overlays[].reference %s" % (target, reference),
        "the reference cannot be reached, and %s" % kept,
        found=reason,
        expected="a reference that answers until the end, or its bundle in %s" % pins.directory,
        fix="start %s or mend its ansible_host; or copy a pins directory that holds its overlay; or take it out of overlays" % reference,
    )
