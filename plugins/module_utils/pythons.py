# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which Python environments are built with: the system's, one under a prefix, or one that uv installs under the root.

What uv installs comes from where its metadata says (or a mirror of that), or from an archive of the wheelhouse. Each installation has a
directory of its own and is never written again: environments link into it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import secrets
import shutil
import sys
import sysconfig
import typing as t
import urllib.parse
from pathlib import Path

from . import networks, schema
from .findings import ERROR, OK, Finding, FindingError
from .layout import MARKER, Layout
from .releases import write_durably
from .runners import Completed, Progress, Runner

SYSTEM, PREFIX, MANAGED, WHEELHOUSE = SOURCES = ("system", "prefix", "managed", "wheelhouse")

VARIABLE = "specdec_python"

#: Asked of an interpreter through its own ``-c``.
_FACTS = (
    "import json,os,platform,sys,sysconfig;"
    "print(json.dumps({'version':platform.python_version(),'implementation':sys.implementation.name,"
    "'build':sys.version,'headers':os.path.exists(os.path.join(sysconfig.get_path('include'),'Python.h'))}))"
)
_SYSTEM_DIRECTORIES = ("/usr/bin", "/usr/local/bin")

_OPTIONS = {
    "source": schema.Option(str, choices=SOURCES),
    "version": schema.Option(str, pattern=r"3\.\d+(\.\d+)?", words='a version such as "3.12" or "3.12.4", in quotes'),
    "prefix": schema.Option(str, pattern=r"/.*", words="an absolute path on the host"),
    "mirror": schema.Option(str, pattern=r"(https?|file)://[^\s@]+", words="an address without credentials"),
    "downloads": schema.Option(str, pattern=r"(https?|file)://[^\s@]+|/.*", words="an address without credentials, or a file"),
}
#: Options that only one source has.
_BELONGS = {"prefix": (PREFIX,), "mirror": (MANAGED,), "downloads": (MANAGED, WHEELHOUSE)}

#: uv's words → check, message, way out; the first that fits. Words as of uv 0.13, tried 2026-11-30.
_FAILURES: tuple[tuple[str, str, str, str], ...] = (
    ("No space left on device|Disk quota", "disk", "the file system is full", "free some space on the file system of the root directory"),
    (
        "Hash mismatch",
        "hash",
        "the archive is not the one that its metadata names",
        "find out who changed it: the mirror, the wheelhouse or what is between",
    ),
    (
        "unsafe (member|symbolic|hard)|parent-directory",
        "archive",
        "the archive holds a path that leaves its directory",
        "do not use that source",
    ),
    ("Failed to extract|Invalid tar", "archive", "the archive is damaged", "look at the source of it, then run the deploy again"),
    ("No download found", "version", "the source has no such Python", "name a version in specdec_python.version that the source has"),
    (
        "does not match the expected format",
        "mirror",
        "the mirror stands for another place than the metadata names",
        "leave out specdec_python.mirror, or name metadata in specdec_python.downloads that the mirror was made from",
    ),
    (
        "Unable to parse the JSON|downloads json",
        "downloads",
        "the metadata of downloads cannot be read",
        "check specdec_python.downloads: it has to be in the form of uv's own download-metadata.json",
    ),
    ("404 Not Found", "mirror", "the mirror does not have the archive", "check specdec_python.mirror, or choose another version"),
)


@dataclasses.dataclass(frozen=True)
class Wanted:
    """``specdec_python``, read."""

    source: str = SYSTEM
    version: str = ""
    prefix: str = ""
    mirror: str = ""
    downloads: str = ""

    @property
    def minor(self) -> t.Optional[str]:
        """``3.12``; None where none is wanted in particular."""
        return ".".join(self.version.split(".")[:2]) or None

    def fits(self, version: str) -> bool:
        """Whether an interpreter's version is the wanted one."""
        return not self.version or version == self.version or version.startswith(self.version + ".")

    def described(self) -> str:
        """For a person: ``managed Python 3.12``."""
        return " ".join(part for part in (self.source, "Python", self.version) if part)


@dataclasses.dataclass(frozen=True)
class Choice:
    """The interpreters to choose a stack's from, as gathered; or the one to install first, without a path, and how."""

    interpreters: t.Sequence[t.Mapping[str, t.Any]]
    findings: t.Sequence[Finding] = ()
    job: t.Optional[t.Mapping[str, t.Any]] = None
    archive: t.Optional[t.Mapping[str, t.Any]] = None


