# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job *prove*: everything that can be known of a release before what serves is touched.

Each group gathers its evidence and hands it to pure functions; :data:`CHECKS` names every verdict
that may come out, so that it can be documented and switched off by its id.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import re
import time
import traceback
import typing as t
from pathlib import Path

from . import abi, apinames, folding, gates, gpus, libraries, locks, overlays, parity, probes, records, releases, units
from .findings import COULD_NOT_CHECK, ERROR, NOT_APPLICABLE, OK, WARNING, Finding, FindingError, errors
from .layout import MARKER, Layout, unit_name
from .runners import Progress, Runner

SHM = Path("/dev/shm")

#: Highest exposure (systemd-analyze security, 0 to 10) of a unit in the strict sandbox. With GPUs it needs their
#: devices and memory that is writable and executable: 1.6 to 1.7 on systemd 252, against 1.2 without.
EXPOSURE = 1.5
EXPOSURE_WITH_GPUS = 1.8

#: Bytes that must be free for compiled kernels and other caches of an instance.
FREE_DISK = 512 << 20

#: Bytes of shared memory for each rank of the engine.
FREE_SHM = 32 << 20

#: The engines' options for the number of ranks.
_RANKS = ("tp-size", "tensor-parallel-size")

_REBUILD = "Build the environment again; nothing inside it is repaired in place."


@dataclasses.dataclass(frozen=True)
class Check:
    """One verdict that prove may give: its id, the group that gives it, and what it says in one line."""

    id: str
    group: str
    text: str


CHECKS = (
    Check("environment.complete", "files", "The environment of the release is built and its papers can be read."),
    Check("lock.unreadable", "lock", "The environment's lock can be read."),
    Check("lock.edited", "lock", "The environment's lock was not changed after it was made."),
    Check("lock.satisfied", "lock", "Exactly the packages of the lock are installed, at exactly its versions."),
    Check("lock.engine-version", "lock", "The engine is of the version that was asked for."),
    Check("record.changed", "record", "Every installed file has the content that its RECORD, or the overlay, gives it."),
    Check("record.missing", "record", "Every file that a RECORD or the overlay names is there."),
    Check("record.foreign", "record", "No file lies among the packages that neither a RECORD nor the overlay names."),
    Check("record.doubly-owned", "record", "No file is installed by two packages with different content."),
    Check("record.outside", "record", "No RECORD names a file outside the environment."),
    Check("record.unreadable", "record", "Every package has a RECORD."),
    Check("overlay.applied", "record", "Every file of the overlays is as they left it."),
    Check("parity.flashinfer", "parity", "All parts of flashinfer have one version, and torch's CUDA."),
    Check("parity.kernel", "parity", "The engine's kernel package is installed under exactly one of its names."),
    Check("parity.torch-labels", "parity", "What says for which CUDA it was built, was built for torch's."),
    Check("parity.cuda-major", "parity", "The CUDA libraries from packages have torch's CUDA major version."),
    Check("api.missing-name", "api", "Every name that the engine's source takes from flashinfer and the kernel package exists there."),
    Check("libraries.missing", "elf", "Every library that compiled code needs is found where the service looks."),
    Check("abi.undefined-symbol", "elf", "The installed torch exports every symbol that compiled packages take from it."),
    Check("abi.cpu-torch", "elf", "Nothing that was built for CUDA lies beside a torch that was not."),
    Check("abi.cuda-major", "elf", "Compiled packages need the CUDA libraries in torch's major version."),
    Check("abi.other-python", "elf", "Extension modules are for the environment's Python."),
    Check("abi.other-machine", "elf", "Compiled files are for the host's machine."),
    Check("abi.gpu-architecture", "elf", "Compiled packages carry code for the host's GPUs."),
    Check("abi.driver-symbol", "elf", "The host's driver has every function that compiled packages take from it."),
    Check("abi.unreadable", "elf", "Every compiled file of what serving depends on can be read."),
    Check("unit.verify", "unit", "systemd reads the unit without complaint."),
    Check("unit.sandbox", "unit", "The unit's exposure, as systemd counts it, is low."),
    Check("unit.secret", "unit", "No secret stands in the unit's command line or environment."),
    Check("unit.start-limit", "unit", "A crash at start does not repeat without end."),
    Check("unit.kill-mode", "unit", "A stop ends the engine in order and leaves no worker behind."),
    Check("unit.stop-timeout", "unit", "A stop ends in bounded time."),
    Check("unit.open-files", "unit", "The service may open enough files."),
    Check("unit.caches", "unit", "HOME and every cache lie where the service may write."),
    Check("unit.path", "unit", "The environment's programs are found first."),
    Check("unit.bypass", "unit", "No variable switches a version check off."),
    Check("unit.user", "unit", "The service has a user of its own."),
    Check("host.port", "host", "The port is free, or the instance's own."),
    Check("host.disk", "host", "There is room for the instance's caches."),
    Check("host.shm", "host", "There is shared memory for the engine's ranks."),
    Check("host.model-readable", "probe", "The service user can read every file of the models in its sandbox."),
    Check("import.sandbox", "probe", "The unit's user and sandbox can be set up on this host."),
    Check("import.engine", "probe", "The engine can be imported."),
    Check("import.torch", "probe", "torch can be imported."),
    Check("import.kernel", "probe", "The kernel package can be imported."),
    Check("import.flashinfer", "probe", "flashinfer can be imported."),
    Check("import.plugins", "probe", "The engine's plugins can be loaded."),
    Check("import.outside", "probe", "What is imported comes from the environment."),
    Check("import.died", "probe", "No import ends the process."),
    Check("import.hang", "probe", "Imports and the dry run come to an end in time."),
    Check("import.stray", "probe", "No import leaves a process behind."),
    Check("import.cuda-context", "probe", "No import, and not the dry run, takes GPU memory from what serves."),
    Check("algorithm.recognised", "probe", "The engine knows the speculative algorithm."),
    Check("arguments.accepted", "probe", "The engine reads, resolves and accepts its arguments."),
    Check("prove.completed", "prove", "Every group of checks ran to its end."),
)


