# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What holds of overlays for every tree and every path, tried with ones that nobody thought of."""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
import typing as t
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.specdec.serving.plugins.module_utils import bundles, captures, overlays, records
from ansible_collections.specdec.serving.plugins.module_utils.findings import FindingError

from . import overlaid, wheels

Tree = dict[str, bytes]

tried = settings(max_examples=60, deadline=None, derandomize=True, database=None)

#: Names that shells, globs and comparisons stumble over beside any that are printable.
NAMES = st.one_of(
    st.sampled_from(["a.py", "a b.py", "'q'.py", '"q".py', "[x].py", "$(x).py", "-r.py", "größe.py", "a.b.py", "data.json", "ß", "%s.py"]),
    st.text(st.characters(categories=["L", "N", "P", "S"], exclude_characters="/\\"), min_size=1, max_size=12),
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda parts: "/".join(["engine", *parts]))
CONTENT = st.one_of(st.binary(max_size=60), st.sampled_from([b"", b"x = 1\n", b"#!/bin/sh\n", b"a = 1\r\nb = 2\n", b"\xff\xfe"]))
TREES = st.dictionaries(PATHS, CONTENT, min_size=1, max_size=6)


def possible(tree: t.Mapping[str, bytes]) -> Tree:
    """What of a tree a package and its overlay may hold: no path is a directory of another, nothing is compiled or a leftover."""
    kept: Tree = {}
    for path, data in sorted(tree.items()):
        below = any(path.startswith(other + "/") for other in kept)
        if not below and bundles.is_plain(path) and not bundles.leftover(path) and not bundles.is_compiled(data):
            kept[path] = data
    return kept


@st.composite
def edits(draw: st.DrawFn) -> tuple[Tree, Tree]:
    """A package, and what a person made of it; no file stands where the package has a directory."""
    base = possible({**draw(TREES), "engine/core.py": b"C = 1\n"})
    gone = draw(st.sets(st.sampled_from(sorted(base))))
    changed = draw(st.dictionaries(st.sampled_from(sorted(base)), CONTENT))
    added = {path: data for path, data in draw(TREES).items() if not any(one.startswith(path + "/") for one in base)}
    return base, possible({**{path: data for path, data in base.items() if path not in gone}, **changed, **added})


@contextlib.contextmanager
def places() -> t.Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def lay(directory: Path, base: Tree, content: t.Optional[Tree] = None) -> Path:
    """A site-packages with a package, and with what it holds now."""
    site = wheels.venv(directory)
    wheels.install(site, "engine", "1", {"engine/__init__.py": b"", **base})
    for path in base if content is not None else ():
        if path not in content:
            (site / path).unlink()
    for path, data in (content or {}).items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(data)
    return site


def ours(site: Path) -> Tree:
    return {path: data for path, data in overlaid.content(site).items() if path.startswith("engine/")}


@given(edits())
@tried
def test_applying_what_was_captured_is_the_identity(trees: tuple[Tree, Tree]) -> None:
    with places() as top:
        reference, target = lay(top / "reference", *trees), lay(top / "target", trees[0])
        bundle = captures.capture(reference, "engine").bundle
        bundles.write_bundle(top / "kept", bundles.unpack(bundles.pack(bundle)))
        kept = bundles.read_bundle(top / "kept")
        assert kept == bundle
        changed = overlays.apply(kept, target)
        assert ours(target) == ours(reference)
        assert changed == [entry["path"] for entry in bundle.manifest["files"]]
        assert {one.verdict for one in overlays.audit([bundle.manifest], target)} == {"ok"}
        assert overlays.apply(kept, target) == []
        assert captures.capture(target, "engine").bundle.digest == bundle.digest


@given(edits())
@tried
def test_without_the_overlay_it_is_the_package_again_bit_for_bit(trees: tuple[Tree, Tree]) -> None:
    """An environment is undone by building the one beside it: of files that both share, as installers link them, none may change."""
    with places() as top:
        bundle = captures.capture(lay(top / "reference", *trees), "engine").bundle
        undone, target = lay(top / "undone", trees[0]), lay(top / "target", {})
        for path in records.tree(undone):
            (target / path).unlink(missing_ok=True)
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            os.link(undone / path, target / path)
        before = overlaid.content(undone)
        overlays.apply(bundle, target)
        assert overlaid.content(undone) == before
        state = records.verify(undone)
        assert (state.changed, state.missing, state.foreign) == ({}, {}, ())
        assert records.verify(target, overlay=overlays.expected([bundle.manifest])).changed == {}


@given(edits(), st.data())
@tried
def test_exactly_what_is_due_is_touched(trees: tuple[Tree, Tree], data: st.DataObject) -> None:
    """Whatever part of it was there already."""
    with places() as top:
        reference, target = lay(top / "reference", *trees), lay(top / "target", trees[0])
        bundle = captures.capture(reference, "engine").bundle
        paths = [entry["path"] for entry in bundle.manifest["files"]]
        there = data.draw(st.sets(st.sampled_from(paths))) if paths else set()
        for entry in bundle.manifest["files"]:
            if entry["path"] in there and entry["action"] == "delete":
                (target / entry["path"]).unlink()
            elif entry["path"] in there:
                overlays.replace(target / entry["path"], bundle.files[entry["path"]], int(entry["mode"], 8))
        untouched = {path: (target / path).stat().st_ino for path in ours(target) if path in there or path not in paths}
        assert overlays.apply(bundle, target) == [path for path in paths if path not in there]
        assert {path: (target / path).stat().st_ino for path in untouched} == untouched
        assert ours(target) == ours(reference)


