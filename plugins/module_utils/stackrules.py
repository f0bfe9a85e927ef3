# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands against a stack on a host: one function a rule, over the tables and the facts.

A rule knows no version and no lane by name; it compares what ``data/stacks.yml`` says with what the
host is and with what the user pinned. What a rule cannot know (a GPU that does not tell what it is)
it does not judge.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from .findings import ERROR, WARNING, Finding

CPU = "cpu"

Table = t.Mapping[str, t.Any]


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What the user wrote, and where: ``host`` and ``variable`` only name it in findings.

    :param base: the version of the engine that an overlay was made over, where that decides.
    :param reference: versions by package taken over from a reference, where no pin says otherwise.
    """

    name: str
    version: t.Optional[str]
    lane: str
    python: t.Optional[str]
    pins: t.Mapping[str, str]
    packages: tuple[str, ...]
    host: str
    variable: str
    base: str = ""
    reference: t.Mapping[str, str] = dataclasses.field(default_factory=dict)

    def subject(self, option: str = "") -> str:
        """What a finding is about: ``ct200: engine.version``."""
        return self.at(self.variable + option)

    def at(self, variable: str) -> str:
        """The same for another variable than the engine."""
        return "%s: %s" % (self.host, variable) if self.host else variable

    @property
    def asked(self) -> set[str]:
        """Names of the packages wanted besides the engine."""
        from packaging.requirements import Requirement

        return {normal(Requirement(line).name) for line in self.packages}


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One release on one lane of one host.

    :param row: what the tables say of the release.
    """

    tables: Table
    facts: Table
    wanted: Wanted
    version: str
    row: Table
    lane: str

    @property
    def label(self) -> str:
        """For a person: ``sglang 0.5.23 on lane cu130``."""
        return "%s %s on lane %s" % (self.wanted.name, self.version, self.lane)

    @property
    def lane_row(self) -> Table:
        """What the tables say of the lane."""
        return self.tables["lanes"][self.lane]

    @property
    def cuda(self) -> str:
        """The label that packages of this lane carry in their versions."""
        return self.lane_row.get("label", self.lane)

    @property
    def lacks(self) -> tuple[str, ...]:
        """What the lane does not have."""
        return tuple(self.lane_row.get("lacks", ()))

    @property
    def gpus(self) -> Table:
        """The facts about GPUs."""
        return self.facts.get("gpus") or {}

    @property
    def machine(self) -> str:
        """The processor: ``x86_64``."""
        return self.facts.get("os", {}).get("machine") or ""

    @property
    def capabilities(self) -> list[tuple[str, str]]:
        """Compute capability and name of each kind of GPU that tells both."""
        kinds = {(one.get("compute_capability"), one.get("name") or "a GPU") for one in self.gpus.get("devices", ())}
        return sorted((str(capability), name) for capability, name in kinds if capability)

    @property
    def torch(self) -> str:
        """torch's version as it is pinned, else the release's own on this lane."""
        asked = self.wanted.pins.get("torch") or self.wanted.reference.get("torch")
        return asked or self.row.get("torch_for", {}).get(self.lane, self.row["torch"])

    @property
    def flashinfer(self) -> t.Optional[str]:
        """The version of flashinfer's parts, None where the lane has none."""
        if "flashinfer" in self.lacks:
            return None
        pins = self.wanted.pins
        asked = pins.get("flashinfer") or pins.get("flashinfer-python") or self.wanted.reference.get("flashinfer-python")
        return asked or self.row["flashinfer"]


Rule = t.Callable[[Candidate], list[Finding]]


def error(name: str, subject: str, message: str, found: str, expected: str, evidence: str, fix: str) -> Finding:
    """A refusal."""
    return Finding(name, ERROR, subject, message, found, expected, evidence, fix=fix)


def _warning(name: str, subject: str, message: str, found: str, expected: str, cause: str, fix: str) -> Finding:
    return Finding(name, WARNING, subject, message, found, expected, cause=cause, fix=fix)


# The host


def architecture(one: Candidate) -> list[Finding]:
    """``stack.architecture``: there are wheels for this processor."""
    if one.machine in one.tables["machines"]:
        return []
    fix = "Use a host with one of these processors; there are no wheels for others."
    allowed = " or ".join(one.tables["machines"])
    return [error("stack.architecture", one.wanted.subject(), "no wheels for this machine", one.machine or "unknown", allowed, "", fix)]


