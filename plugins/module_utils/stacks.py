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

from . import stackrules
from .findings import ERROR, Finding, errors
from .stackrules import CPU, Candidate, Wanted, error, normal, ordered

AUTO = "auto"


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
    :param package: the distribution that the engine is installed from on this lane.
    :param label: what packages of this lane carry in their versions: ``cu130``.
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
    package: str
    label: str
    interpreter: t.Optional[t.Mapping[str, t.Any]] = None
    sources: t.Mapping[str, t.Mapping[str, str]] = dataclasses.field(default_factory=dict)


def resolve(
    tables: t.Mapping[str, t.Any],
    facts: t.Mapping[str, t.Any],
    engine: t.Mapping[str, t.Any],
    pins: t.Optional[t.Mapping[str, str]] = None,
    packages: t.Sequence[str] = (),
    python: t.Optional[str] = None,
    host: str = "",
    variable: str = "engine",
    base: str = "",
    reference: t.Optional[t.Mapping[str, str]] = None,
) -> tuple[t.Optional[Stack], list[Finding]]:
    """The stack for a host, or None and the findings that say why there is none.

    :param tables: ``data/stacks.yml``, parsed.
    :param facts: of the gathered state: ``os`` (machine, glibc), ``gpus`` (source, driver, devices
        with compute_capability), ``pythons`` (version, implementation, headers).
    :param engine: name, and optionally version (none: the newest that fits) and lane (none: auto).
    :param pins: versions that differ from the stack's, by package; a name of ``parts`` moves them all.
    :param packages: requirement lines for what is wanted besides the engine.
    :param python: take this minor version instead of the best one of the host.
    :param base: the version of the engine that an overlay was made over; without a version it is taken.
    :param reference: public versions by package that replace the stack's, where no pin says otherwise (see lockfrom.py).

    Warnings come with a stack. Nothing is raised for bad input.
    """
    wanted = Wanted(
        str(engine["name"]),
        engine.get("version") or None,
        engine.get("lane") or AUTO,
        python,
        {normal(name): str(version) for name, version in (pins or {}).items()},
        tuple(packages),
        host,
        variable,
        "" if engine.get("version") else base,
        dict(reference or {}),
    )
    found = _unknown(tables, wanted) or _unreadable(wanted)
    if found:
        return None, found
    known = [wanted.base] if wanted.base else releases(tables, wanted.name)
    version = wanted.version or next(iter(_fitting(tables, facts, wanted, known)), (known[-1], ""))[0]
    choice, found = _choose(tables, facts, wanted, version)
    if choice is None:
        fitting = dict(_fitting(tables, facts, wanted, known))
        fitting = fitting or dict(_fitting(tables, facts, dataclasses.replace(wanted, lane=AUTO), known))
        return None, _with_way_out(found, wanted, fitting, version)
    return _compose(choice), found


def releases(tables: t.Mapping[str, t.Any], engine: str) -> list[str]:
    """All versions of an engine that the tables know, oldest first."""
    from packaging.version import Version

    return sorted(tables["engines"][engine]["releases"], key=Version)


def release(tables: t.Mapping[str, t.Any], engine: str, version: str) -> dict[str, t.Any]:
    """What holds for one release: its own line over everything that holds since an older one.

    For a build before a release, such as a nightly one, what holds for the newest release up to it.
    """
    rows = tables["engines"][engine]["releases"]
    nearest = [*releases(tables, engine)[:1], *stackrules.until(rows, version)][-1]
    return {**stackrules.merged(tables, engine, version), **rows[nearest]}


def platform_tag(tables: t.Mapping[str, t.Any], machine: str, glibc: str) -> str:
    """uv's name for a machine with a glibc: the newest it knows that is not newer than the host's."""
    from packaging.version import Version

    usable = [known for known in tables["glibc"] if Version(known) <= Version(glibc)]
    return "%s-manylinux_%s" % (machine, usable[-1].replace(".", "_"))


@dataclasses.dataclass(frozen=True)
class _Choice:
    one: Candidate
    platform: str
    python: str
    interpreter: t.Optional[t.Mapping[str, t.Any]]


def _unknown(tables: t.Mapping[str, t.Any], wanted: Wanted) -> list[Finding]:
    engines, lanes = tables["engines"], tables["lanes"]
    if wanted.name not in engines:
        return [_refusal("stack.unknown-engine", wanted.subject(".name"), "there is no engine of this name", wanted.name, engines)]
    if wanted.lane not in (AUTO, *lanes):
        return [_refusal("stack.unknown-lane", wanted.subject(".lane"), "there is no lane of this name", wanted.lane, [AUTO, *lanes])]
    known = releases(tables, wanted.name)
    version = wanted.version or wanted.base
    nightly = wanted.lane != AUTO and "exact" in lanes[wanted.lane] and _prerelease(version)
    if version and version not in known and not nightly:
        message = "this release of %s%s is not in the tables of stacks" % (wanted.name, ", the base of the overlay," if wanted.base else "")
        return [_refusal("stack.unknown-version", wanted.subject(".version"), message, version, known)]
    return []


