# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep plugins/module_utils/data/stacks.yml true to what upstream published: ``check`` its rows, ``add`` a release.

``check`` prints a line a row: equal, drift (what the table and what the index says), or not reachable; status 1 on
drift. ``add ENGINE VERSION`` writes the row of a release from its metadata, and under ``since`` what it changes of
what held until then.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import datetime
import re
import sys
import typing as t
from pathlib import Path

import yaml
from packageindex import Index, Unreachable, Wheel, default_index
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from ansible_collections.specdec.serving.plugins.module_utils import additions, stackrules, stacks
from ansible_collections.specdec.serving.plugins.plugin_utils import hosttools

TABLE = Path(__file__).resolve().parents[1] / "plugins" / "module_utils" / "data" / "stacks.yml"

#: What a release's own line holds; the rest holds on until a later release changes it.
OWN = ("torch", "torch_for", "flashinfer", "kernel")
#: In the order in which they are written.
SINCE = ("python", "wheels", "glibc", "lanes", "native", "kernel_name", "cubin", "algorithms", "extras")

#: What those say that were not there before.
_NONE: dict[str, t.Any] = {"wheels": [], "extras": {}, "algorithms": []}

#: What carries CUDA's version in torch's requirements.
_CUDA = re.compile(r"cuda-toolkit|nvidia-cuda-runtime(-cu\d+)?")

Rows = t.Mapping[str, t.Any]


class Refused(Exception):
    """What was asked for cannot be done; the text says why."""


# What upstream published


def published(index: Index, tables: Rows, engine: str, version: str) -> dict[str, t.Any]:
    """A release as the tables would say it. Raises Unreachable, and Refused where the index does not hold it."""
    rows = tables["engines"][engine]
    wheels = _of(index, engine, version)
    if not wheels:
        raise Refused("the index holds no wheel of %s %s" % (engine, version))
    metadata = index.metadata(wheels[0])
    requires = _requires(metadata, tables["machines"][0])
    pinned = {name: _exact(one) for name, one in requires.items()}
    kernel = next((name for name in rows["kernels"] if name in pinned), None)
    row: dict[str, t.Any] = {
        "python": _specifier(metadata["Requires-Python"] or ""),
        "glibc": _glibc(index, tables["machines"], {engine: version, **_named(pinned, "torch", "flashinfer-python", kernel)}),
        "native": torch_lane(index, pinned["torch"], tables["machines"][0]),
        "cubin": "flashinfer-cubin" in pinned,
        "extras": {name: ",".join(sorted(one.extras)) for name, one in sorted(requires.items()) if one.extras},
        "torch": pinned["torch"],
        "flashinfer": pinned["flashinfer-python"],
    }
    compiled = {python for wheel in wheels for python in wheel.pythons()}
    if compiled:
        row["wheels"] = sorted(compiled, key=stackrules.ordered)
    if kernel:
        row.update(kernel_name=kernel, kernel=pinned[kernel])
    if "algorithms_in" in rows:
        where = rows["algorithms_in"]
        row["algorithms"] = sorted({*_algorithms(index.member(wheels[0], re.escape(where["file"])), where), *where["aliases"]} - {"NONE"})
    row["lanes"] = [row["native"], *_cpu(index, tables, engine, version, row)]
    return row


def _algorithms(source: bytes, where: Rows) -> set[str]:
    """The algorithms that an enumeration or a Literal names, in capitals; what is an alias of one for a single model is left out."""
    known = {name.upper() for name in additions.members(source, where["class"]) or additions.literals(source, where["class"])}
    return {name for name in known if not re.search(where.get("except", "(?!)"), name)}


def _cpu(index: Index, tables: Rows, engine: str, version: str, row: dict[str, t.Any]) -> list[str]:
    """The lane cpu where the release has one; where that is a distribution of its own, its torch is noted."""
    own = tables["engines"][engine].get("cpu")
    if own is None or "package" not in own:
        return ["cpu"] if own is not None else []
    wheels = _of(index, own["package"], version)
    if not wheels:
        return []
    torch = _exact(_requires(index.metadata(wheels[0]), tables["machines"][0])["torch"]).partition("+")[0]
    if torch != row["torch"]:
        row["torch_for"] = {"cpu": torch}
    return ["cpu"]


