"""One of several API processes: its start by the supervisor, and its main function."""

from __future__ import annotations

import multiprocessing
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from neuronserve.server.errors import StartError
from neuronserve.server.host.confinement import go_first_when_memory_runs_out
from neuronserve.server.host.fork_server import start_process

if TYPE_CHECKING:
    import socket
    from multiprocessing.context import SpawnProcess
    from pathlib import Path

    from neuronserve.server.api.config import WorkerRole
    from neuronserve.server.settings.serve import ServeSettings


def start_worker(
    settings: ServeSettings, model_path: Path, listener: socket.socket, role: WorkerRole, connection: socket.socket
) -> SpawnProcess:
    """Start the process; the caller ends it. `connection` is its end of a socket pair with the hub."""
    args = (settings, model_path, listener, role, connection)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_run_worker, args=args, name=f"api-worker-{role.number}")
    start_process(process)
    return process


def _run_worker(
    settings: ServeSettings, model_path: Path, listener: socket.socket, role: WorkerRole, connection: socket.socket
) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal sends it to all; the supervisor handles it
    settings.put_in_force()
    go_first_when_memory_runs_out()  # before the process with the engines
    from neuronserve.server.api.http.deferred import import_fastapi

    import_fastapi()
    from neuronserve.cli.serve import additions_of
    from neuronserve.server.api.workers import worker

    listener.setblocking(False)
    config = settings.api_config(model_path)
    config = replace(config, additions=additions_of(settings), worker=role, ready_file=None, health_port=None)
    try:
        worker.serve(config, connection, listener)
    except StartError as error:
        raise SystemExit(error.exit_code) from None  # the supervisor has the message