@dataclasses.dataclass(frozen=True)
class Installed:
    """An environment, as read from the host's disk: ours or one that was made by hand.

    :param root: ``specdec_root``.
    :param overlay: manifests of the applied overlays, in order.
    :param row: what prove asks of its engine (see probes.dry_run).
    :param search_path: LD_LIBRARY_PATH of the service.
    :param gpus: whether it serves on GPUs.
    """

    root: Path
    site_packages: Path
    overlay: t.Sequence[t.Mapping[str, t.Any]]
    distributions: t.Sequence[records.Distribution]
    row: t.Mapping[str, t.Any]
    search_path: str
    gpus: bool

    @property
    def venv(self) -> Path:
        """The virtual environment."""
        return records.prefix(self.site_packages)

    @property
    def links(self) -> t.Optional[Path]:
        """The directory with links to the libraries that the loader would not find; only an environment of ours has one."""
        return self.venv.parent / "lib" if (self.venv.parent / MARKER).exists() else None

    @property
    def installed(self) -> dict[str, str]:
        """Version by normalised name of distribution."""
        return {dist.name: dist.version for dist in self.distributions}

    @property
    def critical(self) -> set[str]:
        """The distributions that serving depends on."""
        return {self.row["package"], "torch", *self.row["kernels"], *parity.FLASHINFER}

    @property
    def overlaid(self) -> dict[str, t.Optional[str]]:
        """What the overlays did: path → sha256, or None for a file they took away."""
        return overlays.expected(self.overlay)

    def lacks(self, part: str, distributions: t.Iterable[str]) -> bool:
        """Whether the lane has no such part, and none of its distributions is installed."""
        return part in self.row["lacks"] and not any(name in self.installed for name in distributions)


