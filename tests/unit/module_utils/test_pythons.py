# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a Python comes from: what may be written, what is there, and the real uv installing one from a mirror."""

from __future__ import annotations

import io
import json
import os
import platform
import sys
import sysconfig
import tarfile
import typing as t
from pathlib import Path

import pytest
import uv
from index import Index

from ansible_collections.specdec.serving.plugins.module_utils import pythons
from ansible_collections.specdec.serving.plugins.module_utils.findings import Finding, FindingError
from ansible_collections.specdec.serving.plugins.module_utils.layout import MARKER, Layout
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed
from ansible_collections.specdec.serving.plugins.plugin_utils import processes as runner

MACHINE = platform.machine()
VERSION = platform.python_version()
MINOR = "%d.%d" % sys.version_info[:2]


def archive(*left_out: str, extra: t.Optional[t.Mapping[str, bytes]] = None) -> bytes:
    """A stand-in for an archive of Python: what it holds tells the facts of the one that runs this, but for the headers."""
    facts = json.dumps({"version": VERSION, "implementation": "cpython", "build": sys.version})[:-1]
    header = "include/python%s/Python.h" % MINOR
    answer = '[ -e "$(dirname "$0")/../%s" ] && headers=true || headers=false\nprintf "%%s\\n" \'%s, "headers": \'$headers\'}\'\n'
    members = {
        "python/lib/python%s/_sysconfigdata__linux_%s-linux-gnu.py"
        % (MINOR, MACHINE): b"# system configuration generated and used by the sysconfig module\nbuild_time_vars = {}\n",
        "python/" + header: b"",
        "python/bin/python" + MINOR: ("#!/bin/sh\n" + answer % (header, facts)).encode(),
        **(extra or {}),
    }
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as whole:
        for name, content in members.items():
            if name not in left_out:
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), 0o755
                whole.addfile(entry, io.BytesIO(content))
    return written.getvalue()


def row(url: str, sha256: t.Optional[str], version: str = VERSION) -> dict[str, t.Any]:
    """A row of uv's metadata."""
    major, minor, patch = (int(part) for part in version.split("."))
    arch = {"family": MACHINE, "variant": None}
    plain = {"name": "cpython", "os": "linux", "libc": "gnu", "prerelease": "", "variant": None, "build": "20260101"}
    return {**plain, "arch": arch, "major": major, "minor": minor, "patch": patch, "url": url, "sha256": sha256}


def key(version: str = VERSION) -> str:
    return "cpython-%s-linux-%s-gnu" % (version, MACHINE)


class Mirror:
    """An index double that has an archive, and a host's root with uv."""

    def __init__(self, directory: Path) -> None:
        self.index = Index()
        self.layout = Layout(directory / "root")
        self.layout.bin.mkdir(parents=True)
        self.layout.uv.symlink_to(uv.find_uv_bin())
        self.told: list[str] = []

    def put(self, content: bytes, name: str = "cpython.tar.gz") -> dict[str, t.Any]:
        """Its row."""
        file = self.index.put(name, name, content)
        return row(self.index.link(file), file.sha256)

    def spec(self, **more: t.Any) -> dict[str, t.Any]:
        plain = {"source": "managed", "version": MINOR, "host": "ct200", "mirror": "", "downloads": "", "rows": {}}
        return {"root": str(self.layout.root), **plain, **more}

    def install(self, **more: t.Any) -> dict[str, t.Any]:
        return pythons.install(self.spec(**more), runner.run, lambda _stage, message, **_data: self.told.append(message))

    def refused(self, **more: t.Any) -> Finding:
        """The finding; what was there stays, and nothing is added."""
        before = self.there()
        with pytest.raises(FindingError) as caught:
            self.install(**more)
        assert self.there() == before
        assert caught.value.finding.subject.endswith("on ct200") and caught.value.finding.subject.startswith("specdec_python")
        return caught.value.finding

    def there(self) -> list[str]:
        return sorted(str(path) for path in self.layout.python.rglob("*"))


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> t.Iterator[Mirror]:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    made = Mirror(tmp_path)
    yield made
    made.index.close()


def test_uv_installs_into_a_directory_of_its_own_and_gather_finds_it(mirror: Mirror) -> None:
    result = mirror.install(rows={key(): mirror.put(archive())})
    assert result["changed"] and result["path"].startswith(str(mirror.layout.python / ("managed-%s-" % MINOR)))
    (done,) = result["findings"]
    assert (done["id"], done["verdict"], done["subject"]) == ("python.complete", "ok", "specdec_python on ct200")
    assert (done["found"], done["evidence"]) == (VERSION, result["path"])
    found = [one for one in pythons.gather(mirror.layout, runner.run) if one["source"] != "system"]
    assert [(one["path"], one["version"], one["build"], one["source"]) for one in found] == [
        (result["path"], VERSION, sys.version, "managed")
    ]
    again = mirror.install(rows={key(): mirror.put(archive(extra={"python/lib/newer": b""}))})
    assert again["path"] != result["path"] and not list(Path(result["path"]).parents[1].rglob("newer"))


