"""Slices of the settings: of a process in front of replicas, a router or an endpoint picker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..api.http.tls import TlsConfig
from .address import Address
from .rules import MAX_WAIT_S, SILENCE_S

FILES_OF_REQUEST = 2  # the client's connection, and the replica's


@dataclass(frozen=True, slots=True)
class FrontConfig:
    """Settings of replicas, and of the process in front of them."""

    replicas: tuple[Address, ...] = ()
    replicas_file: Path | None = None  # further replicas; read again when it changes
    is_by_ip: bool = False  # a replica is known by IP address and port: each name stands for all of its addresses
    zone: str = ""  # of this process
    zone_spill_tokens: int = 4096  # that a replica of this zone may have more to compute than one elsewhere
    silence_timeout: float = SILENCE_S  # seconds without a sign of life after which a replica counts as lost
    max_wait: float = MAX_WAIT_S  # seconds that a request waits while no replica is up
    max_body_bytes: int = 64 * 2**20
    host: str = "127.0.0.1"
    port: int = 8000
    tls: TlsConfig | None = None
    ca_file: Path | None = None  # authorities of replicas' certificates; None = the system's
    shutdown_timeout_s: float = 30.0
    health_port: int | None = None  # of the process that answers probes; None = no such process
    ready_file: Path | None = None


@dataclass(frozen=True, slots=True)
class RouteConfig(FrontConfig):
    """Settings of one router."""

    max_connections: int = 1024
    allowed_hosts: tuple[str, ...] | None = None  # see CrossSite
    allowed_origins: tuple[str, ...] = ()
    shows_replicas: bool = False  # `/metrics` has those of the replicas too


@dataclass(frozen=True, slots=True)
class PickConfig(FrontConfig):
    """Settings of one endpoint picker."""

    max_open_tokens: int = 0  # of a replica, above which it gets no more; 0 = no limit
    num_endpoints: int = 3  # that a gateway may try for a request, the first included
    grpc_health_port: int | None = None  # for health probes alone, without TLS
    metrics_port: int | None = None
    secure_serving: bool = True  # without files of `tls`, by a certificate that the picker signs itself
