"""Decisions and counts for a server as a whole, made in the process that has its engines.

A server of one process calls it directly. With several API processes, each has remote classes that ask over the hub,
and desks that answer there.
"""

from __future__ import annotations

import time

from ..clock import Clock
from ..link.groups import EngineGroups
from ..link.hub.hub import Hub
from ..link.hub.remote import AnyEngines, RemoteEngines
from ..link.messages import EngineInfo
from .admission import Admission
from .config import ApiConfig
from .gate import Gate, GateDesk, RemoteGate
from .host_memory import HostMemory
from .keys.desk import AccountsDesk
from .keys.remote import RemoteAccounts
from .keys.ring import KeyRing
from .keys.use import Accounts
from .kv_events import KvEventPublisher
from .lora import Adapters, AdaptersDesk, RemoteAdapters
from .telemetry.telemetry import Telemetry


class Shared:
    """Accounts, adapters and admission, in the process that has the engines."""

    def __init__(self, config: ApiConfig, engines: EngineGroups, clock: Clock) -> None:
        self._config, self._engines = config, engines
        self.accounts, self.adapters = Accounts(clock), Adapters(engines)
        if config.kv_events is not None:
            for rank, client in enumerate(engines.clients):
                client.publish = KvEventPublisher(config.kv_events, rank, self.adapters.name_of).publish

    async def open(self, info: EngineInfo, telemetry: Telemetry, memory: HostMemory) -> Gate:
        """Start admission and metrics once the engines are ready."""
        admission = Admission(self._config, self._engines)
        telemetry.show_limits(admission, memory)
        telemetry.show_keys(self.accounts)
        self.accounts.since = int(time.time())
        await self.adapters.begin(info.adapters)
        return Gate(admission, self._engines)


class RemoteShared:
    """The same in one of several API processes."""

    def __init__(self, config: ApiConfig, engines: RemoteEngines) -> None:
        self._config, self._engines = config, engines
        self.accounts, self.adapters = RemoteAccounts(engines), RemoteAdapters(engines)

    async def open(self, info: EngineInfo, telemetry: Telemetry, memory: HostMemory) -> RemoteGate:
        """Start admission once the engines are ready. The process that has them exposes the metrics."""
        del telemetry, memory
        await self.adapters.begin(info.adapters)
        return RemoteGate(self._config, self._engines)


def shared_of(config: ApiConfig, engines: AnyEngines, clock: Clock) -> Shared | RemoteShared:
    """Return the class for these engines."""
    if isinstance(engines, RemoteEngines):
        return RemoteShared(config, engines)
    return Shared(config, engines, clock)


class Desks:
    """Answers to the workers of a hub, over the `shared` of a server of one process."""

    def __init__(self, config: ApiConfig, shared: Shared, hub: Hub) -> None:
        """Raises SettingsError when the key file is wrong."""
        self.keys = KeyRing(config.keys, shared.accounts)
        self._accounts = AccountsDesk(shared.accounts, self.keys, hub)
        self._hub = hub
        AdaptersDesk(shared.adapters, hub)
        for addition in config.additions:
            addition.offer(hub)

    def open(self, gate: Gate) -> None:
        """Start admission once the engines are ready."""
        GateDesk(gate, self._accounts, self._hub)
