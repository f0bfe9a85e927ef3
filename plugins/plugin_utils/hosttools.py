# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the controller sends to a host before anything else: the host program and uv.

Both are made once and kept in a cache directory under a name that says what they were made from; a
directory appears there by a rename, so several controllers' processes may make the same one at once.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
import typing as t
import zipfile
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils import locks, networks
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, Finding, FindingError
from ansible_collections.specdec.serving.plugins.module_utils.layout import digest
from ansible_collections.specdec.serving.plugins.module_utils.runners import Runner

COLLECTION = Path(__file__).resolve().parents[2]
REQUIREMENTS = Path(__file__).resolve().parent / "data" / "host_tools.txt"

#: The pure packages of the host program.
LIBRARIES = ("packaging", "pyelftools", "nvidia-ml-py")

_PLUGINS = "ansible_collections/specdec/serving/plugins"
#: The file of the host program that starts processes; what modules use may not (see module_utils/runners.py).
_PROCESSES = "plugin_utils/processes.py"
#: Isolated from the user's directories and variables; writes no bytecode.
_SHEBANG = b"#!/usr/bin/python3 -IB\n"
_MAIN = "import sys\n\nfrom specdec.main import main\n\nsys.exit(main())\n"

#: The oldest time that a zip file can say; the same for every file, so that the same content is the same bytes.
_EPOCH = (1980, 1, 1, 0, 0, 0)

#: What a host's uv has to run on; its wheels ask for no more.
_PLATFORM = "%s-manylinux_2_17"