def glibc(one: Candidate) -> list[Finding]:
    """``stack.glibc``: the wheels' glibc is not newer than the host's."""
    found = one.facts.get("os", {}).get("glibc") or ""
    if found and not older(found, one.row["glibc"]):
        return []
    fix = "Use a host with glibc %s or newer (for 2.34: Debian 12, Ubuntu 22.04, RHEL 9)." % one.row["glibc"]
    message = "%s %s has no wheels for this glibc" % (one.wanted.name, one.version)
    return [error("stack.glibc", one.wanted.subject(".version"), message, found or "unknown", ">= %s" % one.row["glibc"], "", fix)]


# The GPUs


def driver(one: Candidate) -> list[Finding]:
    """``stack.driver``: the driver runs the lane's CUDA, and starts these GPUs."""
    row = one.lane_row
    if "driver" not in row:
        return []
    majors = {capability.partition(".")[0] for capability, _name in one.capabilities}
    floors = [row["driver"], *(floor for major, floor in row.get("driver_for", {}).items() if major in majors)]
    floor = max(floors, key=ordered)
    installed = one.gpus.get("driver")
    subject = one.wanted.subject(".lane")
    fix = "Install an NVIDIA driver %s or newer; specdec never installs drivers." % floor
    if not installed:
        message = "%s needs an NVIDIA driver, and none answers on this host" % one.label
        return [error("stack.driver", subject, message, "no driver", ">= %s" % floor, "", fix)]
    if older(installed, floor):
        message = "the NVIDIA driver is too old for %s" % one.label
        return [error("stack.driver", subject, message, installed, ">= %s" % floor, "", fix)]
    if older(installed, row["toolkit_driver"]):
        return [
            _warning(
                "stack.driver-older-than-toolkit",
                subject,
                "the NVIDIA driver runs lane %s, but is older than its CUDA %s" % (one.lane, row["cuda"]),
                installed,
                ">= %s" % row["toolkit_driver"],
                "Code that is compiled at run time for a newer CUDA may not load (unsupported toolchain).",
                "Install an NVIDIA driver %s or newer when you can." % row["toolkit_driver"],
            )
        ]
    return []


def capability(one: Candidate) -> list[Finding]:
    """``stack.capability``: the engine runs on these GPUs at all."""
    floor = one.row.get("capability")
    if not floor or "cuda" in one.lacks:
        return []
    message = "%s %s does not run on this GPU" % (one.wanted.name, one.version)
    fix = "Choose GPUs of compute capability %s or newer (option gpus), or the lane cpu." % floor
    return [
        error("stack.capability", one.wanted.subject(), message, "%s, compute capability %s" % (name, has), ">= %s" % floor, "", fix)
        for has, name in one.capabilities
        if older(has, floor)
    ]


def kernel_code(one: Candidate) -> list[Finding]:
    """``stack.kernel-code``: the kernel package of this lane holds code for these GPUs.

    One that the user pins may be built otherwise; prove looks into it.
    """
    if "kernel" in one.lacks or "kernel_name" not in one.row or one.row["kernel_name"] in one.wanted.pins:
        return []
    code = one.tables["engines"][one.wanted.name]["kernel_code"].get(one.cuda, {})
    holds = [*code.get("any", ()), *code.get(one.machine, ())]
    message = "%s of %s holds no code for this GPU" % (one.row["kernel_name"], one.label)
    fix = "Choose another lane or release; or pin a %s that was built for it in specdec_pins." % one.row["kernel_name"]
    return [
        error(
            "stack.kernel-code",
            one.wanted.subject(".lane"),
            message,
            "%s, compute capability %s" % (name, has),
            ", ".join(holds),
            "",
            fix,
        )
        for has, name in one.capabilities
        if holds and not runs(holds, has)
    ]