def wanted(value: t.Union[str, t.Mapping[str, t.Any]]) -> Wanted:
    """The variable as written; it has to pass :func:`check`."""
    return Wanted(version=value) if isinstance(value, str) else Wanted(**{name: one for name, one in value.items() if one})


def check(host: str, value: t.Union[str, t.Mapping[str, t.Any]]) -> list[Finding]:
    """What is wrong with ``specdec_python``; :param host: inventory name, for the findings."""
    written = {"version": value} if isinstance(value, str) and value else dict(value or {})
    found = schema.check_mapping(host, VARIABLE, written, _OPTIONS)
    if found:
        return found
    source = written.get("source") or SYSTEM
    for option, sources in _BELONGS.items():
        if written.get(option) and source not in sources:
            fix = "leave it out, or set %s.source: %s" % (VARIABLE, " or ".join(sources))
            found.append(_finding("value", host, "goes with another source", source, " or ".join(sources), fix=fix, option="." + option))
    needed = {PREFIX: "prefix", MANAGED: "version", WHEELHOUSE: "version"}.get(source)
    if needed and not written.get(needed):
        fix = "set %s.%s" % (VARIABLE, needed)
        found.append(_finding("value", host, "is not set", "nothing", _OPTIONS[needed].words, fix=fix, option="." + needed))
    return found


def _finding(
    check: str, host: str, message: str, found: str = "", expected: str = "", evidence: str = "", fix: str = "", option: str = ""
) -> Finding:
    return Finding("python." + check, ERROR, "%s%s on %s" % (VARIABLE, option, host), message, found, expected, evidence, fix=fix)


# On the controller


def choose(
    asked: Wanted,
    state: t.Mapping[str, t.Any],
    host: str,
    archives: t.Optional[t.Sequence[t.Mapping[str, t.Any]]] = None,
) -> Choice:
    """What to build with on a host.

    :param state: as gathered.
    :param archives: those of the wheelhouse (see :func:`archive`); None where there is no wheelhouse.
    """
    here = [one for one in state["pythons"] if one.get("source", SYSTEM) == asked.source]
    fitting = [one for one in here if asked.fits(one["version"])]
    if fitting or (asked.source == SYSTEM and not asked.version):
        return Choice(fitting)
    try:
        if asked.source in (SYSTEM, PREFIX):
            raise FindingError(_absent(asked, here, host))
        kept = _of_wheelhouse(asked, state["os"]["machine"], host, archives) if asked.source == WHEELHOUSE else None
        rows = _of_file(asked, state["os"]["machine"], host) if asked.downloads.startswith("/") and not kept else None
    except FindingError as error:
        return Choice((), [error.finding])
    job = {
        "source": asked.source,
        "version": asked.version,
        "host": host,
        "mirror": asked.mirror,
        "downloads": "" if rows or kept else asked.downloads,
        "rows": rows or (kept and {kept["key"]: kept["row"]}) or {},
    }
    # what uv installs is CPython, and comes with its headers; both are proven before it counts
    planned = {"version": asked.version, "implementation": "cpython", "headers": True, "source": asked.source}
    return Choice([planned], (), job, kept)


def _absent(asked: Wanted, here: t.Sequence[t.Mapping[str, t.Any]], host: str) -> Finding:
    found = ", ".join(one["version"] for one in here) or "none"
    if asked.source == PREFIX:
        message = "holds no Python" if not here else "holds another Python"
        fix = "name the directory whose bin/ holds it, as it is on the host; or leave out the version"
        return _finding("prefix", host, message, found, "%s below %s/bin" % (asked.described(), asked.prefix), fix=fix, option=".prefix")
    fix = "install it on the host, or set %s: {source: managed, version: %r}" % (VARIABLE, asked.version)
    return _finding("absent", host, "is not on the host", found, asked.described(), "looked in %s" % ", ".join(_SYSTEM_DIRECTORIES), fix)


def _of_wheelhouse(
    asked: Wanted, machine: str, host: str, archives: t.Optional[t.Sequence[t.Mapping[str, t.Any]]]
) -> t.Mapping[str, t.Any]:
    fitting = [one for one in archives or () if one["machine"] == machine and asked.fits(one["version"])]
    if fitting:
        return max(fitting, key=lambda one: _ordered(one["version"]))
    found = "no specdec_wheelhouse" if archives is None else ", ".join("%(version)s for %(machine)s" % one for one in archives) or "none"
    fix = "fill it with playbooks/wheelhouse.yml, or choose another source"
    message = "the wheelhouse does not hold it"
    raise FindingError(_finding("wheelhouse", host, message, found, "Python %s for %s" % (asked.version, machine), fix=fix))


