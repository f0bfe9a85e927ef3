# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How indexes and hubs are reached: through a proxy, at a mirror with a login, behind a private certificate authority.

One description serves the controller and the hosts. It becomes environment variables of the process that uses the
network and nothing else: no argument, no lock and no log shows what is secret in it. To a host it travels as one secret of a job.
"""

from __future__ import annotations

import hashlib
import json
import re
import ssl
import typing as t
import urllib.parse
from pathlib import Path

from .findings import ERROR, Finding, FindingError
from .releases import redact, write_durably

#: Name of the description among a job's secrets.
SECRET = "network"

#: What uv calls the index, and thereby the variables of its login.
_INDEX = "specdec"

#: Where distributions keep the certificate authorities that they trust, in one file.
_AUTHORITIES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")

_VARIABLE = "specdec_network"
_FROM_VAULT = "(from a vault)"

#: The first that fits: words of uv and of the hub's client → check, message, cause, fix. Words as of uv 0.13, tried 2026-11-30.
_FAILURES: tuple[tuple[str, str, str, str, str], ...] = (
    (
        r"proxy authorization required|407 Proxy",
        "proxy",
        "the proxy does not let it pass",
        "the proxy asks for a login, or does not take the one that it got (407)",
        "set specdec_network.proxy %s to http://USER:PASSWORD@PROXY:PORT, with special characters percent-encoded" % _FROM_VAULT,
    ),
    (
        r"tunnel error|ProxyError|Tunnel connection failed",
        "proxy",
        "the proxy cannot be used",
        "the proxy does not answer, or does not reach the address",
        "check specdec_network.proxy and what the proxy allows; name what is reached directly in specdec_network.no_proxy",
    ),
    (
        r"invalid peer certificate|UnknownIssuer|CERTIFICATE_VERIFY_FAILED|certificate verify failed",
        "certificate",
        "the certificate of what answers is not trusted",
        "it is signed by a private certificate authority, is for another name, or has expired",
        "set specdec_network.ca to the PEM file of the authority, on the controller",
    ),
    (
        r"valid authentication|40[13]:? (Unauthorized|Forbidden)|status client error \(40[13]",
        "credentials",
        "the package index does not let it in",
        "there is no login for it, it is wrong, or may not read this (401 or 403)",
        "set specdec_network.username and specdec_network.password %s" % _FROM_VAULT,
    ),
    (
        r"status server error|\b50[0-9] [A-Z]|unexpected (JSON|HTML)|Unsupported `Content-Type`|Hash mismatch for package metadata"
        r"|[Ii]nvalid (JSON|HTML)",
        "answer",
        "what answers is no package index that works",
        "the index is broken, or something else answers at its address",
        "check specdec_network.index, or try again later",
    ),
    (
        r"dns error|Failed to fetch|error sending request|Request failed|--find-links` URL|[Cc]ould not connect|[Cc]onnection "
        r"(refused|reset)|timed out|\btls\b",
        "unreachable",
        "the package index does not answer",
        "",
        "check name resolution and the way there; specdec_network names a mirror, a proxy and a certificate authority",
    ),
)


def check(host: str, network: t.Mapping[str, t.Any]) -> list[Finding]:
    """What is wrong with ``specdec_network``, beyond types and names (see schema.SETTINGS).

    :param host: inventory name, for the findings; no secret value is in them.
    """
    found = []

    def refuse(option: str, message: str, expected: str, fix: str, shown: str = "a value that is not shown here") -> None:
        found.append(Finding("network.value", ERROR, "%s.%s on %s" % (_VARIABLE, option, host), message, shown, expected, fix=fix))

    for option in ("index", "proxy"):
        address = network.get(option)
        wrong = _wrong_address(address) if address else ""
        if wrong:
            refuse(option, wrong, "http:// or https:// with a host", "write %s.%s: https://HOST[:PORT][/PATH]" % (_VARIABLE, option))
    if "@" in urllib.parse.urlsplit(network.get("index") or "").netloc:
        fix = "write the address without them, and set %s.username and .password %s" % (_VARIABLE, _FROM_VAULT)
        refuse("index", "has credentials inside, where logs and locks would show them", "an address without credentials", fix)
    if network.get("password") and not network.get("username"):
        refuse("username", "is not set, but a password is", "both", "set %s.username" % _VARIABLE, "nothing")
    if network.get("username") and not network.get("index"):
        refuse("index", "is not set, but a login for it is", "the index that the login is for", "set %s.index" % _VARIABLE, "nothing")
    try:
        described(network)
    except FindingError as error:
        found.append(Finding(**{**error.finding.as_dict(), "subject": "%s on %s" % (error.finding.subject, host)}))
    return found


def _wrong_address(address: str) -> str:
    """What is wrong with an address, or nothing."""
    try:
        parts = urllib.parse.urlsplit(address)
        usable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return "is no address"
    if parts.scheme not in ("http", "https"):
        return "has a scheme that is not supported"
    return "" if usable and not re.search(r"\s", address) else "is no address"


def described(network: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The description with the certificates themselves in place of their file's path. Raises FindingError (``network.ca``)."""
    if not network.get("ca"):
        return dict(network)
    path = Path(network["ca"]).expanduser()
    try:
        text = path.read_text(encoding="ascii")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
        if "-----BEGIN CERTIFICATE-----" not in text:
            raise ValueError("it holds no certificate")
    except (OSError, ValueError) as error:
        fix = "name a file on the controller that holds the authority's certificate in PEM form"
        message = "cannot be used as certificate authority"
        raise FindingError(
            Finding("network.ca", ERROR, _VARIABLE + ".ca", message, str(path), "a PEM file", str(error), fix=fix)
        ) from error
    return {**network, "ca": text}