def torch_lane(index: Index, version: str, machine: str) -> str:
    """For which lane the index's torch was built for a machine. Raises Unreachable, Refused."""
    wheels = [wheel for wheel in _of(index, "torch", version) if wheel.glibc(machine)]
    if not wheels:
        raise Refused("the index holds no torch %s for %s" % (version, machine))
    for name, one in _requires(index.metadata(wheels[0]), machine).items():
        found = re.match(r"(\d+)\.(\d+)", _exact(one)) if _CUDA.fullmatch(name) else None
        if found:
            return "cu%s%s" % found.groups()
    return "cpu"


def _of(index: Index, package: str, version: str) -> list[Wheel]:
    return [wheel for wheel in index.wheels(package) if wheel.version == Version(version)]


def _requires(metadata: t.Any, machine: str) -> dict[str, Requirement]:
    """What a release requires without extras on Linux, by name."""
    environment = {"platform_machine": machine, "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "extra": ""}
    found = {}
    for line in metadata.get_all("Requires-Dist") or ():
        one = Requirement(line)
        if one.marker is None or one.marker.evaluate({**environment, "python_version": "3.12", "python_full_version": "3.12.3"}):
            found[stackrules.normal(one.name)] = one
    return found


def _exact(one: Requirement) -> str:
    """The version that a requirement pins, empty where it is a range."""
    return next((each.version for each in one.specifier if each.operator == "=="), "")


def _named(pinned: Rows, *names: t.Optional[str]) -> dict[str, str]:
    return {name: pinned[name] for name in names if name and pinned.get(name)}


def _specifier(text: str) -> str:
    """A range of versions with its lower bound first."""
    return ",".join(sorted(map(str, SpecifierSet(text)), key=lambda one: (not one.startswith(">"), one)))


def _glibc(index: Index, machines: t.Sequence[str], packages: t.Mapping[str, str]) -> str:
    """The newest glibc that the pinned packages ask for, over all machines."""
    asked = []
    for package, version in packages.items():
        for machine in machines:
            takes = [one for one in (wheel.glibc(machine) for wheel in _of(index, package, version)) if one is not None]
            if not takes:
                raise Refused("the index holds no wheel of %s %s for %s" % (package, version, machine))
            asked.append(min(takes, key=stackrules.ordered))
    return max(asked, key=stackrules.ordered)


# Comparing


@dataclasses.dataclass(frozen=True)
class Line:
    """What is said of a row: ``verdict`` is equal, drift or not reachable."""

    row: str
    verdict: str
    words: str = ""

    def text(self) -> str:
        """For a person."""
        return "%-14s %s%s" % (self.verdict, self.row, ": " + self.words if self.words else "")


def check(index: Index, tables: Rows, extra: t.Callable[[str], Index] = Index) -> list[Line]:
    """Every row against the indexes; :param extra: makes the index of an address in the tables."""
    jobs: list[tuple[str, t.Callable[[], str]]] = []
    for engine in tables["engines"]:
        jobs += [("%s %s" % (engine, one), _job(_release, index, tables, engine, one)) for one in stacks.releases(tables, engine)]
    jobs += [("torch %s" % one, _job(_torch, index, tables, one)) for one in tables["torch"]]
    jobs.append(("newest_cubin", _job(_cubin, index, tables)))
    for lane, row in tables["lanes"].items():
        for one in row["indexes"]:
            for package in one["packages"]:
                wanted = _labelled(tables, lane, package)
                jobs.append(("lane %s, %s: %s" % (lane, one["name"], package), _job(_extra, extra(one["url"]), package, wanted)))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda job: _line(*job), jobs))


def _job(function: t.Callable[..., str], *arguments: t.Any) -> t.Callable[[], str]:
    return lambda: function(*arguments)


