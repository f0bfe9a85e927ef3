# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A release and its environment on disk, small but real: a virtual environment with an engine of a few lines.

The engine's modules have the names and the behaviour of those that data/engines.yml asks for, so the
rows of that table are what is tried.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import textwrap
import typing as t
import venv
from pathlib import Path

import yaml

from ansible_collections.specdec.serving.plugins.module_utils import checks, locks, probes, releases
from ansible_collections.specdec.serving.plugins.module_utils.layout import MARKER, Layout, digest, unit_name
from ansible_collections.specdec.serving.plugins.module_utils.runners import Completed

ENGINES = yaml.safe_load((Path(checks.__file__).parent / "data" / "engines.yml").read_text(encoding="utf-8"))
ENVIRONMENT = "0123456789abcdef"

SERVER_ARGS = """
import argparse, json
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

class ServerArgs:
    resolved = False
    def resolve_once(self):
        if SpeculativeAlgorithm.from_string(self.speculative_algorithm) == "DFLASH" and not self.speculative_draft_model_path:
            raise ValueError("DFLASH requires a draft")
        self.resolved = True
    def check_server_args(self):
        assert self.resolved
        if self.tp_size > 8:
            raise AssertionError("tp_size must be at most 8")

def prepare_server_args(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--api-key")
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--speculative-algorithm")
    parser.add_argument("--speculative-draft-model-path")
    parser.add_argument("--tp-size", type=int, default=1)
    assert argv[0] == "--config" and argv[1].endswith(".yaml")
    with open(argv[1]) as stream:
        options = json.load(stream)
    assert options["api-key"], "no key"
    return parser.parse_args([word for key, value in options.items() for word in ("--" + key, str(value))], ServerArgs())
"""

SPEC_INFO = """
class SpeculativeAlgorithm:
    known = {"DFLASH", "NGRAM", "EAGLE"}
    @classmethod
    def from_string(cls, name):
        try:
            return name and {one: one for one in cls.known}[name.upper()]
        except KeyError:
            raise ValueError("Unknown speculative algorithm name: %s" % name)
"""

DISTRIBUTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "sglang": (
        "0.5.23",
        {
            "sglang/__init__.py": "import torch\nimport flashinfer\n__version__ = '0.5.23'\n",
            "sglang/srt/__init__.py": "",
            "sglang/srt/server_args.py": SERVER_ARGS,
            "sglang/srt/speculative/__init__.py": "from flashinfer import bmm_mxfp8\n",
            "sglang/srt/speculative/spec_info.py": SPEC_INFO,
            "sglang/srt/plugins/__init__.py": "def load_plugins():\n    print('noise on standard output')\n",
        },
    ),
    "torch": ("2.9.1", {"torch/__init__.py": "", "torch/version.py": "__version__ = '2.9.1+cu128'\n"}),
    "flashinfer-python": ("0.6.3", {"flashinfer/__init__.py": "def bmm_mxfp8(): ...\n"}),
    "flashinfer-cubin": ("0.6.3", {"flashinfer_cubin/__init__.py": ""}),
    "sgl-kernel": ("0.3.21", {"sgl_kernel/__init__.py": ""}),
    "nvidia-nccl-cu12": ("2.27.5", {"nvidia/nccl/__init__.py": ""}),
}