def packed(network: t.Mapping[str, t.Any]) -> dict[str, str]:
    """The description as the secret of a job; empty where there is none. Raises FindingError (``network.ca``)."""
    return {SECRET: json.dumps(described(network))} if network else {}


def of_job(spec: t.Mapping[str, t.Any]) -> Network:
    """The network of a job: from its secret, or what the host has by itself. Whose certificates the host trusts always counts."""
    path = spec.get("secret_files", {}).get(SECRET)
    if path is None:
        return Network({}, system_authorities({}))
    # what is written goes where the secret lies, and with it
    network = prepared(json.loads(Path(path).read_text(encoding="utf-8")), Path(path).parent, {})
    return network._replace(authorities=network.authorities or system_authorities({}))


class Network(t.NamedTuple):
    """A description that is ready for use: its values, and the file of certificate authorities (None: the system's own)."""

    values: t.Mapping[str, t.Any]
    authorities: t.Optional[Path]

    def connection(self) -> dict[str, str]:
        """Environment variables for any client: proxy and certificate authorities."""
        found = {}
        if self.values.get("proxy"):
            found.update(dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), self.values["proxy"]))
        if self.values.get("no_proxy"):
            found["NO_PROXY"] = ",".join(self.values["no_proxy"])
        # clients differ in which spelling wins
        found.update({name.lower(): value for name, value in found.items()})
        if self.authorities:
            found.update(dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"), str(self.authorities)))
        return found

    def environment(self) -> dict[str, str]:
        """Environment variables for uv: the connection, the index and its login."""
        found = self.connection()
        if self.values.get("index"):
            found["UV_DEFAULT_INDEX"] = "%s=%s" % (_INDEX, self.values["index"])
        for option in ("username", "password"):
            if self.values.get(option):
                found["UV_INDEX_%s_%s" % (_INDEX.upper(), option.upper())] = self.values[option]
        return found

    def hidden(self, text: str) -> str:
        """A text without the secrets."""
        return hidden(text, [self.values[option] for option in ("password", "proxy") if self.values.get(option)])


def hidden(text: str, secrets: t.Iterable[str] = ()) -> str:
    """A text without these values and without what stands before an address's host."""
    return re.sub(r"://[^/\s@]*@", "://***@", redact(text, secrets))


def system_authorities(environ: t.Mapping[str, str]) -> t.Optional[Path]:
    """The file of the certificate authorities that are trusted here: the one that the environment names, else the system's."""
    named = environ.get("SSL_CERT_FILE")
    return next((path for path in map(Path, [*([named] if named else []), *_AUTHORITIES]) if path.is_file()), None)


def prepared(network: t.Mapping[str, t.Any], directory: Path, environ: t.Mapping[str, str]) -> Network:
    """A description (see :func:`described`) made ready: a private authority is written down together with the system's.

    :param directory: where that file is kept; :param environ: the environment in which the network is used.
    """
    if not network.get("ca"):
        return Network(network, None)
    system = system_authorities(environ)
    text = "%s\n%s\n" % (system.read_text(encoding="utf-8", errors="replace") if system else "", network["ca"])
    path = directory / ("authorities-%s.pem" % hashlib.sha256(text.encode()).hexdigest()[:16])
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        write_durably(path, text)
    return Network(network, path)


def diagnose(text: str, subject: str, only: t.Container[str] = ()) -> t.Optional[Finding]:
    """The finding (``network.…``) for a client's words, or None where they are about something else.

    :param text: without secrets (see :func:`hidden`).
    :param only: the checks that count, all when empty.
    """
    flat = " ".join(text.split())
    address = re.search(r"https?://[^\s`)]+", flat)
    for words, name, message, cause, fix in _FAILURES:
        if (not only or name in only) and re.search(words, flat):
            evidence = "\n".join(line for line in text.strip().splitlines() if line.strip())[-800:]
            found = address.group(0) if address else ""
            return Finding("network." + name, ERROR, subject, message, found, "an answer", evidence, cause, fix)
    return None
