"""HTTPS: the context for new connections, rebuilt when its files change.

A context is never changed: connections keep the one they began with, so that a reload disturbs no stream, and files
that belong together are read together or not at all.
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from ...errors import SettingsError

log = logging.getLogger("neuronserve")
HANDSHAKE_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """PEM files of the server, and requirements for clients."""

    certfile: Path
    keyfile: Path | None = None  # None: the key is in `certfile`
    ca_certs: Path | None = None  # authorities of clients' certificates
    cert_reqs: ssl.VerifyMode = ssl.CERT_NONE

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(file for file in (self.certfile, self.keyfile, self.ca_certs) if file is not None)

    def context(self) -> ssl.SSLContext:
        """Read the files. Raises SettingsError with the file that cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self.certfile, self.keyfile, password=_no_password)
        except (OSError, ValueError) as error:
            key = "" if self.keyfile is None else f" and --ssl-keyfile {self.keyfile}"
            raise SettingsError(f"--ssl-certfile {self.certfile}{key}: {_reason(error)}") from error
        if self.ca_certs is not None:
            try:
                context.load_verify_locations(self.ca_certs)
            except (OSError, ValueError) as error:
                raise SettingsError(f"--ssl-ca-certs {self.ca_certs}: {_reason(error)}") from error
        context.verify_mode = self.cert_reqs
        return context


class Tls:
    """`context` is for new connections. Raises SettingsError when the files are wrong at the start."""

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self.context = config.context()

    def reload(self) -> None:
        """Read the files again. When they are wrong, log it and keep the old ones."""
        try:
            self.context = self._config.context()
        except SettingsError as error:
            log.error("the certificate stays as it is: %s", error)
            return
        log.info("new connections use the current certificate of %s", self._config.certfile)


def _no_password() -> str:
    raise ValueError("the private key is encrypted, which this server does not support")


def _reason(error: OSError | ValueError) -> str:
    """Return the reason in plain words; OpenSSL's messages are for its programmers."""
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the private key is not that of the certificate"
        return f"no PEM file of what is needed ({error.reason or 'unknown form'})"
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
