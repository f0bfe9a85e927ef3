# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is really installed in a virtual environment, ours or one that was made by hand, and what is wrong with it by itself.

Only read: no file is written, nothing is imported, no GPU is asked. A snapshot is plain data, so that another host's, the pins or a
lock can be held against it anywhere (see comparisons.py).
"""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import typing as t
from pathlib import Path
from urllib.parse import unquote, urlsplit

from . import captures, checks, gpus, libraries, overlays, parity, probes, records, references, units
from .findings import COULD_NOT_CHECK, ERROR, Finding, FindingError
from .layout import SCHEMA, UNITS
from .runners import Runner

#: Paths of one kind that a snapshot lists; of more there is only the number.
LISTED = 200

_PYTHON_FACTS = (
    "import json,platform,sys;print(json.dumps({'version':platform.python_version(),"
    "'implementation':sys.implementation.name,'build':sys.version,'machine':platform.machine()}))"
)

_REBUILD = "Name a virtual environment, or make it anew; nothing inside it is repaired in place."


@dataclasses.dataclass(frozen=True)
class Service:
    """A unit that starts the environment's Python.

    :param environment: its variables, those of its files too.
    :param unreadable: environment files that cannot be read.
    """

    name: str
    active: str
    environment: t.Mapping[str, str]
    unreadable: t.Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Environment:
    """A virtual environment, opened."""

    venv: Path
    installed: checks.Installed
    python: t.Mapping[str, t.Any]
    engine: t.Mapping[str, str]
    editable: t.Mapping[str, str]
    services: t.Sequence[Service]


def places(root: str, path: str = "") -> list[Path]:
    """The environments to look at: the one that is named, or those that a unit or an instance of this host uses."""
    return [Path(path)] if path else references.environments(Path(root))


def open_environment(venv: Path, engines: t.Mapping[str, t.Any], runner: Runner, root: str, directory: Path = Path(UNITS)) -> Environment:
    """Read the papers of an environment.

    :param engines: the table data/engines.yml.
    :param root: ``specdec_root``.
    :param directory: where units lie.

    Raises FindingError (``environment.complete``) where this is no virtual environment, or half of one.
    """
    site_packages = _site_packages(venv)
    try:
        distributions = records.distributions(site_packages)
    except OSError as error:
        raise _closed(venv, error) from error
    python = _python(venv, runner)
    versions = {dist.name: dist.version for dist in distributions}
    name = next((one for one, row in engines.items() if row["package"] in versions), "")
    engine = {"name": name, "version": versions[engines[name]["package"]]} if name else {}
    label = parity.cuda_label(versions.get("torch", "")) or parity.torch_label(site_packages)
    lacks = _lacks(site_packages, distributions, engines.get(name, {}), label)
    if name:
        row = probes.dry_run(engines[name], parity.public(engine["version"]), lacks)
    else:
        row = {"kind": "none", "package": "", "kernels": [], "lacks": lacks, "imports": _present(versions)}
    services = _services(venv, runner, directory)
    search_path = next((one.environment["LD_LIBRARY_PATH"] for one in services if one.environment.get("LD_LIBRARY_PATH")), "")
    uses_gpus = label != "cpu" and Path("/proc/driver/nvidia/version").exists()
    installed = checks.Installed(Path(root), site_packages, _overlays(venv), distributions, row, search_path, uses_gpus)
    return Environment(venv, installed, python, engine, _editable(site_packages, distributions), services)


def take(environment: Environment, runner: Runner, state: t.Optional[records.State] = None, files: Path = Path("/")) -> dict[str, t.Any]:
    """The snapshot of an environment.

    :param state: its files against their RECORDs, where that was found out; without it compiled code is not read either.
    :param files: root of the host's file system, ``/`` but in tests.
    """
    installed = environment.installed
    host = gpus.Host(runner, files)
    module = gpus.parse_module(host.text("proc/driver/nvidia/version") or "")
    versions = installed.installed
    return {
        "schema": SCHEMA,
        "path": str(environment.venv),
        "python": dict(environment.python),
        "engine": dict(environment.engine),
        "kernels": list(installed.row["kernels"]),
        "lacks": list(installed.row["lacks"]),
        "packages": versions,
        "labels": {name: label for name, label in ((name, parity.cuda_label(version)) for name, version in versions.items()) if label},
        "torch": parity.cuda_label(versions.get("torch", "")) or parity.torch_label(installed.site_packages),
        "editable": dict(environment.editable),
        "overlays": [{"digest": one["digest"], "base": one["base"]} for one in installed.overlay],
        "edits": _edits(environment),
        "records": None if state is None else _listed(state),
        "libraries": None if state is None else _libraries(installed, runner),
        "services": [{"name": one.name, "active": one.active} for one in environment.services],
        "driver": module["version"] if module else None,
        "gpus": sorted(one["name"] or "" for one in gpus.told_by_kernel(host).values()),
    }


def findings(environment: Environment, runner: Runner, state: records.State, declared: t.Collection[str] = ()) -> list[Finding]:
    """What an environment shows by itself: its files, the versions of what belongs together, names, compiled code, its units' variables.

    A group that fails itself is *could not check*; the others still have something to say.

    :param declared: packages whose version was chosen on purpose.
    """
    installed = environment.installed
    groups: dict[str, t.Callable[[], list[Finding]]] = {
        "record": lambda: [*records.findings(state, installed.critical), *checks.overlay_findings(installed)],
        "parity": lambda: [*checks.parity_findings(installed), *requirements(environment, declared)],
        "api": lambda: _api(environment),
        "elf": lambda: checks.elf_findings(installed, runner),
        "unit": lambda: [bypass(one) for one in environment.services],
    }
    found = [Finding("environment.complete", "ok", str(environment.venv), "its papers can be read")] if environment.python else []
    if not environment.python:
        message = "the environment's Python does not start"
        expected = "an interpreter at bin/python"
        cause = "The interpreter it was made from was removed or moved, or the environment was copied from elsewhere."
        complete = Finding("environment.complete", ERROR, str(environment.venv), message, "", expected, cause=cause, fix=_REBUILD)
        found.append(complete)
    for name, group in groups.items():
        found += checks.guarded(name, group)
    return found


def verified(installed: checks.Installed) -> records.State:
    """The files of an environment against their RECORDs, those of its overlays apart."""
    return checks.besides_overlays(installed)


def variables(environment: Environment) -> dict[str, str]:
    """What the environment's own unit gives to the engine, without what may be a secret."""
    given = environment.services[0].environment if environment.services else {}
    return {name: value for name, value in given.items() if not units.secret(name)}