#: How uv is run here: by itself, with the certificates of the system.
SETTINGS = {"UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "UV_SYSTEM_CERTS": "1"}
_TIMEOUT = 600.0


def find_uv(named: t.Optional[str] = None) -> str:
    """The uv of the controller: the one that is named, on PATH, beside this Python, or of the package ``uv``.

    Raises FindingError (``tools.uv``) where there is none.
    """
    beside = str(Path(sys.executable).parent)
    found = shutil.which(named) if named else shutil.which("uv") or shutil.which("uv", path=beside) or _packaged_uv()
    if found:
        return found
    raise FindingError(
        Finding(
            "tools.uv",
            ERROR,
            "controller",
            "uv is not there",
            named or "no uv on PATH, in %s, or as a package" % beside,
            "a uv that can be started",
            fix="Install uv into the Python environment of Ansible: %s -m pip install uv" % sys.executable,
        )
    )


def tools(cache: Path, runner: Runner, machine: str, uv: t.Optional[str] = None) -> dict[str, dict[str, str]]:
    """Both tools for a host's machine: per name its ``path`` here and ``digest`` (sha256 of the file)."""
    program, program_digest = zipapp(cache, runner, uv)
    binary, binary_digest, _version = host_uv(cache, runner, uv, machine)
    return {
        "specdec": {"path": str(program), "digest": program_digest},
        "uv": {"path": str(binary), "digest": binary_digest},
    }


def zipapp(cache: Path, runner: Runner, uv: t.Optional[str] = None) -> tuple[Path, str]:
    """The host program as one file, and its sha256, which is its version.

    The same sources give the same bytes on every controller: nothing is compressed, for libraries that
    compress differ. Raises FindingError where its libraries cannot be fetched.
    """
    own = {name: path.read_bytes() for name, path in _sources().items()}
    wanted = _requirements(*LIBRARIES)
    key = digest([_MAIN, _SHEBANG.decode(), wanted, {name: hashlib.sha256(content).hexdigest() for name, content in own.items()}])

    def make(directory: Path) -> None:
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            _install(wanted, Path(scratch), runner, uv, [])
            files = {**_library_files(Path(scratch)), **own, "__main__.py": _MAIN.encode()}
            for package in [*_parents(_PLUGINS + "/module_utils"), _PLUGINS + "/plugin_utils"]:
                files.setdefault(package + "/__init__.py", b"")
            with open(directory / "specdec", "wb") as program:
                program.write(_SHEBANG)  # a person starts it by its name; a zip file may begin with anything
                with zipfile.ZipFile(program, "w", zipfile.ZIP_STORED) as archive:
                    for name in sorted(files):
                        archive.writestr(zipfile.ZipInfo(name, _EPOCH), files[name])

    return _kept(cache, "specdec-" + key, "specdec", make)


def host_uv(cache: Path, runner: Runner, uv: t.Optional[str], machine: str) -> tuple[Path, str, str]:
    """uv for a host's machine (``x86_64``, ``aarch64``): the file, its sha256, its version.

    Raises FindingError where it cannot be fetched.
    """
    wanted = _requirements("uv")

    def make(directory: Path) -> None:
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            _install(wanted, Path(scratch), runner, uv, ["--python-platform", _PLATFORM % machine])
            (Path(scratch) / "bin" / "uv").rename(directory / "uv")

    path, value = _kept(cache, "uv-%s-%s" % (machine, digest(wanted)), "uv", make)
    return path, value, wanted.partition("==")[2].split()[0]


def _packaged_uv() -> t.Optional[str]:
    try:
        from uv import find_uv_bin
    except ImportError:
        return None
    try:
        return str(find_uv_bin())
    except FileNotFoundError:
        return None


def _requirements(*names: str) -> str:
    """Of the locked tools, the lines of these."""
    blocks = re.findall(r"(?m)^([a-z0-9-]+)(==.*(?:\n    .*)*)", REQUIREMENTS.read_text(encoding="utf-8"))
    return "".join(name + rest + "\n" for name, rest in blocks if name in names)


def packages() -> list[locks.Package]:
    """All of the locked tools, with the hashes of their files."""
    lines = re.sub(r"\\\n", " ", REQUIREMENTS.read_text(encoding="utf-8"))
    found = re.findall(r"(?m)^([a-z0-9-]+)==(\S+)(.*)$", lines)
    return [locks.Package(name, version, tuple(re.findall(r"sha256:([0-9a-f]{64})", rest))) for name, version, rest in found]


def _sources() -> dict[str, Path]:
    """The collection's own files in the host program, by their names there."""
    plugins = COLLECTION / "plugins"
    core = {"%s/module_utils/%s" % (_PLUGINS, path.name): path for path in (plugins / "module_utils").glob("*.py")}
    core["%s/%s" % (_PLUGINS, _PROCESSES)] = plugins / _PROCESSES
    return {**core, **{"specdec/" + path.name: path for path in (COLLECTION / "roles" / "uv" / "files" / "specdec").glob("*.py")}}


def _parents(package: str) -> list[str]:
    parts = package.split("/")
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _library_files(directory: Path) -> dict[str, bytes]:
    """Modules of installed packages, with their licences and metadata; nothing that differs between two installations."""
    files = {}
    for path in directory.rglob("*"):
        name = path.relative_to(directory)
        about = any(part.endswith(".dist-info") for part in name.parts) and (path.name == "METADATA" or "licen" in str(name).lower())
        if path.is_file() and name.parts[0] != "bin" and (path.suffix == ".py" or about):
            files[name.as_posix()] = path.read_bytes()
    return files


def _install(wanted: str, target: Path, runner: Runner, uv: t.Optional[str], options: t.Sequence[str]) -> None:
    argv = [uv or find_uv(), "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--link-mode", "copy"]
    argv += ["--python", sys.executable, "--target", str(target), *options, "--requirements", "-"]
    done = runner(argv, stdin=wanted, env=SETTINGS, timeout=_TIMEOUT)
    if done.rc == 0:
        return
    names = ", ".join(re.findall(r"(?m)^[a-z0-9-]+==\S+", wanted))
    words = networks.hidden(done.stderr.strip())
    fix = "See the evidence, then run it again."
    failed = Finding("tools.fetch", ERROR, "controller", "%s could not be fetched" % names, evidence=words[-600:], fix=fix)
    raise FindingError(networks.diagnose(words, "the controller, fetching %s" % names) or failed)


def _kept(cache: Path, name: str, file: str, make: t.Callable[[Path], None]) -> tuple[Path, str]:
    """``file`` in the directory ``name`` of the cache and its sha256; made where it is not there."""
    kept = cache / name
    if not (kept / "sha256").exists():
        cache.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".%s-" % name, dir=cache))
        try:
            make(scratch)
            (scratch / file).chmod(0o755)
            value = hashlib.sha256((scratch / file).read_bytes()).hexdigest()
            (scratch / "sha256").write_text(value, encoding="ascii")
            try:
                os.rename(scratch, kept)
            except OSError:
                # Another process was first; what it made is the same.
                if not (kept / "sha256").exists():
                    raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return kept / file, (kept / "sha256").read_text(encoding="ascii")
