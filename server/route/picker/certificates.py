"""Credentials of a gRPC port: from files, or a certificate that the process signs itself."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from ...api.http.tls import TlsConfig
from ...errors import SettingsError
from ..server import log


def credentials(config: TlsConfig | None) -> Any:
    """Return credentials, whose files are read again at each handshake. Raises SettingsError."""
    if config is None:
        return grpc.ssl_server_credentials([self_signed()])

    def read() -> Any:
        config.context()  # refuses files that are not what is needed
        pair = (config.keyfile or config.certfile).read_bytes(), config.certfile.read_bytes()
        authorities = None if config.ca_certs is None else config.ca_certs.read_bytes()
        return grpc.ssl_server_certificate_configuration([pair], authorities)

    def read_again() -> Any:
        try:
            return read()
        except SettingsError as error:
            return log.error("the certificate stays as it is: %s", error)

    return grpc.dynamic_ssl_server_credentials(read(), read_again, config.cert_reqs is ssl.CERT_REQUIRED)


def self_signed() -> tuple[bytes, bytes]:
    """Return a new key and its certificate. Gateways expect TLS of a picker, but no authority behind it."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "neuronserve pick")])
    facts = name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=3650)
    certificate = x509.CertificateBuilder(*facts).sign(key, SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private, certificate.public_bytes(Encoding.PEM)
