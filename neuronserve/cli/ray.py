"""`neuronserve serve --distributed ray`: servers on a Ray cluster, and a router in front of them in this process."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from neuronserve.server.errors import SettingsError, StartError

if TYPE_CHECKING:
    from pathlib import Path

    from neuronserve.server.settings.serve import ServeSettings


def serve_on_ray(settings: ServeSettings, model_path: Path) -> None:
    """Run the router and its servers until SIGTERM. Raises StartError."""
    if find_spec("ray") is None:
        raise SettingsError("--distributed ray needs Ray: pip install 'neuronserve[ray]'")
    from neuronserve.server.settings.several import require_token

    require_token()  # before Ray is imported
    from neuronserve.server.api.http.deferred import import_fastapi

    import_fastapi()
    import ray

    from neuronserve.cli.ray_servers import RayServers
    from neuronserve.server.api.listener import bind
    from neuronserve.server.ray.app import plan_of
    from neuronserve.server.route.server import route
    from neuronserve.server.settings.replicas import given, router_config

    listener = bind(settings.host, settings.port)
    try:
        ray.init(include_dashboard=False, log_to_driver=False)
    except (ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
        raise StartError(f"no Ray cluster: {error}") from error
    program = getattr(sys.modules["__main__"].__spec__, "name", "neuronserve").removesuffix(".__main__")
    servers = RayServers(plan_of(given(settings, model_path), program))
    route(router_config(settings, ()), listener, servers)
