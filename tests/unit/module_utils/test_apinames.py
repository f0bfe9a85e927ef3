# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names that an engine takes from another package, by reading both."""

from __future__ import annotations

import textwrap

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import apinames
from ansible_collections.specdec.serving.plugins.module_utils.findings import COULD_NOT_CHECK, ERROR, NOT_APPLICABLE, OK, WARNING

PACKAGE = {
    "flashinfer/__init__.py": """
        from .gemm import *
        from . import comm as comm
        from .gemm import bmm_mxfp8 as bmm
        try:
            from .extra import late
        except ImportError:
            late = None
        def single(): hidden = 1
        class Wrapper:
            inside = 1
        A, (B, *C) = 1, (2, 3)
        for loop in (): pass
        """,
    "flashinfer/gemm.py": "def bmm_mxfp8(): ...\nif True:\n    def chosen(): ...\n",
    "flashinfer/extra.py": "late = 1\n",
    "flashinfer/comm/__init__.py": "",
    "flashinfer/comm/mapping.py": "class Mapping: ...\n",
    "flashinfer/dynamic.py": "def __getattr__(name): ...\n",
    "flashinfer/_C.cpython-311-x86_64-linux-gnu.so": "",
}


@pytest.fixture
def site(tmp_path):
    for name, text in PACKAGE.items():
        write(tmp_path, name, text)
    return tmp_path


def write(site, name, text):
    path = site / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))


def check(site, source, **more):
    write(site, "engine/layers/fp8.py", source)
    return apinames.check(site / "engine", site, "flashinfer", **more)


@pytest.mark.parametrize(
    "name", ["bmm_mxfp8", "chosen", "comm", "bmm", "late", "single", "Wrapper", "A", "B", "C", "loop", "gemm", "__version__", "dynamic"]
)
def test_names_that_are_defined(site, name):
    assert [one.verdict for one in check(site, "from flashinfer import %s\n" % name)] == [OK]


@pytest.mark.parametrize(
    "source",
    [
        "from flashinfer.comm.mapping import Mapping\n",
        "from flashinfer.dynamic import whatever\n",
        "from flashinfer._C import whatever\n",
        "from flashinfer import *\n",
        "import flashinfer.comm.mapping as m\nm.Mapping()\n",
        "from flashinferno import other\n",
        "from .flashinfer import ours\n",
        "import flashinfer\nflashinfer.patched = 1\n",
    ],
)
def test_uses_that_are_fine(site, source):
    assert [one.verdict for one in check(site, source)] == [OK]


@pytest.mark.parametrize(
    ("source", "name", "line"),
    [
        ("from flashinfer import mm_mxfp8\n", "flashinfer.mm_mxfp8", 1),
        ("import torch\nfrom flashinfer import (\n  single, hidden)\n", "flashinfer.hidden", 2),
        ("from flashinfer import inside\n", "flashinfer.inside", 1),
        ("from flashinfer.comm.mapping import Other\n", "flashinfer.comm.mapping.Other", 1),
        ("import flashinfer.gone\n", "flashinfer.gone", 1),
        ("import flashinfer\nflashinfer.mm_mxfp8()\n", "flashinfer.mm_mxfp8", 2),
        ("import flashinfer.gemm as g\nf = g.mm_mxfp8\n", "flashinfer.gemm.mm_mxfp8", 2),
        # a question about the platform guards nothing: on that platform the import is what fails
        ("if is_blackwell() and is_flashinfer_available():\n    from flashinfer import mm_mxfp8\n", "flashinfer.mm_mxfp8", 2),
        ("try:\n    import x\nexcept ImportError:\n    from flashinfer import mm_mxfp8\n", "flashinfer.mm_mxfp8", 4),
        ("try:\n    from flashinfer import mm_mxfp8\nexcept KeyError:\n    pass\n", "flashinfer.mm_mxfp8", 2),
    ],
)
def test_names_that_are_missing(site, source, name, line):
    (finding,) = check(site, source)
    assert (finding.id, finding.verdict, finding.subject) == ("api.missing-name", ERROR, name)
    assert "engine/layers/fp8.py:%d" % line in finding.evidence


