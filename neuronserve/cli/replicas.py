"""`neuronserve serve --replicas`: servers of their own, and a router in front of them in this process."""

from __future__ import annotations

import multiprocessing
import sys
from functools import partial
from typing import TYPE_CHECKING

from neuronserve.cli.ending import leave
from neuronserve.server.errors import StartError
from neuronserve.server.host.confinement import go_first_when_memory_runs_out
from neuronserve.server.host.fork_server import start_fork_server

if TYPE_CHECKING:
    import socket
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from neuronserve.server.link.handle import EngineMain
    from neuronserve.server.settings.serve import ServeSettings


def serve_replicas(settings: ServeSettings, model_path: Path, engine: EngineMain) -> None:
    """Run the router and its replicas until SIGTERM."""
    from neuronserve.server.api.http.deferred import import_fastapi

    import_fastapi()
    from neuronserve.server.api.listener import bind
    from neuronserve.server.route.children import Children
    from neuronserve.server.route.server import route
    from neuronserve.server.settings.replicas import router_config

    listener = bind(settings.host, settings.port)
    make = partial(_replica, settings, model_path, engine)
    children = Children(settings.replicas, make, settings.healing)
    route(router_config(settings, children.addresses), listener, children)


def _replica(
    settings: ServeSettings, model_path: Path, engine: EngineMain, number: int, listener: socket.socket
) -> BaseProcess:
    from neuronserve.server.settings.replicas import of_replica

    args = (of_replica(settings, number), model_path, engine, listener)
    return multiprocessing.get_context("spawn").Process(target=run_replica, args=args, name=f"replica-{number}")


def run_replica(settings: ServeSettings, model_path: Path, engine: EngineMain, listener: socket.socket) -> None:
    """Run one server behind a router, on `listener`."""
    settings.put_in_force()
    go_first_when_memory_runs_out()  # before the router
    start_fork_server()
    from neuronserve.cli.serve import serve_alone

    listener.setblocking(False)
    try:
        serve_alone(settings, model_path, engine, listener)
    except StartError as error:
        print(f"neuronserve: error: {error}", file=sys.stderr)
        leave(error.exit_code)
