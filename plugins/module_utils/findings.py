# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict of one check, as data.

A finding is made by a pure function and shown by somebody else: the CLI, a failing task, the
summary. It says what was found, what was expected, the evidence, and a way out.
"""

from __future__ import annotations

import dataclasses
import typing as t

OK = "ok"
WARNING = "warning"
ERROR = "error"
COULD_NOT_CHECK = "could not check"
NOT_APPLICABLE = "not applicable"

#: From best to worst; the worst verdict of a list is its overall verdict.
VERDICTS = (NOT_APPLICABLE, OK, COULD_NOT_CHECK, WARNING, ERROR)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One check's verdict.

    :param id: stable name of the check, ``area.check`` (for example ``record.changed``).
    :param verdict: one of :data:`VERDICTS`.
    :param subject: what was looked at: a package, a file, a variable, a unit.
    :param message: one line a person understands alone.
    :param found: what is there.
    :param expected: what should be there.
    :param evidence: where that was seen: a path, a line, an exception.
    :param cause: why it is so, where known.
    :param fix: the way out; required for every verdict but ok and not applicable.
    """

    id: str
    verdict: str
    subject: str
    message: str
    found: str = ""
    expected: str = ""
    evidence: str = ""
    cause: str = ""
    fix: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError("verdict %r is none of %s" % (self.verdict, ", ".join(VERDICTS)))
        if self.verdict not in (OK, NOT_APPLICABLE) and not self.fix:
            raise ValueError("finding %s names no way out" % self.id)

    def as_dict(self) -> dict[str, str]:
        """The finding as plain strings, for a module's result or a file."""
        return dataclasses.asdict(self)

    def text(self) -> str:
        """The finding as a person reads it, one or more lines."""
        lines = ["%s: %s: %s" % (self.verdict.upper(), self.subject, self.message)]
        for label in ("found", "expected", "evidence", "cause", "fix"):
            value = getattr(self, label)
            if value:
                lines.append("  %-9s %s" % (label + ":", value.replace("\n", "\n            ")))
        return "\n".join(lines)


def from_dict(data: t.Mapping[str, str]) -> Finding:
    """The reverse of :meth:`Finding.as_dict`; raises TypeError on unknown keys."""
    return Finding(**data)


def worst(findings: t.Iterable[Finding]) -> str:
    """The worst verdict of all; *could not check* for none, for no evidence is never ok."""
    verdicts = [finding.verdict for finding in findings]
    return max(verdicts, key=VERDICTS.index) if verdicts else COULD_NOT_CHECK


def errors(findings: t.Iterable[Finding]) -> list[Finding]:
    """Those that forbid going on."""
    return [finding for finding in findings if finding.verdict == ERROR]


class FindingError(Exception):
    """Work that cannot go on; :attr:`finding` says why and names the way out."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.text())
        self.finding = finding
