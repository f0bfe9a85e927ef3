# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Download files to the controller: hash-checked, several at a time, each whole or not there, and never a byte twice.

uv keeps no wheels, only what it unpacked; pip begins a file anew and needs itself in the environment of Ansible. A
file has an address, a hash and a place, and that is all that is needed here.
"""

from __future__ import annotations

import base64
import concurrent.futures
import functools
import hashlib
import http.client
import os
import re
import shutil
import ssl
import threading
import time
import typing as t
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils import wheelhouses
from ansible_collections.specdec.serving.plugins.module_utils.findings import Finding, FindingError

_BLOCK = 1 << 18
_ATTEMPTS = 4
_PATIENCE = 60.0
_PARALLEL = 4
_EVERY = 5.0
#: Where distributions keep their certificates; an interpreter that was built elsewhere may look in another place.
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem")


class Wanted(t.NamedTuple):
    """One file: address (or path), sha256, size in bytes or None, and where it shall lie."""

    url: str
    sha256: str
    size: t.Optional[int]
    dest: Path


class Client:
    """Reads addresses the way uv would: with the proxy, the certificates and the credentials that its variables name.

    :param environ: environment variables; credentials of an index count for every file of the same origin.
    """

    def __init__(self, environ: t.Mapping[str, str]) -> None:
        named = environ.get("SSL_CERT_FILE")
        default = ssl.get_default_verify_paths()
        bundle = named or next((path for path in (default.cafile, *_BUNDLES) if path and os.path.exists(path)), None)
        context = ssl.create_default_context(cafile=bundle)
        # uv asks for no more, and many private authorities do not name their key
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        proxies = {scheme: _either(environ, scheme + "_proxy") or _either(environ, "all_proxy") for scheme in ("http", "https")}
        proxies = {scheme: proxy for scheme, proxy in proxies.items() if proxy}
        self._direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        self._proxied = urllib.request.build_opener(urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=context))
        self._no_proxy = {"no": _either(environ, "no_proxy")}
        self._credentials = credentials(environ)

    def open(self, url: str, start: int) -> t.Any:
        """The answer to a request for the bytes from ``start`` on. Raises urllib.error.URLError, OSError."""
        request = urllib.request.Request(url)
        parts = urllib.parse.urlsplit(url)
        login = self._credentials.get((parts.scheme, parts.netloc.rpartition("@")[2]))
        if parts.username:
            login = (urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or ""))
            request = urllib.request.Request(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl())
        if login:
            # not repeated to another host by a redirection
            request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(":".join(login).encode()).decode())
        if start:
            request.add_header("Range", "bytes=%d-" % start)
        direct = urllib.request.proxy_bypass_environment(parts.netloc.rpartition("@")[2], self._no_proxy)
        return (self._direct if direct else self._proxied).open(request, timeout=_PATIENCE)


def _either(environ: t.Mapping[str, str], name: str) -> str:
    """A variable that is written in small or in capital letters."""
    return environ.get(name) or environ.get(name.upper()) or ""


def credentials(environ: t.Mapping[str, str]) -> dict[tuple[str, str], tuple[str, str]]:
    """Name and password by origin (scheme, host with port), from uv's variables for indexes."""
    found = {}
    addresses = " ".join(environ.get(name, "") for name in ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL"))
    for address in addresses.split():
        name, url = re.fullmatch(r"(?:([A-Za-z0-9._-]+)=)?(.*)", address).groups()
        parts = urllib.parse.urlsplit(url)
        plain = re.sub(r"[^A-Z0-9]", "_", (name or "").upper())
        user = environ.get("UV_INDEX_%s_USERNAME" % plain) or urllib.parse.unquote(parts.username or "")
        password = environ.get("UV_INDEX_%s_PASSWORD" % plain) or urllib.parse.unquote(parts.password or "")
        if user or password:
            found[parts.scheme, parts.netloc.rpartition("@")[2]] = (user, password)
    return found


class Explained(t.NamedTuple):
    """The findings of a file that does not come: of its name, address and the client's words; of name, address, found and wanted sha256."""

    unreachable: t.Callable[[str, str, str], Finding] = wheelhouses.unreachable
    other_bytes: t.Callable[[str, str, str, str], Finding] = wheelhouses.other_bytes


#: As for a wheelhouse.
_OWN = Explained()


def fetch(wanted: Wanted, client: Client, told: t.Callable[[int], None], explained: Explained = _OWN) -> None:
    """One file; what an earlier attempt left of it is gone on with.

    :param told: gets the number of bytes whenever some have come.

    Raises FindingError, as ``explained``; what has come stays beside, but for other bytes.
    """
    wanted.dest.parent.mkdir(parents=True, exist_ok=True)
    part = wanted.dest.with_name(wanted.dest.name + ".part")
    for attempt in range(_ATTEMPTS):
        try:
            _read(wanted, part, client, told)
            break
        except (OSError, http.client.HTTPException) as error:
            status = getattr(error, "code", None)
            if status == 416:
                # what was there is no beginning of this file
                part.unlink()
                continue
            if attempt + 1 == _ATTEMPTS or (status is not None and status < 500):
                raise FindingError(explained.unreachable(wanted.dest.name, wanted.url, str(error))) from error
            time.sleep(2**attempt)
    found = _hash(part)
    if found != wanted.sha256:
        part.unlink()
        raise FindingError(explained.other_bytes(wanted.dest.name, wanted.url, found, wanted.sha256))
    part.replace(wanted.dest)


def _read(wanted: Wanted, part: Path, client: Client, told: t.Callable[[int], None]) -> None:
    parts = urllib.parse.urlsplit(wanted.url)
    if parts.scheme in ("", "file"):
        shutil.copyfile(urllib.request.url2pathname(parts.path) if parts.scheme else wanted.url, part)
        told(part.stat().st_size)
        return
    start = part.stat().st_size if part.exists() else 0
    if start and start == wanted.size:
        return
    with client.open(wanted.url, start) as answer:
        goes_on = answer.status == 206 and answer.headers.get("Content-Range", "").startswith("bytes %d-" % start)
        with part.open("ab" if goes_on else "wb") as stream:
            for block in iter(functools.partial(answer.read, _BLOCK), b""):
                stream.write(block)
                told(len(block))
        expected = answer.headers.get("Content-Length")
        if expected is not None and part.stat().st_size != int(expected) + (start if goes_on else 0):
            raise ConnectionError("the connection ended early")


def _hash(path: Path) -> str:
    value = hashlib.sha256()
    with path.open("rb") as stream:
        for block in iter(functools.partial(stream.read, _BLOCK), b""):
            value.update(block)
    return value.hexdigest()


def fetch_all(wanted: t.Sequence[Wanted], client: Client, say: t.Callable[[str], None]) -> None:
    """All files, several at a time; says every few seconds how far it is.

    Raises FindingError for the first that fails, when those that had begun have ended: what is whole stays.
    """
    lock = threading.Lock()
    came = 0

    def told(count: int) -> None:
        nonlocal came
        with lock:
            came += count

    size = sum(one.size or 0 for one in wanted)
    with concurrent.futures.ThreadPoolExecutor(_PARALLEL) as pool:
        running = {pool.submit(fetch, one, client, told) for one in wanted}
        waiting = set(running)
        while waiting:
            done, waiting = concurrent.futures.wait(waiting, timeout=_EVERY, return_when=concurrent.futures.FIRST_EXCEPTION)
            if any(one.exception() for one in done):
                for one in waiting:
                    one.cancel()
                break
            say("%d of %d files, %.1f of %.1f MB" % (len(running) - len(waiting), len(running), came / 1e6, max(came, size) / 1e6))
    failed = [one.exception() for one in running if not one.cancelled() and one.exception()]
    if failed:
        raise t.cast("BaseException", failed[0])