def flashinfer_cuda(one: Candidate) -> list[Finding]:
    """``stack.flashinfer-cuda``: flashinfer asks for a newer CUDA on some GPUs than the lane may have.

    It takes CUDA's version from the toolkit that it finds, only without one from torch.
    """
    version = one.flashinfer
    if version is None:
        return []
    found = []
    for rule in one.tables["flashinfer_cuda"]:
        named = next((name for has, name in one.capabilities if has.partition(".")[0] == rule["capability"]), None)
        if not named or not _at_least(version, rule["since"]):
            continue
        toolkits = [kit for kit in one.gpus.get("toolkits", ()) if kit.get("version")]
        default = next((kit for kit in toolkits if "/usr/local/cuda" in kit["names"]), None)
        seen, where = (default["version"], default["path"]) if default else (one.lane_row["cuda"], "torch of lane %s" % one.lane)
        if not older(seen, rule["cuda"]):
            continue
        newer = [kit["path"] for kit in toolkits if not older(kit["version"], rule["cuda"])]
        subject, expected = one.wanted.subject(".lane"), "CUDA >= %s" % rule["cuda"]
        message = "flashinfer %s refuses %s with the CUDA that it would find for %s" % (version, named, one.label)
        words = "CUDA %s of %s" % (seen, where)
        if newer:
            fix = "Let the instance's environment say CUDA_HOME: %s." % newer[0]
            cause = "It takes CUDA's version from CUDA_HOME, else from /usr/local/cuda, else from torch."
            found.append(_warning("stack.flashinfer-cuda", subject, message, words, expected, cause, fix))
        else:
            fix = "Choose a lane of CUDA %s or newer, or install such a toolkit, or pin flashinfer below %s." % (
                rule["cuda"],
                rule["since"],
            )
            found.append(error("stack.flashinfer-cuda", subject, message, words, expected, "", fix))
    return found


def jit_cache(one: Candidate) -> list[Finding]:
    """``stack.jit-cache``: a flashinfer-jit-cache that is wanted holds code for these GPUs."""
    name = "flashinfer-jit-cache"
    version = one.flashinfer
    if version is None or name not in one.wanted.asked | one.wanted.pins.keys():
        return []
    rows = [row for row in one.tables["jit_cache"] if row["label"] == one.cuda and _at_least(version, row["since"])]
    if not rows:
        return []
    row = max(rows, key=lambda each: ordered(each["since"]))
    holds = [*row["any"], *row.get(one.machine, ())]
    cause = "What it does not hold is compiled at the first start, which takes minutes and a CUDA toolkit."
    return [
        _warning(
            "stack.jit-cache",
            one.wanted.at("specdec_extra_packages"),
            "%s %s of lane %s holds no code for this GPU" % (name, version, one.lane),
            "%s, compute capability %s" % (called, has),
            ", ".join(holds),
            cause,
            "Leave it out, or choose another lane.",
        )
        for has, called in one.capabilities
        if not runs(holds, has)
    ]


# The packages


def builds(one: Candidate) -> set[str]:
    """The packages of a stack that there is no wheel of for this machine: they are compiled on the host."""
    row = one.row.get("builds", {})
    return {*row.get("any", ()), *row.get(one.machine, ())}


def building(one: Candidate, interpreter: Table) -> list[Finding]:
    """``stack.compiler``: what compiles on the host finds a compiler and Python's headers.

    Packages without a wheel do so while the environment is built, Triton at the first start of a server on GPUs.
    """
    compilers = one.gpus.get("compilers")
    left_out = set(one.tables["engines"][one.wanted.name].get("cpu", {}).get("excludes", ())) if one.lane == CPU else set()
    sources = sorted(builds(one) - left_out)
    if compilers is None or ("cuda" in one.lacks and not sources):
        return []
    names = {each["name"] for each in compilers}
    absent = [] if names & {"gcc", "clang"} else ["a C compiler"]
    absent += ["a C++ compiler"] if sources and not names & {"g++", "clang"} else []
    absent += [] if interpreter.get("headers") else ["the headers of Python %s (Python.h)" % interpreter["version"]]
    if not absent:
        return []
    packages = "Install them on the host (Debian, Ubuntu: build-essential, python3-dev), or take another Python: specdec_python."
    found, expected = "no " + ", no ".join(absent), "gcc, g++ and Python.h"
    if not sources:
        cause = "Triton compiles its launcher when a server starts."
        return [
            _warning("stack.compiler", one.wanted.subject(), "a server could not compile at its start", found, expected, cause, packages)
        ]
    message = "there is no wheel of %s for this host, and it cannot be compiled here" % ", ".join(sources)
    return [error("stack.compiler", one.wanted.subject(), message, found, expected, "", packages)]


