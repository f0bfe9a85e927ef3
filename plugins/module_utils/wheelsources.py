# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pins that name where their package comes from: an index of its own, a wheel by its address, a commit that is built once.

Their form is checked before (schema.py). Wheels by address and built wheels are local wheels to everything after this: known by
their sha256, kept on the controller, sent to the hosts.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t
import urllib.parse
from pathlib import Path

from . import pylocks, stacks
from .findings import ERROR, Finding
from .layout import digest

#: What of a git source decides the wheel; on which host it is built does not.
_BUILT_FROM = ("git", "commit", "subdirectory", "environment")


@dataclasses.dataclass(frozen=True)
class Given:
    """The wheel of a pin, as far as a stack has to know it.

    :param place: its file on the controller, if it is there.
    :param glibc: of the host that built it, empty where that is not known: the wheel's own tag says what it needs then.
    """

    name: str
    version: str
    filename: str
    sha256: str
    place: Path
    glibc: str = ""


def split(pins: t.Mapping[str, t.Any]) -> tuple[dict[str, str], dict[str, dict[str, t.Any]]]:
    """Versions by package, and the sources of the packages that name one; a package of an index of its own is in both."""
    from packaging.utils import canonicalize_name

    versions: dict[str, str] = {}
    sources: dict[str, dict[str, t.Any]] = {}
    for name, pin in pins.items():
        if not isinstance(pin, t.Mapping):
            versions[name] = str(pin)
            continue
        sources[canonicalize_name(name)] = dict(pin)
        if "version" in pin:
            versions[name] = str(pin["version"])
    return versions, sources


def provisional(source: t.Mapping[str, t.Any]) -> str:
    """A version for a package until that of its wheel is known: exact, and none that a rule looks for."""
    try:
        return version_of(file_name(source)) if "url" in source else "0"
    except ValueError:
        return "0"


def needed(
    sources: t.Mapping[str, t.Mapping[str, t.Any]], stack: stacks.Stack, tables: t.Mapping[str, t.Any]
) -> dict[str, t.Mapping[str, t.Any]]:
    """Those that a stack may take: not what it leaves out, nor the kernels of another engine or of lanes with a GPU."""
    kernels = {name for rows in tables["engines"].values() for name in rows["kernels"]}
    left_out = {*stack.excludes, *(kernels - {stack.kernel[0]} if stack.kernel else kernels)}
    if stack.flashinfer is None:
        left_out |= set(stack.parts)
    return {name: source for name, source in sources.items() if name not in left_out}


def build_key(source: t.Mapping[str, t.Any], python: str, machine: str) -> str:
    """Under which name the pins keep what was built from a commit for a Python (``3.12``) and a machine."""
    return digest([{name: source.get(name) for name in _BUILT_FROM}, python, machine])


def file_name(source: t.Mapping[str, t.Any]) -> str:
    """The wheel's own name in an address."""
    return urllib.parse.unquote(urllib.parse.urlsplit(source["url"]).path.rpartition("/")[2])


def downloaded(cache: Path, source: t.Mapping[str, t.Any]) -> Path:
    """Where the controller keeps the wheel of an address."""
    return cache / "wheels" / source["sha256"] / file_name(source)


def described(name: str, source: t.Mapping[str, t.Any]) -> str:
    """A source for a person, in a line."""
    if "url" in source:
        return "the wheel of %s: %s" % (name, source["url"])
    return "the wheel of %s: %s at %s, built on %s" % (name, source["git"], source["commit"][:12], source["build_host"])


class Pins(t.Protocol):
    """What is read of a pins directory (plugin_utils/pins.py)."""

    def wheel(self, key: str) -> t.Optional[dict[str, t.Any]]: ...

    def wheel_file(self, record: t.Mapping[str, t.Any]) -> Path: ...


def find(
    sources: t.Mapping[str, t.Mapping[str, t.Any]],
    stack: stacks.Stack,
    pins: Pins,
    host: str,
    glibc: t.Optional[str],
    cache: Path,
    update: bool,
) -> tuple[dict[str, Given], list[dict[str, t.Any]], list[Finding]]:
    """The wheels that are known, what is to be made for those that are not (missing pins), and what stands against one.

    A wheel that is known need not be at hand: a host that has it, or takes it from a wheelhouse, does without (see :func:`fetch`).

    :param cache: of the controller; :param update: build anew what was built.
    """
    given: dict[str, Given] = {}
    missing: list[dict[str, t.Any]] = []
    refused: list[t.Optional[Finding]] = []
    for name, source in sources.items():
        subject = "%s: specdec_pins.%s" % (host, name)
        if "index" in source:
            continue
        built = pins.wheel(build_key(source, stack.python, stack.machine)) if "git" in source else None
        if "git" in source and (built is None or update):
            missing.append(_to_make(name, source, stack, update))
            continue
        filename = built["filename"] if built else file_name(source)
        wrong = unfit(name, filename, stack, subject if built else subject + ".url")
        if wrong:
            refused.append(wrong)
            continue
        place = pins.wheel_file(built) if built else downloaded(cache, source)
        sha256 = built["sha256"] if built else source["sha256"]
        given[name] = Given(name, version_of(filename), filename, sha256, place, (built or {}).get("glibc", ""))
        if built:
            refused.append(too_new(given[name], glibc, subject, built["built_on"]))
    return given, missing, [one for one in refused if one]