def bypass(service: Service) -> Finding:
    """``unit.bypass`` over the variables that a unit really gets."""
    if service.unreadable:
        fix = "Run this as root, or correct EnvironmentFile= of the unit."
        found = ", ".join(service.unreadable)
        return Finding("unit.bypass", COULD_NOT_CHECK, service.name, "an environment file of the unit cannot be read", found, fix=fix)
    return units.bypass(service.name, service.environment)


def requirements(environment: Environment, declared: t.Collection[str] = ()) -> list[Finding]:
    """``lock.unsatisfiable``: what the engine, torch and the parts they are served with require of each other, against what is installed.

    A resolver refuses such a set of packages; an installer that is told not to look at dependencies does not. In an environment of ours
    the lock has decided, and its overrides are wanted.

    :param declared: packages whose version was chosen on purpose.
    """
    installed = environment.installed
    if installed.links or not environment.engine:
        return []
    wrong = [
        one
        for dist in installed.distributions
        if dist.name in installed.critical
        for one in _contradicted(dist, _metadata(installed.site_packages, dist), installed.installed, environment.python)
        if one[0] in installed.critical | set(parity.TORCH_FAMILY) and not _declared(one[0], declared)
    ]
    by_package: dict[str, list[str]] = {}
    for package, requirement, owner in wrong:
        by_package.setdefault(package, []).append("%s requires %s" % (owner, requirement))
    return [
        Finding(
            "lock.unsatisfiable",
            ERROR,
            package,
            "the installed version is not the one that its dependents require",
            "%s %s" % (package, installed.installed[package]),
            "; ".join(sides),
            records.METADATA,
            "It was installed or upgraded without a look at dependencies, or an override was not declared.",
            "Pin %s to a version that fits (`specdec_pins`), or declare the override there, and build the environment." % package,
        )
        for package, sides in sorted(by_package.items())
    ]


def _declared(name: str, declared: t.Collection[str]) -> bool:
    chosen = {records.normalized(one) for one in declared}
    return name in chosen or (name in parity.FLASHINFER and "flashinfer" in chosen)


# Papers