class World:
    """One instance on one host."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout(root / "opt")
        self.directory = self.layout.environment(ENVIRONMENT)
        venv.EnvBuilder(symlinks=True).create(self.directory / "venv")
        self.site = next((self.directory / "venv" / "lib").glob("python3*/site-packages"))
        self.proc = root / "proc"
        self.shm = root
        (self.proc / "net").mkdir(parents=True)
        model = self.layout.models / "tiny"
        model.mkdir(parents=True)
        (model / "config.json").write_text("{}")
        self.lock: dict[str, str] = {}
        self.overlay: list[dict[str, t.Any]] = []
        self.config: dict[str, t.Any] = {"model-path": str(model), "speculative-algorithm": "NGRAM"}
        self.lacks: list[str] = []
        self.facts: dict[str, t.Any] = {
            **releases._DEFAULTS,
            "schema": 1,
            "instance": "main",
            "environment": ENVIRONMENT,
            "engine": {"name": "sglang", "version": "0.5.23"},
            "command": ["-m", "sglang.launch_server"],
            "config_option": "--config",
            "secrets": {"api_key": {"option": "api-key", "version": "f00d"}},
            "environment_variables": {"HOME": str(self.state), "PATH": "%s/venv/bin:/usr/bin" % self.directory},
            "models": [str(model)],
            "host": "127.0.0.1",
            "port": 30000,
            "stop_timeout": 60,
            "start_timeout": 600,
            "sandbox": "strict",
            "gpus": False,
            "clients": [],
            "gate": {},
        }
        self.wanted = {"engine": "sglang", "version": "0.5.23"}
        self.edit_unit: t.Callable[[str], str] = str
        self.edit_lock: t.Callable[[str], str] = str
        self.analyze = {"verify": Completed(0, "", ""), "security": Completed(0, "→ Overall exposure level for x.service: 1.1 OK 🙂", "")}
        self.loader_cache = "\tlibc.so.6 (libc6,x86-64) => /lib/libc.so.6\n"
        self.transient: t.Optional[Completed] = None
        self.started: list[list[str]] = []
        for name, (version, files) in DISTRIBUTIONS.items():
            self.install(name, version, files)
        self.marker = True

    @property
    def state(self) -> Path:
        return self.layout.instance_state("main", ENVIRONMENT)

    def install(self, name: str, version: str, files: t.Mapping[str, t.Union[str, bytes]]) -> None:
        """As an installer does: files, metadata, RECORD; and a line in the lock."""
        self.lock[name] = version
        info = "%s-%s.dist-info" % (name.replace("-", "_"), version)
        content = {info + "/METADATA": "Metadata-Version: 2.1\nName: %s\nVersion: %s\n" % (name, version), **files}
        rows = [info + "/RECORD,,"]
        for path, text in content.items():
            self.write(path, textwrap.dedent(text) if isinstance(text, str) else text)
            data = (self.site / path).read_bytes()
            rows.append("%s,sha256=%s,%d" % (path, base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("="), len(data)))
        self.write(info + "/RECORD", "\n".join(rows) + "\n")

    def reinstall(self, name: str, **files: str) -> None:
        """A distribution with other content of some files (``__init__``: of its package)."""
        version, usual = DISTRIBUTIONS[name]
        package = next(iter(usual)).partition("/")[0]
        self.install(name, version, {**usual, **{"%s/%s.py" % (package, path.replace(".", "/")): text for path, text in files.items()}})

    def write(self, path: str, text: t.Union[str, bytes]) -> None:
        """A file in site-packages."""
        (self.site / path).parent.mkdir(parents=True, exist_ok=True)
        (self.site / path).write_bytes(text.encode() if isinstance(text, str) else text)

    def _store(self) -> str:
        version = self.facts["engine"]["version"]
        self.facts["dry_run"] = probes.dry_run(ENGINES["sglang"], version, self.lacks)
        composed = releases.units.service_unit(str(self.layout.root), self.facts).text()
        unit = self.edit_unit(composed)
        facts = {key: value for key, value in self.facts.items() if key != "id"}
        identity = digest({"release": facts, "config": self.config, "unit": unit, "launcher": ""})
        directory = self.layout.release("main", identity)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "release.json").write_text(json.dumps({**facts, "id": identity}))
        (directory / "config.json").write_text(json.dumps(self.config))
        (directory / unit_name("main")).write_text(unit)
        (directory / "launch.py").write_text("")
        (self.directory / "environment.json").write_text("{}")
        (self.directory / "overlay.json").write_text(json.dumps(self.overlay))
        packages = tuple(locks.Package(name, version, ("0" * 64,)) for name, version in sorted(self.lock.items()))
        (self.directory / "lock.txt").write_text(self.edit_lock(locks.Lock(packages, {}).text()))
        if self.marker:
            (self.directory / MARKER).touch()
        return identity

    def __call__(self, argv, *, stdin=None, env=None, timeout=None, on_line=None) -> Completed:
        """The runner: systemd's tools say what the world says, a transient unit is a plain process."""
        if argv[0] == "systemd-analyze":
            return self.analyze[argv[1]]
        if argv[0] == "/sbin/ldconfig":
            return Completed(0, self.loader_cache, "")
        assert argv[0] == "systemd-run"
        self.started.append(list(argv))
        if self.transient:
            return self.transient
        clean = {"PATH": os.environ["PATH"]}
        done = subprocess.run(
            argv[-2:], input=stdin, capture_output=True, text=True, timeout=timeout, env=clean, cwd=self.layout.root, check=False
        )
        return Completed(done.returncode, done.stdout, done.stderr)

    def prove(self, skip: t.Iterable[str] = (), deadline: float = 60) -> dict[str, t.Any]:
        """The job's result."""
        spec = {"root": str(self.layout.root), "instance": "main", "release": self._store(), "wanted": self.wanted}
        spec.update(skip=list(skip), deadline=deadline)
        return checks.prove(spec, self, lambda stage, message, **data: None, proc=self.proc, shm=self.shm)
