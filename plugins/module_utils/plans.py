# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a deploy would do to a host: from what is wanted and what is there, nothing asked, nothing done.

The plan is complete when no pin is missing; until then it names the pins to make first.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import typing as t
from pathlib import Path

from . import (
    adoptions,
    arguments,
    artifacts,
    environments,
    fitting,
    gpufindings,
    lockfrom,
    locks,
    modelfiles,
    overlayplans,
    overlays,
    packagelists,
    placements,
    pythons,
    releasefacts,
    releases,
    schema,
    speculation,
    stackrules,
    stacks,
    transactions,
    units,
    wheelhouses,
    wheelsources,
)
from . import models as hub
from .findings import ERROR, OK, Finding, FindingError, errors, from_dict
from .layout import SCHEMA, Layout, unit_name
from .overlayplans import Layers, Overlay, Pins


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What the inventory wants of one host.

    :param host: inventory name; :param address: where clients reach it.
    :param instances: merged and checked (see schema.instances); :param origins: which variable says each option, see schema.origins.
    :param tools: digests and sources of ``specdec`` and ``uv``, see plugin_utils/hosttools.py.
    :param wheel_directories: local directories with wheels on the controller; :param cache: where it keeps what it fetched.
    :param wheelhouse: directory on the controller that all wheels come from; empty: the host asks the index.
    :param hub: address of the hub that models come from; empty: its client's own.
    :param archives: directory on the controller with archives of Python, see wheelhouses.py; empty for none.
    :param python: which Python environments are built with.
    :param pins_update: kinds of pins (overlay, wheel, lock) that are made anew although the pins hold them.
    """

    host: str
    address: str
    root: str
    pins_dir: str
    instances: t.Sequence[t.Mapping[str, t.Any]]
    pins: t.Mapping[str, t.Any]
    extra_packages: t.Sequence[str]
    wheel_directories: t.Sequence[Path]
    wheelhouse: str
    archives: str
    exclude_newer: str
    pins_update: t.Sequence[str]
    hub: str
    tools: t.Mapping[str, t.Mapping[str, str]]
    launcher: str
    who: str
    why: str
    python: pythons.Wanted
    cache: Path = Path()
    origins: t.Mapping[str, t.Mapping[str, str]] = dataclasses.field(default_factory=dict)


class Planner:
    """Collects the parts of one host's plan."""

    def __init__(self, wanted: Wanted, state: t.Mapping[str, t.Any], tables: t.Mapping[str, t.Any], pins: Pins, layers: Layers) -> None:
        self.wanted = wanted
        self.state = state
        self.tables = tables
        self.pins = pins
        self.layout = Layout(wanted.root)
        self.python = pythons.choose(wanted.python, state, wanted.host, wheelhouses.archives(wanted.archives))
        self.directories = list(wanted.wheel_directories)
        packages = {name: engine["package"] for name, engine in tables["engines"].items()}
        self.overlays = overlayplans.Overlays(
            wanted.host, self.layout, packages, state["overlays"], "overlay" in wanted.pins_update, wanted.wheel_directories, pins, layers
        )
        self.given: dict[str, tuple[wheelsources.Given, t.Mapping[str, t.Any]]] = {}
        self.findings: list[Finding] = []
        self.gpus_used: set[str] = set()
        self.sources: dict[str, dict[str, t.Any]] = {}
        self.ports: dict[str, dict[int, str]] = {}
        self.gpus_taken: dict[str, set[str]] = {}
        self.missing: list[dict[str, t.Any]] = []
        self.settings: list[dict[str, str]] = []
        self.environments: dict[str, dict[str, t.Any]] = {}
        self.fetches: dict[str, dict[str, t.Any]] = {}
        self.releases: list[dict[str, t.Any]] = []
        self.adoptions: dict[str, dict[str, t.Any]] = {}
        self.artifacts: dict[str, list[dict[str, str]]] = {"tools": [], "overlays": [], "wheels": [], "models": []}

    def refuse(self, id_: str, subject: str, message: str, found: str, expected: str, fix: str) -> None:
        """Add an error that forbids everything."""
        self.findings.append(
            Finding("plan." + id_, ERROR, "%s on %s" % (subject, self.wanted.host), message, found=found, expected=expected, fix=fix)
        )

    def plan(self) -> dict[str, t.Any]:
        """The plan as plain data."""
        self._check_host()
        self._check_python()
        for instance in self.wanted.instances:
            self._plan_instance(instance)
        self.findings += placements.clashes(self.ports, lambda name: "%s: specdec_instances[%s].port" % (self.wanted.host, name))
        self._check_gpus()
        if self.wanted.wheelhouse:
            self.findings += wheelhouses.outside(self.missing, self.fetches, self.wanted.hub)
        self._plan_tools()
        return {
            "host": self.wanted.host,
            "root": self.wanted.root,
            "hardware": self._hardware(),
            "findings": [one.as_dict() for one in self.findings],
            "missing_pins": self.missing,
            "settings": self.settings,
            "environments": list(self.environments.values()),
            "fetches": list(self.fetches.values()),
            "releases": self.releases,
            "artifacts": self.artifacts,
            "adoptions": list(self.adoptions.values()),
            "gone": self._gone(),
            "stages": self._stages(),
        }

    def _hardware(self) -> str:
        """What the host is, in one line."""
        system, gpus = self.state["os"], self.state["gpus"]
        counts = collections.Counter(device["name"] or "GPU without a name" for device in gpus["devices"])
        named = ", ".join("%d x %s" % (count, name) for name, count in counts.items()) or "none" + (
            "" if gpus["source"] == "none" else " that answers"
        )
        return "%s, %s, glibc %s, GPUs: %s" % (system["name"], system["machine"], system["glibc"], named)

    def _check_host(self) -> None:
        state = self.state
        if state["os"]["system"] != "Linux" or not state["systemd"]["running"]:
            self.refuse(
                "no-systemd",
                "the host",
                "does not run systemd",
                state["os"]["name"] or state["os"]["system"],
                "Linux with systemd as its first process",
                "deploy to a host (or a container with an init) that runs systemd",
            )
        if state["job"]:
            self.refuse(
                "busy",
                "the host",
                "is busy with another deploy",
                state["job"]["description"],
                "no job",
                "wait until that has ended, then run this again",
            )

    def _check_python(self) -> None:
        self.findings += self.python.findings
        if self.python.job:
            job = {**self._job("python"), **self.python.job}
            named = {"kind": "python", "name": self.wanted.python.described(), "root": self.wanted.root}
            sent = []
            if self.python.archive:
                dest = self.layout.wheels / self.python.archive["sha256"] / self.python.archive["filename"]
                try:
                    source = wheelhouses.checked_archive(Path(self.wanted.archives), self.python.archive)
                except FindingError as error:
                    self.findings.append(error.finding)
                    return
                sent = [artifacts.Artifact(str(source), str(dest), self.python.archive["sha256"]).as_dict()]
                job["archive"] = str(dest)
            self._miss({**named, "artifacts": sent, "job": job})

    def _check_gpus(self) -> None:
        """What stands against the GPUs, first: the rest often follows from it. Only those in use can forbid anything."""
        gpus = self.state["gpus"]
        found = gpufindings.concerning([from_dict(one) for one in gpus.get("findings", ())], gpus, self.gpus_used)
        self.findings[:0] = [one for one in found if one.verdict != OK]

    def _plan_tools(self) -> None:
        for name, tool in sorted(self.wanted.tools.items()):
            if self.state["tools"].get(name) != tool["digest"]:
                dest = {"specdec": self.layout.specdec, "uv": self.layout.uv}[name]
                self.artifacts["tools"].append(artifacts.Artifact(tool["path"], str(dest), tool["digest"], "0755").as_dict())

    def _gone(self) -> list[dict[str, t.Any]]:
        """Instances that the host has and the inventory has not (any more): told, and left alone."""
        wanted = {one["name"] for one in self.wanted.instances}
        return [
            {"instance": name, "state": one["unit"].get("ActiveState") or "unknown", "port": (one["release"] or {}).get("port")}
            for name, one in sorted(self.state["instances"].items())
            if name not in wanted
        ]

    def _stages(self) -> list[str]:
        needed = {
            "uv": self.artifacts["tools"],
            "source_overlay": self.artifacts["overlays"],
            "engine_env": [one for one in self.environments.values() if not one["present"]],
            "model_store": self.artifacts["models"] or self.fetches,
            "adopt": self.adoptions,
            "verify": [one for one in self.releases if one["switch_needed"] and not one["proven"]],
            "engine_service": [one for one in self.releases if one["switch_needed"]],
        }
        return [stage for stage, work in needed.items() if work]

    def _plan_instance(self, instance: t.Mapping[str, t.Any]) -> None:
        self._check_port(instance)
        self._adopt(instance)
        self._check_secrets(instance)
        captured = self._captured(instance)
        base = self._overlay_base(instance, captured)
        if base is None:
            return
        stack = self._stack(instance, base)
        models = self._models(instance)
        if stack is None or models is None:
            return
        lock = self._lock(stack, "specdec_instances[%s].engine" % instance["name"])
        if self.python.job:
            return
        if lock is None or captured is None:
            return
        try:
            layered = self.overlays.layered(instance, captured, stack, lock)
        except FindingError as error:
            self.findings.append(error.finding)
            return
        self._check_arguments(instance, stack, layered)
        environment = self._environment(instance["name"], stack, lock, layered)
        self._fetch(instance, environment)
        self._release(instance, stack, environment, models)

    # What the instance runs on

    def _overlay_base(self, instance: t.Mapping[str, t.Any], captured: t.Optional[t.Mapping[tuple[str, str], Overlay]]) -> t.Optional[str]:
        """The version that a captured overlay of the engine was made over, where it decides the engine's; None while it is not captured."""
        engine = self.tables["engines"][instance["engine"]["name"]]["package"]
        keys = [(one["reference"], engine) for one in instance.get("overlays") or () if one.get("reference")]
        keys = [] if instance["engine"].get("version") else [key for key in keys if captured is None or key in captured]
        if keys and captured is None:
            return None
        return captured[keys[0]].manifest["base"]["version"] if keys and captured else ""

    def _check_arguments(self, instance: t.Mapping[str, t.Any], stack: stacks.Stack, layered: t.Sequence[Overlay]) -> None:
        engine = self.tables["engines"][stack.engine]
        manifests = [one.manifest for one in layered if one.manifest["base"]["name"] == engine["package"]]
        subject = "%s: specdec_instances[%s].%%s" % (self.wanted.host, instance["name"])
        added = {name for one in manifests for name in one.get("adds", {}).get("arguments", ())}
        self.findings += arguments.check(engine, stack.engine, stack.version, instance, added, lambda option: subject % option)
        if not arguments.speculates(instance):
            return
        algorithm = arguments.method(engine, instance["speculative"]["algorithm"])
        where = subject % "speculative.algorithm"
        refused = stackrules.algorithm(self.tables["stacks"], stack.engine, stack.version, algorithm, manifests, where)
        self.findings += [refused] if refused else []
        name, joined = instance["speculative"]["algorithm"], bool(engine.get("joined"))
        described = self._described(instance)
        self.findings += speculation.judge(name, joined, instance, described, lambda option: subject % option)
        if stack.engine == "sglang":
            changed = any("/models/" in file["path"] for one in manifests for file in one["files"])
            table, model = self.tables["speculation"], described.get("model")
            self.findings += speculation.target(table, name, stack.version, model, changed, lambda option: subject % option)

    def _stack(self, instance: t.Mapping[str, t.Any], base: str) -> t.Optional[stacks.Stack]:
        reference = self._reference(instance)
        if reference is None or self.python.findings:
            return None
        versions, sources = wheelsources.split(self.wanted.pins)
        if self._check_pins(sources):
            return None
        provisional = {name: wheelsources.provisional(source) for name, source in sources.items()}
        stack, found = self._resolved(instance, base, reference, {**provisional, **versions})
        if stack and sources:
            needed = wheelsources.needed(sources, stack, self.tables["stacks"])
            given = self._given(needed, stack)
            own = {name: one.version for name, one in (given or {}).items()}
            stack, found = (None, []) if given is None else self._resolved(instance, base, reference, {**versions, **own})
            stack = wheelsources.applied(stack, needed, given) if stack and given is not None else None
            self.given.update({one.sha256: (one, needed[name]) for name, one in (given or {}).items()})
        self.findings += found
        if stack is None or "cuda" not in stack.lacks:
            wanted = instance.get("gpus") or "all"
            self.gpus_used |= {str(one) for one in wanted} if isinstance(wanted, list) else {wanted} - {"none"}
        if stack is not None and "cuda" not in stack.lacks:
            self._take_gpus(instance["name"], wanted)
        return stack

    def _take_gpus(self, instance: str, wanted: t.Union[str, t.Sequence[t.Any]]) -> None:
        """Note which GPUs an instance uses; refuse those that are not there and those that another one uses, too."""
        facts, where = self.state["gpus"], "specdec_instances[%s].gpus" % instance
        absent = gpufindings.absent(facts, wanted)
        if absent:
            there = ", ".join("%s (%s)" % (one["index"], one["uuid"]) for one in facts["devices"]) or "none"
            self.refuse(
                "gpus", where, "names GPUs that are not there", ", ".join(absent), there, "name GPUs of this host, by index or uuid"
            )
        mine = gpufindings.shares(facts, wanted)
        for other, theirs in self.gpus_taken.items():
            if mine & theirs:
                fix = "give each instance GPUs of its own: gpus as lists that have none in common"
                self.refuse(
                    "gpus",
                    where,
                    "has GPUs in common with instance %s" % other,
                    ", ".join(sorted(mine & theirs)),
                    "none in common",
                    fix,
                )
        self.gpus_taken[instance] = mine

    def _check_pins(self, sources: t.Container[str]) -> list[str]:
        """The names for several packages that are given one source; each is refused, once for all instances."""
        parts = self.tables["stacks"]["parts"]
        wrong = [name for name in sorted(parts) if name in sources]
        for name in wrong if not any(one.id == "plan.pin-parts" for one in self.findings) else ():
            fix = "say it for each of them that has a place of its own, and the version of all as text"
            found, listed = "a source for %s" % name, ", ".join(parts[name])
            self.refuse("pin-parts", "specdec_pins.%s" % name, "is no package, but a name for several", found, listed, fix)
        return wrong

    def _given(self, sources: t.Mapping[str, t.Mapping[str, t.Any]], stack: stacks.Stack) -> t.Optional[dict[str, wheelsources.Given]]:
        """The wheels that pins name; None while one is to be made, or where one is refused."""
        glibc, update = self.state["os"]["glibc"], "wheel" in self.wanted.pins_update
        # a wheelhouse keeps files as the cache does, each under its hash
        kept = Path(self.wanted.wheelhouse) if self.wanted.wheelhouse else self.wanted.cache
        given, missing, refused = wheelsources.find(sources, stack, self.pins, self.wanted.host, glibc, kept, update)
        self.findings += refused
        for one in missing:
            self._miss({**self._job("wheel"), **one})
        self.directories += [one.place.parent for one in given.values() if one.place.parent not in self.directories]
        return None if missing or refused else given

    def _resolved(
        self, instance: t.Mapping[str, t.Any], base: str, reference: t.Mapping[str, str], pins: t.Mapping[str, str]
    ) -> tuple[t.Optional[stacks.Stack], list[Finding]]:
        """:param base: version of the engine that an overlay was made over; :param reference: versions of the one that lock_from names."""
        engine, table = instance["engine"], self.tables["stacks"]
        gpus = gpufindings.used(self.state["gpus"], instance.get("gpus") or "all")
        return stacks.resolve(
            table,
            {**self.state, "gpus": gpus, "pythons": self.python.interpreters},
            {**engine, "version": engine.get("version") or lockfrom.version(table, reference, engine["name"])},
            pins,
            self.wanted.extra_packages,
            self.wanted.python.minor,
            host=self.wanted.host,
            variable="specdec_instances[%s].engine" % instance["name"],
            base=base,
            reference=lockfrom.versions(table, reference, engine["name"]),
        )

    def _reference(self, instance: t.Mapping[str, t.Any]) -> t.Optional[t.Mapping[str, str]]:
        """Versions by package of the reference that lock_from names, empty without one; None where they are not known (yet)."""
        engine = instance["engine"]
        name = engine.get("lock_from")
        if not name:
            return {}
        captured = self.pins.reference(name)
        if not captured and any(pin["kind"] == "overlay" and pin["reference"] == name for pin in self.missing):
            return None  # it is about to be captured
        subject = "%s: specdec_instances[%s].engine.%%s" % (self.wanted.host, instance["name"])
        refusal = lockfrom.refusal(self.tables["stacks"], name, captured, engine, lambda option: subject % option)
        if refusal:
            self.findings.append(refusal)
            return None
        return t.cast("dict[str, str]", captured["packages"])

    def _captured(self, instance: t.Mapping[str, t.Any]) -> t.Optional[t.Mapping[tuple[str, str], Overlay]]:
        found = self.overlays.captured(instance)
        self.findings += found.findings
        for pin in found.missing:
            self._miss(pin)
        return found.known

    def _lock(self, stack: stacks.Stack, variable: str) -> t.Optional[locks.Lock]:
        inputs = locks.inputs(stack, self.wanted.exclude_newer)
        name = locks.file_name(inputs)
        text = self.pins.lock(name)
        if text is None or "lock" in self.wanted.pins_update:
            if not self._at_hand(stack, (one["sha256"] for one in stack.sources.values() if "sha256" in one)):
                return None
            self._miss(
                {
                    "kind": "lock",
                    "name": name,
                    "inputs": inputs,
                    "variable": variable,
                    "wheel_directories": [str(one) for one in self.directories],
                    "replace": text is not None,
                }
            )
            return None
        try:
            lock = locks.parse(text, name)
        except FindingError as error:
            self.findings.append(error.finding)
            return None
        self.findings += errors(locks.check(lock, inputs))
        return lock

    def _miss(self, pin: dict[str, t.Any]) -> None:
        pin["pins_dir"] = self.wanted.pins_dir
        # instances of one stack share a lock
        if all(_but_variable(pin) != _but_variable(one) for one in self.missing):
            self.missing.append(pin)

    def _environment(self, instance: str, stack: stacks.Stack, lock: locks.Lock, layered: t.Sequence[Overlay]) -> dict[str, t.Any]:
        python, inputs = dict(stack.interpreter or {}), locks.inputs(stack, self.wanted.exclude_newer)
        content = {
            "schema": SCHEMA,
            "lock": lock.id,
            "overlays": [overlay.manifest["digest"] for overlay in layered],
            "python": {key: python[key] for key in ("path", "implementation", "version", "build")},
            "engine": {"name": stack.engine, "version": stack.version, "package": stack.package},
            "lane": stack.lane,
            "wheels": [dict(wheel) for wheel in lock.wheels],
            "packages": lock.versions,
        }
        content["id"] = environments.environment_id(content)
        if content["id"] not in self.environments:
            present = content["id"] in self.state["environments"]
            self.environments[content["id"]] = {
                "id": content["id"],
                "present": present,
                "engine": "%s %s" % (stack.engine, stack.version),
                "lane": stack.lane,
                "packages": len(lock.packages),
                **self._changes(instance, lock),
                "overlays": [
                    {"digest": one.manifest["digest"], "package": one.manifest["base"]["name"], "origin": one.origin} for one in layered
                ],
                "replaced": overlays.layering([one.manifest for one in layered]),
                "locked": {"name": locks.file_name(inputs), "inputs": inputs, "directories": [str(one) for one in self.directories]},
                "sent": None,
                "job": {
                    **self._job("build"),
                    "environment": content,
                    "lock": lock.text(),
                    "python": python["path"],
                    "critical": [stack.package, *self.tables["engines"][stack.engine]["kernel_packages"]],
                    "pages": locks.pages(inputs, {wheel["name"] for wheel in lock.wheels}, lock.versions),
                    "uv_env": {},
                },
            }
            if not present:
                self._check_disk(stack.lane)
                if self.wanted.wheelhouse:
                    self._send_wheelhouse(self.environments[content["id"]], lock)
                else:
                    self._send_wheels(stack, lock)
                for artifact in self.overlays.lacking(layered):
                    self._send("overlays", artifact)
        return content

    def _changes(self, instance: str, lock: locks.Lock) -> dict[str, t.Any]:
        """What differs from the environment that the instance runs on, if it is known what that holds."""
        known = {name: (content or {}).get("packages") or {} for name, content in self.state["environments"].items()}
        release = self.state["instances"].get(instance, {}).get("release") or {}
        previous = release.get("environment")
        held = {item for packages in known.values() for item in packages.items()} | {(one["name"], one["version"]) for one in lock.wheels}
        compared = packagelists.compare(known.get(previous, {}), lock.versions, lock.sizes, held)
        return {"previous": previous if known.get(previous) else None, "changes": compared}

    def _at_hand(self, stack: stacks.Stack, hashes: t.Iterable[str]) -> bool:
        """Whether the wheels that pins name are on the controller; what is not is missing then, or refused."""
        given = [self.given[one] for one in hashes if one in self.given]
        sources = {one.name: source for one, source in given}
        missing, gone = wheelsources.fetch(sources, stack, [one for one, _source in given], self.wanted.host)
        for one in missing:
            self._miss({**self._job("wheel"), **one})
        self.findings += gone
        return not missing and not gone

    def _send_wheels(self, stack: stacks.Stack, lock: locks.Lock) -> None:
        """The lock's local wheels that the host lacks."""
        lacking = [wheel for wheel in lock.wheels if wheel["sha256"] not in self.state["wheels"]]
        if not self._at_hand(stack, (wheel["sha256"] for wheel in lacking)):
            return
        places, absent = locks.locate(dataclasses.replace(lock, wheels=tuple(lacking)), self.directories)
        self.findings += absent
        for wheel in lacking:
            if wheel["sha256"] in places:
                dest = self.layout.wheels / wheel["sha256"] / wheel["filename"]
                self._send("wheels", artifacts.Artifact(str(places[wheel["sha256"]]), str(dest), wheel["sha256"]))

    def _send_wheelhouse(self, environment: dict[str, t.Any], lock: locks.Lock) -> None:
        """Every wheel of the lock that the host lacks, from the wheelhouse; its build then asks no network."""
        directory = Path(self.wanted.wheelhouse)
        try:
            records = wheelhouses.files(directory, wheelhouses.read(directory), lock, environment["locked"]["name"])
            sent = [one for one in records if one["sha256"] not in self.state["wheels"]]
            wheelhouses.verify(directory, sent)
        except FindingError as error:
            self.findings.append(error.finding)
            return
        for one in sent:
            dest = self.layout.wheels / one["sha256"] / one["filename"]
            self._send("wheels", artifacts.Artifact(str(wheelhouses.place(directory, one)), str(dest), one["sha256"]))
        environment["sent"] = wheelhouses.total(sent)
        environment["job"].update(wheels=records, pages=[], uv_env=dict(wheelhouses.HOST))

    def _send(self, kind: str, artifact: artifacts.Artifact) -> None:
        if artifact.as_dict() not in self.artifacts[kind]:
            self.artifacts[kind].append(artifact.as_dict())

    # What the host must have

    def _check_disk(self, lane: str) -> None:
        needed = int(self.tables["stacks"]["lanes"][lane]["disk"] * 1e9)
        free = self.state["disk"]["free"]
        if free < needed:
            self.refuse(
                "disk",
                "specdec_root (%s)" % self.wanted.root,
                "too little space is free for an environment of lane %s" % lane,
                "%.1f GB free on %s" % (free / 1e9, self.state["disk"]["path"]),
                "%.1f GB" % (needed / 1e9),
                "free some space, or set specdec_root to a directory on a larger file system",
            )

    def _check_port(self, instance: t.Mapping[str, t.Any]) -> None:
        unit = unit_name(instance["name"])
        ours = {unit, (instance.get("adopt") or {}).get("unit")}
        wanted = fitting.ports(self.tables["architectures"], instance["engine"]["name"], instance)
        listening = [(port, one) for port in wanted for one in self.state["listeners"].get(str(port), ())]
        for port, one in listening:
            if ours & set(one["cgroup"].split("/")):
                continue
            self.refuse(
                "port",
                "specdec_instances[%s].port" % instance["name"],
                "is taken",
                "%s belongs to process %s (%s)" % (placements.port_text(port, wanted[port]), one["pid"], one["command"]),
                "a free port, or one that %s holds" % unit,
                "stop that process, or choose another port",
            )

    def _adopt(self, instance: t.Mapping[str, t.Any]) -> None:
        """Plan to take over what was made by hand, unless the instance has a release already."""
        name = instance["name"]
        if not instance.get("adopt") or self.state["instances"].get(name, {}).get("current"):
            return
        gate = releasefacts.gate(instance, self.tables["engines"][instance["engine"]["name"]])
        release = adoptions.compose(
            name,
            instance["adopt"]["unit"],
            instance["engine"]["name"],
            releasefacts.address(instance),
            self._secrets(instance),
            {**releasefacts.timeouts(instance), "gate": gate["timeout"]},
            {key: gate[key] for key in ("served_model", "prompts", "health")},
        )
        content = {"facts": release.facts, "config": release.config, "unit": release.unit, "launcher": release.launcher}
        job = {**self._job("adopt"), "instance": name, "release": content}
        self.adoptions[name] = {"instance": name, "unit": instance["adopt"]["unit"], "id": release.id, "job": job}

    def _check_secrets(self, instance: t.Mapping[str, t.Any]) -> None:
        engine = instance["engine"]["name"]
        known = self.tables["engines"][engine]["secrets"]
        for name in schema.SECRETS:
            if instance.get(name) and name not in known:
                subject = "specdec_instances[%s].%s" % (instance["name"], name)
                self.refuse("secret", subject, "is nothing that %s knows" % engine, name, ", ".join(known), "leave it out")

    # Models

    def _models(self, instance: t.Mapping[str, t.Any]) -> t.Optional[dict[str, str]]:
        """Path on the host by part; None when one cannot be had."""
        paths = {part: self._model(instance, part) for part in ("model", "draft") if instance.get(part)}
        return None if None in paths.values() else t.cast("dict[str, str]", paths)

    def _model(self, instance: t.Mapping[str, t.Any], part: str) -> t.Optional[str]:
        model = instance[part]
        where = "specdec_instances[%s].%s" % (instance["name"], part)
        place = releasefacts.model_on_host(self.layout, model)
        if place:
            return place
        source = model["directory"]
        if not os.path.isfile(os.path.join(source, "config.json")):
            self.refuse(
                "model-directory",
                where + ".directory",
                "is no model",
                "no config.json in %s" % source,
                "a directory with config.json",
                "name a model's directory",
            )
            return None
        digest = artifacts.tree_digest(source)
        name = "%s/%s" % (os.path.basename(source.rstrip("/")), digest[:16])
        if name not in self.state["models"]:
            self._send("models", artifacts.Artifact(source, str(self.layout.models / name), digest))
        return str(self.layout.models / name)

    def _fetch(self, instance: t.Mapping[str, t.Any], environment: t.Mapping[str, t.Any]) -> None:
        """Plan to fetch what the host lacks of the hub's models, with the hub's client of the instance's environment."""
        for model in (instance.get("model") or {}, instance.get("draft") or {}):
            name = hub.place(model["repo"], model["revision"]) if model.get("repo") else None
            if name is None or name in self.state["models"] or name in self.fetches:
                continue
            named = {"repo": model["repo"], "revision": model["revision"]}
            python = str(self.layout.environment(environment["id"]) / "venv" / "bin" / "python")
            self.fetches[name] = {**named, "job": {**self._job("fetch"), **named, "endpoint": self.wanted.hub, "python": python}}

    # The release

    def _release(
        self, instance: t.Mapping[str, t.Any], stack: stacks.Stack, environment: t.Mapping[str, t.Any], models: t.Mapping[str, str]
    ) -> None:
        release = self._compose(instance, stack, environment["id"], models)
        name = instance["name"]
        state = self.state["instances"].get(name, {})
        adoption = self.adoptions.get(name)
        before = adoption["job"]["release"]["facts"] if adoption else state.get("release")
        serves = (
            state.get("current") == release.id == state.get("running")
            and state["unit"].get("ActiveState") == "active"
            and bool(state["unit_as_released"])
            and not state["unfinished"]
        )
        self.releases.append(
            {
                "instance": name,
                "id": release.id,
                "environment": environment["id"],
                "engine": "%s %s, lane %s" % (stack.engine, stack.version, stack.lane),
                "present": release.id in state.get("releases", ()),
                "proven": release.id in state.get("proven", ()),
                "current": adoption["id"] if adoption else state.get("current"),
                "switch_needed": not serves,
                "health": state.get("health"),
                "recorded": _recorded(state.get("history") or (), release.id),
                "limits": units.limits(units.parse(unit_name(name), release.unit), self.state["systemd"].get("controllers")),
                "files": {"facts": release.facts, "config": release.config, "unit": release.unit, "launcher": release.launcher},
                "prove": {
                    **self._job("prove"),
                    "instance": name,
                    "release": release.id,
                    "wanted": {"engine": stack.engine, "version": stack.version},
                    "skip": list(instance.get("skip_checks") or ()),
                },
                "switch": {
                    **self._job("switch"),
                    "instance": name,
                    "release": release.id,
                    "deadline": transactions.deadline(release.facts, before).total,
                },
                "query": releasefacts.query(release.facts, self.wanted.address),
            }
        )

    def _compose(
        self, instance: t.Mapping[str, t.Any], stack: stacks.Stack, environment: str, models: t.Mapping[str, str]
    ) -> releases.Release:
        engine = self.tables["engines"][stack.engine]
        name = instance["name"]
        composed = arguments.compose(engine, stack.version, stack.lane, instance, models)
        preset = self._fit(instance, stack, composed)
        if "cuda" not in stack.lacks:
            self._check_memory(instance, engine["memory_share"], composed.config)
        self.settings += [
            {"instance": name, "name": option, "value": str(value), "origin": self._origin(name, composed, option)}
            for option, value in composed.config.items()
        ]
        if isinstance(instance.get("gpus"), list):
            instance = {**instance, "gpus": gpufindings.chosen(self.state["gpus"], instance["gpus"])}
        facts = releasefacts.compose(instance, stack, engine, environment, self.layout, models, self._secrets(instance), self.state)
        facts["environment_variables"] = {**preset, **facts["environment_variables"]}
        return releases.compose(self.wanted.root, facts, composed.config, self.wanted.launcher)

    def _origin(self, name: str, composed: arguments.Arguments, argument: str) -> str:
        """Where a value comes from; of what the user wrote, the variable that it was written in."""
        origin = composed.origins[argument]
        variable = self.wanted.origins.get(name, {}).get(composed.options.get(argument, ""), "instance")
        if variable == "instance" or origin not in ("instance", "extra_args"):
            return origin
        return variable if origin == "instance" else "extra_args of %s" % variable

    def _fit(self, instance: t.Mapping[str, t.Any], stack: stacks.Stack, composed: arguments.Arguments) -> dict[str, str]:
        """Judge the instance on what it is to run on, and add what its GPUs need to its arguments; returns environment variables."""
        table, name, gpus = self.tables["architectures"], instance["name"], self.state["gpus"]
        one = fitting.Instance(
            self.wanted.host, instance, stack.engine, stack.version, "cuda" not in stack.lacks, self._described(instance), composed
        )
        preset = fitting.preset(table, gpus, one)
        composed.config.update(preset.arguments)
        composed.origins.update({option: preset.reasons[option] for option in preset.arguments})
        self.settings += [
            {"instance": name, "name": "environment.%s" % variable, "value": value, "origin": preset.reasons[variable]}
            for variable, value in preset.environment.items()
        ]
        self.ports[name] = fitting.ports(table, stack.engine, instance, composed.config)
        others = [two for two in self.wanted.instances if two["name"] != name and isinstance(two.get("gpus"), list)]
        taken = {device["uuid"] for two in others for device in gpufindings.used(gpus, two["gpus"])["devices"]}
        self.findings += fitting.judge(table, self.state, one, taken)
        self.findings += speculation.rules(self.tables["speculation"], fitting.situation(table, gpus, one), one.written)
        return dict(preset.environment)

    def _described(self, instance: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        """What the files of model and draft say, by part (see modelfiles.describe); what is not there yet is left out."""
        places = {part: self._place(instance[part]) for part in ("model", "draft") if instance.get(part)}
        known = dict(self.state.get("model_files") or {})
        sent = [instance[part]["directory"] for part in places if instance[part].get("directory")]
        if not all(place in self.sources for place in sent):
            self.sources.update(modelfiles.describe([sent]))
        known.update(self.sources)
        for part, place in places.items():
            if place not in known and instance[part].get("path") and "model_files" in self.state:
                known[place] = modelfiles.absent(place)
        return {part: known[place] for part, place in places.items() if place in known}

    def _place(self, model: t.Mapping[str, t.Any]) -> str:
        """Where a model is read: on the host, or on the controller."""
        return releasefacts.model_on_host(self.layout, model) or model["directory"]

    def _secrets(self, instance: t.Mapping[str, t.Any]) -> dict[str, dict[str, str]]:
        engine = self.tables["engines"][instance["engine"]["name"]]
        return releasefacts.secrets(instance, engine, self.state["secrets"].get(instance["name"], {}))

    def _check_memory(self, instance: t.Mapping[str, t.Any], option: str, config: t.Mapping[str, t.Any]) -> None:
        subject = "%s: specdec_instances[%s].extra_args" % (self.wanted.host, instance["name"])
        gpus = gpufindings.used(self.state["gpus"], instance.get("gpus") or "all")
        unit = self.state["instances"].get(instance["name"], {}).get("unit", {})
        share = config.get(option)
        self.findings += gpufindings.unified_memory(
            gpus,
            self.state["memory"],
            float(share) if isinstance(share, (int, float)) else None,
            subject,
            option,
            unit.get("ActiveState") == "active",
        )

    def _job(self, kind: str) -> dict[str, t.Any]:
        return {"schema": SCHEMA, "kind": kind, "root": self.wanted.root, "who": self.wanted.who, "why": self.wanted.why}


def _but_variable(pin: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    return {key: value for key, value in pin.items() if key != "variable"}


def _recorded(history: t.Sequence[t.Mapping[str, t.Any]], release: str) -> t.Optional[t.Mapping[str, t.Any]]:
    """What was measured when this release was last committed."""
    committed = [one for one in history if one.get("to") == release and one.get("verdict") == "committed"]
    return committed[-1] if committed else None