def cubin(one: Candidate) -> list[Finding]:
    """``stack.cubin``: the default index does not hold this version of flashinfer's cubins."""
    if not needs_cubin_index(one):
        return []
    last = one.tables["newest_cubin"]
    index = next(index["url"] for index in one.lane_row["indexes"] if "flashinfer-cubin" in index["packages"])
    return [
        _warning(
            "stack.cubin",
            one.wanted.at("specdec_pins.flashinfer"),
            "the default index holds no flashinfer-cubin of this version",
            str(one.flashinfer),
            "<= %s, or another index" % last,
            "It ends there; the newer ones are published elsewhere only.",
            "It is taken from %s; where that cannot be reached, pin flashinfer to %s or put the wheel into specdec_wheel_directories."
            % (index, last),
        )
    ]


def needs_cubin_index(one: Candidate) -> bool:
    """Whether the stack holds a flashinfer-cubin that the default index lacks."""
    wanted = one.row.get("cubin") or "flashinfer-cubin" in one.wanted.asked
    return bool(wanted and one.flashinfer and not _at_least(one.tables["newest_cubin"], one.flashinfer))


def torch_label(one: Candidate) -> list[Finding]:
    """``stack.torch-lane``: a torch that is pinned was not built for another lane."""
    pinned = one.wanted.pins.get("torch", "")
    label = re.search(r"\+(cpu|cu\d+)", pinned)
    if not label or label[1] == one.cuda:
        return []
    message = "the torch that is pinned was built for another lane than %s" % one.lane
    fix = "Pin %s, or choose the lane of this torch." % re.sub(r"\+(cpu|cu\d+)", "+" + one.cuda, pinned)
    return [error("stack.torch-lane", one.wanted.at("specdec_pins.torch"), message, pinned, "+" + one.cuda, "", fix)]


def kernel_torch(one: Candidate) -> list[Finding]:
    """``stack.kernel-torch``: a torch that is pinned is of the version that the kernel package was built against."""
    if "kernel" in one.lacks or "kernel_name" not in one.row or one.row["kernel_name"] in one.wanted.pins:
        return []
    built, wanted = ordered(one.row["torch"])[:2], ordered(one.torch)[:2]
    if built == wanted:
        return []
    name = one.row["kernel_name"]
    fix = "Pin %s to a build for this torch as well, or leave torch as it is." % name
    return [
        _warning(
            "stack.kernel-torch",
            one.wanted.at("specdec_pins.torch"),
            "the kernel package of this release was built against another torch",
            one.torch,
            one.row["torch"],
            "torch's C++ interface changes from one minor version to the next; %s declares no torch, so no resolver knows." % name,
            fix,
        )
    ]


def kernel_name(one: Candidate) -> list[Finding]:
    """``stack.kernel-name``: the kernel package is wanted under the name that this release knows."""
    if "kernel" in one.lacks or "kernel_name" not in one.row:
        return []
    own = one.row["kernel_name"]
    others = set(one.tables["engines"][one.wanted.name]["kernels"]) - {own}
    found = []
    for variable, names in (("specdec_pins", one.wanted.pins.keys()), ("specdec_extra_packages", one.wanted.asked)):
        for name in sorted(others & set(names)):
            message = "%s %s has its kernels from %s; the other package writes the same directory" % (one.wanted.name, one.version, own)
            found.append(error("stack.kernel-name", one.wanted.at(variable), message, name, own, "", "Write %s." % own))
    return found


def one_engine(one: Candidate) -> list[Finding]:
    """``stack.two-engines``: no second engine in the same environment; their pins contradict each other."""
    own = one.wanted.name
    others = {
        dist: name for name, row in one.tables["engines"].items() if name != own for dist in (name, row.get("cpu", {}).get("package", name))
    }
    found = []
    for variable, names in (("specdec_pins", one.wanted.pins.keys()), ("specdec_extra_packages", one.wanted.asked)):
        for name in sorted(others.keys() & set(names)):
            message = "two engines do not fit into one environment"
            fix = "Give %s an instance of its own; it gets an environment of its own." % others[name]
            found.append(error("stack.two-engines", one.wanted.at(variable), message, name, "nothing but %s" % own, "", fix))
    return found