def _closed(venv: Path, error: OSError) -> FindingError:
    """It cannot be looked at: for want of a permission, which says nothing of it, or because it is not whole."""
    if not isinstance(error, PermissionError):
        return _no_environment(venv, str(error))
    fix = "Look as root (`become: true`)."
    return FindingError(Finding("environment.complete", COULD_NOT_CHECK, str(venv), "it may not be read", str(error), fix=fix))


def _no_environment(venv: Path, why: str) -> FindingError:
    expected = "pyvenv.cfg, bin/python and lib/python3.*/site-packages"
    return FindingError(
        Finding(
            "environment.complete", ERROR, str(venv), "this is no virtual environment, or only half of one", why, expected, fix=_REBUILD
        )
    )


def _site_packages(venv: Path) -> Path:
    try:
        if not (venv / "pyvenv.cfg").is_file():
            raise _no_environment(venv, "no pyvenv.cfg" if venv.is_dir() else "no such directory")
        found = references.site_packages(venv)
    except OSError as error:
        raise _closed(venv, error) from error
    if found is None:
        raise _no_environment(venv, "no site-packages")
    return found


def _python(venv: Path, runner: Runner) -> dict[str, t.Any]:
    """What the environment's interpreter says of itself, without a look at what is installed; empty where it does not start."""
    answer = runner([str(venv / "bin" / "python"), "-I", "-S", "-B", "-c", _PYTHON_FACTS], timeout=20)
    try:
        return {"path": str(venv / "bin" / "python"), **json.loads(answer.stdout)} if answer.rc == 0 else {}
    except ValueError:
        return {}


