# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where on a host a secret can be seen: the whole journal, units, argument vectors, environments of processes, and files."""

from __future__ import annotations

import shlex
import typing as t

from specdec import launch

#: Where a secret has to lie for the engine to get it; each readable by its owner alone.
KEPT = ("/opt/specdec/instances/", "/run/credentials/", "/run/specdec-")
PLACES = "/etc /home /opt /root /run /srv /tmp /var /dev/shm"
#: What is not text has no place in a secret's spelling.
SEEN = (
    "{ journalctl --no-pager --all --output=export; systemctl show 'specdec-*'; systemctl cat 'specdec-*'; "
    "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'; } | tr -cd '\\11\\12\\40-\\176'"
)


def spellings(secrets: t.Iterable[str]) -> list[str]:
    """Each secret as it may stand in a text: as it is, in JSON, as a literal, in base64."""
    return sorted({form.decode() for secret in secrets for form in launch.spellings(secret)})


def exposed(sh: t.Callable[[str], str], secrets: t.Sequence[str]) -> tuple[str, list[str], list[str]]:
    """What was looked through as text; where a secret shows that must not, for a person; and the files that hold one, as they must.

    :param sh: runs a script on the host as root and returns what it printed.
    """
    forms = spellings(secrets)
    text = sh(SEEN)
    wrong = ["%s... in journal, units or processes" % form[:4] for form in forms if form in text]
    fixed = " ".join("-e " + shlex.quote(form) for form in forms)
    files = sh("grep -rlIaF %s %s --exclude-dir=environments 2>/dev/null | sort; true" % (fixed, PLACES)).split()
    for path in files:
        kept = path.startswith(KEPT) and ("/secrets/" in path or path.startswith("/run/"))
        private = sh("stat -c %%a %s" % shlex.quote(path))[-2:] == "00"
        if not kept or not private:
            wrong.append(path)
    return text, wrong, files
