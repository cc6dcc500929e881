"""`neuronserve record` and `neuronserve replay`: small servers that run until a signal."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass
from pathlib import Path

import httpx2
import uvicorn
from starlette.types import ASGIApp

from ...server.api.http.connection_end import EndableProtocol
from ...server.api.http.cross_site import CrossSite
from ...server.api.http.host_names import names_of
from ...server.api.http.middleware import RequestIds
from ...server.api.listener import address, bind
from ...server.api.ready_file import ReadyFile
from ..faults.injector import FaultInjector
from ..faults.rules import FaultConfig
from .cassette import Cassette, CassetteWriter, read
from .recorder import Recorder
from .replayer import Replayer
from .script_writer import SUFFIXES, ScriptWriter

log = logging.getLogger("neuronserve")
UPSTREAM_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Address:
    """Address on which the server listens, and the file that it writes when it is ready."""

    host: str
    port: int
    ready_file: Path | None


class _Server(uvicorn.Server):
    """uvicorn that writes a file when it is ready."""

    def __init__(self, app: ASGIApp, listener: socket.socket, ready_file: ReadyFile, model: str = "") -> None:
        quiet = {"log_config": None, "access_log": False, "server_header": False}
        super().__init__(uvicorn.Config(app, http=EndableProtocol, ws="none", lifespan="off", **quiet))  # type: ignore[arg-type]
        self._listener, self._file, self._model = listener, ready_file, model

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._file.write(address(self._listener), model=self._model)
        log.info("ready: %s", address(self._listener))

    async def run_until_signal(self) -> None:
        """Serve until a signal, then remove the file."""
        try:
            await self.serve([self._listener])
        finally:
            self._file.remove()


def run_record(upstream: str, cassette: Path, is_appending: bool, place: Address) -> None:
    """Pass requests on to `upstream` and record them until interrupted: as a script, if `cassette` ends in .yaml.

    Raises StartError.
    """
    file, listener = ReadyFile(place.ready_file), bind(place.host, place.port)
    if cassette.suffix in SUFFIXES:
        writer: CassetteWriter | ScriptWriter = ScriptWriter(cassette)
    else:
        writer = CassetteWriter(cassette, httpx2.URL(upstream).host, is_appending)

    async def serve() -> None:
        async with httpx2.AsyncClient(timeout=UPSTREAM_TIMEOUT_S, follow_redirects=False) as client:
            app = CrossSite(Recorder(upstream, writer, client), names_of(place.host))
            await _Server(app, listener, file).run_until_signal()

    try:
        asyncio.run(serve())
    finally:
        writer.close()


def run_replay(cassette: Path, has_timings: bool, faults: FaultConfig | None, place: Address) -> None:
    """Replay recorded answers until interrupted. Raises StartError."""
    file, recorded = ReadyFile(place.ready_file), Cassette(read(cassette))
    listener = bind(place.host, place.port)
    log.info("%d recordings in %s", len(recorded), cassette)
    app: ASGIApp = Replayer(recorded, has_timings)
    if faults is not None:
        app = FaultInjector(app, faults, lambda *_: None)  # no metrics here; the log has a line for each fault
    server = _Server(RequestIds(CrossSite(app, names_of(place.host))), listener, file, recorded.model)
    asyncio.run(server.run_until_signal())
