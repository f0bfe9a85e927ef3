# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller half of ``capture``: one call on the reference, one transfer back, kept in the pins."""

from __future__ import annotations

import os
import tempfile
import typing as t
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

from ansible_collections.specdec.serving.plugins.module_utils import findings, overlays, references
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, Finding, FindingError
from ansible_collections.specdec.serving.plugins.plugin_utils import controller
from ansible_collections.specdec.serving.plugins.plugin_utils.pins import Pins


class ActionModule(ActionBase):
    def run(self, tmp: t.Any = None, task_vars: t.Any = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        target = arguments.get("target") or task_vars["inventory_hostname"]
        pins = Pins(arguments["pins_dir"])
        reference, package = arguments["reference"], arguments["package"]
        headline = "%s: the overlay of %s on %s could not be captured; nothing was changed:" % (target, package, reference)
        try:
            # Hosts that need the same overlay come here at the same time: the first captures, the others find it.
            with pins.exclusive():
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
            overlays.write_bundle(pins.bundle(answer["digest"]), overlays.unpack(Path(local).read_bytes()))
        pins.keep_reference(reference, package, answer["digest"], {"captured_from": answer["venv"], "versions": answer["versions"]})
        for line in references.summary(answer["manifest"], answer["ignored"]):
            self._display.display("%s | capture| %s" % (target, line))
        return {**answer, "changed": True}


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
