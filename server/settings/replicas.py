"""Settings that follow from those of `neuronserve serve --replicas`: of each replica, and of the router before them."""

import sys
from pathlib import Path
from typing import Any, TypeVar

from ..api.http.host_names import names_of
from ..host.cpu_quota import host_threads
from ..host.memory import GIB, available_bytes
from ..host.open_files import max_connections
from ..route.address import Address
from ..route.config import FILES_OF_REQUEST, RouteConfig
from .base import slice_of
from .serve import ServeSettings

Kind = TypeVar("Kind", bound=ServeSettings)
# Settings of the router in front of replicas on a Ray cluster, and those that a replica has of its own.
ELSEWHERE = frozenset(
    {
        *("distributed", "num_replicas", "host", "port", "health_port", "ready_file", "console"),
        *("allowed_origins", "allowed_hosts", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs"),
    }
)


def of_replica(settings: Kind, number: int) -> Kind:
    """Return the settings of one replica: its share of the host, behind the router's address."""
    count, directory = settings.replicas, settings.data_dir or settings.port_data_dir
    own: dict[str, object] = {"host": "127.0.0.1", "allowed_origins": (), "allowed_hosts": (), "console": False}
    own |= dict.fromkeys(("health_port", "ready_file", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs"))
    own |= {"data_dir": None if directory is None else directory / str(number), "ssl_cert_reqs": 0}
    threads = host_threads() if settings.cpu_threads == "auto" else settings.cpu_threads
    own |= {"cpu_threads": max(1, threads // count)}
    own |= {"host_memory_gib": min(available_bytes(), settings.memory_bytes or sys.maxsize) / GIB / count}
    return settings.model_copy(update=own)


def given(settings: ServeSettings, model: Path | str) -> dict[str, Any]:
    """Return the settings that were given, in the form of a configuration file; a `model` of this host by its path."""
    written = settings.model_dump(mode="json")
    public = {name: str(field.validation_alias or name) for name, field in type(settings).model_fields.items()}
    fields = {public[name]: written[name] for name in settings.model_fields_set - {"config"}}
    if Path(fields.get("model", "")).exists():
        fields["model"] = str(model)
    return fields


def router_config(settings: ServeSettings, replicas: tuple[Address, ...]) -> RouteConfig:
    """Return the configuration of the router in front of the replicas."""
    return slice_of(
        RouteConfig,
        settings,
        replicas=replicas,
        allowed_hosts=names_of(settings.host, settings.allowed_hosts),
        tls=settings.tls_config,
        shows_replicas=True,
        shutdown_timeout_s=settings.shutdown_timeout,
        max_connections=max_connections(0) // FILES_OF_REQUEST,
        max_body_bytes=max(settings.max_body_bytes, settings.max_file_bytes),
    )
