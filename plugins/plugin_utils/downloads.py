# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files by address and sha256, kept in a directory of the controller; one appears there by a rename, whole and compared."""

from __future__ import annotations

import base64
import hashlib
import os
import ssl
import tempfile
import typing as t
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils import networks
from ansible_collections.specdec.serving.plugins.module_utils.findings import ERROR, Finding, FindingError

_CHUNK = 1 << 20
#: Seconds without a byte after which it is given up.
_PATIENCE = 60.0


def fetch(url: str, sha256: str, place: Path, network: networks.Network, subject: str) -> bool:
    """Fetch a file to ``place``; False where it lies there already.

    Raises FindingError (``wheel.hash``, ``wheel.download``), its subject being ``subject``; nothing is left at ``place`` then.
    """
    if place.is_file():
        return False
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=place.parent, prefix=".", delete=False) as scratch:
        try:
            found = _copied(url, scratch, network)
            if found != sha256:
                fix = "find out which is right before you change the pin: the file was replaced, or the sha256 is another file's"
                raise FindingError(
                    Finding(
                        "wheel.hash", ERROR, subject, "the file is not the one of the pin", "sha256 " + found, "sha256 " + sha256, fix=fix
                    )
                )
            os.chmod(scratch.name, 0o644)
            os.rename(scratch.name, place)
        except OSError as error:
            text = network.hidden(str(error))
            fix = "check the address, and specdec_network (proxy, ca); or put the wheel into a directory of specdec_wheel_directories"
            own = Finding("wheel.download", ERROR, subject, "the wheel cannot be fetched", networks.hidden(url), "a file", text, fix=fix)
            raise FindingError(networks.diagnose(text, subject, ("proxy", "certificate")) or own) from error
        finally:
            Path(scratch.name).unlink(missing_ok=True)
    return True


def _copied(url: str, target: t.IO[bytes], network: networks.Network) -> str:
    """Copy what an address gives; its sha256."""
    request = urllib.request.Request(url)
    values = network.values
    if values.get("username") and urllib.parse.urlsplit(url).netloc == urllib.parse.urlsplit(values.get("index", "")).netloc:
        login = "%s:%s" % (values["username"], values.get("password", ""))
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    digest = hashlib.sha256()
    with _opener(network).open(request, timeout=_PATIENCE) as answer:
        for block in iter(lambda: answer.read(_CHUNK), b""):
            digest.update(block)
            target.write(block)
    target.flush()
    return digest.hexdigest()


def _opener(network: networks.Network) -> urllib.request.OpenerDirector:
    authorities = network.authorities or networks.system_authorities(os.environ)
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(authorities) if authorities else None))
    ]
    proxy = network.values.get("proxy")
    if proxy:
        handlers.append(_Proxy(proxy, network.values.get("no_proxy") or ()))
    return urllib.request.build_opener(*handlers)


class _Proxy(urllib.request.ProxyHandler):
    """A proxy for everything but some hosts; the standard one reads those from the environment alone."""

    def __init__(self, proxy: str, direct: t.Sequence[str]) -> None:
        super().__init__({"http": proxy, "https": proxy})
        self.direct = {"no": ",".join(direct)}

    def proxy_open(self, req: urllib.request.Request, proxy: str, type: str) -> t.Any:
        if urllib.request.proxy_bypass_environment(req.host, self.direct):
            return None
        return super().proxy_open(req, proxy, type)
