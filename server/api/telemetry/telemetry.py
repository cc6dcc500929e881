"""All that watches a server: one registry, and the observers of its engine, its requests and its HTTP answers."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics

from server.api.config import ApiConfig
from server.api.telemetry.aliases import Aliases
from server.api.telemetry.engine import EngineMetrics
from server.api.telemetry.family import Instruments
from server.api.telemetry.http import HttpMetrics
from server.api.telemetry.requests import RequestMetrics
from server.api.telemetry.throughput import ThroughputLog
from server.api.telemetry.tracing import Tracer
from server.api.telemetry.watch import RequestObserver
from server.clock import Clock
from server.engine.groups import EngineGroups


class Telemetry:
    """There from the start, so that a server that still loads can be scraped; `attach` adds what needs the engine."""

    def __init__(self, config: ApiConfig, clock: Clock) -> None:
        """Raises SettingsError when traces are asked for and cannot be made."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a third more lines that nobody reads
        name = config.model_names[0]
        self._instruments = Instruments(self.registry, {"model_name": name})
        self._clock = clock
        self.http = HttpMetrics(self._instruments, clock)
        self.throughput = ThroughputLog(clock)
        self._tracer: Tracer | None = None
        if config.otlp_traces_endpoint is not None:
            self._tracer = Tracer(config.otlp_traces_endpoint, config.otlp_traces_protocol, name)

    def attach(self, engines: EngineGroups) -> RequestObserver:
        """Let every part see the turns of the ready engines; returns the one that requests report to."""
        metrics: list[RequestMetrics] = []
        requests = RequestObserver(metrics, self._tracer, self._clock)
        for rank, (client, info) in enumerate(zip(engines.clients, engines.infos, strict=True)):
            instruments = self._instruments.of(engine=str(rank))
            metrics.append(RequestMetrics(instruments, info.max_model_len))
            client.observe(EngineMetrics(instruments, client, info).turn)
            client.observe(requests.turn)
            client.observe(partial(self.throughput.turn, engine=rank))
        self.throughput.is_alive = lambda rank: engines.clients[rank].is_alive
        Aliases(self.registry)
        return requests

    async def close(self) -> None:
        """Send the spans that are left."""
        if self._tracer is not None:
            await self._tracer.close()