def test_addresses_of_metadata_and_mirror_are_uvs_own(mirror: Mirror) -> None:
    upstream = "https://github.com/astral-sh/python-build-standalone/releases/download/"
    there = {**mirror.put(archive()), "url": upstream + "cpython.tar.gz"}
    metadata = mirror.index.put("downloads", "downloads.json", json.dumps({key(): there}).encode())
    assert mirror.install(downloads=mirror.index.link(metadata), mirror=mirror.index.origin + "/files")["changed"]


def test_an_archive_that_was_sent_is_installed_without_a_network(mirror: Mirror, tmp_path: Path) -> None:
    content = archive()
    wanted = {**mirror.put(content), "url": "https://nowhere.internal/cpython.tar.gz"}
    (tmp_path / "cpython.tar.gz").write_bytes(content)
    result = mirror.install(source="wheelhouse", rows={key(): wanted}, archive=str(tmp_path / "cpython.tar.gz"))
    assert "/wheelhouse-%s-" % MINOR in result["path"] and mirror.index.seen == []


def test_what_was_cut_short_is_removed_by_the_next(mirror: Mirror) -> None:
    (mirror.layout.python / "managed-3.9-dead").mkdir(parents=True)
    mirror.install(rows={key(): mirror.put(archive())})
    assert [(path / MARKER).exists() for path in mirror.layout.python.iterdir()] == [True]


def test_what_is_wrong_with_a_source_is_told_apart(mirror: Mirror) -> None:
    good = mirror.put(archive())
    assert mirror.refused(rows={key(): {**good, "sha256": "0" * 64}}).id == "python.hash"
    assert mirror.refused(rows={key(): good}, version="3.99").id == "python.version"
    assert mirror.refused(rows={key(): good}, mirror="https://mirror.internal").id == "python.mirror"
    assert mirror.refused(rows={key(): {**good, "url": good["url"] + ".gone.tar.gz"}}).id == "python.mirror"
    assert mirror.refused(rows={key(): {**good, "url": "http://127.0.0.1:9/cpython.tar.gz"}}).id == "network.unreachable"
    assert mirror.refused(downloads=good["url"]).id == "python.downloads"
    assert mirror.refused(downloads="http://127.0.0.1:9/downloads.json").id == "network.unreachable"
    assert mirror.refused(rows={key(): mirror.put(archive()[:-100], "cut.tar.gz")}).id == "python.archive"
    assert (
        mirror.refused(rows={key(): mirror.put(archive("python/include/python%s/Python.h" % MINOR), "bare.tar.gz")}).id == "python.headers"
    )
    other, version = mirror.put(archive(), "other.tar.gz"), MINOR + ".99"
    assert mirror.refused(rows={key(version): row(other["url"], other["sha256"], version)}, version=version).id == "python.version"


def test_a_full_disk_is_named_and_what_uv_prints_is_without_secrets(mirror: Mirror) -> None:
    def full(_argv: t.Sequence[str], **options: t.Any) -> Completed:
        options["on_line"]("Downloading https://me:secretWord@mirror.internal/cpython.tar.gz")
        return Completed(1, "error: Failed to extract archive\n  cause: No space left on device (os error 28)\n", "")

    with pytest.raises(FindingError) as caught:
        pythons.install(mirror.spec(), full, lambda _stage, message, **_data: mirror.told.append(message))
    assert caught.value.finding.id == "python.disk"
    assert "secretWord" not in "".join(mirror.told) and any("mirror.internal" in one for one in mirror.told)


def test_what_uv_says_that_nobody_knows_is_told_as_it_is(mirror: Mirror) -> None:
    with pytest.raises(FindingError) as caught:
        pythons.install(mirror.spec(), lambda *_words, **_options: Completed(3, "", "error: the moon is full\n"), lambda *_words: None)
    finding = caught.value.finding
    assert (finding.id, finding.verdict, finding.subject) == ("python.failed", "error", "specdec_python on ct200")
    assert (finding.found, finding.evidence) == ("exit status 3", "error: the moon is full") and finding.fix
    assert mirror.there() == []


@pytest.mark.parametrize(
    ("value", "option", "fix"),
    [
        ({"source": "managed", "prefix": "/usr/local"}, "prefix", "leave it out, or set specdec_python.source: prefix"),
        ({"mirror": "https://mirror.internal"}, "mirror", "leave it out, or set specdec_python.source: managed"),
        ({"source": "prefix"}, "prefix", "set specdec_python.prefix"),
        ({"source": "wheelhouse"}, "version", "set specdec_python.version"),
    ],
)
def test_options_have_to_go_together(value: dict[str, str], option: str, fix: str) -> None:
    found = {one.subject: one for one in pythons.check("ct200", value)}
    finding = found["specdec_python.%s on ct200" % option]
    assert (finding.id, finding.verdict, finding.fix) == ("python.value", "error", fix)