def test_a_directory_in_a_files_place_is_finished_where_it_was_begun_and_refused_where_it_is_foreign() -> None:
    base, changed = {"engine/one.py": b"", "engine/core.py": b"C = 1\n"}, {"engine/one.py/a.py": b"A = 1\n", "engine/core.py": b"C = 1\n"}
    with places() as top:
        reference, target = lay(top / "reference", base, changed), lay(top / "target", base)
        bundle = captures.capture(reference, "engine").bundle
        (target / "engine" / "one.py").unlink()
        (target / "engine" / "one.py").mkdir()
        overlays.replace(target / "engine/one.py/a.py", b"A = 1\n", 0o644)
        assert overlays.apply(bundle, target) == []
        assert ours(target) == ours(reference)

        deleted = captures.capture(lay(top / "deleted", base, {"engine/core.py": b"C = 1\n"}), "engine").bundle
        with pytest.raises(FindingError) as caught:
            overlays.apply(deleted, target)
        assert caught.value.finding.id == "overlay.base-hash" and "engine/one.py" in caught.value.finding.found


def held(top: Path) -> Tree:
    """Every file, links apart."""
    return {path: (top / path).read_bytes() for path in records.tree(top) if not (top / path).is_symlink()}


HOSTILE = st.lists(st.one_of(st.sampled_from(["..", ".", "", "engine", "other", "link", "~", "/etc", "a.py"]), NAMES), max_size=5)


@given(st.one_of(st.text(max_size=20), HOSTILE.map("/".join), HOSTILE.map(lambda parts: "engine/" + "/".join(parts))))
@settings(tried, max_examples=200)
def test_no_path_leads_out_of_the_package(path: str) -> None:
    with places() as top:
        site = lay(top / "venv", {"engine/a/b.py": b"1"})
        wheels.install(site, "other", "1", {"other/__init__.py": b""})
        (top / "outside").mkdir()
        (site / "engine/link").symlink_to(top / "outside")
        entry = {"path": path, "action": "add", "base": None, "result": wheels.sha256(b"x"), "mode": "0644"}
        manifest = {"schema": 1, "base": {"name": "engine", "version": "1"}, "python": "", "files": [entry]}
        whole = {**manifest, "digest": bundles.manifest_digest(manifest)}
        before = held(top)
        with contextlib.suppress(FindingError):
            overlays.apply(bundles.Bundle(whole, {path: b"x"}), site)
        new = held(top).items() - before.items()
        assert len(new) <= 1
        assert all((top / one).resolve().is_relative_to(site / "engine") for one, _content in new)
        assert before.keys() <= held(top).keys()
        assert os.listdir(top / "outside") == []


def leaves(value: t.Any, at: tuple[t.Any, ...] = ()) -> t.Iterator[tuple[t.Any, ...]]:
    """Where the scalars of a manifest are."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not isinstance(value, (dict, list)):
        yield at
    for key, one in items:
        yield from leaves(one, (*at, key))


@given(edits(), st.data())
@tried
def test_a_manifest_with_one_other_value_is_refused(trees: tuple[Tree, Tree], data: st.DataObject) -> None:
    with places() as top:
        bundle = captures.capture(lay(top, *trees), "engine").bundle
    manifest: t.Any = copy.deepcopy(dict(bundle.manifest))
    at = data.draw(st.sampled_from([one for one in leaves(manifest) if one[0] == "digest" or one[0] not in bundles.NOTES]))
    inside = manifest
    for key in at[:-1]:
        inside = inside[key]
    other = data.draw(st.one_of(st.none(), st.integers(), st.text(max_size=8)).filter(lambda value: value != inside[at[-1]]))
    inside[at[-1]] = other
    with pytest.raises(FindingError) as caught:
        bundles.unpack(bundles.pack(bundles.Bundle(manifest, bundle.files)))
    assert caught.value.finding.id in ("overlay.digest", "overlay.path", "overlay.binary")


LAYER = st.dictionaries(st.sampled_from(["engine/a", "engine/b", "engine/c"]), st.one_of(st.none(), CONTENT), min_size=1)


@given(st.lists(LAYER, max_size=4))
@tried
def test_the_last_layer_counts_and_the_report_names_each_that_it_replaced(wanted: list[dict[str, t.Optional[bytes]]]) -> None:
    content: dict[str, t.Optional[bytes]] = {"engine/a": b"1", "engine/b": b"2"}
    manifests = []
    for number, layer in enumerate(wanted):
        entries = []
        for path, data in layer.items():
            before = content.get(path)
            action = "delete" if data is None else "add" if before is None else "change"
            entries.append(bundles.entry(path, action, None if before is None else wheels.sha256(before), data))
            content[path] = data
        manifest = {"base": {"name": "engine", "version": "1"}, "python": str(number), "files": entries}
        manifests.append(bundles.seal(manifest, {}).manifest)
    last = overlays.expected(manifests)
    assert last == {path: None if content[path] is None else wheels.sha256(content[path] or b"") for path in last}
    report = overlays.layering(manifests)
    for path in last:
        chain = [one for one in report if one["path"] == path]
        layers = [manifest["digest"] for manifest in manifests if path in overlays.expected([manifest])]
        assert [one["layer"] for one in chain] == layers[len(layers) - len(chain) :]
        assert len(chain) >= len(layers) - 1
        for first, second in zip(chain, chain[1:]):
            assert (first["result"], first["layer"]) == (second["replaced"], second["replaces"])
        assert not chain or chain[-1]["result"] == last[path]
