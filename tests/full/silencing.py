# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plugin of pytest that switches one check off, or writes down which test meets which check.

``SPECDEC_SILENCED=ID``: findings of this id say nothing, as if nobody had looked. ``SPECDEC_MET=PATH``: a file with, per id, the tests in
which a finding of it was made: those with a bad one first, the shortest first.
"""

from __future__ import annotations

import collections
import json
import os
from pathlib import Path

import pytest

SILENCED = os.environ.get("SPECDEC_SILENCED", "")
MET = os.environ.get("SPECDEC_MET", "")

_met: dict[str, dict[str, bool]] = collections.defaultdict(dict)
_seconds: dict[str, float] = {}


def pytest_sessionstart() -> None:
    """Stand between every finding and who reads it; the conftest.py of the tests has made the collection importable."""
    from ansible_collections.specdec.serving.plugins.module_utils import findings

    made = findings.Finding.__post_init__

    def silenced(finding: findings.Finding) -> None:
        made(finding)
        good = finding.verdict in (findings.OK, findings.NOT_APPLICABLE)
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        if MET and test:
            _met[finding.id][test] = _met[finding.id].get(test, False) or not good
        if finding.id == SILENCED:
            for name, value in {"id": "silenced.check", "verdict": findings.NOT_APPLICABLE, "message": "switched off"}.items():
                object.__setattr__(finding, name, value)

    findings.Finding.__post_init__ = silenced


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """How long a test takes."""
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0) + report.duration


def pytest_sessionfinish() -> None:
    """Write down what was met."""
    if MET:
        told = {id_: sorted(tests, key=lambda test: (not tests[test], _seconds.get(test, 0))) for id_, tests in _met.items()}
        Path(MET).write_text(json.dumps(told))