def test_an_archive_that_leaves_its_directory_is_refused(mirror: Mirror) -> None:
    finding = mirror.refused(rows={key(): mirror.put(archive(extra={"python/../../../escaped": b""}))})
    assert (finding.id, "leaves its directory" in finding.message) == ("python.archive", True)
    assert not list(mirror.layout.root.parent.rglob("escaped"))


def test_a_prefix_is_gathered(tmp_path: Path) -> None:
    (tmp_path / "prefix" / "bin").mkdir(parents=True)
    (tmp_path / "prefix" / "bin" / ("python" + MINOR)).symlink_to(os.path.realpath(sys.executable))
    (tmp_path / "prefix" / "bin" / ("python%s-config" % MINOR)).touch()
    found = pythons.gather(Layout(tmp_path / "root"), runner.run, str(tmp_path / "prefix"))
    (one,) = [one for one in found if one["source"] == "prefix"]
    assert (one["version"], one["implementation"], one["build"]) == (VERSION, sys.implementation.name, sys.version)
    assert one["headers"] == os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))


# On the controller

METADATA = {
    key(version): row("https://example.test/%s/cpython%%2Bx.tar.gz" % version, sha256, version)
    for version, sha256 in (("3.12.4", "a" * 64), ("3.12.10", "b" * 64), ("3.13.1", None))
}


def test_the_newest_archive_of_a_version_is_chosen() -> None:
    one = pythons.archive(METADATA, pythons.wanted({"source": "wheelhouse", "version": "3.12"}), MACHINE, "ct200")
    assert (one["version"], one["sha256"], one["filename"], one["key"]) == ("3.12.10", "b" * 64, "cpython+x.tar.gz", key("3.12.10"))


def test_metadata_in_a_file_is_judged_before_anything_is_done(tmp_path: Path) -> None:
    state = {"os": {"machine": MACHINE}, "pythons": []}
    (tmp_path / "downloads.json").write_text(json.dumps(METADATA))

    def chosen(version: str, file: str = "downloads.json") -> pythons.Choice:
        asked = {"source": "managed", "version": version, "downloads": str(tmp_path / file)}
        return pythons.choose(pythons.wanted(asked), state, "ct200")

    good = chosen("3.12.4")
    assert good.job is not None and list(good.job["rows"]) == [key("3.12.4")] and good.job["downloads"] == ""
    found = [*chosen("3.11").findings, *chosen("3.13").findings, *chosen("3.12", "gone.json").findings]
    assert [(one.id, one.subject) for one in found] == [
        ("python.version", "specdec_python.version on ct200"),
        ("python.hash", "specdec_python.downloads on ct200"),
        ("python.downloads", "specdec_python.downloads on ct200"),
    ]


def test_an_archive_of_the_wheelhouse_is_chosen() -> None:
    state = {"os": {"machine": MACHINE}, "pythons": [{"version": "3.12.1", "source": "system"}]}
    asked = pythons.wanted({"source": "wheelhouse", "version": "3.12"})
    held = [pythons.archive(METADATA, pythons.wanted(version), MACHINE, "") for version in ("3.12.4", "3.12.10")]
    choice = pythons.choose(asked, state, "ct200", held)
    assert choice.archive is held[1] and choice.job is not None and list(choice.job["rows"]) == [key("3.12.10")]
    (finding,) = pythons.choose(asked, state, "ct200", []).findings
    assert (finding.id, finding.expected) == ("python.wheelhouse", "Python 3.12 for " + MACHINE)


@pytest.mark.parametrize(
    ("value", "subject", "words"),
    [
        ("three", "version", ("a version such as",)),
        ({"version": 3.12}, "version", ("is not text",)),
        ({"source": "conda"}, "source", ("system, prefix, managed, wheelhouse",)),
        ({"sorce": "managed"}, "sorce", ("write source",)),
        ({"source": "managed"}, "version", ("is not set",)),
        ({"source": "wheelhouse"}, "version", ("is not set",)),
        ({"source": "prefix"}, "prefix", ("is not set",)),
        ({"prefix": "/opt/python"}, "prefix", ("goes with another source", "specdec_python.source: prefix")),
        ({"source": "prefix", "prefix": "/opt/python", "mirror": "https://m.internal"}, "mirror", ("goes with another source",)),
        ({"source": "managed", "version": "3.12", "mirror": "https://me:secret@m.internal"}, "mirror", ("without credentials",)),
    ],
)
def test_what_is_wrong_names_host_and_variable(value: t.Any, subject: str, words: tuple[str, ...]) -> None:
    (finding,) = pythons.check("ct200", value)
    assert finding.subject == "specdec_python.%s on ct200" % subject
    for word in words:
        assert word in finding.text()


def test_what_is_right_is_accepted() -> None:
    for value in ("", "3.12", {}, {"source": "prefix", "prefix": "/opt/python"}, {"source": "managed", "version": "3.12.4"}):
        assert pythons.check("ct200", value) == []
