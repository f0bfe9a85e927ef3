# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plugin of pytest that switches each check off in turn and tells which tests miss it.

The tests are collected once. A copy of the process runs them all, to learn which of them meet which id; then, for each id, a copy runs
those that do, until one fails. In it, what the collection makes of findings of that id says nothing, as if nobody had looked; a finding
that a test makes by itself stays.

``SPECDEC_SILENCING=PATH`` is the file that is written: ``met``, per id the tests that meet it, those with a bad finding first, the shortest
first; ``missed``, per id the one that fails without it; ``failed``, what fails in any case.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import sys
import traceback
import typing as t
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

ANSWER = Path(os.environ["SPECDEC_SILENCING"])
PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
#: How many of an id's tests are tried.
TRIED = 60


class Watch:
    """Stands between every finding and who reads it."""

    def __init__(self) -> None:
        from ansible_collections.specdec.serving.plugins.module_utils import findings

        self.silenced, self.test = "", ""
        self.met: dict[str, dict[str, bool]] = collections.defaultdict(dict)
        self.good = (findings.OK, findings.NOT_APPLICABLE)
        checked = findings.Finding.__post_init__

        def made(finding: t.Any) -> None:
            checked(finding)
            if _by_the_collection():
                self._made(finding)

        findings.Finding.__post_init__ = made

    def _made(self, finding: t.Any) -> None:
        if self.test:
            tests = self.met[finding.id]
            tests[self.test] = tests.get(self.test, False) or finding.verdict not in self.good
        if finding.id == self.silenced:
            for name, value in {"id": "silenced.check", "verdict": self.good[1], "message": "switched off"}.items():
                object.__setattr__(finding, name, value)


def _by_the_collection() -> bool:
    """Whether a finding comes from the collection's own code."""
    frame, between = sys._getframe(2), {"<string>", dataclasses.__file__}  # what dataclasses makes has no file
    while frame.f_back and frame.f_code.co_filename in between:
        frame = frame.f_back
    return Path(frame.f_code.co_filename).resolve().is_relative_to(PLUGINS)


def apart(work: t.Callable[[], t.Any]) -> t.Any:
    """What a function answers in a copy of this process: nothing of what it does stays."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reader)
            with os.fdopen(writer, "w") as stream:
                json.dump(work(), stream)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    return json.loads(answer)


def _run(items: t.Sequence[pytest.Item], watch: Watch, stop: bool) -> tuple[dict[str, float], list[str]]:
    """How long each test takes, and which failed; the first ends it where ``stop``."""
    seconds, failed = {}, []
    for item, following in zip(items, [*items[1:], None], strict=True):
        watch.test = item.nodeid
        reports = runtestprotocol(item, log=not stop, nextitem=following)
        seconds[item.nodeid] = sum(report.duration for report in reports)
        if any(report.failed for report in reports):
            failed.append(item.nodeid)
            if stop:
                break
    return seconds, failed


def pytest_runtestloop(session: pytest.Session) -> bool:
    """Instead of a plain run."""
    watch = Watch()
    vars(session.config)["_tmp_path_factory"].getbasetemp()  # one directory for all
    items = {item.nodeid: item for item in session.items}

    def learn() -> t.Any:
        seconds, failed = _run(session.items, watch, stop=False)
        order = {id_: sorted(tests, key=lambda test: (not tests[test], seconds.get(test, 0))) for id_, tests in watch.met.items()}
        return order, failed

    met, failed = apart(learn)
    missed = {}
    for id_, tests in sorted(met.items()):
        watch.silenced = id_
        chosen = [items[test] for test in tests if test not in failed][:TRIED]
        missed[id_] = apart(lambda chosen=chosen: _run(chosen, watch, stop=True)[1])
    ANSWER.write_text(json.dumps({"met": met, "missed": missed, "failed": failed}))
    return True
