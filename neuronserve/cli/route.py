"""`neuronserve route`: a router in front of servers."""

from __future__ import annotations

from neuronserve.cli.call import Call


def route(call: Call) -> None:
    """Run a router in front of servers that answer."""
    from neuronserve.server.settings.route import RouteSettings

    settings = call.settings(RouteSettings)
    from neuronserve.server.api.listener import bind
    from neuronserve.server.route.server import route as run_router

    run_router(settings.route_config, bind(settings.host, settings.port))
