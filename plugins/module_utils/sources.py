# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A distribution that was not installed from a release's wheel: an editable checkout, or one commit of a repository.

Its own RECORD says nothing about the release, so it is compared with the wheel of the release that it comes after; what a
checkout has as that release's tag has it is no edit, whatever the wheel left out or made while it was built.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import typing as t
import urllib.parse
import urllib.request
from pathlib import Path

from . import records
from .findings import ERROR, Finding, FindingError
from .runners import Runner

EDITABLE = "editable"
COMMIT = "commit"

_TIMEOUT = 60.0


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a distribution comes from.

    :param kind: EDITABLE, or COMMIT for one that was built from a repository and installed.
    :param place: directory that holds its packages.
    :param url: of the checkout or the repository; without credentials.
    :param commit: empty where it is not known; :param tag: of the release before it, empty where no repository tells.
    :param released: path below ``place`` → id of its content at the tag; empty where no repository tells.
    :param committed: the same at the commit.
    """

    kind: str
    place: Path
    url: str
    commit: str = ""
    tag: str = ""
    released: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    committed: t.Mapping[str, str] = dataclasses.field(default_factory=dict)

    def facts(self) -> dict[str, str]:
        """What the pins note of it."""
        return {"kind": self.kind, "url": self.url, "commit": self.commit, "tag": self.tag}


def find(site_packages: Path, dist: records.Distribution, runner: Runner) -> t.Optional[Source]:
    """The source of a distribution; None for one from a wheel. Raises FindingError (``overlay.editable``) where the checkout is gone."""
    try:
        direct = json.loads((site_packages / dist.directory / "direct_url.json").read_text(encoding="utf-8"))
        url = re.sub(r"://[^/@]*@", "://", direct["url"])
    except (OSError, ValueError, KeyError):
        return None
    if direct.get("dir_info", {}).get("editable"):
        return _checkout(dist, url, runner)
    if direct.get("vcs_info"):
        return Source(COMMIT, site_packages, url, direct["vcs_info"].get("commit_id", ""))
    return None


def _checkout(dist: records.Distribution, url: str, runner: Runner) -> Source:
    root = Path(urllib.request.url2pathname(urllib.parse.urlsplit(url).path))
    package = dist.name.replace("-", "_")
    place = next((one for one in (root, root / "src", root / "python") if (one / package).is_dir()), None)
    if place is None:
        message, fix = "is installed from a checkout that is not there", "restore the checkout, or install the wheel of the release"
        raise FindingError(Finding("overlay.editable", ERROR, dist.name, message, "no %s below %s" % (package, root), fix=fix))
    commit = _git(runner, place, "rev-parse", "HEAD").strip()
    tag = _git(runner, place, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD").strip() if commit else ""
    trees = [_tree(runner, place, package, one) if one else {} for one in (tag, commit)]
    return Source(EDITABLE, place, url, commit, tag, *trees)


def _git(runner: Runner, place: Path, *words: str) -> str:
    """What git says, empty where it cannot tell. A checkout belongs to a person, which git tells root about first."""
    done = runner(["git", "-c", "safe.directory=*", "-C", str(place), *words], timeout=_TIMEOUT)
    return done.stdout if done.rc == 0 else ""


def _tree(runner: Runner, place: Path, package: str, revision: str) -> dict[str, str]:
    """Path below the place → id of its content."""
    found = {}
    for line in _git(runner, place, "ls-tree", "-r", "-z", revision, "--", package).split("\0"):
        facts, _tab, path = line.partition("\t")
        if path:
            found[path] = facts.split()[2]
    return found


def content_id(data: t.Optional[bytes]) -> t.Optional[str]:
    """The id that git gives a content; None for no file."""
    return None if data is None else hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def release(dist: records.Distribution, source: Source) -> str:
    """The version of the release that a source comes after. Raises FindingError (``overlay.editable``) where nothing tells."""
    if source.tag:
        return source.tag[1:]
    if re.fullmatch(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?", dist.version):
        return dist.version
    raise FindingError(
        Finding(
            "overlay.editable",
            ERROR,
            dist.name,
            "is installed from a source of which nothing tells the release that it comes after",
            found="version %s of %s, %s" % (dist.version, source.url, "without a tag" if source.commit else "without a repository"),
            fix="fetch the tags into the checkout (git fetch --tags); or install the wheel of the release on the reference and lay the "
            "changed files over it",
        )
    )
