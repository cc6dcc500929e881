"""Settings of `neuronserve route`."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import CliPositionalArg

from ..api.http.host_names import names_of
from ..errors import SettingsError
from ..host.open_files import max_connections, raise_open_files
from ..route.address import FORMS, parse
from ..route.config import FILES_OF_REQUEST, RouteConfig
from ..route.rules import MAX_WAIT_S, SILENCE_S
from .base import File, Texts, slice_of
from .logs import LogFormat, log_to_stderr
from .tls import TlsSettings


class RouteSettings(TlsSettings):
    """Settings of `neuronserve route`."""

    replicas: CliPositionalArg[Texts] = Field((), description=f"addresses of replicas: {FORMS}")
    replicas_file: File = Field(None, description="file with further replicas, one a line; read again when it changes")
    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for all")
    port: int = Field(8080, ge=0, le=65535, description="TCP port to listen on; 0 picks a free one")
    zone: str = Field("", description="zone of this router, whose replicas it prefers")
    zone_spill_tokens: int = Field(
        4096,
        ge=0,
        le=10**9,
        description="tokens that a replica of the zone may have more to compute than one elsewhere",
    )
    silence_timeout: float = Field(
        SILENCE_S, gt=0, le=3600, description="seconds without a sign of life after which a replica counts as lost"
    )
    max_wait: float = Field(
        MAX_WAIT_S, ge=0, le=3600, description="seconds that a request waits while no replica is up"
    )
    max_body_bytes: int = Field(64 * 2**20, ge=1024, le=2**34, description="largest request body")
    replica_ca_file: File = Field(
        None, description="PEM file of the authorities of replicas' certificates (default: the system's)"
    )
    allowed_origins: Texts = Field((), description="web origin that browsers may call from, * for any; repeatable")
    allowed_hosts: Texts = Field(
        (),
        description="name allowed in Host beside localhost and IP addresses, * for any; repeatable "
        "(default: none on a loopback address, else any)",
    )
    shutdown_timeout: float = Field(30, ge=0, le=86400, description="seconds that open requests get after SIGTERM")
    ready_file: File = Field(None, description="JSON file with the address, present while the router is ready")
    log_format: LogFormat = Field("text", description="text lines, or one JSON object a line")

    @model_validator(mode="after")
    def _has_replicas(self) -> Self:
        if not self.replicas and self.replicas_file is None:
            raise ValueError(f"no replicas: give addresses ({FORMS}) or --replicas-file")
        return self

    def put_in_force(self) -> None:
        """Set up the log and the limit of open files too."""
        log_to_stderr("info", self.log_format, False)
        raise_open_files()

    @property
    def route_config(self) -> RouteConfig:
        """The router's configuration. Raises SettingsError for an address in no known form."""
        if isinstance(self.replica_ca_file, Path) and not self.replica_ca_file.is_file():
            raise SettingsError(f"--replica-ca-file {self.replica_ca_file}: there is no such file")
        return slice_of(
            RouteConfig,
            self,
            replicas=tuple(parse(each, "REPLICA") for each in self.replicas),
            allowed_hosts=names_of(self.host, self.allowed_hosts),
            tls=self.tls_config,
            ca_file=self.replica_ca_file,
            shutdown_timeout_s=self.shutdown_timeout,
            max_connections=max_connections(0) // FILES_OF_REQUEST,
        )