def fetch(
    sources: t.Mapping[str, t.Mapping[str, t.Any]], stack: stacks.Stack, given: t.Iterable[Given], host: str
) -> tuple[list[dict[str, t.Any]], list[Finding]]:
    """How those of the known wheels that are not at hand get there: by missing pins, or not at all."""
    absent = [one for one in given if not one.place.is_file()]
    missing = [_to_make(one.name, sources[one.name], stack, False) for one in absent if "url" in sources[one.name]]
    return missing, [_gone(one, "%s: specdec_pins.%s" % (host, one.name)) for one in absent if "git" in sources[one.name]]


def _to_make(name: str, source: t.Mapping[str, t.Any], stack: stacks.Stack, update: bool) -> dict[str, t.Any]:
    """The missing pin of a wheel."""
    return {
        "kind": "wheel",
        "name": described(name, source),
        "package": name,
        "source": dict(source),
        "python": stack.python,
        "machine": stack.machine,
        "replace": update,
    }


def _gone(built: Given, subject: str) -> Finding:
    fix = "restore it from version control; or build another one: specdec_pins_update: [wheel]"
    found = "nothing at %s" % built.place
    return Finding("wheel.gone", ERROR, subject, "the wheel that was built is not in the pins directory", found, built.filename, fix=fix)


def unfit(name: str, filename: str, stack: stacks.Stack, subject: str) -> t.Optional[Finding]:
    """Why a wheel is not one of this package, or not for this host; None when nothing stands against it."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        distribution, _version, _build, tagged = parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        fix = "Name the address of a .whl file; a source can be built from git."
        return Finding("wheel.name", ERROR, subject, "this is no wheel", filename, "NAME-VERSION-TAGS.whl", str(error), fix=fix)
    if distribution != name:
        fix = "Give the pin the name of the package, or the address of its wheel."
        return Finding("wheel.name", ERROR, subject, "this is the wheel of another package", filename, name, fix=fix)
    if not set(tagged) & set(pylocks.tags(stack.python, stack.platform)):
        fix = "Name the wheel for this Python and platform; where hosts differ, give each group a pin of its own."
        wanted = "Python %s on %s" % (stack.python, stack.platform)
        return Finding("wheel.platform", ERROR, subject, "this wheel is for another Python or platform", filename, wanted, fix=fix)
    return None


def too_new(given: Given, glibc: t.Optional[str], subject: str, build_host: str) -> t.Optional[Finding]:
    """A wheel that was linked against a newer glibc than the host's does not load there, and its tag does not say so."""
    if not given.glibc or not glibc or _numbers(given.glibc) <= _numbers(glibc):
        return None
    return Finding(
        "wheel.glibc",
        ERROR,
        subject,
        "the wheel was built on a host with a newer glibc",
        "glibc %s, %s has %s" % (glibc, build_host, given.glibc),
        "a build host whose glibc is no newer than the oldest host's",
        fix="Name such a build_host, remove the wheel from the pins directory, and deploy again.",
    )


def version_of(filename: str) -> str:
    """The version in a wheel's name."""
    from packaging.utils import parse_wheel_filename

    return str(parse_wheel_filename(filename)[1])


def applied(stack: stacks.Stack, sources: t.Mapping[str, t.Mapping[str, t.Any]], given: t.Mapping[str, Given]) -> stacks.Stack:
    """A stack that takes these packages from their own places."""
    own: dict[str, dict[str, str]] = {name: {"index": one["index"]} for name, one in sources.items() if "index" in one}
    indexes = tuple(stacks.Index("specdec_pins." + name, place["index"], (name,)) for name, place in own.items())
    own.update({name: {"filename": one.filename, "sha256": one.sha256} for name, one in given.items()})
    return dataclasses.replace(stack, sources=own, indexes=(*stack.indexes, *indexes))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