def _line(row: str, job: t.Callable[[], str]) -> Line:
    try:
        drift = job()
    except Unreachable as error:
        return Line(row, "not reachable", str(error))
    except Refused as error:
        return Line(row, "drift", str(error))
    return Line(row, "drift" if drift else "equal", drift)


def _release(index: Index, tables: Rows, engine: str, version: str) -> str:
    row = stacks.release(tables, engine, version)
    return "; ".join(differences(row, published(index, tables, engine, version)))


def differences(row: Rows, found: Rows) -> list[str]:
    """What a row of the tables says otherwise than the index. A lane more than the native one is the tables' own affair."""
    wrong = []
    for key in (*OWN, *SINCE):
        told, says = row.get(key) or None, found.get(key) or None
        if key == "lanes":
            told, says = sorted({*told} & {*says, "cpu"}), sorted(says)
        if key == "python":
            told, says = _specifier(told or ""), _specifier(says or "")
        if told != says:
            wrong.append("%s: the table says %s, the index %s" % (key, flow(told), flow(says)))
    return wrong


def _torch(index: Index, tables: Rows, version: str) -> str:
    found = {machine: torch_lane(index, version, machine) for machine in tables["machines"]}
    return "" if found == tables["torch"][version] else "the table says %s, the index %s" % (flow(tables["torch"][version]), flow(found))


def _cubin(index: Index, tables: Rows) -> str:
    newest = max((one.version for one in index.wheels("flashinfer-cubin") if not one.version.is_prerelease), default=None)
    return "" if str(newest) == tables["newest_cubin"] else "the table says %s, the index %s" % (tables["newest_cubin"], newest)


def _extra(index: Index, package: str, wanted: t.Sequence[str]) -> str:
    held = {str(wheel.version) for wheel in index.wheels(package)}
    absent = [one for one in wanted if one not in held]
    return "holds no %s" % ", ".join(absent) if absent else ""


def _labelled(tables: Rows, lane: str, package: str) -> list[str]:
    """The versions of a package that stacks of a lane take from the lane's own index."""
    label = tables["lanes"][lane].get("label", lane)
    wanted = set()
    for engine in tables["engines"]:
        for version in stacks.releases(tables, engine):
            row = stacks.release(tables, engine, version)
            if lane not in row["lanes"]:
                continue
            torch = row.get("torch_for", {}).get(lane, row["torch"])
            if package == "torch" and any(build != label for build in tables["torch"][torch].values()):
                wanted.add("%s+%s" % (torch, label))
            if package == row.get("kernel_name") and label != row["native"] and "kernel" not in tables["lanes"][lane].get("lacks", ()):
                wanted.add("%s+%s" % (row["kernel"], label))
    return sorted(wanted, key=Version)


# Adding


def add(index: Index, text: str, engine: str, version: str, today: str) -> str:
    """The table with one release more; its comments and its order stay. Raises Unreachable, Refused."""
    tables = yaml.safe_load(text)
    if engine not in tables["engines"]:
        raise Refused("there is no engine %s; known are %s" % (engine, ", ".join(tables["engines"])))
    try:
        Version(version)
    except InvalidVersion:
        raise Refused("%s is no version" % version) from None
    known = stacks.releases(tables, engine)
    if version in known:
        raise Refused("the table has %s %s already" % (engine, version))
    found = published(index, tables, engine, version)
    before = stackrules.merged(tables, engine, version)
    changed = {key: found.get(key, _NONE.get(key)) for key in SINCE if _changes(key, before, found)}
    row = {**{key: found[key] for key in OWN if key in found}, "source": "metadata", "read": today}
    path = ["engines", engine]
    text = insert(text, [*path, "releases"], version, " " + flow(row))
    later = [one for one in known if Version(one) > Version(version)]
    if changed:
        text = _hold(text, [*path, "since"], version, changed)
    if changed and later:
        # What changes here held for the next release in another way.
        kept = {key: before.get(key, _NONE.get(key)) for key in changed if key not in tables["engines"][engine]["since"].get(later[0], {})}
        text = _hold(text, [*path, "since"], later[0], kept)
    for torch in {found["torch"], *found.get("torch_for", {}).values()} - {*tables["torch"]}:
        builds = {machine: torch_lane(index, torch, machine) for machine in tables["machines"]}
        text = insert(text, ["torch"], torch, " " + flow(builds))
    return text


