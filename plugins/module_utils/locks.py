# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stack resolved to every package with its hashes.

A lock is requirements text that uv and pip install as it stands: no address of an index, no path.
Its first line carries, as JSON, what it was made from and which wheels are not from an index. It is
made on the controller, for the host's Python and platform, and checked before it is kept: a resolver
that is content is no evidence that the packages belong together. Of each package it accepts the one
file that this host takes, so that files for other machines, which may come any day, do not move its id.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sys
import tempfile
import typing as t
import zipfile
from pathlib import Path

from . import networks, parity, pylocks, stacks
from .findings import COULD_NOT_CHECK, ERROR, OK, Finding, FindingError
from .layout import SCHEMA, digest
from .runners import Completed, Runner

HEADER = "# specdec: "
_PACKAGE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;\\]+)((?:\s+--hash=sha256:[0-9a-f]{64})+)$")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")

#: What inputs hold beyond what decides the resolution: how to reach it, and what to check it against.
_NOT_IDENTITY = ("machine", "torch", "torch_builds", "flashinfer", "parts", "kernel", "kernels", "lacks", "package", "label")

#: Settings of uv that would make the same inputs give another lock on another controller, besides those that
#: an option on the command line replaces anyway.
_NEUTRAL = ("UV_CONSTRAINT", "UV_BUILD_CONSTRAINT", "UV_NO_BINARY_PACKAGE")

_TIMEOUT = 900.0


@dataclasses.dataclass(frozen=True)
class Package:
    """One package of a lock: normalised name, version with its local label, sorted sha256 sums."""

    name: str
    version: str
    hashes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Lock:
    """Packages by name, the identity of the inputs they came from, and the wheels that are local.

    :param wheels: per local wheel ``name``, ``version``, ``filename``, ``sha256``.
    :param sizes: by name the bytes of the file that the host takes, where that is known; part of no id.
    """

    packages: tuple[Package, ...]
    inputs: t.Mapping[str, t.Any]
    wheels: tuple[t.Mapping[str, str], ...] = ()
    sizes: t.Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def id(self) -> str:
        """The id over names, versions and accepted hashes; not over how the text is written."""
        return digest([[package.name, package.version, list(package.hashes)] for package in self.packages])

    @property
    def versions(self) -> dict[str, str]:
        """Version by name."""
        return {package.name: package.version for package in self.packages}

    def text(self) -> str:
        """The lock as it is kept and installed."""
        header = {"id": self.id, "inputs": self.inputs, "schema": SCHEMA, "sizes": dict(self.sizes), "wheels": list(self.wheels)}
        lines = [HEADER + json.dumps(header, sort_keys=True)]
        for package in self.packages:
            lines.append("%s==%s \\" % (package.name, package.version))
            lines += ["    --hash=sha256:%s \\" % value for value in package.hashes]
            lines[-1] = lines[-1][:-2]
        return "\n".join(lines) + "\n"


def inputs(stack: stacks.Stack, exclude_newer: str = "") -> dict[str, t.Any]:
    """What a lock is made from and checked against, as plain data.

    :param exclude_newer: a date; files that an index got later are not looked at.
    """
    data = json.loads(json.dumps(dataclasses.asdict(stack)))
    del data["interpreter"]
    return {**data, "schema": SCHEMA, "exclude_newer": exclude_newer}