@dataclasses.dataclass(frozen=True)
class Subject(Installed):
    """What is proven: a release and its environment.

    :param wanted: engine and version that were asked for.
    :param lock: text of the environment's lock.
    """

    layout: Layout
    release: releases.Release
    wanted: t.Mapping[str, str]
    lock: str

    @property
    def facts(self) -> dict[str, t.Any]:
        """Content of release.json."""
        return self.release.facts

    @property
    def unit(self) -> units.Unit:
        """The release's unit."""
        return units.parse(unit_name(self.release.instance), self.release.unit)


def prove(spec: t.Mapping[str, t.Any], runner: Runner, progress: Progress, proc: Path = gates.PROC, shm: Path = SHM) -> dict[str, t.Any]:
    """Judge a release that is on the disk; nothing of it is changed.

    A release without an error is noted as proven beside the instance's releases; one with an error loses the note.

    :param spec: root, instance, release, wanted {engine, version}; and where given ``skip``, ids of checks to leave out,
        ``deadline``, seconds for the imports and the dry run, and ``read_only``, for a look that leaves no note and no cache behind.
    :return: ok, changed, findings (as dictionaries), timings (seconds by group and by stage of the probe), skipped (ids).
    """
    skip = set(spec.get("skip", ()))
    found: list[Finding] = []
    timings: dict[str, float] = {}
    unknown = sorted(skip - {check.id for check in CHECKS})
    if unknown:
        fix = "Write the id as the documentation of the checks does."
        found.append(Finding("prove.completed", WARNING, ", ".join(unknown), "no check has this id, so none is left out", fix=fix))
    try:
        subject = load(spec)
    except FindingError as error:
        return _result(spec, [*found, error.finding], timings, skip)
    found.append(
        Finding(
            "environment.complete", OK, subject.facts["environment"], "built, and its papers can be read", evidence=str(subject.venv.parent)
        )
    )

    def probe() -> list[Finding]:
        return _probe(subject, runner, progress, spec, timings)

    groups: dict[str, t.Callable[[], list[Finding]]] = {
        "lock": lambda: lock_findings(subject),
        "parity": lambda: parity_findings(subject),
        "unit": lambda: unit_findings(subject, runner),
        "host": lambda: host_findings(subject, proc, shm),
        "record": lambda: [*record_findings(subject), *overlay_findings(subject)],
        "api": lambda: api_findings(subject),
        "elf": lambda: elf_findings(subject, runner),
    }
    active = {check.group for check in CHECKS if check.id not in skip}
    # The probe mostly waits for the disk and has its own process: the files are read meanwhile.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(_timed, "probe", probe, timings) if "probe" in active else None
        for name, group in groups.items():
            if name in active:
                progress("prove", "checking %s" % name)
                found += _timed(name, group, timings)
        if running:
            found += running.result()
    found.append(
        Finding("prove.completed", OK, "prove", "every group of checks ran", ", ".join(sorted(one for one in timings if "." not in one)))
    )
    return _result(spec, found, timings, skip)


def load(spec: t.Mapping[str, t.Any]) -> Subject:
    """Read release and environment; raises FindingError when one of them is not there, or not whole."""
    layout = Layout(spec["root"])
    release = releases.load(layout, spec["instance"], spec["release"])
    environment = layout.environment(release.facts["environment"])
    try:
        (environment / MARKER).stat()
        json.loads((environment / "environment.json").read_text(encoding="utf-8"))
        lock = (environment / "lock.txt").read_text(encoding="utf-8")
        overlay = json.loads((environment / "overlay.json").read_text(encoding="utf-8"))
        site_packages = next((environment / "venv" / "lib").glob("python3*/site-packages"), environment / "venv")
        distributions = records.distributions(site_packages)
    except (OSError, ValueError) as error:
        message = "the environment is not built, or not whole"
        cause = "Its build did not come to its end, or something of it was removed since."
        expected = "a complete environment"
        finding = Finding("environment.complete", ERROR, str(environment), message, str(error), expected, cause=cause, fix=_REBUILD)
        raise FindingError(finding) from error
    search_path = release.facts["environment_variables"].get("LD_LIBRARY_PATH", "")
    row, uses_gpus = release.facts["dry_run"], bool(release.facts["gpus"])
    installed = (layout.root, site_packages, overlay, distributions, row, search_path, uses_gpus)
    return Subject(*installed, layout, release, spec["wanted"], lock)


