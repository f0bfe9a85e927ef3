# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of stacks as a file: read, and what is wrong in it by file and line.

A wrong word in the table would be a wrong stack on a host, or a rule that never applies. So nothing
in it is optional to understand: every key and every value has to be one that is known here.
"""

from __future__ import annotations

import difflib
import re
import typing as t

from .findings import ERROR, Finding

#: What a value is checked by: it says what is allowed there, or nothing where it is good. Below it: nodes of its own.
_Check = t.Callable[[t.Any, "_Reader"], None]

_VERSION = r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?"
_NAME = r"[a-z0-9]+(-[a-z0-9]+)*"
_STRING = "tag:yaml.org,2002:str"
_BOOLEAN = "tag:yaml.org,2002:bool"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def load(text: str, file: str) -> tuple[t.Any, list[Finding]]:
    """The table, and the findings (``stack.table``) that forbid its use; None where it cannot be read at all.

    :param file: how findings name it.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        node = yaml.compose(text, loader)
        tables = yaml.load(text, loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "%s:%d" % (file, mark.line + 1) if mark else file
        words = str(getattr(error, "problem", None) or error)
        return None, [_finding(where, "this is no YAML", words, "YAML", "Mend the line, or the one above it.")]
    if node is None:
        return None, [_finding(file, "this file is empty", "nothing", "the table of stacks", "Restore the file.")]
    reader = _Reader(file)
    _table(tables)(node, reader)
    return tables, reader.found


def _finding(where: str, message: str, found: str, expected: str, fix: str) -> Finding:
    return Finding("stack.table", ERROR, where, message, found, expected, fix=fix)


class _Reader:
    """Collects what is wrong."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: list[Finding] = []

    def wrong(self, node: t.Any, message: str, expected: str, known: t.Iterable[str] = ()) -> None:
        """Note a fault; with ``known`` the nearest of them is proposed."""
        import yaml

        said = node.value if isinstance(node, yaml.ScalarNode) else {"mapping": "a mapping", "sequence": "a list"}.get(node.id, node.id)
        near = difflib.get_close_matches(str(said), list(known), 1)
        fix = "Write %s." % near[0] if near else "Write what is allowed there."
        self.found.append(_finding("%s:%d" % (self.file, node.start_mark.line + 1), message, str(said), expected, fix))


def _table(tables: t.Any) -> _Check:
    """The checks of the whole table; names that are defined in it are known by what it holds."""
    lanes, engines = _keys(tables, "lanes"), _keys(tables, "engines")
    torch = _keys(tables, "torch")
    labels = sorted({*lanes, *(str(row["label"]) for row in _rows(tables, "lanes") if "label" in row)})
    kernels = sorted({str(name) for row in _rows(tables, "engines") for name in row.get("kernels") or ()})
    parts = ["flashinfer"]
    version, name, lane = _text(_VERSION, "a version in quotes"), _text(_NAME, "a package's name"), _one_of("a lane", lanes)
    word, major = _text(r"\w+", "a name"), _text(r"\d+", "a major version in quotes")
    label, names, known_torch = _one_of("a label of a lane", labels), _list(name), _one_of("a version of torch in this file", torch)
    code = _list(_text(r"\d+\.\d+[af]?", "a compute capability in quotes"))
    machine = _one_of("a machine", ["x86_64", "aarch64"])
    builds = _mapping(_one_of("any or a machine", ["any", "x86_64", "aarch64"]), names)
    indexes = _list(_fields({"name": name, "url": _text(r"https://\S+", "an address"), "packages": names}))
    python = _list(_text(r"3\.\d+", "a minor version in quotes"))
    holds = {
        "python": _text(r"[<>=!~0-9.,* ]+", "a range of versions in quotes"),
        "wheels": python,
        "glibc": version,
        "lanes": _list(lane),
        "native": lane,
        "kernel_name": _one_of("a name of the kernel package", kernels),
        "capability": version,
        "cubin": _boolean,
        "algorithms": _list(_text(r"[A-Z][A-Z0-9_]*", "a name in capitals")),
        "extras": _mapping(name, _text(r"[a-z0-9,-]+", "extras")),
        "builds": builds,
    }
    release = {
        "torch": known_torch,
        "torch_for": _mapping(lane, known_torch),
        "flashinfer": version,
        "kernel": version,
        "source": _text(r".+", "where it was read"),
        "read": _text(r"\d{4}-\d\d-\d\d", "a date in quotes"),
    }
    named = {"file": _text(r"\S+\.py", "a file"), "class": word, "aliases": _list(word), "except": _text(r".+", "a pattern")}
    algorithms_in = _fields(named, ("file", "class", "aliases"))
    engine = {
        "kernels": names,
        "kernel_code": _mapping(label, _mapping(_one_of("any or a machine", ["any", "x86_64", "aarch64"]), code)),
        "algorithms_in": algorithms_in,
        "since": _mapping(version, _fields(holds, ())),
        "cpu": _fields({"package": name, "requirements": names, "excludes": names}, ()),
        "releases": _mapping(version, _fields(release, ("torch", "flashinfer", "source", "read"))),
    }
    row = {
        "disk": _number,
        "cuda": version,
        "label": _text(r"cpu|cu\d+", "a label"),
        "exact": _list(_one_of("a part of a stack", ["torch", "flashinfer", "kernel"])),
        "lacks": _list(_one_of("a part of a stack", ["flashinfer", "kernel", "cuda"])),
        "driver": version,
        "driver_for": _mapping(major, version),
        "toolkit_driver": version,
        "indexes": indexes,
    }
    jit_cache = {"label": label, "since": version, "any": code, "aarch64": code, "x86_64": code}
    return _fields(
        {
            "machines": _list(machine),
            "glibc": _list(version),
            "parts": _mapping(_one_of("a part", parts), names),
            "newest_cubin": version,
            "lane_family": _fields({"names": _list(_text(r"[a-z0-9.*-]+", "a pattern of names")), "except": names}),
            "flashinfer_cuda": _list(_fields({"since": version, "capability": major, "cuda": version})),
            "jit_cache": _list(_fields(jit_cache, ("label", "since", "any"))),
            "torch": _mapping(version, _mapping(machine, _one_of("a label of a lane", labels))),
            "lanes": _mapping(name, _fields(row, ("disk", "indexes"))),
            "engines": _mapping(_one_of("an engine", engines), _fields(engine, ("kernels", "since", "releases"))),
        }
    )


def _keys(tables: t.Any, name: str) -> list[str]:
    rows = tables.get(name) if isinstance(tables, dict) else None
    return [str(key) for key in rows] if isinstance(rows, dict) else []


def _rows(tables: t.Any, name: str) -> list[dict[str, t.Any]]:
    rows = tables.get(name) if isinstance(tables, dict) else None
    return [row for row in rows.values() if isinstance(row, dict)] if isinstance(rows, dict) else []


def _text(pattern: str, words: str) -> _Check:
    def check(node: t.Any, reader: _Reader) -> None:
        if node.tag != _STRING or not re.fullmatch(pattern, node.value):
            reader.wrong(node, "this is not %s" % words, words)

    return check


def _one_of(words: str, known: t.Sequence[str]) -> _Check:
    def check(node: t.Any, reader: _Reader) -> None:
        if node.tag != _STRING or node.value not in known:
            reader.wrong(node, "this is not %s" % words, ", ".join(known), known)

    return check


def _boolean(node: t.Any, reader: _Reader) -> None:
    if node.tag != _BOOLEAN:
        reader.wrong(node, "this is neither true nor false", "true, false", ["true", "false"])


def _number(node: t.Any, reader: _Reader) -> None:
    if node.tag not in _NUMBERS:
        reader.wrong(node, "this is no number", "a number")


def _list(each: _Check) -> _Check:
    def check(node: t.Any, reader: _Reader) -> None:
        if node.id != "sequence":
            reader.wrong(node, "this is no list", "a list")
            return
        for one in node.value:
            each(one, reader)

    return check


def _mapping(key: _Check, value: _Check) -> _Check:
    def check(node: t.Any, reader: _Reader) -> None:
        for name, one in _pairs(node, reader):
            key(name, reader)
            value(one, reader)

    return check


def _fields(known: t.Mapping[str, _Check], required: t.Optional[t.Sequence[str]] = None) -> _Check:
    """A mapping of known keys, all of them required unless ``required`` names fewer."""

    def check(node: t.Any, reader: _Reader) -> None:
        pairs = _pairs(node, reader)
        for name, one in pairs:
            if name.value in known:
                known[name.value](one, reader)
            else:
                reader.wrong(name, "there is no such key", ", ".join(known), known)
        absent = {*(known if required is None else required)} - {name.value for name, _one in pairs}
        if absent and node.id == "mapping":
            reader.wrong(node, "a key is missing: %s" % ", ".join(sorted(absent)), ", ".join(known))

    return check


def _pairs(node: t.Any, reader: _Reader) -> list[tuple[t.Any, t.Any]]:
    """Keys and values of a mapping, each key once."""
    if node.id != "mapping":
        reader.wrong(node, "this is no mapping", "a mapping")
        return []
    seen: dict[str, t.Any] = {}
    for name, _one in node.value:
        if name.value in seen:
            reader.wrong(name, "this key is there twice, first in line %d" % (seen[name.value].start_mark.line + 1), "each key once")
        seen[name.value] = name
    return list(node.value)