def _changes(key: str, before: Rows, found: Rows) -> bool:
    if key == "lanes":
        return {*found["lanes"]} != {*before.get("lanes", ())} & {*found["lanes"], "cpu"}
    if key == "python":
        return SpecifierSet(before.get(key, "")) != SpecifierSet(found[key])
    return (before.get(key) or None) != (found.get(key) or None)


def _hold(text: str, path: t.Sequence[str], version: str, values: Rows) -> str:
    """Let values hold since a version."""
    if not values:
        return text
    node = _node(text, path)
    lines = [(key, flow(value)) for key, value in values.items()]
    keys = {key.value: value for key, value in node.value}
    if version not in keys:
        margin = " " * (node.value[0][0].start_mark.column + 2)
        return insert(text, path, version, "".join("\n%s%s: %s" % (margin, *line) for line in lines))
    margin = " " * keys[version].value[0][0].start_mark.column
    all_lines = text.splitlines(keepends=True)
    at = _last_line(keys[version]) + 1
    all_lines[at:at] = ["%s%s: %s\n" % (margin, *line) for line in lines]
    return "".join(all_lines)


def insert(text: str, path: t.Sequence[str], version: str, value: str) -> str:
    """The text with a line more in a mapping whose keys are versions, at its place."""
    node = _node(text, path)
    before = [pair for pair in node.value if Version(pair[0].value) < Version(version)]
    at = _last_line(before[-1][1]) + 1 if before else node.value[0][0].start_mark.line
    lines = text.splitlines(keepends=True)
    lines[at:at] = ['%s"%s":%s\n' % (" " * node.value[0][0].start_mark.column, version, value)]
    return "".join(lines)


def _node(text: str, path: t.Sequence[str]) -> yaml.MappingNode:
    node = yaml.compose(text, yaml.SafeLoader)
    for name in path:
        node = next(value for key, value in node.value if key.value == name)
    return node


def _last_line(node: yaml.Node) -> int:
    """The line that a value ends on; a mapping in blocks would count the comments below it as its own."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style:
        return _last_line(node.value[-1][1])
    if isinstance(node, yaml.SequenceNode) and not node.flow_style:
        return _last_line(node.value[-1])
    return node.end_mark.line


def flow(value: t.Any) -> str:
    """YAML on one line; words bare, all else quoted."""
    if isinstance(value, dict):
        return "{%s}" % ", ".join("%s: %s" % (flow(key), flow(one)) for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return "[%s]" % ", ".join(map(flow, value))
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    return value if re.fullmatch(r"[A-Za-z][\w-]*", value) else '"%s"' % value


def main(arguments: t.Sequence[str]) -> int:
    """Check or add; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check")
    adding = commands.add_parser("add")
    adding.add_argument("engine")
    adding.add_argument("version")
    options = parser.parse_args(arguments)
    try:
        index = Index(default_index(hosttools.find_uv()))
        text = TABLE.read_text(encoding="utf-8")
        if options.command == "add":
            TABLE.write_text(add(index, text, options.engine, options.version, datetime.date.today().isoformat()), encoding="utf-8")
            print(
                "%s: %s %s is added; `git diff` shows it, `make stacks-check` compares it" % (TABLE.name, options.engine, options.version)
            )
            return 0
        lines = check(index, yaml.safe_load(text))
    except (Unreachable, Refused) as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(line.text() for line in lines))
    counts = {verdict: sum(line.verdict == verdict for line in lines) for verdict in ("equal", "drift", "not reachable")}
    print(", ".join("%d %s" % (count, verdict) for verdict, count in counts.items()))
    return 1 if counts["drift"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
