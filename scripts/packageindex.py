# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what a package index says of its files without fetching them.

Its pages in JSON, or in HTML where it has no other form; a wheel's METADATA from beside the wheel where the index
offers that, else out of the wheel by ranges (some 100 kB of any size).
"""

from __future__ import annotations

import base64
import dataclasses
import email
import email.message
import functools
import html
import io
import json
import re
import subprocess
import typing as t
import urllib.error
import urllib.parse
import urllib.request
import zipfile

_JSON = "application/vnd.pypi.simple.v1+json"
_TIMEOUT = 20.0
#: A read of a wheel's directory or of one file in it; most need one or two.
_BLOCK = 1 << 17


class Unreachable(Exception):
    """An index, or a file of it, that could not be read; the text says why and holds no credentials."""


@dataclasses.dataclass(frozen=True)
class Wheel:
    """A wheel of a package: version, tags, and where it lies; ``size`` in bytes."""

    filename: str
    version: t.Any
    tags: frozenset[t.Any]
    url: str
    size: t.Optional[int]
    beside: bool

    def pythons(self) -> set[str]:
        """The Python versions it is compiled for (``3.12``); none where any will do."""
        found = {re.fullmatch(r"cp(3)(\d+)", tag.interpreter) for tag in self.tags if tag.abi not in ("none", "abi3")}
        return {"%s.%s" % match.groups() for match in found if match}

    def glibc(self, machine: str) -> t.Optional[str]:
        """The oldest glibc that it takes on a machine; None where it does not run there, empty where it asks for none."""
        old = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}
        found = []
        for platform in {tag.platform for tag in self.tags}:
            named = re.fullmatch(r"manylinux_(\d+)_(\d+)_(.+)", platform)
            legacy, _underline, of = platform.partition("_")
            if platform == "any":
                return ""
            if named and named[3] == machine:
                found.append("%s.%s" % (named[1], named[2]))
            elif legacy in old and of == machine:
                found.append(old[legacy])
        return min(found, key=_ordered) if found else None


class Index:
    """One index.

    :param address: of its pages, with credentials where it asks for them.
    """

    def __init__(self, address: str) -> None:
        parts = urllib.parse.urlsplit(address)
        self.url = urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")
        self.headers = {}
        if parts.username:
            login = "%s:%s" % (urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or ""))
            self.headers = {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
        self._pages: dict[str, list[Wheel]] = {}
        self._metadata: dict[str, email.message.Message] = {}

    def wheels(self, package: str) -> list[Wheel]:
        """All wheels of a package; none where the index does not know it. Raises Unreachable."""
        if package not in self._pages:
            self._pages[package] = list(self._read(package))
        return self._pages[package]

    def metadata(self, wheel: Wheel) -> email.message.Message:
        """METADATA of a wheel. Raises Unreachable."""
        if wheel.filename not in self._metadata:
            text = self._get(wheel.url + ".metadata") if wheel.beside else self.member(wheel, r"[^/]+\.dist-info/METADATA")
            self._metadata[wheel.filename] = email.message_from_string(text.decode("utf-8", "replace"))
        return self._metadata[wheel.filename]

    def member(self, wheel: Wheel, pattern: str) -> bytes:
        """A file out of a wheel that is not fetched. Raises Unreachable, also where there is none."""
        return next(iter(self.members(wheel, pattern, 1).values()))

    def members(self, wheel: Wheel, pattern: str, most: t.Optional[int] = None) -> dict[str, bytes]:
        """Files out of a wheel that is not fetched, by name, not more than ``most``. Raises Unreachable, also where there is none."""
        if wheel.size is None:
            raise Unreachable("%s: the index does not say how large it is" % wheel.filename)
        parts = _Parts(functools.partial(self._get, wheel.url), wheel.size)
        try:
            with zipfile.ZipFile(t.cast("t.IO[bytes]", io.BufferedReader(parts, _BLOCK))) as archive:
                names = [name for name in archive.namelist() if re.fullmatch(pattern, name)][:most]
                found = {name: archive.read(name) for name in names}
        except zipfile.BadZipFile as error:
            raise Unreachable("%s: this is no wheel" % wheel.filename) from error
        if not found:
            raise Unreachable("%s holds no %s" % (wheel.filename, pattern))
        return found

    def _read(self, package: str) -> t.Iterator[Wheel]:
        from packaging.utils import InvalidWheelFilename, parse_wheel_filename

        page = "%s/%s/" % (self.url, package)
        try:
            text = self._get(page, accept=_JSON + ", text/html;q=0.1")
        except Unreachable as refused:
            if isinstance(refused.__cause__, urllib.error.HTTPError) and refused.__cause__.code == 404:
                return
            raise
        for file in _files(page, text):
            try:
                _name, version, _build, tags = parse_wheel_filename(file["filename"])
            except InvalidWheelFilename:
                continue
            url = urllib.parse.urljoin(page, file["url"])
            beside = bool(file.get("core-metadata") or file.get("data-dist-info-metadata"))
            yield Wheel(file["filename"], version, tags, url, file.get("size"), beside)

    def _get(self, url: str, first: int = -1, last: int = -1, accept: str = "*/*") -> bytes:
        """A file, or its bytes from ``first`` to ``last``."""
        headers = {"Accept": accept, **({"Range": "bytes=%d-%d" % (first, last)} if first >= 0 else {})}
        if urllib.parse.urlsplit(url).netloc == urllib.parse.urlsplit(self.url).netloc:
            headers.update(self.headers)
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT) as answer:
                if first >= 0 and answer.status != 206:
                    raise Unreachable("%s: the server gives no parts of a file" % url)
                return answer.read()
        except (OSError, ValueError) as error:
            raise Unreachable("%s: %s" % (url, getattr(error, "reason", error))) from error


def _files(page: str, text: bytes) -> list[dict[str, t.Any]]:
    """The files of a page in JSON, or in HTML where an index has no other form."""
    try:
        return json.loads(text)["files"]
    except (ValueError, KeyError, TypeError):
        links = re.findall(r'<a\s[^>]*href="([^"#]+)[^>]*>\s*([^<\s]+)\s*</a>', text.decode("utf-8", "replace"))
    if not links:
        raise Unreachable("%s: this is no page of an index" % page)
    return [{"url": html.unescape(url), "filename": name} for url, name in links]


def default_index(uv: str) -> str:
    """The address of the index that uv asks by default here, as it says itself. Raises Unreachable."""
    argv = [uv, "pip", "compile", "--quiet", "--emit-index-url", "--no-header", "--offline", "-"]
    done = subprocess.run(argv, input="", capture_output=True, text=True, check=False)
    found = re.search(r"^--index-url (\S+)", done.stdout, re.MULTILINE)
    if not found:
        raise Unreachable("uv does not say which index it asks: %s" % done.stderr.strip())
    return found[1]


class _Parts(io.RawIOBase):
    """A file that is read by ranges."""

    def __init__(self, get: t.Callable[[int, int], bytes], size: int) -> None:
        self._fetch, self._size, self._at = get, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence] + offset
        return self._at

    def readinto(self, buffer: t.Any) -> int:
        last = min(self._at + len(buffer), self._size) - 1
        data = self._fetch(self._at, last) if last >= self._at else b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
