"""`neuronserve route` and `neuronserve pick`: a router in front of servers, and the choice for a gateway's."""

from __future__ import annotations

from neuronserve.cli.call import Call


def route(call: Call) -> None:
    """Run a router in front of servers that answer."""
    from neuronserve.server.settings.route import RouteSettings

    settings = call.settings(RouteSettings)
    from neuronserve.server.api.listener import bind
    from neuronserve.server.route.server import route as run_router

    run_router(settings.route_config, bind(settings.host, settings.port))


def pick(call: Call) -> None:
    """Run an endpoint picker for a gateway."""
    from neuronserve.server.errors import SettingsError
    from neuronserve.server.settings.route import PickSettings

    settings = call.settings(PickSettings)
    try:
        from neuronserve.server.route.picker.server import pick as run_picker
    except ModuleNotFoundError as error:
        raise SettingsError(f"pick needs {error.name}, not installed: install neuronserve[pick]") from error
    run_picker(settings.pick_config)
