"""All observers of a server's engines, requests and HTTP answers, over one registry."""

from __future__ import annotations

import logging
from functools import partial

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics

from ...clock import NS, Clock
from ...cost.charge_rate import ChargeRate
from ...link.groups import EngineGroups
from ..admission import Admission
from ..config import ApiConfig
from ..host_memory import HostMemory
from ..keys.use import Accounts
from .device_account import DeviceAccount, device_account, show_device
from .engine_metrics import EngineMetrics
from .families import ALIASES
from .http_metrics import HttpMetrics
from .instruments import Aliases, Instruments, ReadCounters
from .key_metrics import show_keys
from .overload import show_admission, show_memory
from .recovery import show_recovery
from .request_metrics import RequestMetrics
from .request_observer import LifeObserver, RequestObserver
from .stats_log import PaceLog, ThroughputLog, log_phases, requests_log
from .tracing import SpanExporter


class Telemetry:
    """One registry from the start, so that a loading server can be scraped; `attach` adds the engines' metrics."""

    def __init__(self, config: ApiConfig, clock: Clock) -> None:
        """Raises SettingsError when traces are configured and OpenTelemetry is not installed."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a third more lines, all unused
        name = config.model_names[0]
        self._instruments = Instruments(self.registry, {"model_name": name})
        Aliases(self.registry, ALIASES)
        self._clock = clock
        self.http = HttpMetrics(self._instruments, clock)
        self.refused_connections = self._instruments.counter("vllm:admission_rejections", reason="max_connections")
        self.throughput = ThroughputLog(clock)
        self.accounts: list[DeviceAccount] = []  # of each engine, once it is ready
        self.at_request_end: list[LifeObserver] = []
        if requests_log.isEnabledFor(logging.DEBUG):
            self.at_request_end.append(log_phases)
        self._spans: SpanExporter | None = None
        if config.otlp_traces_endpoint is not None:
            self._spans = SpanExporter(config.otlp_traces_endpoint, config.otlp_traces_protocol, name)
            self.at_request_end.append(self._spans.record)

    def attach(self, engines: EngineGroups, rate: ChargeRate) -> RequestObserver:
        """Observe the ready engines and their requests. Return the observer that requests report to."""
        metrics: list[RequestMetrics] = []
        requests, counters = RequestObserver(metrics, self.at_request_end, self._clock), ReadCounters(self.registry)
        for rank, (client, info) in enumerate(zip(engines.clients, engines.infos, strict=True)):
            metrics.append(RequestMetrics(self._instruments.of(engine=str(rank)), info.max_model_len))
            client.observe(requests.record)
        self._attach_engines(engines, rate, counters)
        self._show_keys(requests, rate, counters)
        return requests

    def _attach_engines(self, engines: EngineGroups, rate: ChargeRate, counters: ReadCounters) -> None:
        for rank, (client, info) in enumerate(zip(engines.clients, engines.infos, strict=True)):
            instruments = self._instruments.of(engine=str(rank))
            client.observe(EngineMetrics(instruments, client, info).record)
            account = device_account(client, self._clock)
            self.accounts.append(account)
            show_device(account, rate, instruments, counters)
            show_recovery(client, counters, instruments)
            for record in (account.record, PaceLog().record, partial(self.throughput.record, engine=rank)):
                client.observe(record)
        self.throughput.is_alive = lambda rank: engines.clients[rank].is_alive

    def count_fault(self, kind: str, rule: str) -> None:
        """Count a fault that a rule has injected."""
        self._instruments.counter("neuronserve:injected_faults", fault=kind, rule=rule).inc()

    def show_limits(self, admission: Admission, memory: HostMemory) -> None:
        """Expose the values that decide on admission."""
        show_admission(admission, self._instruments)
        show_memory(memory, self._instruments)

    def show_keys(self, accounts: Accounts) -> None:
        """Expose the usage of each API key."""
        show_keys(accounts, ReadCounters(self.registry), self._instruments)

    def _show_keys(self, requests: RequestObserver, rate: ChargeRate, counters: ReadCounters) -> None:
        used_ns, shared = requests.keys.device_ns, self._instruments.common
        time, cost = "neuronserve:request_device_seconds", "neuronserve:request_cost_usd"
        counters.add(time, lambda: {key: ns / NS for key, ns in used_ns.items()}, **shared)
        if rate.usd_per_hour is not None:
            counters.add(cost, lambda: {key: rate.usd(ns) or 0.0 for key, ns in used_ns.items()}, **shared)

    async def close(self) -> None:
        """Send the remaining spans."""
        if self._spans is not None:
            await self._spans.close()