def _result(
    spec: t.Mapping[str, t.Any], found: t.Iterable[Finding], timings: t.Mapping[str, float], skip: t.Collection[str]
) -> dict[str, t.Any]:
    kept = folding.fold(one for one in found if one.id not in skip)
    result = {"findings": [one.as_dict() for one in kept], "timings": dict(timings), "skipped": sorted(skip)}
    ok = not errors(kept)
    note = Layout(spec["root"]).instance(spec["instance"]) / "proven" / ("%s.json" % spec["release"])
    if spec.get("read_only"):
        pass
    elif ok:
        note.parent.mkdir(exist_ok=True)
        releases.write_durably(note, json.dumps(result))
    else:
        note.unlink(missing_ok=True)
    return {"ok": ok, "changed": False, **result}


def _timed(name: str, group: t.Callable[[], list[Finding]], timings: dict[str, float]) -> list[Finding]:
    started = time.monotonic()
    try:
        return guarded(name, group)
    finally:
        timings[name] = round(time.monotonic() - started, 3)


def guarded(name: str, group: t.Callable[[], list[Finding]]) -> list[Finding]:
    """Run one group of checks; what it raises is a finding, for the other groups still have something to say."""
    try:
        return group()
    except ImportError as error:
        fix = "Let the host program come to the host (role uv), or give its Python packaging and pyelftools."
        return [Finding("prove.completed", COULD_NOT_CHECK, name, "what this group of checks needs is not there", str(error), fix=fix)]
    except Exception as error:
        fix = "Report this with the evidence; until then, the checks of this group can be left out by their ids."
        evidence = "".join(traceback.format_exception(type(error), error, error.__traceback__)[-4:])
        message, cause = "this group of checks failed itself", "It met something that it does not expect."
        return [Finding("prove.completed", COULD_NOT_CHECK, name, message, evidence=evidence, cause=cause, fix=fix)]


# The lock


def lock_findings(subject: Subject) -> list[Finding]:
    """``lock.*``: the lock can be read, is what is installed, and holds the engine that was asked for."""
    engine = engine_version(subject.facts["dry_run"]["package"], subject.wanted, subject.installed)
    try:
        lock = locks.parse(subject.lock, "lock of environment %s" % subject.facts["environment"])
    except FindingError as error:
        return [error.finding, engine]
    return [
        Finding("lock.unreadable", OK, "lock", "it can be read", "%d packages" % len(lock.packages)),
        Finding("lock.edited", OK, "lock", "its packages are those of its id", lock.id),
        lock_satisfied(lock.versions, subject.installed),
        engine,
    ]


def lock_satisfied(wanted: t.Mapping[str, str], installed: t.Mapping[str, str]) -> Finding:
    """Installed is what is locked: nothing else, nothing less, no other version."""
    if not wanted:
        return Finding("lock.satisfied", COULD_NOT_CHECK, "lock", "the lock names no package", fix=_REBUILD)
    lines = ["%s %s is not installed" % (name, wanted[name]) for name in sorted(set(wanted) - set(installed))]
    lines += ["%s %s is not in the lock" % (name, installed[name]) for name in sorted(set(installed) - set(wanted))]
    lines += [
        "%s %s instead of %s" % (name, installed[name], version)
        for name, version in sorted(wanted.items())
        if name in installed and not _same_version(installed[name], version)
    ]
    if not lines:
        return Finding(
            "lock.satisfied",
            OK,
            "lock",
            "exactly the locked packages are installed",
            "%d packages" % len(wanted),
            evidence=records.METADATA,
        )
    return Finding(
        "lock.satisfied",
        ERROR,
        "lock",
        "the installed packages are not those of the lock",
        records.listing(lines),
        "exactly the lock's packages and versions",
        records.METADATA,
        "Something was installed into the environment, or removed, after it was built.",
        _REBUILD,
    )