def identity(wanted: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The part of the inputs that decides the resolution, without the addresses of indexes."""
    kept = {key: value for key, value in wanted.items() if key not in _NOT_IDENTITY}
    places = {name: digest(dict(source)) for name, source in wanted["sources"].items()}
    return {**kept, "indexes": [{"name": index["name"], "packages": index["packages"]} for index in wanted["indexes"]], "sources": places}


def file_name(wanted: t.Mapping[str, t.Any]) -> str:
    """Under which name the pins keep the lock of these inputs."""
    python = "cp" + wanted["python"].replace(".", "")
    parts = (wanted["engine"], wanted["version"], wanted["lane"], python, wanted["platform"], digest(identity(wanted)))
    return "-".join(parts) + ".txt"


def parse(text: str, subject: str = "lock") -> Lock:
    """Read a lock; :param subject: names it in the finding.

    Raises FindingError (``lock.unreadable``; ``lock.edited`` where the packages are not those of its id).
    """
    header: dict[str, t.Any] = {}
    first, _newline, rest = text.partition("\n")
    if first.startswith(HEADER):
        try:
            header = json.loads(first[len(HEADER) :])
        except ValueError as error:
            raise FindingError(_unreadable(subject, first[:80], str(error))) from error
    if not {"id", "inputs", "wheels"} <= set(header):
        raise FindingError(_unreadable(subject, first[:80], "the first line is not what specdec writes"))
    lock = Lock(_packages(rest, subject), header["inputs"], tuple(header["wheels"]), header.get("sizes", {}))
    if lock.id != header["id"]:
        raise FindingError(
            Finding(
                "lock.edited",
                ERROR,
                subject,
                "the lock was changed by hand",
                "packages with the id %s" % lock.id,
                header["id"],
                cause="The id in its first line is over its packages; one of them, or the id, was edited.",
                fix="Restore the file, or say what you want in specdec_pins and make the lock anew.",
            )
        )
    return lock


def diff(old: Lock, new: Lock) -> dict[str, t.Any]:
    """Packages that were added, removed, changed (old and new version), or only have other hashes."""
    before, after = old.versions, new.versions
    hashes = {package.name: package.hashes for package in old.packages}
    return {
        "added": {name: after[name] for name in sorted(after.keys() - before.keys())},
        "removed": {name: before[name] for name in sorted(before.keys() - after.keys())},
        "changed": {name: [before[name], after[name]] for name in sorted(before.keys() & after.keys()) if before[name] != after[name]},
        "rehashed": [one.name for one in new.packages if before.get(one.name) == one.version and hashes[one.name] != one.hashes],
    }


def check(lock: Lock, wanted: t.Mapping[str, t.Any]) -> list[Finding]:
    """Does the lock hold what the stack says, and do its packages belong together?

    What a resolver does not know: the parts of flashinfer, the two names of the kernel package, and for
    which CUDA a package was built.
    """
    lane, versions = wanted["label"], lock.versions
    label = _torch_lane(versions.get("torch", ""), wanted)
    found = [_pinned(versions, wanted)]
    if found[0].verdict == ERROR and "torch" in found[0].subject.split(", "):
        # for which lane that other torch was built, and what disagrees with it, follows
        versions, label = {**versions, "torch": wanted["torch"]}, lane
    else:
        found.append(_torch(versions, wanted, label))
    for one in parity.findings(versions, wanted["kernels"], wanted["lacks"], label or lane):
        fix = one.fix
        if one.id == "parity.flashinfer":
            fix = fix and 'Pin all its parts at once: specdec_pins: {flashinfer: "%s"}' % parity.public(
                versions.get("flashinfer-python", wanted["flashinfer"])
            )
        message = one.message.replace("installed", "in the lock")
        evidence = "packages of the lock for lane %s" % wanted["lane"]
        found.append(dataclasses.replace(one, message=message, evidence=evidence, fix=fix))
    return found


def wheel_directories(configured: t.Iterable[str], environ: t.Mapping[str, str]) -> list[Path]:
    """The local directories that hold wheels, in order of search: configured, uv's, pip's; each once."""
    named = [*configured, *environ.get("UV_FIND_LINKS", "").split(","), *environ.get("PIP_FIND_LINKS", "").split()]
    paths = [Path(re.sub(r"^file://", "", name.strip())).expanduser() for name in named if name.strip()]
    return list(dict.fromkeys(path.resolve() for path in paths if path.is_dir()))


def local_wheel(directories: t.Iterable[Path], name: str, version: str, python: str, machine: str) -> t.Optional[Path]:
    """The first wheel of exactly this version that fits Python (``3.12``) and machine."""
    from packaging.utils import canonicalize_name, parse_wheel_filename
    from packaging.version import Version

    for directory in directories:
        for path in sorted(directory.glob("*.whl")):
            if canonicalize_name(path.name.partition("-")[0]) != name:
                continue
            try:
                _name, found, _build, tags = parse_wheel_filename(path.name)
            except ValueError:
                continue
            if found == Version(version) and any(_fits(tag, python, machine) for tag in tags):
                return path
    return None


def locate(lock: Lock, directories: t.Sequence[Path]) -> tuple[dict[str, Path], list[Finding]]:
    """Where the local wheels of a lock lie on this controller, by sha256, and which are missing."""
    places: dict[str, Path] = {}
    missing = []
    for wheel in lock.wheels:
        candidates = [directory / wheel["filename"] for directory in directories]
        here = [path for path in candidates if path.is_file()]
        place = next((path for path in here if _sha256(path) == wheel["sha256"]), None)
        if place:
            places[wheel["sha256"]] = place
            continue
        message = "the wheel was built anew since the lock was made" if here else "a local wheel of the lock is not on this controller"
        missing.append(
            Finding(
                "lock.local-wheel",
                ERROR,
                wheel["filename"],
                message,
                ", ".join(str(path) for path in here) or "not in %s" % (", ".join(map(str, directories)) or "any directory"),
                "sha256 %s" % wheel["sha256"],
                fix="Put it into a directory of specdec_wheel_directories, or make the lock anew.",
            )
        )
    return places, missing


def pages(wanted: t.Mapping[str, t.Any], held: t.Container[str], among: t.Optional[t.Container[str]] = None) -> list[str]:
    """The pages of a lock's extra indexes, for resolving on the controller and for installing on a host.

    :param held: packages that lie in a local directory: no index is asked for them.
    :param among: leave out every other package.
    """
    return [
        "%s/%s/" % (index["url"].rstrip("/"), package)
        for index in wanted["indexes"]
        for package in index["packages"]
        if package not in held and package not in wanted["excludes"] and (among is None or package in among)
    ]


def lock(
    wanted: t.Mapping[str, t.Any],
    runner: Runner,
    uv: str,
    directories: t.Sequence[Path] = (),
    env: t.Optional[t.Mapping[str, str]] = None,
    user_config: bool = False,
) -> Lock:
    """Resolve inputs to a lock by uv; runs on the controller.

    :param wanted: see :func:`inputs`.
    :param uv: the program.
    :param directories: local directories with wheels (:func:`wheel_directories`); a wheel is taken
        from there when exactly its version is required or pinned.
    :param env: settings for uv, such as an index; they may hold secrets, so they go nowhere else.
    :param user_config: whether uv reads its configuration files.

    Raises FindingError where there is no such lock, saying which requirements clash or what is not there.
    """
    local = _pinned_wheels(wanted, directories)
    exact = {name: path.resolve().as_uri() for name, path in local.items()}
    for name, source in wanted["sources"].items():
        if "index" in source:
            exact[name] = _named_file(name, source["index"], wanted, runner, uv, settings([], env, user_config))
    with tempfile.TemporaryDirectory(prefix="specdec-lock-") as scratch:
        argv = _command(uv, wanted, exact, Path(scratch))
        done = runner(argv, env=settings(pages(wanted, exact), env, user_config), timeout=_TIMEOUT)
    if done.rc != 0:
        raise FindingError(_explained(done, wanted))
    files = _files(done.stdout, wanted)
    packages = tuple(Package(one.name, one.version, (one.sha256,)) for one in files)
    sizes = {one.name: local[one.name].stat().st_size if one.name in local else one.size for one in files}
    known = {name: size for name, size in sizes.items() if size is not None}
    return Lock(packages, identity(wanted), tuple(_local_record(packages, local)), known)


def settings(links: t.Iterable[str], env: t.Optional[t.Mapping[str, str]] = None, user_config: bool = False) -> dict[str, str]:
    """Environment variables for a uv that resolves: the same answer on every controller.

    :param links: directories and pages with wheels; :param env: see :func:`lock`.
    """
    return {
        **dict.fromkeys(_NEUTRAL, ""),
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_NO_PROGRESS": "1",
        "UV_SYSTEM_CERTS": "1",
        **({} if user_config else {"UV_NO_CONFIG": "1"}),
        **(env or {}),
        "UV_FIND_LINKS": ",".join(links),
    }


def target_options(wanted: t.Mapping[str, t.Any]) -> list[str]:
    """Options of uv that say for which host, and which files count."""
    argv = ["--python", sys.executable, "--python-version", wanted["python"], "--python-platform", wanted["platform"]]
    argv += ["--only-binary", ":all:"]
    for package in wanted["builds"]:
        argv += ["--no-binary", package]
    return argv + (["--exclude-newer", wanted["exclude_newer"]] if wanted["exclude_newer"] else [])


#: How uv resolves, and the form that has all that is needed of a file: its address, hash and size.
_RESOLUTION = ("--resolution", "highest", "--prerelease", "if-necessary-or-explicit")
_FORM = ("--format", "pylock.toml", "--no-header", "--no-annotate", "--color", "never")


def _command(uv: str, wanted: t.Mapping[str, t.Any], exact: t.Mapping[str, str], scratch: Path) -> list[str]:
    """:param exact: by package the address of its file: no index is asked for it then, and nobody's bound moves it."""
    overrides = [line for line in wanted["overrides"] if _name(line) not in exact]
    overrides += ["%s @ %s" % (_with_extras(name, wanted), address) for name, address in exact.items()]
    files = {}
    for name, lines in (("requirements", wanted["requirements"]), ("overrides", overrides), ("excludes", wanted["excludes"])):
        files[name] = scratch / (name + ".txt")
        files[name].write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    argv = [uv, "pip", "compile", "--quiet", str(files["requirements"])]
    argv += ["--overrides", str(files["overrides"]), "--excludes", str(files["excludes"])]
    return [*argv, *target_options(wanted), *_RESOLUTION, *_FORM]


def _named_file(name: str, index: str, wanted: t.Mapping[str, t.Any], runner: Runner, uv: str, env: t.Mapping[str, str]) -> str:
    """The address of the one file that a package's own index has for it; that index is asked for nothing else."""
    line = next(one for one in wanted["overrides"] if _name(one) == name)
    argv = [uv, "pip", "compile", "--quiet", "-", "--no-deps", "--no-index", *target_options(wanted), *_RESOLUTION, *_FORM]
    asked = {**env, "UV_FIND_LINKS": "%s/%s/" % (index.rstrip("/"), name)}
    done = runner(argv, stdin=re.sub(r"\[.*?\]", "", line) + "\n", env=asked, timeout=_TIMEOUT)
    if done.rc != 0:
        raise FindingError(dataclasses.replace(_explained(done, wanted), subject="specdec_pins.%s.index" % name))
    file = _files(done.stdout, wanted)[0]
    return "%s#sha256=%s" % (file.url, file.sha256)


def _files(text: str, wanted: t.Mapping[str, t.Any]) -> list[pylocks.File]:
    """The file that the host takes of each package that uv resolved."""
    ranked = pylocks.tags(wanted["python"], wanted["platform"])
    found = []
    for name, files in sorted(pylocks.read(text).items()):
        # what was given by its address was chosen already
        file = files[0] if len(files) == 1 else pylocks.taken(files, None, ranked)
        if file is None or not file.sha256:
            fix = "Put the file into a directory of specdec_wheel_directories, or pin it by url and sha256 in specdec_pins."
            evidence = ", ".join(one.filename for one in files)
            raise FindingError(Finding("lock.no-hash", ERROR, name, "the index gives no sha256 of its file", evidence=evidence, fix=fix))
        found.append(file)
    return found


def _with_extras(name: str, wanted: t.Mapping[str, t.Any]) -> str:
    """A package's name with what is asked of it besides its version."""
    lines = [line for line in (*wanted["requirements"], *wanted["overrides"]) if _name(line) == name]
    extras = re.search(r"\[.*?\]", lines[-1]) if lines else None
    return name + (extras.group(0) if extras else "")


def _name(line: str) -> str:
    """The normalised name of a requirement line."""
    return re.sub(r"[-_.]+", "-", _bare(line).strip()).lower()


def _packages(text: str, subject: str) -> tuple[Package, ...]:
    packages = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _PACKAGE.match(line.rstrip())
        if not match:
            raise FindingError(_unreadable(subject, line.strip()[:80], "neither a comment nor name==version with sha256 hashes"))
        packages.append(Package(_name(match.group("name")), match.group("version"), tuple(sorted(_HASH.findall(line)))))
    packages.sort(key=lambda package: package.name)
    return tuple(packages)


def _unreadable(subject: str, found: str, evidence: str) -> Finding:
    cause = "It was edited by hand, cut off, or is a file of another kind."
    expected = "name==version with hashes"
    return Finding("lock.unreadable", ERROR, subject, "this is no lock", found, expected, evidence, cause, "Make the lock anew.")


def _pinned_wheels(wanted: t.Mapping[str, t.Any], directories: t.Sequence[Path]) -> dict[str, Path]:
    """The local wheels of packages that are pinned to one version, by name.

    No other local wheel is shown to uv: what else lies there must not decide a lock. And no index is
    asked for what lies here.
    """
    from packaging.requirements import Requirement

    found = {}
    for line in [*wanted["requirements"], *wanted["overrides"]]:
        requirement, name = Requirement(line), _name(line)
        for exact in [one.version for one in requirement.specifier if one.operator == "=="]:
            path = local_wheel(directories, name, exact, wanted["python"], wanted["machine"])
            if path and name not in wanted["sources"]:
                found[name] = _whole(path)
    for name, source in wanted["sources"].items():
        if "sha256" in source:
            found[name] = _whole(_given_wheel(name, source, directories))
    return found


def _whole(path: Path) -> Path:
    """A wheel that can be read to its end; an archive's directory stands there, so one that was cut off has none."""
    try:
        with zipfile.ZipFile(path) as archive:
            named = any(name.endswith(".dist-info/METADATA") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile) as error:
        why = str(error)
    else:
        if named:
            return path
        why = "it holds no METADATA"
    fix = "Copy or build the wheel again, or take it out of that directory; then make the lock again."
    found = "%s, %d bytes" % (path, path.stat().st_size)
    message = "a local wheel is cut off or damaged"
    raise FindingError(Finding("lock.local-wheel", ERROR, path.name, message, found, "a whole wheel", evidence=why, fix=fix))


def _given_wheel(name: str, source: t.Mapping[str, str], directories: t.Sequence[Path]) -> Path:
    """The wheel that a pin names by its sha256."""
    for directory in directories:
        path = directory / source["filename"]
        if path.is_file() and _sha256(path) == source["sha256"]:
            return path
    raise FindingError(
        Finding(
            "lock.local-wheel",
            ERROR,
            source["filename"],
            "the wheel that specdec_pins.%s names is not on this controller" % name,
            "not in %s" % (", ".join(map(str, directories)) or "any directory"),
            "sha256 %s" % source["sha256"],
            fix="Run the deploy again: it fetches or builds the wheel.",
        )
    )


def _local_record(packages: t.Iterable[Package], local: t.Mapping[str, Path]) -> t.Iterator[dict[str, str]]:
    for package in packages:
        path = local.get(package.name)
        value = _sha256(path) if path else ""
        if path and value in package.hashes:
            yield {"name": package.name, "version": package.version, "filename": path.name, "sha256": value}


def _fits(tag: t.Any, python: str, machine: str) -> bool:
    own = "cp" + python.replace(".", "")
    pure = tag.interpreter in ("py3", "py2.py3", "py" + own[2:])
    stable = tag.abi == "abi3" and re.fullmatch(r"cp3\d+", tag.interpreter) and int(tag.interpreter[3:]) <= int(own[3:])
    return bool(pure or stable or tag.interpreter == own) and (tag.platform == "any" or tag.platform.endswith(machine))


def _sha256(path: Path) -> str:
    value = hashlib.sha256()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            value.update(block)
    return value.hexdigest()


def _torch_lane(version: str, wanted: t.Mapping[str, t.Any]) -> t.Optional[str]:
    """For which lane a torch was built: its label, else what the tables say of the default index's wheel."""
    return parity.cuda_label(version) or (None if "+" in version else wanted["torch_builds"].get(version))


def _pinned(versions: t.Mapping[str, str], wanted: t.Mapping[str, t.Any]) -> Finding:
    """``lock.pins``: engine, torch, flashinfer and kernel have the versions of the stack."""
    from packaging.specifiers import SpecifierSet

    expected = {wanted["package"]: wanted["version"], "torch": wanted["torch"]}
    if wanted["flashinfer"]:
        expected["flashinfer-python"] = wanted["flashinfer"]
    if wanted["kernel"]:
        expected[wanted["kernel"][0]] = wanted["kernel"][1]
    wrong = {
        name: version
        for name, version in expected.items()
        if name not in versions or not SpecifierSet(stacks.specifier(version)).contains(versions[name], prereleases=True)
    }
    if not wrong:
        listed = ", ".join("%s %s" % (name, versions[name]) for name in expected)
        return Finding("lock.pins", OK, "lock", "the lock holds the versions of the stack", listed)
    return Finding(
        "lock.pins",
        ERROR,
        ", ".join(wrong),
        "the lock does not hold the versions of the stack",
        ", ".join("%s %s" % (name, versions.get(name, "missing")) for name in wrong),
        ", ".join("%s %s" % item for item in wrong.items()),
        cause="Something else than the stack decided: what another package requires, or who made the lock by other means.",
        fix="Make the lock anew; where you want another version than the stack's, say so in specdec_pins.",
    )


def _torch(versions: t.Mapping[str, str], wanted: t.Mapping[str, t.Any], label: t.Optional[str]) -> Finding:
    """``lock.torch``: torch was built for the lane."""
    name, lane = "lock.torch", wanted["label"]
    found = "torch %s" % versions.get("torch", "missing")
    fix = 'Pin the torch of the lane: specdec_pins: {torch: "%s+%s"}' % (parity.public(versions.get("torch", wanted["torch"])), lane)
    if label == lane:
        return Finding(name, OK, "torch", "torch was built for lane %s" % lane, found)
    if label:
        what = "torch is the CPU build in a lane of GPUs" if label == stacks.CPU else "torch was built for another lane"
        return Finding(name, ERROR, "torch", what, "%s, built for %s" % (found, label), lane, fix=fix)
    return Finding(name, COULD_NOT_CHECK, "torch", "for which lane this torch was built is not known", found, lane, fix=fix)


def _explained(done: Completed, wanted: t.Mapping[str, t.Any]) -> Finding:
    """uv's complaint as one finding: which kind, the sentence that matters, and a way out."""
    subject = "%s %s on lane %s" % (wanted["engine"], wanted["version"], wanted["lane"])
    text = " ".join(re.sub(r"[^\x20-\x7e]+", " ", done.stderr).split())
    text = networks.hidden(text)
    sentence = re.search(r"Because (.*?)(?:, we can conclude|$)", text)
    if done.rc in (124, 127):
        message = "uv did not finish in %d s" % _TIMEOUT if done.rc == 124 else "uv could not be started"
        return Finding("lock.uv", ERROR, subject, message, evidence=text[-400:], fix="Look at the evidence, then make the lock again.")
    network = networks.diagnose(networks.hidden(done.stderr), "the controller, locking %s" % subject)
    if network:
        return network
    if sentence:
        return _unsatisfiable(subject, sentence.group(1), text, wanted)
    return Finding(
        "lock.failed", ERROR, subject, "uv failed", "exit status %d" % done.rc, evidence=text[-600:], fix="Look at the evidence."
    )


def _unsatisfiable(subject: str, reason: str, text: str, wanted: t.Mapping[str, t.Any]) -> Finding:
    hint = re.search(r"hint: (.*?)(?: hint:|$)", text)
    cause = hint.group(1) if hint else ""
    if re.search(r"has no (usable )?wheels", reason):
        message = "a package has no wheel for Python %s on %s" % (wanted["python"], wanted["platform"])
        fix = "Use a Python or platform that it has wheels for, pin another version, or put a wheel into specdec_wheel_directories."
        return Finding("lock.no-wheel", ERROR, subject, message, reason, "a wheel", cause=cause, fix=fix)
    if re.search(r"no versions? of|was not found|only the following versions", reason):
        message = "a version that is required does not exist on the index"
        fix = "Pin a version that exists in specdec_pins, or add the index or the wheel that has it."
        if not cause and "%s==%s" % (wanted["engine"], wanted["version"]) in reason:
            cause = "This release is known to exist: perhaps the index is a mirror without it, or a login page answered in its place."
        if wanted["exclude_newer"] and "exclude-newer" in cause:
            fix = "Choose a later specdec_exclude_newer than %s, or an older version." % wanted["exclude_newer"]
        return Finding("lock.missing-version", ERROR, subject, message, reason, "a version that exists", cause=cause, fix=fix)
    clash = re.findall(r"(\S+) depends on (([A-Za-z0-9._-]+)\S*)", reason)
    names = [name for _who, _what, name in clash]
    common = next((name for name in names if names.count(name) > 1), None)
    if not common:
        fix = "Pin the packages that are named to versions that fit in specdec_pins."
        return Finding("lock.unsatisfiable", ERROR, subject, "the requirements contradict each other", reason, cause=cause, fix=fix)
    sides = [(who, what.rstrip(",")) for who, what, name in clash if name == common]
    pinned = {_bare(line) for line in wanted["overrides"]}
    movable = [_bare(who) for who, _what in sides if _bare(who) not in pinned | {wanted["package"]}]
    return Finding(
        "lock.unsatisfiable",
        ERROR,
        subject,
        "two requirements on %s contradict each other" % common,
        " against ".join("%s requires %s" % side for side in sides),
        "one version of %s for both" % common,
        cause=cause,
        fix="Pin %s to a version that fits the other in specdec_pins." % " or ".join([*movable, common]),
    )


def _bare(requirement: str) -> str:
    """A requirement's name alone."""
    return re.split(r"[\[<>=!~]", requirement)[0]
