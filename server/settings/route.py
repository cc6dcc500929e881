"""Settings of `neuronserve route` and `neuronserve pick`."""

from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator
from pydantic_settings import CliPositionalArg

from ..api.http.host_names import names_of
from ..errors import SettingsError
from ..host.open_files import max_connections, raise_open_files
from ..route.address import FORMS, parse
from ..route.config import FILES_OF_REQUEST, PickConfig, RouteConfig
from ..route.rules import MAX_WAIT_S, SILENCE_S
from .base import File, Texts, slice_of
from .logs import LogFormat, log_to_stderr
from .tls import TlsSettings


class FrontSettings(TlsSettings):
    """Settings of replicas, and of the process in front of them."""

    replicas: CliPositionalArg[Texts] = Field((), description=f"addresses of replicas: {FORMS}")
    replicas_file: File = Field(None, description="file with further replicas, one a line; read again when it changes")
    zone: str = Field("", description="zone of this process, whose replicas it prefers")
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
    shutdown_timeout: float = Field(30, ge=0, le=86400, description="seconds that open requests get after SIGTERM")
    ready_file: File = Field(None, description="JSON file with the address, present while the process is ready")
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
    def of_front(self) -> dict[str, Any]:
        """Fields of a FrontConfig with names of their own. Raises SettingsError for an address in no known form."""
        if isinstance(self.replica_ca_file, Path) and not self.replica_ca_file.is_file():
            raise SettingsError(f"--replica-ca-file {self.replica_ca_file}: there is no such file")
        files = {"tls": self.tls_config, "ca_file": self.replica_ca_file}
        replicas = tuple(parse(each, "REPLICA") for each in self.replicas)
        return {"replicas": replicas, "shutdown_timeout_s": self.shutdown_timeout, **files}


class RouteSettings(FrontSettings):
    """Settings of `neuronserve route`."""

    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for all")
    port: int = Field(8080, ge=0, le=65535, description="TCP port to listen on; 0 picks a free one")
    max_wait: float = Field(30.0, ge=0, le=3600, description="seconds that a request waits while no replica is up")
    allowed_origins: Texts = Field((), description="web origin that browsers may call from, * for any; repeatable")
    allowed_hosts: Texts = Field(
        (),
        description="name allowed in Host beside localhost and IP addresses, * for any; repeatable "
        "(default: none on a loopback address, else any)",
    )

    @property
    def route_config(self) -> RouteConfig:
        """The router's configuration. Raises SettingsError for an address in no known form."""
        hosts, most = names_of(self.host, self.allowed_hosts), max_connections(0) // FILES_OF_REQUEST
        return slice_of(RouteConfig, self, **self.of_front, allowed_hosts=hosts, max_connections=most)


class PickSettings(FrontSettings):
    """Settings of `neuronserve pick`. Flags are named as those of llm-d's endpoint picker are."""

    host: str = Field("0.0.0.0", description="address to listen on")
    port: int = Field(9002, ge=0, le=65535, description="port of the gateway's external processing; 0 picks a free one")
    grpc_health_port: int | None = Field(None, ge=1, le=65535, description="port of gRPC health probes, without TLS")
    metrics_port: int | None = Field(None, ge=1, le=65535, description="port of metrics in Prometheus's format")
    secure_serving: bool = Field(True, description="TLS, as gateways expect; without --ssl-certfile, self-signed")
    max_open_tokens: int = Field(
        0, ge=0, le=10**12, description="open tokens above which a replica gets no requests; 0 for no limit"
    )
    num_endpoints: int = Field(3, ge=1, le=100, description="addresses that a gateway may try in turn for a request")

    @property
    def pick_config(self) -> PickConfig:
        """The picker's configuration. Raises SettingsError for what cannot be."""
        if self.ssl_certfile is not None and not self.secure_serving:
            raise SettingsError("--ssl-certfile contradicts --no-secure-serving")
        if self.ssl_cert_reqs == 1:
            raise SettingsError("--ssl-cert-reqs 1: gRPC cannot make clients' certificates optional; use 0 or 2")
        return slice_of(PickConfig, self, **self.of_front, is_by_ip=True)
