# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A pin that is built from a commit: on another host, once, by the playbook that locks; and every way its build host cannot do it."""

from __future__ import annotations

import base64
import json
import re
import shlex
import typing as t
import zipfile
from pathlib import Path

import pytest
from flow import CHECKOUT, Fleet, variables

BUILDER, HOST = "ct201", "ct200"
#: Without an overlay and a draft: neither has a part in what is tested, and no reference is needed.
PLAIN: dict[str, t.Any] = {"overlays": [], "speculative": None, "draft": None, "extra_args": {"speculative-ddtree-budget": None}}

#: A kernel package as small as can be: C, compiled for the architectures that its build is told.
REPOSITORY = {
    "kernels/pyproject.toml": '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n',
    "kernels/setup.py": """
import os
from setuptools import Extension, setup
macros = [("ARCHITECTURES", '"%s"' % os.environ["TORCH_CUDA_ARCH_LIST"])]
setup(name="tiny-kernel", version="1.0", ext_modules=[Extension("tiny_kernel", ["tiny.c"], define_macros=macros)])
""",
    "kernels/tiny.c": """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "tiny_kernel", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_tiny_kernel(void) {
    PyObject *made = PyModule_Create(&module);
    PyModule_AddStringConstant(made, "ARCHITECTURES", ARCHITECTURES);
    return made;
}
""",
}


class Lab:
    """Two hosts, a pins directory, and what is said of the last run."""

    def __init__(self, fleet: Fleet, directory: Path) -> None:
        self.fleet = fleet
        self.pins = directory / "pins"
        self.commit = "0" * 40

    def install(self, *packages: str) -> None:
        """Packages of the distribution on the build host."""
        self.fleet.sh(
            BUILDER,
            "apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends %s" % " ".join(packages),
        )

    def publish(self) -> None:
        """The repository on the build host."""
        for name, text in REPOSITORY.items():
            self.fleet.sh(BUILDER, "mkdir -p /srv/kernels/kernels && printf %%s %s > /srv/kernels/%s" % (shlex.quote(text), name))
        identity = "-c user.name=tester -c user.email=tester@example"
        self.fleet.sh(BUILDER, "cd /srv/kernels && git init -q . && git add . && git %s commit -qm kernels" % identity)
        self.commit = self.fleet.sh(BUILDER, "git -C /srv/kernels rev-parse HEAD").strip()

    def lock(self, *arguments: str, environment: str = "9.0;12.0", **source: str) -> t.Any:
        """``playbooks/lock.yml`` for the host whose pins take the package from the repository."""
        pin = {"git": "file:///srv/kernels", "commit": self.commit, "subdirectory": "kernels", "build_host": BUILDER, **source}
        change = variables(**PLAIN)
        change["specdec_pins"] = {
            "torch": "2.13.0+cpu",
            "torchvision": "0.28.0+standin",
            "triton": "3.8.0+standin",
            "tiny-kernel": {**pin, "environment": {"TORCH_CUDA_ARCH_LIST": environment}},
        }
        change["specdec_extra_packages"] = ["sgl-kernel-cpu-standin==0.5.23", "sglang-cpu-tree-attention==0.5.23", "tiny-kernel"]
        change["specdec_pins_dir"] = str(self.pins)
        env = {"ANSIBLE_COLLECTIONS_PATH": str(CHECKOUT / "collections")}
        return self.fleet.deploy(*arguments, limit=HOST, variables=change, playbook="specdec.serving.lock", env=env)

    def refused(self, *said: str, **source: str) -> None:
        """It fails with these words; neither pins nor the host's state change."""
        before = self.fleet.snapshot(HOST)
        run = self.lock(**source)
        assert run.rc != 0
        for words in said:
            assert words in run.text, run.why
        assert not list(self.pins.rglob("*.json")), "something was kept"
        assert not (self.pins / "locks").exists()
        assert self.fleet.snapshot(HOST) == before


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Lab]:
    """Hosts of their own; the build host is bare."""
    directory = tmp_path_factory.mktemp("wheels")
    fleet = Fleet(directory, "specdec-wheels", "10.89.82")
    try:
        fleet.start(HOST, BUILDER)
        yield Lab(fleet, directory)
    finally:
        fleet.down()


def test_what_a_build_host_lacks_is_named_one_after_the_other(lab: Lab) -> None:
    lab.refused("wheel of tiny-kernel", "git is not on the build host", "specdec_pins.tiny-kernel")
    lab.install("git")
    lab.publish()
    lab.refused("the repository has no such commit", commit="1" * 40)
    lab.refused("a compiler is missing on the build host", "gcc")
    lab.install("gcc", "libc6-dev")
    lab.refused("the headers of Python are not on the build host", "Python.h")
    lab.install("python3-dev")


def test_it_is_built_once_on_the_build_host_and_kept_with_its_hash(lab: Lab) -> None:
    first = lab.lock()
    assert first.rc == 0, first.why
    assert "building for /usr/bin/python3.11, TORCH_CUDA_ARCH_LIST=9.0;12.0" in first.text
    [record] = [json.loads(path.read_text()) for path in (lab.pins / "wheels").glob("*.json")]
    assert (record["built_on"], record["source"]["commit"]) == (BUILDER, lab.commit)
    wheel = lab.pins / "wheels" / record["sha256"] / record["filename"]
    assert re.fullmatch(r"tiny_kernel-1\.0-cp311-cp311-linux_\w+\.whl", wheel.name)
    [lock] = (lab.pins / "locks").iterdir()
    assert "tiny-kernel==1.0 \\\n    --hash=sha256:%s\n" % record["sha256"] in lock.read_text()

    # it runs on the host, which has no compiler
    with zipfile.ZipFile(wheel) as archive:
        extension = next(name for name in archive.namelist() if name.endswith(".so"))
        content = base64.b64encode(archive.read(extension)).decode()
        lab.fleet.sh(HOST, "echo %s | base64 -d > /srv/%s" % (content, extension))
    said = lab.fleet.sh(HOST, "cd /srv && ! command -v gcc && /usr/bin/python3 -c 'import tiny_kernel; print(tiny_kernel.ARCHITECTURES)'")
    assert said.strip() == "9.0;12.0"

    before = lock.read_text()
    second = lab.lock()
    assert second.rc == 0, second.why
    assert "building for" not in second.text
    assert lock.read_text() == before


def test_other_architectures_are_another_wheel_and_another_lock(lab: Lab) -> None:
    there = {path.name for path in (lab.pins / "locks").iterdir()}
    run = lab.lock(environment="10.0")
    assert run.rc == 0, run.why
    assert "TORCH_CUDA_ARCH_LIST=10.0" in run.text
    assert len(list((lab.pins / "wheels").glob("*.json"))) == 2
    assert len({path.name for path in (lab.pins / "locks").iterdir()} - there) == 1


def test_check_mode_says_what_would_be_built_and_builds_nothing(lab: Lab) -> None:
    before = sorted(path.name for path in lab.pins.rglob("*"))
    run = lab.lock("--check", environment="7.5")
    assert run.rc == 0, run.why
    assert "pins lack the wheel of tiny-kernel: file:///srv/kernels at %s, built on ct201" % lab.commit[:12] in run.text
    assert sorted(path.name for path in lab.pins.rglob("*")) == before
