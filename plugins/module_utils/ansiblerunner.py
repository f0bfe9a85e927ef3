# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The runner of a module: AnsibleModule.run_command behind the core's own interface."""

from __future__ import annotations

import typing as t

from .runners import Completed, Runner


def module_runner(module: t.Any) -> Runner:
    """A runner that starts processes through ``module``.

    ``timeout`` is met by coreutils' ``timeout``, for run_command has none of its own.
    """

    def run(
        argv: t.Sequence[str],
        *,
        stdin: t.Optional[str] = None,
        env: t.Optional[t.Mapping[str, str]] = None,
        timeout: t.Optional[float] = None,
        on_line: t.Optional[t.Callable[[str], None]] = None,
    ) -> Completed:
        command = list(argv) if timeout is None else ["timeout", "%g" % timeout, *argv]
        try:
            rc, stdout, stderr = module.run_command(
                command,
                data=stdin,
                binary_data=True,
                environ_update=dict(env or {}),
                errors="surrogate_or_replace",
                expand_user_and_vars=False,
                handle_exceptions=False,
            )
        except OSError as error:
            return Completed(127, "", str(error))
        for line in stdout.splitlines() if on_line else ():
            on_line(line)
        return Completed(rc, stdout, stderr)

    return run
