"""The router's slice of the settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..api.http.tls import TlsConfig
from .address import Address
from .rules import MAX_WAIT_S, SILENCE_S

FILES_OF_REQUEST = 2  # the client's connection, and the replica's


@dataclass(frozen=True, slots=True)
class RouteConfig:
    """Settings of one router."""

    replicas: tuple[Address, ...] = ()
    replicas_file: Path | None = None  # further replicas; read again when it changes
    zone: str = ""  # of this router
    zone_spill_tokens: int = 4096  # that a replica of this zone may have more to compute than one elsewhere
    silence_timeout: float = SILENCE_S  # seconds without a sign of life after which a replica counts as lost
    max_wait: float = MAX_WAIT_S  # seconds that a request waits while no replica is up
    max_body_bytes: int = 64 * 2**20
    max_connections: int = 1024
    host: str = "127.0.0.1"
    port: int = 8000
    allowed_hosts: tuple[str, ...] | None = None  # see CrossSite
    allowed_origins: tuple[str, ...] = ()
    tls: TlsConfig | None = None
    ca_file: Path | None = None  # authorities of replicas' certificates; None = the system's
    shutdown_timeout_s: float = 30.0
    health_port: int | None = None  # of the process that answers probes; None = no such process
    shows_replicas: bool = False  # `/metrics` has those of the replicas too
    ready_file: Path | None = None