def _prerelease(version: t.Optional[str]) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version or "").is_prerelease
    except InvalidVersion:
        return False


def _unreadable(wanted: Wanted) -> list[Finding]:
    from packaging.requirements import InvalidRequirement, Requirement

    found = []
    for name, version in wanted.pins.items():
        try:
            Requirement(_pin(name, version))
        except InvalidRequirement as problem:
            fix = 'Write a version such as "1.2.3" or a range such as ">=1.2".'
            found.append(
                error("stack.pin", wanted.at("specdec_pins.%s" % name), "this is no version", version, "a version", str(problem), fix)
            )
    for line in wanted.packages:
        subject = wanted.at("specdec_extra_packages")
        fix = "Write a name with a version, such as name==1.2.3."
        try:
            requirement = Requirement(line)
        except InvalidRequirement as problem:
            found.append(error("stack.package", subject, "this is no requirement", line, "a requirement", str(problem), fix))
        else:
            if requirement.url:
                found.append(error("stack.package", subject, "a URL is no version", line, "a name with a version", "", fix))
    return found


def _choose(
    tables: t.Mapping[str, t.Any], facts: t.Mapping[str, t.Any], wanted: Wanted, version: str
) -> tuple[t.Optional[_Choice], list[Finding]]:
    """Lane, Python and platform of one release on this host, and what stands against it."""
    row = release(tables, wanted.name, version)
    one, found = _lane(tables, facts, wanted, row, version)
    python, interpreter, refused = _python(facts, wanted, row, "%s %s" % (wanted.name, version))
    found += refused
    if one is not None and interpreter is not None:
        found += stackrules.building(one, interpreter)
    if one is None or errors(found):
        return None, found
    return _Choice(one, platform_tag(tables, one.machine, facts["os"]["glibc"]), python, interpreter), found


def _fitting(
    tables: t.Mapping[str, t.Any], facts: t.Mapping[str, t.Any], wanted: Wanted, known: t.Sequence[str]
) -> t.Iterator[tuple[str, str]]:
    """The releases that fit the host, newest first, each with its lane."""
    for version in reversed(known):
        choice, _found = _choose(tables, facts, wanted, version)
        if choice:
            yield version, choice.one.lane


def _lane(
    tables: t.Mapping[str, t.Any], facts: t.Mapping[str, t.Any], wanted: Wanted, row: t.Mapping[str, t.Any], version: str
) -> tuple[t.Optional[Candidate], list[Finding]]:
    """The first lane that no rule refuses with its warnings, or None and what was said of each."""
    present = (facts.get("gpus") or {}).get("source", "none") != "none"
    usable = [lane for lane in row["lanes"] if present != (lane == CPU)]
    label, allowed = "%s %s" % (wanted.name, version), ", ".join(row["lanes"])
    if wanted.lane != AUTO:
        usable = [wanted.lane]
        if wanted.lane not in row["lanes"] and "exact" not in tables["lanes"][wanted.lane]:
            fix = "Choose lane %s, or another release." % " or ".join(row["lanes"])
            message = "%s does not exist for this lane" % label
            return None, [error("stack.lane", wanted.subject(".lane"), message, wanted.lane, allowed, "", fix)]
    if not usable:
        found = "a GPU" if present else "no GPU"
        fix = "Choose another engine, or a host with a GPU that works." if not present else "Choose another release, or the lane cpu."
        message = "%s has no lane for this host" % label
        return None, [error("stack.lane", wanted.subject(".lane"), message, found, "lanes %s" % allowed, "", fix)]
    refused: list[Finding] = []
    for lane in usable:
        one = Candidate(tables, facts, wanted, version, row, lane)
        judged = stackrules.judge(one)
        if not errors(judged):
            return one, judged
        refused += [each for each in judged if each not in refused]
    return None, refused


def _python(
    facts: t.Mapping[str, t.Any], wanted: Wanted, row: t.Mapping[str, t.Any], label: str
) -> tuple[str, t.Optional[t.Mapping[str, t.Any]], list[Finding]]:
    """The host's best Python for a release: with headers before without, newer before older."""
    from packaging.specifiers import SpecifierSet

    def fits(minor: str) -> bool:
        return SpecifierSet(row["python"]).contains(minor) and minor in (row.get("wheels") or [minor])

    installed = [one for one in facts.get("pythons", ()) if one.get("implementation", "cpython") == "cpython"]
    minors = sorted({_minor(one["version"]) for one in installed}, key=ordered)
    if wanted.python:
        matching = [one for one in installed if _minor(one["version"]) == wanted.python]
    else:
        matching = [one for one in installed if fits(_minor(one["version"]))]
    matching.sort(key=lambda one: (bool(one.get("headers")), ordered(one["version"])))
    interpreter = matching[-1] if matching else None
    minor = wanted.python or (_minor(interpreter["version"]) if interpreter else "")
    if minor and fits(minor):
        return minor, interpreter, []
    allowed = " or ".join(row["wheels"]) if row.get("wheels") else row["python"]
    fix = "Install Python %s on the host." % (row["wheels"][-1] if row.get("wheels") else row["python"])
    message = "%s has no wheels for this Python" % label if wanted.python else "the host has no Python that %s runs on" % label
    return "", None, [error("stack.python", wanted.subject(), message, wanted.python or ", ".join(minors) or "none", allowed, "", fix)]