def _overlays(venv: Path) -> list[dict[str, t.Any]]:
    """The manifests of an environment of ours; none of any other."""
    try:
        return json.loads((venv.parent / "overlay.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []


def _edits(environment: Environment) -> t.Optional[dict[str, t.Optional[str]]]:
    """How the engine's source differs from its wheel, path → sha256 or None for a file that is gone: what the overlays did in an
    environment of ours, what an overlay would hold of any other. None where nobody can tell."""
    installed = environment.installed
    if installed.links:
        return installed.overlaid
    if not environment.engine or installed.row["package"] in environment.editable:
        return None
    try:
        manifest = captures.capture(installed.site_packages, installed.row["package"]).bundle.manifest
    except FindingError:
        return None
    return overlays.expected([manifest])


def _lacks(
    site_packages: Path, distributions: t.Sequence[records.Distribution], engine: t.Mapping[str, t.Any], label: t.Optional[str]
) -> list[str]:
    """The parts that such an environment does not have: a torch for the CPU has none, an engine those that it does not require."""
    if label == "cpu" or not engine:
        return list(parity.PARTS) if label in ("cpu", None) else [part for part in parity.PARTS if part != "cuda"]
    dist = records.find(distributions, engine["package"])
    lines = _metadata(site_packages, dist) if dist else []
    required = {_name(line) for line in lines if "extra" not in line.partition(";")[2]}
    lacking = []
    if not any(one.startswith("flashinfer") for one in required):
        lacking.append("flashinfer")
    if not required & set(engine["kernel_packages"]):
        lacking.append("kernel")
    return lacking


def _present(versions: t.Mapping[str, str]) -> list[list[str]]:
    """What can be imported of an environment without an engine."""
    return [[part, part] for part, dist in (("torch", "torch"), ("flashinfer", parity.FLASHINFER[0])) if dist in versions]


def _name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return records.normalized(match[0]) if match else ""


def _metadata(site_packages: Path, dist: records.Distribution) -> list[str]:
    """The lines of Requires-Dist."""
    try:
        text = (site_packages / dist.directory / "METADATA").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return re.findall(r"^Requires-Dist: *(.+)$", text.partition("\n\n")[0], re.MULTILINE)


def _contradicted(
    dist: records.Distribution, lines: t.Iterable[str], versions: t.Mapping[str, str], python: t.Mapping[str, t.Any]
) -> t.Iterator[tuple[str, str, str]]:
    """(package, requirement, who requires it) for each requirement of a distribution that an installed version does not meet."""
    from packaging.requirements import InvalidRequirement, Requirement

    version = str(python.get("version", ""))
    about = {"python_version": ".".join(version.split(".")[:2]), "python_full_version": version} if version else {}
    for line in lines:
        try:
            requirement = Requirement(line)
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": "", **about})
        except (InvalidRequirement, ValueError, KeyError):
            continue
        name = records.normalized(requirement.name)
        if wanted and name in versions and versions[name] and not requirement.specifier.contains(versions[name], prereleases=True):
            yield name, "%s%s" % (name, requirement.specifier), "%s %s" % (dist.name, dist.version)


def _editable(site_packages: Path, distributions: t.Sequence[records.Distribution]) -> dict[str, str]:
    """Distributions that are a source tree elsewhere (PEP 610), and where."""
    found = {}
    for dist in distributions:
        try:
            origin = json.loads((site_packages / dist.directory / "direct_url.json").read_text(encoding="utf-8"))
            if origin.get("dir_info", {}).get("editable"):
                found[dist.name] = unquote(urlsplit(origin["url"]).path)
        except (OSError, ValueError, KeyError, AttributeError):
            continue
    return found


def _api(environment: Environment) -> list[Finding]:
    """``api.missing-name``, also for an engine that is installed as a source tree."""
    installed = environment.installed
    if not installed.row["package"]:
        return []
    tree = environment.editable.get(installed.row["package"])
    package = installed.row["package"]
    candidates = [Path(tree, *parts, package) for parts in ((), ("python",), ("src",))] if tree else []
    return checks.api_findings(installed, next((one for one in candidates if (one / "__init__.py").exists()), None))


# Files, libraries, units


def _listed(state: records.State) -> dict[str, t.Any]:
    """The differences, cut to what a person reads; ``counts`` has all."""
    owned = {"changed": state.changed, "missing": state.missing, "outside": state.outside}
    return {
        "files": state.files,
        **{name: dict(sorted((records.printable(path), owner) for path, owner in one.items())[:LISTED]) for name, one in owned.items()},
        "foreign": [records.printable(path) for path in state.foreign[:LISTED]],
        "doubly_owned": {records.printable(path): list(owners) for path, owners in list(state.conflicts.items())[:LISTED]},
        "unrecorded": list(state.unrecorded),
        "counts": {
            **{name: len(one) for name, one in owned.items()},
            "foreign": len(state.foreign),
            "doubly_owned": len(state.conflicts),
        },
    }


def _libraries(installed: checks.Installed, runner: Runner) -> t.Optional[dict[str, t.Any]]:
    """Sonames that the loader does not find by itself: where in the environment they lie, or who needs them in vain."""
    cache = runner(["/sbin/ldconfig", "-p"], timeout=60)
    if cache.rc:
        return None
    try:
        needed = libraries.compute(
            installed.site_packages, installed.distributions, {*installed.critical, *parity.TORCH_FAMILY}, cache.stdout, installed.root
        )
    except ImportError:
        return None
    return {
        "read": needed.files,
        "elsewhere": dict(needed.links),
        "missing": {name: list(users)[:LISTED] for name, users in needed.missing.items()},
    }


def _services(venv: Path, runner: Runner, directory: Path) -> list[Service]:
    """The units of this host whose ExecStart lies in an environment, as systemd has put them together."""
    names = []
    for unit in sorted(directory.glob("*.service")):
        try:
            text = unit.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if re.search(r"^ExecStart=.*%s/bin/" % re.escape(str(venv)), text, re.MULTILINE):
            names.append(unit.name)
    if not names:
        return []
    shown = runner(["systemctl", "show", "--property=Id,ActiveState,Environment,EnvironmentFiles", *names], timeout=20)
    return [_service(block) for block in shown.stdout.split("\n\n") if "Id=" in block]


def _service(block: str) -> Service:
    values: dict[str, list[str]] = {}
    for line in block.splitlines():
        key, _sep, value = line.partition("=")
        values.setdefault(key, []).append(value)
    environment: dict[str, str] = {}
    unreadable = []
    for word in _words(" ".join(values.get("Environment", []))):
        name, _sep, value = word.partition("=")
        environment[name] = value
    for one in values.get("EnvironmentFiles", []):
        path, _sep, how = one.partition(" (")
        if not path:
            continue
        try:
            lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            if "ignore_errors=yes" not in how:
                unreadable.append("%s: %s" % (path, error.strerror))
            continue
        for line in lines:
            name, found, value = line.strip().partition("=")
            if found and not name.startswith(("#", ";")):
                environment[name.strip()] = value.strip().strip("'\"")
    return Service(values["Id"][0], (values.get("ActiveState") or [""])[0], environment, tuple(unreadable))


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
