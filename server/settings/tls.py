"""Settings of HTTPS, under the names that uvicorn and vLLM have for them."""

import ssl
from typing import Self

from pydantic import Field, model_validator

from ..api.http.tls import TlsConfig
from .base import File, Settings


class TlsSettings(Settings):
    """Certificates of the server and of clients."""

    ssl_certfile: File = Field(None, description="PEM file of the server's certificate chain; enables HTTPS")
    ssl_keyfile: File = Field(None, description="PEM file of the private key (default: the certificate's file)")
    ssl_ca_certs: File = Field(None, description="PEM file of the authorities that sign clients' certificates")
    ssl_cert_reqs: int = Field(
        0, ge=0, le=2, description="clients' certificates: 0 not requested, 1 optional, 2 required"
    )

    @model_validator(mode="after")
    def _has_certificate(self) -> Self:
        others = {
            "ssl_keyfile": self.ssl_keyfile,
            "ssl_ca_certs": self.ssl_ca_certs,
            "ssl_cert_reqs": self.ssl_cert_reqs,
        }
        if self.ssl_certfile is None and (name := next((name for name, value in others.items() if value), None)):
            raise ValueError(f"--{name.replace('_', '-')} needs --ssl-certfile")
        if self.ssl_cert_reqs and self.ssl_ca_certs is None:
            raise ValueError("--ssl-cert-reqs needs --ssl-ca-certs, the authorities to trust")
        return self

    @property
    def tls_config(self) -> TlsConfig | None:
        """Certificates; None for plain HTTP."""
        if self.ssl_certfile is None:
            return None
        return TlsConfig(self.ssl_certfile, self.ssl_keyfile, self.ssl_ca_certs, ssl.VerifyMode(self.ssl_cert_reqs))