def exact(one: Candidate) -> list[Finding]:
    """``stack.nightly``: a lane of nightly builds takes nothing by itself; who wants it says each version."""
    found = []
    for part in one.lane_row.get("exact", ()):
        name = one.row.get("kernel_name", "") if part == "kernel" else part
        pinned = one.wanted.pins.get(name) or (one.wanted.pins.get("flashinfer-python") if part == "flashinfer" else "") or ""
        if not name or re.fullmatch(r"(==)?\d[^,<>=!~*\s]*", pinned):
            continue
        message = "lane %s needs the exact version of %s" % (one.lane, name)
        fix = 'Say which build: specdec_pins: {%s: "<version with its +%s label>"}.' % (name, one.cuda)
        if part == "flashinfer":
            fix = 'Say which build, for all its parts: specdec_pins: {flashinfer: "<version>"}.'
        found.append(
            error("stack.nightly", one.wanted.at("specdec_pins.%s" % name), message, pinned or "none", "an exact version", "", fix)
        )
    return found


#: The order is that of the findings.
RULES: tuple[Rule, ...] = (
    one_engine,
    kernel_name,
    architecture,
    glibc,
    driver,
    capability,
    kernel_code,
    flashinfer_cuda,
    exact,
    torch_label,
    kernel_torch,
    cubin,
    jit_cache,
)


def judge(one: Candidate, rules: t.Optional[t.Sequence[Rule]] = None) -> list[Finding]:
    """What every rule says."""
    return [found for rule in (RULES if rules is None else rules) for found in rule(one)]


def algorithm(tables: Table, engine: str, version: str, wanted: str, manifests: t.Iterable[Table], subject: str) -> t.Optional[Finding]:
    """``stack.algorithm``: base and overlays together know the speculative algorithm; None where they do.

    :param manifests: of the overlays over the engine's package.

    Of an engine whose algorithms the tables do not hold nothing is said.
    """
    known = merged(tables, engine, version).get("algorithms")
    added = {str(name).upper() for manifest in manifests for name in manifest.get("adds", {}).get("algorithms", ())}
    if known is None or wanted.upper() in {*known, *added}:
        return None
    since = [first for first, row in tables["engines"][engine]["since"].items() if wanted.upper() in row.get("algorithms", ())]
    fix = "Choose one that it knows, or give the instance an overlay that adds %s." % wanted
    if since:
        fix = "Choose %s %s or newer, or give the instance an overlay that adds %s." % (engine, min(since, key=ordered), wanted)
    message = "%s %s does not know this algorithm, and no overlay adds it" % (engine, version)
    return error("stack.algorithm", subject, message, wanted, ", ".join([*known, *sorted(added)]), "", fix)


# The tables


def merged(tables: Table, engine: str, version: str) -> dict[str, t.Any]:
    """What holds for a version of an engine since it or an older one; of a build before a release what holds for the release."""
    rows: dict[str, t.Any] = {}
    for since in until(tables["engines"][engine]["since"], version):
        rows.update(tables["engines"][engine]["since"][since])
    return rows


def until(versions: t.Iterable[str], last: str) -> list[str]:
    """The versions up to another one, oldest first; a build before a release counts as the release."""
    from packaging.version import Version

    at = Version(last)
    at = Version(at.base_version) if at.is_prerelease else at
    return [one for one in sorted(versions, key=Version) if Version(one) <= at]


# Versions


def runs(holds: t.Iterable[str], capability_: str) -> bool:
    """Whether code for ``holds`` runs on a compute capability: ``9.0`` and ``12.0f`` on their major from that minor on,
    ``12.0a`` on exactly that."""
    major, minor = ordered(capability_)[:2]
    for one in holds:
        has = ordered(one)[:2]
        if has == (major, minor) or (has[0] == major and has[1] <= minor and not one.endswith("a")):
            return True
    return False


def ordered(version: str) -> tuple[int, ...]:
    """The numbers of a version, for versions of which nothing else counts."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def older(version: str, floor: str) -> bool:
    """Whether a driver, glibc, CUDA or compute capability is below a floor."""
    return ordered(version) < ordered(floor)


def normal(name: str) -> str:
    """A distribution's name, normalised."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _at_least(version: str, floor: str) -> bool:
    """Whether a version is another or a newer one; a range is judged by the first version it names."""
    from packaging.version import InvalidVersion, Version

    try:
        one, other = (Version(re.sub(r"^[<>=!~ ]+|[,*\s].*$", "", text).rstrip(".")) for text in (version, floor))
    except InvalidVersion:
        return False
    return one >= other