def _of_file(asked: Wanted, machine: str, host: str) -> dict[str, t.Any]:
    """Of a file with uv's metadata the one row that is wanted, by its key."""
    one = archive(metadata(asked.downloads, host), asked, machine, host)
    return {one["key"]: one["row"]}


def metadata(path: str, host: str) -> t.Mapping[str, t.Any]:
    """uv's metadata of the Pythons that can be downloaded, from a file on the controller. Raises FindingError (``python.downloads``)."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it is no mapping")
    except (OSError, ValueError) as error:
        fix = "name a file on the controller in the form of uv's own download-metadata.json, or its address"
        message = "the metadata of downloads cannot be read"
        raise FindingError(_finding("downloads", host, message, path, "JSON", str(error), fix, ".downloads")) from error
    return found


def archive(metadata: t.Mapping[str, t.Any], asked: Wanted, machine: str, host: str) -> dict[str, t.Any]:
    """The newest fitting archive that uv's metadata of downloads has.

    :returns: ``filename``, ``url``, ``sha256``, ``version``, ``machine``, and the metadata's own ``key`` and
        ``row``: what a wheelhouse keeps.

    Raises FindingError where there is none, or none with a hash.
    """
    found = []
    for key, row in metadata.items():
        version = "%(major)s.%(minor)s.%(patch)s" % row
        plain = row["name"] == "cpython" and not row.get("prerelease") and not row.get("variant")
        system = row["os"] == "linux" and row.get("libc") == "gnu" and row["arch"] == {"family": machine, "variant": None}
        if plain and system and asked.fits(version):
            found.append((_ordered(version), key, version, row))
    if not found:
        known = ", ".join(sorted({"%(major)s.%(minor)s" % row for row in metadata.values() if row["name"] == "cpython"}, key=_ordered))
        expected = "Python %s for %s" % (asked.version, machine)
        fix = "name a version that it has in specdec_python.version"
        raise FindingError(
            _finding("version", host, "the source has no such Python", known or "none", expected, fix=fix, option=".version")
        )
    _order, key, version, row = max(found, key=lambda one: one[0])
    if not row.get("sha256"):
        fix = "use metadata that has hashes"
        raise FindingError(_finding("hash", host, "the metadata has no hash of the archive", key, "sha256", fix=fix, option=".downloads"))
    filename = urllib.parse.unquote(urllib.parse.urlsplit(row["url"]).path.rpartition("/")[2])
    return {
        "filename": filename,
        "url": row["url"],
        "sha256": row["sha256"],
        "version": version,
        "machine": machine,
        "key": key,
        "row": row,
    }


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


# On the host


def gather(layout: Layout, runner: Runner, prefix: str = "") -> list[dict[str, t.Any]]:
    """The interpreters of a host: path, version, implementation, build, headers (whether they are there), source.

    :param prefix: a directory that is looked at besides.
    """
    places = [(path, SYSTEM) for directory in _SYSTEM_DIRECTORIES for path in sorted(Path(directory).glob("python3.[0-9]*"))]
    places += [(path, PREFIX) for path in sorted(Path(prefix).glob("bin/python3.[0-9]*"))] if prefix else []
    for marker in sorted(layout.python.glob("*/" + MARKER)):
        # its name begins with where it came from
        places += [(path, marker.parent.name.partition("-")[0]) for path in sorted(_installed(marker.parent))]
    found: dict[tuple[str, str], t.Optional[dict[str, t.Any]]] = {}
    known: dict[str, t.Optional[dict[str, t.Any]]] = {}
    for path, source in places:
        real = str(path.resolve())
        if path.name.rpartition(".")[2].isdigit():
            facts = known[real] = known[real] if real in known else _facts(real, runner)
            found[real, source] = facts and {"path": real, **facts, "source": source}
    return [one for one in found.values() if one]


def _installed(directory: Path) -> list[Path]:
    """The interpreters of an installation; uv leaves links to it beside it."""
    return [path for path in directory.glob("*/bin/python3.[0-9]*") if not path.parent.parent.is_symlink()]


def _facts(path: str, runner: Runner) -> t.Optional[dict[str, t.Any]]:
    if path == os.path.realpath(sys.executable):
        return {
            "version": platform.python_version(),
            "implementation": sys.implementation.name,
            "build": sys.version,
            "headers": os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")),
        }
    answer = runner([path, "-I", "-c", _FACTS], timeout=10)
    return json.loads(answer.stdout) if answer.rc == 0 else None


def install(spec: t.Mapping[str, t.Any], runner: Runner, progress: Progress) -> dict[str, t.Any]:
    """The python job: uv installs one Python into a directory of its own under the root.

    :param spec: root, ``host`` (its name), ``source``, ``version``, ``mirror`` and ``downloads`` (addresses or empty), ``rows`` (uv's
        metadata of what is wanted, where the controller has it), ``archive`` (path on this host of what the rows name, where it was sent);
        ``secret_files`` may name the network.
    :return: changed, findings (as dictionaries), ``path`` of the interpreter.

    Raises FindingError naming what went wrong; nothing is left at its place then.
    """
    layout = Layout(spec["root"])
    umask = os.umask(0o022)  # the service's user runs what root makes here
    try:
        for leftover in layout.python.glob("*/"):
            if not (leftover / MARKER).exists():
                shutil.rmtree(leftover)
        directory = layout.python / ("%s-%s-%s" % (spec["source"], spec["version"], secrets.token_hex(4)))
        directory.mkdir(parents=True)
        try:
            path, facts = _install(spec, layout, directory, runner, progress)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
    finally:
        os.umask(umask)
    done = Finding("python.complete", OK, "%s on %s" % (VARIABLE, spec["host"]), "is installed", facts["version"], evidence=path)
    return {"changed": True, "findings": [done.as_dict()], "path": path}


def _install(
    spec: t.Mapping[str, t.Any], layout: Layout, directory: Path, runner: Runner, progress: Progress
) -> tuple[str, t.Mapping[str, t.Any]]:
    network = networks.of_job(spec)
    environment = {
        "UV_PYTHON_INSTALL_DIR": str(directory),
        "UV_PYTHON_DOWNLOADS": "manual",
        "UV_CACHE_DIR": str(layout.uv_cache),
        "UV_NO_CONFIG": "1",
        "UV_NO_PROGRESS": "1",
        "UV_SYSTEM_CERTS": "1",
        **network.environment(),
    }
    downloads = spec["downloads"]
    if spec["rows"]:
        downloads = str(directory / "downloads.json")
        local = {"url": Path(spec["archive"]).as_uri()} if spec.get("archive") else {}
        write_durably(Path(downloads), json.dumps({key: {**row, **local} for key, row in spec["rows"].items()}))
    for name, value in (("UV_PYTHON_DOWNLOADS_JSON_URL", downloads), ("UV_PYTHON_INSTALL_MIRROR", spec["mirror"])):
        if value:
            environment[name] = value
    progress("python", "installing Python %s" % spec["version"])

    def tell(line: str) -> None:
        if line.strip():
            progress("python", network.hidden(line.strip()))

    answer = runner([str(layout.uv), "python", "install", "--no-bin", spec["version"]], env=environment, on_line=tell)
    if answer.rc != 0:
        raise FindingError(_explained(spec["host"], network, answer))
    path = next(iter(_installed(directory)), None)
    facts = _facts(str(path), runner) if path else None
    if not path or not facts or not wanted({"version": spec["version"]}).fits(facts["version"]):
        message = "what was installed is not the Python that was asked for"
        fix = "do not use that source"
        raise FindingError(_finding("version", spec["host"], message, str(facts), spec["version"], str(path), fix))
    if not facts["headers"]:
        fix = "use a source whose archives hold the headers (install_only does)"
        raise FindingError(_finding("headers", spec["host"], "what was installed has no headers", str(path), "Python.h", fix=fix))
    # the marker must not reach the disk before what it vouches for
    os.sync()
    write_durably(directory / MARKER, json.dumps({"version": facts["version"], "build": facts["build"], "rows": spec["rows"]}))
    return str(path), facts


def _explained(host: str, network: networks.Network, answer: Completed) -> Finding:
    words = network.hidden(answer.stdout + answer.stderr)
    for pattern, name, message, fix in _FAILURES:
        if re.search(pattern, words) and not (name == "downloads" and networks.diagnose(words, "")):
            return _finding(name, host, message, evidence=words.strip()[-800:], fix=fix)
    own = _finding(
        "failed", host, "uv could not install it", "exit status %d" % answer.rc, "", words.strip()[-800:], "look at the evidence"
    )
    return networks.diagnose(words, own.subject) or own