@pytest.mark.parametrize(
    "source",
    [
        "if is_cpu():\n    from flashinfer import x\n",
        "if is_cuda():\n    pass\nelif _is_npu:\n    from flashinfer import x\n",
        "if not get_platform().is_hip:\n    pass\nelse:\n    from flashinfer import x\n",
        "def build_xpu_ids():\n    from flashinfer import x\n",
    ],
)
def test_what_runs_on_other_hardware_does_not_count(site, source):
    assert [one.verdict for one in check(site, source)] == [OK]
    write(site, "engine/xpu_backend.py", "from flashinfer import x\n")
    assert [one.verdict for one in check(site, source)] == [OK]


@pytest.mark.parametrize(
    "source",
    [
        "if is_cuda() or is_hip():\n    from flashinfer import x\n",
        "if not is_cpu():\n    from flashinfer import x\n",
        "if is_cpu():\n    pass\nelse:\n    from flashinfer import x\n",
        "if cpuset:\n    from flashinfer import x\n",
    ],
)
def test_what_runs_on_cuda_too_counts(site, source):
    assert [one.subject for one in check(site, source)] == ["flashinfer.x"]


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    from flashinfer import mm_mxfp8\nexcept ImportError:\n    mm_mxfp8 = None\n",
        "try:\n    from flashinfer import mm_mxfp8\nexcept (ValueError, ModuleNotFoundError):\n    pass\n",
        "try:\n    import flashinfer.gone\nexcept:\n    pass\n",
        "import flashinfer\nif hasattr(flashinfer, 'mm_mxfp8'):\n    f = flashinfer.mm_mxfp8\n",
        "if Version(flashinfer.__version__) >= Version('0.6.4'):\n    from flashinfer import mm_mxfp8\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from flashinfer import mm_mxfp8\n",
    ],
)
def test_guarded_uses_do_not_count(site, source):
    assert [one.verdict for one in check(site, source)] == [OK]


def test_a_name_needed_only_when_called_is_a_warning_beside_the_error(site):
    found = check(site, "from flashinfer import one\ndef f():\n    from flashinfer import two\n")
    assert [(one.verdict, one.subject) for one in found] == [(ERROR, "flashinfer.one"), (WARNING, "flashinfer.two")]


def test_the_reference_and_the_overlay_are_named(site):
    (finding,) = check(
        site, "from flashinfer import mm_mxfp8\n", reference=("flashinfer-python", "0.6.8.post1"), overlaid=["engine/layers/fp8.py"]
    )
    assert finding.expected == "flashinfer-python 0.6.8.post1"
    assert "0.6.8.post1" in finding.fix
    assert "overlay" in finding.cause


def test_absent_package(site, tmp_path):
    source = "from flashinfer import x\n"
    assert check(site, source, lacking=True)[0].verdict == NOT_APPLICABLE
    (finding,) = apinames.check(site / "engine", tmp_path / "empty", "flashinfer")
    assert finding.verdict == COULD_NOT_CHECK


def test_absent_source_and_source_that_cannot_be_read(site):
    assert apinames.check(site / "engine", site, "flashinfer")[0].verdict == COULD_NOT_CHECK
    (finding,) = check(site, "import flashinfer\nthis is no Python\n")
    assert (finding.verdict, finding.evidence) == (COULD_NOT_CHECK, "engine/layers/fp8.py")


def test_source_in_another_encoding_is_read(site):
    check(site, "")
    (site / "engine/layers/fp8.py").write_bytes(b"# -*- coding: latin-1 -*-\nname = '\xe9'\nfrom flashinfer import gone\n")
    assert apinames.check(site / "engine", site, "flashinfer")[0].subject == "flashinfer.gone"


def test_star_imports_in_a_circle_end(site):
    write(site, "flashinfer/gemm.py", "from .comm import *\ndef bmm_mxfp8(): ...\n")
    write(site, "flashinfer/comm/__init__.py", "from ..gemm import *\n")
    assert [one.verdict for one in check(site, "from flashinfer import bmm_mxfp8\n")] == [OK]
