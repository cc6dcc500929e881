"""Admission of requests by expected wait and by limits of their keys, for the server as a whole.

The process that has the engines decides. With several API processes it decides when a request is submitted, so that no
other request comes between; a worker waits for the decision only if a limit is set.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

import msgspec

from ..link.groups import EngineGroups
from ..link.hub.hub import Hub
from ..link.hub.remote import RemoteEngines
from ..link.stream import TokenStream
from ..types import Request
from .admission import Admission
from .config import ApiConfig
from .keys.desk import AccountsDesk
from .keys.remote import Begin, RemoteKeyUse
from .keys.ring import AnyUse
from .keys.use import KeyUse

WELCOME = "welcome"  # question to the hub, with an Arrival, before anything is submitted


class Arrival(msgspec.Struct, frozen=True):
    """Requests that arrive together, the engine that they name, and the begin of their generation."""

    requests: list[Request]
    rank: int | None
    begin: Begin


_ENCODER = msgspec.msgpack.Encoder()
_ARRIVAL = msgspec.msgpack.Decoder(Arrival)
_BEGIN = msgspec.msgpack.Decoder(Begin)


class Gate:
    """Admission in the process that has the engines."""

    def __init__(self, admission: Admission, engines: EngineGroups) -> None:
        self._admission, self._engines = admission, engines

    def check(self, requests: Sequence[Request], rank: int | None, use: KeyUse, num_prompt_tokens: int) -> None:
        """Raise the error that `enter` would raise."""
        self._admission.check(requests, rank)
        use.check(num_prompt_tokens)

    def enter(self, requests: Sequence[Request], rank: int | None, use: KeyUse, num_prompt_tokens: int) -> None:
        """Begin a generation. Raises Overloaded when it would wait too long, RateLimited beyond a limit of its key."""
        self._admission.check(requests, rank)
        use.begin(num_prompt_tokens)

    async def require_welcome(
        self, requests: Sequence[Request], rank: int | None, use: AnyUse, num_prompt_tokens: int
    ) -> None:
        """Raise the error that `entered` would raise."""
        assert isinstance(use, KeyUse)
        self.check(requests, rank, use, num_prompt_tokens)

    @contextlib.asynccontextmanager
    async def entered(
        self, requests: Sequence[Request], rank: int | None, use: AnyUse, num_prompt_tokens: int
    ) -> AsyncIterator[TokenStream]:
        """Return the stream of requests that arrive together, if they are admitted.

        Raises as `enter`, and EngineDead.
        """
        assert isinstance(use, KeyUse)
        self.enter(requests, rank, use, num_prompt_tokens)
        try:
            with self._engines.submit(requests, rank) as stream:
                yield stream
        finally:
            use.end()


class RemoteGate:
    """Admission in one of several API processes."""

    def __init__(self, config: ApiConfig, engines: RemoteEngines) -> None:
        self._has_limits = (config.max_queue_delay or config.ttft_slo_ms) is not None
        self._engines = engines

    async def require_welcome(
        self, requests: Sequence[Request], rank: int | None, use: AnyUse, num_prompt_tokens: int
    ) -> None:
        """Raise the error that `entered` would raise."""
        assert isinstance(use, RemoteKeyUse)
        if self._has_limits or use.may_be_refused:
            arrival = Arrival(list(requests), rank, use.begin(requests[0].request_id, num_prompt_tokens))
            await self._engines.ask(WELCOME, _ENCODER.encode(arrival))

    @contextlib.asynccontextmanager
    async def entered(
        self, requests: Sequence[Request], rank: int | None, use: AnyUse, num_prompt_tokens: int
    ) -> AsyncIterator[TokenStream]:
        """Return the stream of requests that arrive together; at once when no limit can refuse them."""
        assert isinstance(use, RemoteKeyUse)
        begin = use.begin(requests[0].request_id, num_prompt_tokens)
        entry = _ENCODER.encode(begin)
        try:
            if self._has_limits or use.may_be_refused:
                stream = await self._engines.enter(requests, rank, entry)
            else:
                stream = self._engines.submit(requests, rank, entry)
            with stream:
                yield stream
        finally:
            use.end(begin.id)


AnyGate = Gate | RemoteGate


class GateDesk:
    """Admits requests of workers."""

    def __init__(self, gate: Gate, accounts: AccountsDesk, hub: Hub) -> None:
        self._gate, self._accounts = gate, accounts
        hub.admit = self._admit
        hub.offer(WELCOME, self._welcome)

    def _admit(self, worker: int, requests: Sequence[Request], rank: int | None, entry: bytes) -> None:
        begin = _BEGIN.decode(entry)
        use = self._accounts.use_of(begin)
        self._gate.enter(requests, rank, use, begin.num_prompt_tokens)
        self._accounts.begun(worker, begin, use)

    def _welcome(self, worker: int, body: bytes) -> bytes:
        del worker
        arrival = _ARRIVAL.decode(body)
        self._gate.check(
            arrival.requests, arrival.rank, self._accounts.use_of(arrival.begin), arrival.begin.num_prompt_tokens
        )
        return b""
