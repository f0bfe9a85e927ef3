# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which stack fits a host: the pins of an engine's release on one lane, Python and platform.

The versions come from ``data/stacks.yml``, the host from the gathered state. What does not fit is
said as findings that name the variable, what is allowed, and the nearest release that fits.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import typing as t

from .findings import ERROR, WARNING, Finding, errors

AUTO = "auto"
CPU = "cpu"


@dataclasses.dataclass(frozen=True)
class Index:
    """An index besides the default one, asked only for ``packages``."""

    name: str
    url: str
    packages: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Stack:
    """Everything that decides a lock, and what the lock is checked against.

    :param python: minor version, ``3.12``.
    :param platform: uv's name of machine and glibc, ``x86_64-manylinux_2_34``.
    :param requirements: requirement lines.
    :param overrides: requirement lines that replace what any package requires.
    :param excludes: packages left out wherever they are required.
    :param builds: packages that may be built from source.
    :param torch: its version, with a label where the default index's is another lane's.
    :param torch_builds: per torch version the lane that the default index's wheel was built for.
    :param flashinfer: the version of all its parts, None where the lane has none.
    :param parts: the packages flashinfer is shipped as.
    :param kernel: name and version, None where the lane or the engine has none.
    :param kernels: all names the engine's kernel package has or had.
    :param lacks: what the lane does not have (``flashinfer``, ``kernel``, ``cuda``; see parity.PARTS).
    :param interpreter: the host's Python as gathered, None where only its version was given.
    :param sources: per package that specdec_pins takes from a place of its own: the address of its ``index``, or
        ``filename`` and ``sha256`` of its wheel.
    """

    engine: str
    version: str
    lane: str
    machine: str
    python: str
    platform: str
    requirements: tuple[str, ...]
    overrides: tuple[str, ...]
    excludes: tuple[str, ...]
    builds: tuple[str, ...]
    indexes: tuple[Index, ...]
    torch: str
    torch_builds: t.Mapping[str, str]
    flashinfer: t.Optional[str]
    parts: tuple[str, ...]
    kernel: t.Optional[tuple[str, str]]
    kernels: tuple[str, ...]
    lacks: tuple[str, ...]
    interpreter: t.Optional[t.Mapping[str, t.Any]] = None
    sources: t.Mapping[str, t.Mapping[str, str]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What the user wrote, and where: ``host`` and ``variable`` only name it in findings."""

    name: str
    version: t.Optional[str]
    lane: str
    python: t.Optional[str]
    pins: t.Mapping[str, str]
    packages: tuple[str, ...]
    host: str
    variable: str

    def subject(self, option: str = "") -> str:
        """What a finding is about: ``ct200: engine.version``."""
        return self.at(self.variable + option)

    def at(self, variable: str) -> str:
        """The same for another variable than the engine."""
        return "%s: %s" % (self.host, variable) if self.host else variable


def resolve(
    tables: t.Mapping[str, t.Any],
    facts: t.Mapping[str, t.Any],
    engine: t.Mapping[str, t.Any],
    pins: t.Optional[t.Mapping[str, str]] = None,
    packages: t.Sequence[str] = (),
    python: t.Optional[str] = None,
    host: str = "",
    variable: str = "engine",
) -> tuple[t.Optional[Stack], list[Finding]]:
    """The stack for a host, or None and the findings that say why there is none.

    :param tables: ``data/stacks.yml``, parsed.
    :param facts: of the gathered state: ``os`` (machine, glibc), ``gpus`` (source, driver, devices
        with compute_capability), ``pythons`` (version, implementation, headers).
    :param engine: name, and optionally version (none: the newest that fits) and lane (none: auto).
    :param pins: versions that differ from the stack's, by package; a name of ``parts`` moves them all.
    :param packages: requirement lines for what is wanted besides the engine.
    :param python: take this minor version instead of the best one of the host.

    Warnings come with a stack. Nothing is raised for bad input.
    """
    wanted = Wanted(
        str(engine["name"]),
        engine.get("version") or None,
        engine.get("lane") or AUTO,
        python,
        {_name(name): str(version) for name, version in (pins or {}).items()},
        tuple(packages),
        host,
        variable,
    )
    found = _unknown(tables, wanted) or _unreadable(wanted)
    if found:
        return None, found
    known = releases(tables, wanted.name)
    fitting = _fitting(tables, facts, wanted, known)
    version = wanted.version or next(iter(fitting), known[-1])
    choice, found = _choose(tables, facts, wanted, version)
    if choice is None:
        fitting = fitting or _fitting(tables, facts, dataclasses.replace(wanted, lane=AUTO), known)
        return None, _with_way_out(found, wanted, fitting, known, version)
    return _compose(tables, wanted, choice), found


def releases(tables: t.Mapping[str, t.Any], engine: str) -> list[str]:
    """All versions of an engine that the tables know, oldest first."""
    from packaging.version import Version

    return sorted(tables["engines"][engine]["releases"], key=Version)


def release(tables: t.Mapping[str, t.Any], engine: str, version: str) -> dict[str, t.Any]:
    """What holds for one release: its own line over everything that holds since an older one."""
    from packaging.version import Version

    rows = tables["engines"][engine]
    merged: dict[str, t.Any] = {}
    for since in sorted(rows["since"], key=Version):
        if Version(since) <= Version(version):
            merged.update(rows["since"][since])
    merged.update(rows["releases"][version])
    return merged


def platform_tag(tables: t.Mapping[str, t.Any], machine: str, glibc: str) -> str:
    """uv's name for a machine with a glibc: the newest it knows that is not newer than the host's."""
    from packaging.version import Version

    usable = [known for known in tables["glibc"] if Version(known) <= Version(glibc)]
    return "%s-manylinux_%s" % (machine, usable[-1].replace(".", "_"))


@dataclasses.dataclass(frozen=True)
class _Choice:
    version: str
    row: t.Mapping[str, t.Any]
    lane: str
    machine: str
    platform: str
    python: str
    interpreter: t.Optional[t.Mapping[str, t.Any]]


def _unknown(tables: t.Mapping[str, t.Any], wanted: Wanted) -> list[Finding]:
    engines = tables["engines"]
    if wanted.name not in engines:
        return [_refusal("stack.unknown-engine", wanted.subject(".name"), "there is no engine of this name", wanted.name, engines)]
    known = releases(tables, wanted.name)
    if wanted.version and wanted.version not in known:
        message = "this release of %s is not in the tables of stacks" % wanted.name
        return [_refusal("stack.unknown-version", wanted.subject(".version"), message, wanted.version, known)]
    if wanted.lane != AUTO and wanted.lane not in tables["lanes"]:
        return [
            _refusal("stack.unknown-lane", wanted.subject(".lane"), "there is no lane of this name", wanted.lane, [AUTO, *tables["lanes"]])
        ]
    return []


def _unreadable(wanted: Wanted) -> list[Finding]:
    from packaging.requirements import InvalidRequirement, Requirement

    found = []
    for name, version in wanted.pins.items():
        try:
            Requirement(_pin(name, version))
        except InvalidRequirement as error:
            fix = 'Write a version such as "1.2.3" or a range such as ">=1.2".'
            found.append(
                _error("stack.pin", wanted.at("specdec_pins.%s" % name), "this is no version", version, "a version", str(error), fix)
            )
    for line in wanted.packages:
        subject = wanted.at("specdec_extra_packages")
        fix = "Write a name with a version, such as name==1.2.3."
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            found.append(_error("stack.package", subject, "this is no requirement", line, "a requirement", str(error), fix))
        else:
            if requirement.url:
                found.append(_error("stack.package", subject, "a URL is no version", line, "a name with a version", "", fix))
    return found


def _choose(
    tables: t.Mapping[str, t.Any], facts: t.Mapping[str, t.Any], wanted: Wanted, version: str
) -> tuple[t.Optional[_Choice], list[Finding]]:
    """Lane, Python and platform of one release on this host, and what stands against it."""
    row = release(tables, wanted.name, version)
    label = "%s %s" % (wanted.name, version)
    lane, found = _lane(tables, facts, wanted, row, label)
    system = facts.get("os", {})
    machine, glibc = system.get("machine") or "", system.get("glibc") or ""
    if machine not in tables["machines"]:
        fix = "Use a host with one of these processors; there are no wheels for others."
        allowed = " or ".join(tables["machines"])
        found.append(_error("stack.architecture", wanted.subject(), "no wheels for this machine", machine or "unknown", allowed, "", fix))
    too_old = not glibc or _older(glibc, row["glibc"])
    if too_old:
        fix = "Use a host with glibc %s or newer (for 2.34: Debian 12, Ubuntu 22.04, RHEL 9)." % row["glibc"]
        message = "%s has no wheels for this glibc" % label
        found.append(_error("stack.glibc", wanted.subject(".version"), message, glibc or "unknown", ">= %s" % row["glibc"], "", fix))
    python, interpreter, refused = _python(facts, wanted, row, label)
    found += refused
    if errors(found):
        return None, found
    return _Choice(version, row, lane, machine, platform_tag(tables, machine, glibc), python, interpreter), found


def _fitting(tables: t.Mapping[str, t.Any], facts: t.Mapping[str, t.Any], wanted: Wanted, known: t.Sequence[str]) -> dict[str, str]:
    """The releases that fit the host, newest first, each with its lane."""
    return {one: choice.lane for one in reversed(known) for choice in [_choose(tables, facts, wanted, one)[0]] if choice}


def _lane(
    tables: t.Mapping[str, t.Any], facts: t.Mapping[str, t.Any], wanted: Wanted, row: t.Mapping[str, t.Any], label: str
) -> tuple[str, list[Finding]]:
    """The lane, or (for auto: of the last lane tried) why not."""
    gpus = facts.get("gpus") or {}
    present = gpus.get("source", "none") != "none"
    usable = [lane for lane in row["lanes"] if present != (lane == CPU)]
    if wanted.lane != AUTO:
        if wanted.lane not in row["lanes"]:
            fix = "Choose lane %s, or another release." % " or ".join(row["lanes"])
            allowed = ", ".join(row["lanes"])
            message = "%s does not exist for this lane" % label
            return wanted.lane, [_error("stack.lane", wanted.subject(".lane"), message, wanted.lane, allowed, "", fix)]
        usable = [wanted.lane]
    if not usable:
        found = "a GPU" if present else "no GPU"
        fix = "Choose another engine, or a host with a GPU that works." if not present else "Choose another release, or the lane cpu."
        message = "%s has no lane for this host" % label
        return "", [_error("stack.lane", wanted.subject(".lane"), message, found, "lanes %s" % ", ".join(row["lanes"]), "", fix)]
    refused: list[Finding] = []
    for lane in usable:
        found_here = _driver(tables["lanes"][lane], lane, gpus, wanted, label)
        if not errors(found_here):
            return lane, found_here
        refused = refused or found_here
    return usable[0], refused


def _driver(row: t.Mapping[str, t.Any], lane: str, gpus: t.Mapping[str, t.Any], wanted: Wanted, label: str) -> list[Finding]:
    if "driver" not in row:
        return []
    majors = {str(device.get("compute_capability") or "").partition(".")[0] for device in gpus.get("devices", ())}
    floors = [row["driver"], *(floor for major, floor in row.get("driver_for", {}).items() if major in majors)]
    floor = max(floors, key=_ordered)
    driver = gpus.get("driver")
    subject = wanted.subject(".lane")
    if not driver:
        return [
            _error(
                "stack.driver",
                subject,
                "%s on lane %s needs an NVIDIA driver, and none answers on this host" % (label, lane),
                "no driver",
                ">= %s" % floor,
                "",
                "Install an NVIDIA driver %s or newer; specdec never installs drivers." % floor,
            )
        ]
    if _older(driver, floor):
        message = "the NVIDIA driver is too old for %s on lane %s" % (label, lane)
        fix = "Install an NVIDIA driver %s or newer; specdec never installs drivers." % floor
        return [_error("stack.driver", subject, message, driver, ">= %s" % floor, "", fix)]
    if _older(driver, row["toolkit_driver"]):
        return [
            Finding(
                "stack.driver-older-than-toolkit",
                WARNING,
                subject,
                "the NVIDIA driver runs lane %s, but is older than its CUDA %s" % (lane, row["cuda"]),
                driver,
                ">= %s" % row["toolkit_driver"],
                cause="Code that is compiled at run time for a newer CUDA may not load (unsupported toolchain).",
                fix="Install an NVIDIA driver %s or newer when you can." % row["toolkit_driver"],
            )
        ]
    return []


def _python(
    facts: t.Mapping[str, t.Any], wanted: Wanted, row: t.Mapping[str, t.Any], label: str
) -> tuple[str, t.Optional[t.Mapping[str, t.Any]], list[Finding]]:
    """The host's best Python for a release: with headers before without, newer before older."""
    from packaging.specifiers import SpecifierSet

    def fits(minor: str) -> bool:
        return SpecifierSet(row["python"]).contains(minor) and minor in row.get("wheels", [minor])

    installed = [one for one in facts.get("pythons", ()) if one.get("implementation", "cpython") == "cpython"]
    minors = sorted({_minor(one["version"]) for one in installed}, key=_ordered)
    if wanted.python:
        matching = [one for one in installed if _minor(one["version"]) == wanted.python]
    else:
        matching = [one for one in installed if fits(_minor(one["version"]))]
    matching.sort(key=lambda one: (bool(one.get("headers")), _ordered(one["version"])))
    interpreter = matching[-1] if matching else None
    minor = wanted.python or (_minor(interpreter["version"]) if interpreter else "")
    if minor and fits(minor):
        return minor, interpreter, []
    allowed = " or ".join(row["wheels"]) if "wheels" in row else row["python"]
    fix = "Install Python %s on the host." % (row["wheels"][-1] if "wheels" in row else row["python"])
    message = "%s has no wheels for this Python" % label if wanted.python else "the host has no Python that %s runs on" % label
    return "", None, [_error("stack.python", wanted.subject(), message, wanted.python or ", ".join(minors) or "none", allowed, "", fix)]


def _compose(tables: t.Mapping[str, t.Any], wanted: Wanted, choice: _Choice) -> Stack:
    from packaging.requirements import Requirement

    row, lane = choice.row, tables["lanes"][choice.lane]
    rows = tables["engines"][wanted.name]
    own = rows["cpu"] if choice.lane == CPU else {}
    lacks = tuple(lane.get("lacks", ()))
    torch_builds = {version: builds[choice.machine] for version, builds in tables["torch"].items()}
    asked = {_name(Requirement(line).name) for line in wanted.packages}
    pins = {name: version for name, version in wanted.pins.items() if name not in tables["parts"]}

    torch = pins.get("torch", row["torch"])
    if torch_builds.get(torch, choice.lane) != choice.lane:
        pins["torch"] = "%s+%s" % (torch, choice.lane)
    kernel = None
    if "kernel" in row and "kernel" not in lacks:
        name = row["kernel_name"]
        if choice.lane != row["native"]:
            pins.setdefault(name, "%s+%s" % (row["kernel"], choice.lane))
        kernel = (name, pins.get(name, row["kernel"]))
    flashinfer = None
    parts = tuple(tables["parts"]["flashinfer"])
    if "flashinfer" not in lacks:
        flashinfer = wanted.pins.get("flashinfer") or pins.get("flashinfer-python") or row["flashinfer"]
        if "flashinfer" in wanted.pins or asked & set(parts):
            pins = {**dict.fromkeys(parts, flashinfer), **pins}

    extras, builds = row.get("extras", {}), row.get("builds", {})
    excludes = set(own.get("excludes", ())) - asked
    labelled = {name for name, version in pins.items() if version.endswith("+" + choice.lane)}
    return Stack(
        engine=wanted.name,
        version=choice.version,
        lane=choice.lane,
        machine=choice.machine,
        python=choice.python,
        platform=choice.platform,
        requirements=tuple(sorted(["%s==%s" % (wanted.name, choice.version), *own.get("requirements", ()), *wanted.packages])),
        overrides=tuple(sorted(_pin(name, version, extras.get(name)) for name, version in pins.items())),
        excludes=tuple(sorted(excludes)),
        builds=tuple(sorted({*builds.get("any", ()), *builds.get(choice.machine, ())} - excludes)),
        indexes=tuple(
            Index(index["name"], index["url"], tuple(index["packages"]))
            for index in lane["indexes"]
            if set(index["packages"]) & (labelled | asked)
        ),
        torch=pins.get("torch", torch),
        torch_builds=torch_builds,
        flashinfer=flashinfer,
        parts=parts,
        kernel=kernel,
        kernels=tuple(rows["kernels"]),
        lacks=lacks,
        interpreter=choice.interpreter,
    )


def _with_way_out(
    found: t.Sequence[Finding], wanted: Wanted, fitting: t.Mapping[str, str], known: t.Sequence[str], version: str
) -> list[Finding]:
    """The same findings; where another release fits this host, the nearest one is in the fix."""
    if not fitting:
        return list(found)
    nearest = min(fitting, key=lambda one: abs(known.index(one) - known.index(version)))
    way = " What fits this host as it is: %s %s on lane %s." % (wanted.name, nearest, fitting[nearest])
    return [dataclasses.replace(one, fix=one.fix + way) if one.verdict == ERROR else one for one in found]


def _refusal(name: str, subject: str, message: str, value: str, known: t.Iterable[str]) -> Finding:
    names = list(known)
    near = difflib.get_close_matches(value, names, 3, 0.5)
    fix = "Did you mean %s?" % " or ".join(near) if near else "Choose one of %s." % ", ".join(names)
    return _error(name, subject, message, value, ", ".join(names), "", fix)


def _error(name: str, subject: str, message: str, found: str, expected: str, evidence: str, fix: str) -> Finding:
    return Finding(name, ERROR, subject, message, found, expected, evidence, fix=fix)


def specifier(version: str) -> str:
    """What a pin means: a range as it stands, a bare version exactly."""
    return version if re.match(r"[<>=!~]", version) else "==" + version


def _pin(name: str, version: str, extra: t.Optional[str] = None) -> str:
    return "%s%s%s" % (name, "[%s]" % extra if extra else "", specifier(version))


def _name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _older(version: str, floor: str) -> bool:
    return _ordered(version) < _ordered(floor)
