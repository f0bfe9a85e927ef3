# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fifty kills while an environment with an overlay is built: what they leave, and what the next run makes of it."""

from __future__ import annotations

import json
import typing as t

DRIVER = "env PYTHONPATH=/opt/specdec/bin/specdec /usr/bin/python3 -B /opt/specdec/overlays_under_fire.py"


def test_no_kill_leaves_a_half_environment_and_the_next_run_converges(host: t.Any) -> None:
    said = host.run(DRIVER + " kills 50 34")
    assert said.rc == 0, said.stderr
    table = [json.loads(line) for line in said.stdout.splitlines()]
    print("\n%5s  %-9s %-44s %-5s %-9s %-9s" % ("point", "step", "killed before", "half", "untouched", "converged"))
    for one in table:
        print("%(point)5d  %(stage)-9s %(event)-44.44s %(half)-5s %(untouched)-9s %(converged)-9s" % one)
    assert len(table) == len({one["point"] for one in table}) == 50
    assert sum(one["stage"] == "overlay" for one in table) >= 30
    assert [one for one in table if one["half"] or not one["killed"] or not one["untouched"] or not one["converged"] or one["left"]] == []