def _compose(choice: _Choice) -> Stack:
    from packaging.requirements import Requirement

    one = choice.one
    tables, wanted, row = one.tables, one.wanted, one.row
    rows = tables["engines"][wanted.name]
    own = rows.get("cpu", {}) if one.lane == CPU else {}
    package = own.get("package", wanted.name)
    torch_builds = {version: builds[one.machine] for version, builds in tables["torch"].items() if one.machine in builds}
    asked = wanted.asked
    in_parts = {part for parts in tables["parts"].values() for part in parts}
    pins = {name: version for name, version in wanted.pins.items() if name not in tables["parts"]}
    # what is shipped under a label of the lane, or in parts, gets its version below
    taken = {name: version for name, version in wanted.reference.items() if name not in {*in_parts, *rows["kernels"], "torch"}}
    pins = {**taken, **pins}

    if torch_builds.get(one.torch, one.cuda) != one.cuda:
        pins["torch"] = "%s+%s" % (one.torch, one.cuda)
    elif "torch" in wanted.reference and one.torch != row["torch"]:
        pins.setdefault("torch", one.torch)
    kernel = None
    if "kernel" in row and "kernel" not in one.lacks:
        name = row["kernel_name"]
        version = wanted.reference.get(name, row["kernel"])
        if one.cuda != row["native"]:
            pins.setdefault(name, "%s+%s" % (version, one.cuda))
        elif version != row["kernel"]:
            pins.setdefault(name, version)
        kernel = (name, pins.get(name, version))
    parts = tuple(tables["parts"]["flashinfer"])
    moved = one.flashinfer != row["flashinfer"] and not {"flashinfer", "flashinfer-python"} & set(wanted.pins)
    if one.flashinfer and (moved or "flashinfer" in wanted.pins or asked & set(parts)):
        said = {normal(each.name) for each in map(Requirement, wanted.packages) if each.specifier}
        pins = {**{name: one.flashinfer for name in parts if name not in said}, **pins}

    extras, builds = row.get("extras", {}), stackrules.builds(one)
    excludes = set(own.get("excludes", ())) - asked
    elsewhere = {name for name, version in pins.items() if version.endswith("+" + one.cuda)} | asked - {"flashinfer-cubin"}
    if stackrules.needs_cubin_index(one):
        elsewhere.add("flashinfer-cubin")
    return Stack(
        engine=wanted.name,
        version=one.version,
        lane=one.lane,
        machine=one.machine,
        python=choice.python,
        platform=choice.platform,
        requirements=tuple(sorted(["%s==%s" % (package, one.version), *own.get("requirements", ()), *wanted.packages])),
        overrides=tuple(sorted(_pin(name, version, extras.get(name)) for name, version in pins.items())),
        excludes=tuple(sorted(excludes)),
        builds=tuple(sorted(builds - excludes)),
        indexes=tuple(
            Index(index["name"], index["url"], tuple(index["packages"]))
            for index in one.lane_row["indexes"]
            if elsewhere & set(index["packages"])
        ),
        torch=pins.get("torch", one.torch),
        torch_builds=torch_builds,
        flashinfer=one.flashinfer,
        parts=parts,
        kernel=kernel,
        kernels=tuple(rows["kernels"]),
        lacks=one.lacks,
        package=package,
        label=one.cuda,
        interpreter=choice.interpreter,
    )


def _with_way_out(found: t.Sequence[Finding], wanted: Wanted, fitting: t.Mapping[str, str], version: str) -> list[Finding]:
    """The same findings; where another release fits this host, the nearest one is in the fix."""
    from packaging.version import Version

    if not fitting:
        return list(found)
    among = sorted({*fitting, version}, key=Version)
    nearest = min(fitting, key=lambda each: abs(among.index(each) - among.index(version)))
    way = " What fits this host as it is: %s %s on lane %s." % (wanted.name, nearest, fitting[nearest])
    return [dataclasses.replace(one, fix=one.fix + way) if one.verdict == ERROR else one for one in found]


def _refusal(name: str, subject: str, message: str, value: str, known: t.Iterable[str]) -> Finding:
    names = list(known)
    near = difflib.get_close_matches(value, names, 3, 0.5)
    fix = "Did you mean %s?" % " or ".join(near) if near else "Choose one of %s." % ", ".join(names)
    return error(name, subject, message, value, ", ".join(names), "", fix)


def specifier(version: str) -> str:
    """What a pin means: a range as it stands, a bare version exactly."""
    return version if re.match(r"[<>=!~]", version) else "==" + version


def _pin(name: str, version: str, extra: t.Optional[str] = None) -> str:
    return "%s%s%s" % (name, "[%s]" % extra if extra else "", specifier(version))


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
