"""The endpoint picker's process: a gRPC server for gateways, with health, and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from prometheus_client import start_http_server

from ...api.event_loop import run
from ...api.listener import address, bind
from ..config import PickConfig
from ..fleet import Fleet
from ..server import RouteServer
from .certificates import credentials
from .envoy import ProcessingRequest, ProcessingResponse
from .messages import SERVICE
from .processing import Picker, Processing

POLL_S = 0.25
WHILE_READY = ("readiness", SERVICE)  # services that are healthy while a replica is up
STATUS = health_pb2.HealthCheckResponse


class PickFront(Picker):
    """A picker that listens with gRPC."""

    def __init__(self, config: PickConfig, fleet: Fleet) -> None:
        """Raises SettingsError for wrong certificates."""
        super().__init__(config, fleet)
        self.url, self._is_ended = "", False
        self._credentials = credentials(config.tls) if config.secure_serving else None
        self._health, self._servers = health.aio.HealthServicer(), list[Any]()

    async def serve(self) -> None:
        config, codec = self.config, (ProcessingRequest.FromString, ProcessingResponse.SerializeToString)
        process = grpc.stream_stream_rpc_method_handler(self._process, *codec)
        handler = grpc.method_handlers_generic_handler(SERVICE, {"Process": process})
        self.url = await self._listen(config.port, self._credentials, handler)
        if config.grpc_health_port is not None:
            await self._listen(config.grpc_health_port, None)
        if config.metrics_port is not None:
            bind(config.host, config.metrics_port).close()  # says what is wrong with the port
            start_http_server(config.metrics_port, config.host, self.metrics.registry)
        while not self._is_ended:
            for service in ("", "liveness", *WHILE_READY):
                is_serving = self.fleet.phase == "ready" or service not in WHILE_READY
                await self._health.set(service, STATUS.SERVING if is_serving else STATUS.NOT_SERVING)
            await asyncio.sleep(POLL_S)
        await asyncio.gather(*(each.stop(None) for each in self._servers))

    def stop(self) -> None:
        self._is_ended = True

    async def _process(self, requests: AsyncIterator[Any], context: Any) -> None:
        """Answer the messages of one HTTP request. The gateway may close the stream at any of them."""
        processing = Processing(self)
        self.num_open += 1
        try:
            async for request in requests:
                for answer in processing.take(request):
                    await context.write(answer)
                    if answer.HasField("immediate_response"):
                        return
        finally:
            processing.end()
            self.num_open -= 1

    async def _listen(self, port: int, credentials: Any, *handlers: Any) -> str:
        """Start a gRPC server with health and `handlers`; return its URL. Raises StartError."""
        with bind(self.config.host, port) as listener:  # says what is wrong with the port, and finds a free one
            url = address(listener, "https" if credentials else "http")
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers(handlers)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        at = url.partition("//")[2]
        server.add_secure_port(at, credentials) if credentials else server.add_insecure_port(at)
        await server.start()
        self._servers.append(server)
        return url


def pick(config: PickConfig) -> None:
    """Run a picker until it has shut down after SIGTERM or SIGINT. Raises StartError."""
    fleet = Fleet(config)
    run(RouteServer(config, fleet, PickFront(config, fleet)).run())
