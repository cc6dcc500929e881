"""One of several API processes: the ordinary application over the hub's engines, and its answers to the others."""

from __future__ import annotations

import asyncio
import signal
import socket

from ...errors import RequestError, StartError
from ...link.hub.remote import RemoteEngines
from .. import peers
from ..batch.runner import BatchRunner
from ..config import ApiConfig
from ..endpoints.admin import abort_here
from ..event_loop import run
from ..server import ApiServer
from ..telemetry.gathered import snapshot

BATCH_WORKER = 0  # the number of the worker that runs batches


class WorkerServer(ApiServer):
    """Serves like any other. The supervisor announces when the server is ready, and its engines."""

    def __init__(self, config: ApiConfig, engines: RemoteEngines, listener: socket.socket) -> None:
        super().__init__(config, engines, listener)
        self._engines = engines
        for name, handler in (
            (peers.METRICS, self._metrics),
            (peers.LOAD, self._load_now),
            (peers.ABORT, self._abort),
            (peers.RESPONSE, self._response),
            (peers.CANCEL, self._cancel),
            (peers.FOLLOW, self._follow),
        ):
            engines.handle(name, handler)

    async def _load(self) -> None:
        try:
            await self.service.load(lambda _: None)
        except StartError as error:
            self._engines.failed(str(error), error.exit_code)
            raise
        role = self.service.config.worker
        if role is not None and role.number == BATCH_WORKER:
            self._batches = asyncio.create_task(self._work_on_batches())
        if role is not None and not (role.number or role.is_successor):
            self._log_model()
        self._uvicorn.accept()
        self._engines.serving()

    async def _end_when_dead(self) -> None:
        """Do nothing: the supervisor ends all processes."""

    async def _work_on_batches(self) -> None:
        following = asyncio.create_task(self.service.store.follow_others())
        try:
            await BatchRunner(self.service).run()
        finally:
            following.cancel()

    async def _metrics(self, body: bytes) -> bytes:
        del body
        return snapshot(self.service.telemetry.registry)

    async def _load_now(self, body: bytes) -> bytes:
        del body
        return str(self.service.telemetry.http.in_flight).encode()

    async def _abort(self, body: bytes) -> bytes:
        try:
            return str(abort_here(self.service, body.decode())).encode()
        except RequestError:  # it takes no requests and has none
            return b"0"

    async def _response(self, body: bytes) -> bytes:
        run = self._background.get(body.decode())
        return b"" if run is None else run.response.model_dump_json().encode()

    async def _follow(self, body: bytes) -> bytes:
        return await peers.answer_follow(body, self._background.part)

    async def _cancel(self, body: bytes) -> bytes:
        await self._background.cancel(body.decode())
        return b""


def serve(config: ApiConfig, connection: socket.socket, listener: socket.socket) -> None:
    """Run one API process until SIGTERM has drained it. Raises StartError, which the supervisor gets too."""
    run(_serve(config, connection, listener))


async def _serve(config: ApiConfig, connection: socket.socket, listener: socket.socket) -> None:
    engines = RemoteEngines(connection)
    await engines.connect()
    try:
        server = WorkerServer(config, engines, listener)
    except StartError as error:
        engines.failed(str(error), error.exit_code)
        raise
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.shutdown)
    await server.run()
