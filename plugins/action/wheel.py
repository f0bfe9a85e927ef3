# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``wheel`` brings the wheel of a pin to the controller: from its address, or built from a commit on a host."""

from __future__ import annotations

import os
import tempfile
import typing as t
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

from ansible_collections.specdec.serving.plugins.module_utils import artifacts, findings, networks, wheelsources
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, Finding, FindingError
from ansible_collections.specdec.serving.plugins.module_utils.layout import Layout
from ansible_collections.specdec.serving.plugins.plugin_utils import controller, fetching, hosttools
from ansible_collections.specdec.serving.plugins.plugin_utils.gathering import exclusive
from ansible_collections.specdec.serving.plugins.plugin_utils.pins import Pins


class ActionModule(ActionBase):
    def run(self, tmp: t.Any = None, task_vars: t.Any = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        arguments = {"root": "/opt/specdec", "network": {}, **self._task.args}
        source = arguments["source"]
        told = wheelsources.described(arguments["package"], source)
        if self._task.check_mode:
            return {**result, "changed": True, "msg": "would make %s" % told}
        target = task_vars["inventory_hostname"]
        try:
            done = self._fetched(arguments, told, target) if "url" in source else self._built(arguments, told, target, task_vars)
        except AnsibleConnectionFailure as error:
            finding = _unusable(arguments, target, "the build host cannot be reached", str(error))
            return {**result, **controller.refusal("%s: %s is not to be had; nothing was changed:" % (target, told), [finding])}
        except FindingError as error:
            return {**result, **controller.refusal("%s: %s is not to be had; nothing was changed:" % (target, told), [error.finding])}
        return {**result, **done}

    def _fetched(self, arguments: t.Mapping[str, t.Any], told: str, target: str) -> dict[str, t.Any]:
        source, cache = arguments["source"], controller.cache_directory()
        place = wheelsources.downloaded(cache, source)
        self._display.display("%s | wheel  | fetching %s" % (target, told))
        wanted = fetching.Wanted(source["url"], source["sha256"], None, place)
        client = fetching.Client({**controller.environment(), **controller.network_environment(arguments["network"])})
        # hosts that need the same wheel come here at the same time: the first fetches it, the others find it
        with exclusive(cache):
            changed = not place.is_file()
            if changed:
                fetching.fetch(wanted, client, lambda _count: None, explained("%s: specdec_pins.%s" % (target, arguments["package"])))
        return {"changed": changed, "path": str(place), "sha256": source["sha256"]}

    def _built(self, arguments: t.Mapping[str, t.Any], told: str, target: str, task_vars: t.Any) -> dict[str, t.Any]:
        pins = Pins(arguments["pins_dir"])
        key = wheelsources.build_key(arguments["source"], arguments["python"], arguments["machine"])
        # Hosts that need the same wheel come here at the same time: the first builds it, the others find it.
        with pins.exclusive():
            known = pins.wheel(key)
            if known and not arguments.get("replace"):
                return {"changed": False, "path": str(pins.wheel_file(known)), "sha256": known["sha256"]}
            self._display.display("%s | wheel  | making %s" % (target, told))
            python = self._prepared(arguments, target, task_vars)
            source = {name: value for name, value in arguments["source"].items() if name != "build_host"}
            spec = {"kind": "wheel", "root": arguments["root"], "package": arguments["package"], "python": python, **source}
            spec["why"] = "the wheel of %s for %s" % (arguments["package"], target)
            job = self._action("job", {"spec": spec, "network": arguments["network"]}, task_vars)
            if job.get("failed"):
                wrong = [findings.from_dict(one) for one in (job.get("result") or {}).get("findings", ())]
                headline = "%s: %s is not to be had; nothing was changed:" % (target, told)
                return {**job, **(controller.refusal(headline, findings.errors(wrong)) if wrong else {})}
            wheel = job["result"]["wheel"]
            place = self._brought(pins, key, wheel, arguments)
            return {"changed": True, "path": str(place), "sha256": wheel["sha256"]}

    def _prepared(self, arguments: t.Mapping[str, t.Any], target: str, task_vars: t.Any) -> str:
        """The build host has its tools; the path of its Python."""
        root, builder = arguments["root"], arguments["source"]["build_host"]
        asked = {"root": root, "ports": [], "secrets": {}}
        answer = self._execute_module(module_name="specdec.serving.gather", module_args=asked, task_vars=task_vars)
        if answer.get("failed") or answer.get("unreachable"):
            raise FindingError(_unusable(arguments, target, "the build host cannot be asked", str(answer.get("msg", ""))))
        state = answer["state"]
        if state["os"]["machine"] != arguments["machine"]:
            finding = _unusable(
                arguments, target, "the build host is another machine than the host", "%s is %s" % (builder, state["os"]["machine"])
            )
            raise FindingError(finding)
        fitting = [
            one
            for one in state["pythons"]
            if one["implementation"] == "cpython" and one["version"].split(".")[:2] == arguments["python"].split(".")
        ]
        if not fitting:
            there = ", ".join(sorted(one["version"] for one in state["pythons"])) or "none"
            message = "the build host has no Python %s" % arguments["python"]
            raise FindingError(_unusable(arguments, target, message, "%s has %s" % (builder, there)))
        layout = Layout(root)
        places = {"specdec": layout.specdec, "uv": layout.uv}
        tools = hosttools.tools(controller.cache_directory(), controller.networked(arguments["network"]), arguments["machine"])
        wanted = [
            artifacts.Artifact(tool["path"], str(places[name]), tool["digest"], "0755").as_dict()
            for name, tool in sorted(tools.items())
            if state["tools"].get(name) != tool["digest"]
        ]
        pushed = self._action("push", {"root": root, "artifacts": wanted}, task_vars) if wanted else {}
        if pushed.get("failed"):
            raise FindingError(_unusable(arguments, target, "the build host does not take the tools", str(pushed.get("msg", ""))))
        return str(max(fitting, key=lambda one: bool(one.get("headers")))["path"])

    def _brought(self, pins: Pins, key: str, wheel: t.Mapping[str, t.Any], arguments: t.Mapping[str, t.Any]) -> Path:
        """The wheel from the build host, kept in the pins."""
        self._display.display("%s | wheel  | %s, %.1f MB" % (arguments["source"]["build_host"], wheel["filename"], wheel["size"] / 1e6))
        with tempfile.TemporaryDirectory(prefix="specdec-wheel-") as scratch:
            local = os.path.join(scratch, wheel["filename"])
            self._connection.fetch_file(wheel["path"], local)
            found = artifacts.file_digest(Path(local))
            if found != wheel["sha256"]:
                raise FindingError(
                    Finding(
                        "wheel.transfer",
                        ERROR,
                        "specdec_pins.%s" % arguments["package"],
                        "the wheel did not come whole",
                        "sha256 %s" % found,
                        "sha256 %s" % wheel["sha256"],
                        wheel["path"],
                        fix="run the deploy again",
                    )
                )
            known = {name: wheel[name] for name in ("name", "version", "filename", "sha256", "glibc")}
            record = {**known, "source": dict(arguments["source"]), "built_on": arguments["source"]["build_host"]}
            return pins.keep_wheel(key, record, Path(local))

    def _action(self, name: str, arguments: t.Mapping[str, t.Any], task_vars: t.Any) -> dict[str, t.Any]:
        """Another of the collection's actions, on the same host."""
        task = self._task.copy()
        task.action = "specdec.serving." + name
        task.args = dict(arguments)
        action = self._shared_loader_obj.action_loader.get(
            task.action,
            task=task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        return action.run(task_vars=task_vars)


def explained(subject: str) -> fetching.Explained:
    """The findings of a wheel that is named by its address and does not come."""

    def unreachable(_filename: str, url: str, words: str) -> Finding:
        fix = "check the address, and specdec_network (proxy, ca); or put the wheel into a directory of specdec_wheel_directories"
        text, message = networks.hidden(words), "the wheel cannot be fetched"
        own = Finding("wheel.download", ERROR, subject, message, networks.hidden(url), "a file", text, fix=fix)
        return networks.diagnose(text, subject, ("proxy", "certificate")) or own

    def other_bytes(_filename: str, url: str, found: str, expected: str) -> Finding:
        fix = "find out which is right before you change the pin: the file was replaced, or the sha256 is another file's"
        message, evidence = "the file is not the one of the pin", networks.hidden(url)
        return Finding("wheel.hash", ERROR, subject, message, "sha256 " + found, "sha256 " + expected, evidence, fix=fix)

    return fetching.Explained(unreachable, other_bytes)


def _unusable(arguments: t.Mapping[str, t.Any], target: str, message: str, found: str) -> Finding:
    source = arguments["source"]
    expected = "a %s host with Python %s" % (arguments["machine"], arguments["python"])
    fix = "name another build_host, or prepare %s" % source["build_host"]
    subject = "%s: specdec_pins.%s.build_host" % (target, arguments["package"])
    return Finding("wheel.build-host", ERROR, subject, message, found, expected, fix=fix)
