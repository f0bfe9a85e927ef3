# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A double of a company's private certificate authority for tests."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = datetime.timedelta(days=1)


class Authority:
    """Signs certificates for servers; ``pem`` is the file that clients have to trust.

    :param directory: where the files lie.
    :param strict: whether certificates name keys, as RFC 5280 wants and older authorities do not.
    """

    def __init__(self, directory: Path, strict: bool = True) -> None:
        self.directory = directory
        self.strict = strict
        name = "Private CA of a test"
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.pem = directory / "authority.pem"
        self.pem.write_bytes(self._signed(self.name, self.key, [x509.BasicConstraints(ca=True, path_length=0)]))

    def context(self, name: str) -> ssl.SSLContext:
        """TLS for a server of this host name."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        extensions = [x509.SubjectAlternativeName([x509.DNSName(name)]), x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])]
        secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        path = self.directory / (name + ".pem")
        path.write_bytes(secret + self._signed(subject, key, extensions))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extensions: list[x509.ExtensionType]) -> bytes:
        if self.strict:
            usage = x509.KeyUsage(True, False, False, False, False, subject == self.name, False, False, False)
            named = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
            signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
            extensions = [*extensions, usage, named, signer]
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = x509.CertificateBuilder(self.name, subject, key.public_key(), x509.random_serial_number(), now - _DAY, now + _DAY)
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, (x509.BasicConstraints, x509.KeyUsage)))
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