def engine_version(package: str, wanted: t.Mapping[str, str], installed: t.Mapping[str, str]) -> Finding:
    """The engine is installed at the version that was asked for; a local label of the installed one does not matter."""
    version = installed.get(records.normalized(package), "")
    found = "%s %s" % (package, version or "not installed")
    expected = "%s %s" % (wanted["engine"], wanted["version"])
    if version and (_same_version(version, wanted["version"]) or _same_version(parity.public(version), wanted["version"])):
        return Finding("lock.engine-version", OK, package, "the version that was asked for", found)
    cause = "The lock was made for another version, or another engine was installed over it."
    fix = "Make the lock anew for the wanted version (`specdec_pins_update`) and build again."
    return Finding("lock.engine-version", ERROR, package, "not the version that was asked for", found, expected, cause=cause, fix=fix)


def _same_version(one: str, other: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


# Files and versions


def overlay_findings(subject: Installed) -> list[Finding]:
    """``overlay.applied``: the overlays' files against their manifests."""
    none = Finding("overlay.applied", NOT_APPLICABLE, str(subject.venv), "the environment has no overlay", evidence="overlay.json")
    return overlays.audit(subject.overlay, subject.site_packages) or [none]


def besides_overlays(subject: Installed) -> records.State:
    """The installed files against their RECORDs, without those that an overlay owns: of them the overlay is told."""
    owned = subject.overlaid
    state = records.verify(subject.site_packages, subject.distributions, owned)
    changed, missing = ({path: owner for path, owner in one.items() if path not in owned} for one in (state.changed, state.missing))
    return dataclasses.replace(state, changed=changed, missing=missing, foreign=tuple(path for path in state.foreign if path not in owned))


def record_findings(subject: Installed) -> list[Finding]:
    """``record.*``: the installed files against their RECORDs, those of the overlays apart."""
    return records.findings(besides_overlays(subject), subject.critical)


def parity_findings(subject: Installed) -> list[Finding]:
    """``parity.*``."""
    row = subject.row
    return parity.findings(subject.installed, row["kernels"], row["lacks"], parity.torch_label(subject.site_packages))


def api_findings(subject: Installed, source: t.Optional[Path] = None) -> list[Finding]:
    """``api.missing-name`` for flashinfer and the kernel package.

    :param source: directory of the engine's package, where it is not among the other packages.
    """
    row = subject.row
    providers = {"flashinfer": parity.FLASHINFER, "kernel": tuple(row["kernels"])}
    reference = {name: version for manifest in subject.overlay for name, version in manifest.get("reference_versions", {}).items()}
    found: list[Finding] = []
    for part, module in row["imports"]:
        if part in providers:
            names = [(name, reference[name]) for name in providers[part] if name in reference]
            found += apinames.check(
                source or subject.site_packages / dict(row["imports"]).get("engine", ""),
                subject.site_packages,
                module,
                subject.lacks(part, providers[part]),
                names[0] if names else None,
                subject.overlaid,
            )
    return found


def elf_findings(subject: Installed, runner: Runner) -> list[Finding]:
    """``libraries.*`` and ``abi.*``: compiled code against torch, Python, the machine, and what the loader will find."""
    site_packages = subject.site_packages
    critical = {*subject.critical, *parity.TORCH_FAMILY}
    try:
        interpreter = libraries.dynamic((subject.venv / "bin" / "python").resolve())
    except OSError:
        interpreter = None
    tag = "cpython-" + "".join(re.findall(r"\d+t?", site_packages.parent.name))
    compiled = abi.read(site_packages, subject.distributions)
    found = abi.findings(compiled, critical, interpreter and interpreter.machine, tag)
    cache = runner(["/sbin/ldconfig", "-p"], timeout=60)
    found += gpu_code_findings(subject, compiled, cache.stdout, runner)
    if cache.rc:
        fix = "Install the C library's own programs (libc-bin)."
        return [
            *found,
            Finding("libraries.missing", COULD_NOT_CHECK, "ldconfig", "the loader's cache cannot be read", cache.stderr, fix=fix),
        ]
    needed = libraries.compute(site_packages, subject.distributions, critical, cache.stdout, subject.root)
    if any(one.id == "abi.cpu-torch" and one.verdict == ERROR for one in found):
        # that torch lacks its CUDA libraries is told, and why
        missing = {name: users for name, users in needed.missing.items() if name not in abi.CUDA_LIBRARIES}
        needed = dataclasses.replace(needed, missing=missing)
    reach = (
        libraries.unreachable(needed, subject.links, subject.search_path)
        if subject.links
        else libraries.unregistered(needed, subject.search_path)
    )
    names = {records.normalized(name) for name in critical}
    depended = {path for dist in subject.distributions if dist.name in names for path in dist.rows}
    return [*found, *(reach or libraries.findings(needed, depended))]


def gpu_code_findings(subject: Installed, compiled: abi.Compiled, cache: str, runner: Runner) -> list[Finding]:
    """``abi.gpu-architecture`` and ``abi.driver-symbol``: compiled code against the host's GPUs and driver.

    :param cache: what ``ldconfig -p`` prints.
    """
    ids = ("abi.gpu-architecture", "abi.driver-symbol")
    if not subject.gpus:
        return [Finding(one, NOT_APPLICABLE, "GPUs", "this lane uses none", evidence=str(subject.venv)) for one in ids]
    gpu = gpus.gather(str(subject.root), runner)
    named = {device["compute_capability"] for device in gpu["devices"] if device["compute_capability"]}
    capabilities = [(int(major), int(minor)) for major, _dot, minor in (one.partition(".") for one in named)]
    machine = compiled.modules[0].dynamic.machine if compiled.modules else ""
    libcuda = libraries.system_libraries(cache, machine).get("libcuda.so.1")
    critical = {records.normalized(name) for name in subject.critical}
    return [
        *abi.gpu_architectures(compiled, critical, capabilities),
        *abi.driver_symbols(compiled, critical, Path(libcuda) if libcuda else None, gpu["driver"] or ""),
    ]


# The unit


def unit_findings(subject: Subject, runner: Runner) -> list[Finding]:
    """``unit.*``: systemd's opinion and our own."""
    name = unit_name(subject.release.instance)
    path = str(subject.layout.release(subject.release.instance, subject.release.id) / name)
    verified = runner(["systemd-analyze", "verify", path], timeout=60)
    security = runner(["systemd-analyze", "security", "--offline=true", "--no-pager", path], timeout=60)
    limit = EXPOSURE_WITH_GPUS if subject.facts["gpus"] else EXPOSURE
    return [unit_verified(name, verified.rc, verified.stderr), unit_exposure(name, security.stdout, limit), *units.lint(subject.unit)]


def unit_verified(name: str, rc: int, stderr: str) -> Finding:
    """``unit.verify``: what systemd says of this unit; what it says of others is not the release's matter."""
    said = [line for line in stderr.splitlines() if name in line]
    fix = "Correct the option of the instance that leads to this line; a directive that this systemd does not know is not in force."
    if rc == 127:
        return Finding("unit.verify", COULD_NOT_CHECK, name, "systemd-analyze is not there", fix="Install systemd's tools.")
    if said or rc:
        evidence = "\n".join(said) or stderr.strip()
        cause = "The unit says something that this version of systemd does not know, or does not take."
        verdict = ERROR if rc else WARNING
        return Finding("unit.verify", verdict, name, "systemd complains about the unit", evidence=evidence, cause=cause, fix=fix)
    return Finding("unit.verify", OK, name, "systemd reads the unit without complaint", evidence="systemd-analyze verify")


def unit_exposure(name: str, stdout: str, limit: float) -> Finding:
    """``unit.sandbox``: the exposure level in the output of ``systemd-analyze security --offline``."""
    match = re.search(r"exposure level for \S+: ([\d.]+)", stdout)
    if not match:
        said = stdout.strip().partition("\n")[0] or "no exposure level"
        return Finding("unit.sandbox", NOT_APPLICABLE, name, "this systemd judges no unit that is not loaded", said)
    found = "exposure %s of 10" % match.group(1)
    expected = "%s or less" % limit
    if float(match.group(1)) <= limit:
        return Finding("unit.sandbox", OK, name, "the sandbox is strict", found, expected)
    fix = "Use the strict sandbox (`service: {sandbox: strict}`) where the host allows namespaces."
    cause = "A lower level was chosen for the instance, or this systemd counts what is not closed otherwise."
    return Finding("unit.sandbox", WARNING, name, "the sandbox is not strict", found, expected, "systemd-analyze security", cause, fix)


# The host


def host_findings(subject: Subject, proc: Path, shm: Path) -> list[Finding]:
    """``host.port``, ``host.disk``, ``host.shm``."""
    facts = subject.facts
    ranks = max((int(value) for value in map(subject.release.config.get, _RANKS) if str(value).isdigit()), default=1)
    state = subject.layout.instance_state(facts["instance"], facts["environment"])
    return [
        port_free(facts["port"], _units(subject), gates.listeners(facts["port"], proc)),
        room("host.disk", state, FREE_DISK, *_DISK),
        room("host.shm", shm, FREE_SHM * ranks, *_SHM),
    ]


def _units(subject: Subject) -> list[str]:
    """The units that a switch stops: the instance's, and one made by hand that it has adopted."""
    instance = subject.facts["instance"]
    adopted = releases.adopted_unit(subject.layout, instance, releases.current(subject.layout, instance))
    return [unit_name(instance), *([adopted] if adopted else ())]


def port_free(port: int, units: t.Sequence[str], listeners: t.Sequence[gates.Listener]) -> Finding:
    """``host.port``: nobody listens, or only the instance's own unit."""
    subject = "port %d" % port
    foreign = [one for one in listeners if not any(one.of(unit) for unit in units)]
    if foreign:
        cause = "Another service uses it, or a process of the engine was left behind by a stop."
        fix = "Stop that process, or give the instance another port."
        found = ", ".join(one.text() for one in foreign)
        expected = "free, or of %s" % " or ".join(units)
        return Finding("host.port", ERROR, subject, "the port belongs to somebody else", found, expected, "/proc", cause, fix)
    found = ", ".join(one.text() for one in listeners) or "no listener"
    return Finding("host.port", OK, subject, "the instance's own service listens" if listeners else "free", found, evidence="/proc")


#: Why there is no room, and the way out.
_DISK = (
    "Environments, models or caches fill the file system.",
    "Remove environments and caches that are not used (`specdec status` names them).",
)
_SHM = (
    "A container's default is small, or processes that were killed left their segments behind.",
    "Give the host or container a larger /dev/shm, or remove what dead processes left there.",
)


def room(check: str, path: Path, needed: int, cause: str, fix: str) -> Finding:
    """Free space of the file system that holds ``path``, or of its nearest parent that is there."""
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        stat = os.statvfs(path)
    except OSError as error:
        return Finding(check, COULD_NOT_CHECK, str(path), "the file system cannot be asked", str(error), fix="Make the path readable.")
    free = stat.f_bavail * stat.f_frsize
    found, expected = "%d MiB free" % (free >> 20), "%d MiB" % (needed >> 20)
    if free < needed:
        return Finding(check, ERROR, str(path), "too little space is free", found, expected, cause=cause, fix=fix)
    return Finding(check, OK, str(path), "enough space is free", found, expected)


# The probe


def _probe(subject: Subject, runner: Runner, progress: Progress, spec: t.Mapping[str, t.Any], timings: dict[str, float]) -> list[Finding]:
    deadline, read_only = spec.get("deadline", probes.DEADLINE), bool(spec.get("read_only"))
    report = probes.run(subject.facts, subject.unit, runner, progress, subject.layout, subject.release.config, deadline, read_only)
    for stage, line in report.stages.items():
        timings["probe.%s" % stage] = line["seconds"]
    return probes.findings(report, subject.facts, subject.layout)
