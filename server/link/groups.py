"""Data-parallel engines of one server behind one interface; each has its own process, scheduler, cache and cores.

scheduler/router.py chooses the engine of a sequence; every other command goes to all engines. When an engine is killed
from outside, its sequences move to other engines; after a fault they wait for its successor, so that a harmful request
does not bring down the next engine. Of a disaggregated server, the first engines compute prompts and first tokens, and
hand each request over to one of the others, which copies the KV blocks (kv_cache/tiers.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import partial

from ..device.visible_cores import core_ranges
from ..errors import EngineDead, RequestError
from ..scheduler.router import Router
from ..types import Request
from .client import EngineClient
from .engines import Engines
from .handle import EngineHandle
from .journal import OpenSequence
from .messages import (
    AdapterCommand,
    AdapterReply,
    EngineInfo,
    LoadAdapter,
    ReleaseMemory,
    ResetPrefixCache,
    Tokens,
    TraceCommand,
    TraceReply,
    UnloadAdapter,
)
from .restarts import NO_HEALING, Healing
from .stream import TokenStream

log = logging.getLogger("neuronserve.engine")


class EngineGroups(Engines):
    """Clients of one or several engines, by rank."""

    def __init__(self, engines: Sequence[EngineHandle], healing: Healing = NO_HEALING) -> None:
        self.clients: tuple[EngineClient, ...] = tuple(
            EngineClient(engine, healing, partial(self._take_over, rank)) for rank, engine in enumerate(engines)
        )
        self._router: Router | None = None  # with one engine there is no choice
        self._block_size = 0

    @property
    def num_open(self) -> int:
        """Number of sequences that were submitted and have not ended."""
        return sum(client.num_open for client in self.clients)

    async def start(self, report: Callable[[str], None]) -> EngineInfo:
        """Wait until all engines are ready; `report` gets their progress lines. Return the limits that hold for all.

        Raises StartError with the message of the first engine that cannot start.
        """
        tasks = [asyncio.ensure_future(c.start(self._with_name(report, i))) for i, c in enumerate(self.clients)]
        try:
            self.infos = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        info = merged(self.infos)
        if len(self.clients) > 1:
            self._route(info)
        return info

    def submit(
        self, requests: Sequence[Request], rank: int | None = None, stream: TokenStream | None = None
    ) -> TokenStream:
        """Submit each request to an engine, or all to engine `rank`; their ids must be new.

        Their events go to `stream`, or to a new one. Raises EngineDead.
        """
        if self._router is None:
            return self.clients[0].submit(requests, stream)
        self._follow_states()
        ids = [request.request_id for request in requests]
        stream = stream or TokenStream(ids, self.abort)
        stream.engines = places = {each.request_id: self._place(self._router, each, rank) for each in requests}
        try:
            for index in sorted(set(places.values())):
                self.clients[index].submit([r for r in requests if places[r.request_id] == index], stream)
        except EngineDead:
            for request_id in ids:  # one engine died just now; the others may already have their requests
                self._router.end(request_id)
                self.abort(request_id)
            raise
        return stream

    def abort(self, request_id: str) -> None:
        """End a request in any engine; unknown and ended ids are ignored."""
        for client in self.clients:
            client.abort(request_id)

    def reset_prefix_cache(self) -> None:
        """Empty the prefix caches before any later request. Raises EngineDead when no engine lives."""
        self._forget(ResetPrefixCache())

    def release_memory(self) -> None:
        """Free host memory that engines keep only to save work. Raises EngineDead when no engine lives."""
        self._forget(ReleaseMemory())

    async def restart(self) -> None:
        """Replace the engines by successors one after the other, so that the others serve meanwhile."""
        for client in self.clients:
            if client.is_alive:
                await client.restart()

    async def trace(self, command: TraceCommand) -> list[TraceReply]:
        """Start or stop recording in every living engine; return one reply for each. Raises EngineDead."""
        return await asyncio.gather(*(client.ask(command, TraceReply) for client in self._living()))

    async def load_adapter(self, path: str) -> AdapterReply:
        """Load an adapter into every living engine, or into none. Raises EngineDead."""
        replies = await self.change_adapters(LoadAdapter(path))
        first = next((each for each in replies if each.error is not None), replies[0])
        if first.error is None and len({each.digest for each in replies}) > 1:
            first = AdapterReply(error=f"{path} has changed while engines read it")
        if first.error is not None:
            for client, reply in zip(self._living(), replies, strict=False):
                if reply.error is None:
                    await client.change_adapters(UnloadAdapter(reply.digest))
        return first

    async def change_adapters(self, command: AdapterCommand) -> list[AdapterReply]:
        """Load or unload an adapter in every living engine; return one reply for each. Raises EngineDead."""
        return await asyncio.gather(*(client.change_adapters(command) for client in self._living()))

    def abort_all(self, error: RequestError, request_ids: Container[str] | None = None) -> None:
        """End every open request, or those of `request_ids`, with `error`."""
        for client in self.clients:
            client.abort_all(error, request_ids)

    async def stop(self, timeout_s: float) -> None:
        """Shut the engines down. Kill them after `timeout_s`, and at once while they still load."""
        await asyncio.gather(*(client.stop(timeout_s) for client in self.clients))

    def _forget(self, command: ResetPrefixCache | ReleaseMemory) -> None:
        if self._router is not None:
            self._router.forget_prefixes()
        for client in self.clients:
            if client.is_alive or not self.is_alive:
                client.forget(command)

    def _living(self) -> Sequence[EngineClient]:
        """Engines that live; all of them, which then raise EngineDead, when none does."""
        return [client for client in self.clients if client.is_alive] or self.clients

    def _take_over(self, rank: int) -> None:
        """Move the sequences of a dead engine to other engines, or leave them for its successor."""
        client = self.clients[rank]
        if not client.is_alive:
            left = sum(each.is_alive for each in self.clients)
            phase = "degraded" if left else "dead"
            log.error("the server is %s: %d of %d engines left; it must be restarted", phase, left, len(self.clients))
        if self._router is None or client.journal.is_trying or not any(each.is_up for each in self.clients):
            return
        for sequence in client.journal.clear():
            self._move(self._router, sequence)

    def _hand_over(self, sequence: OpenSequence) -> None:
        """Let another engine continue a sequence that has its first token."""
        assert self._router is not None
        with contextlib.suppress(EngineDead):  # its stream has the error
            self._move(self._router, sequence)

    def _move(self, router: Router, sequence: OpenSequence) -> None:
        self._follow_states()
        router.end(sequence.request.request_id)
        self.clients[self._place(router, sequence.resumed)].adopt([sequence])

    def _place(self, router: Router, request: Request, rank: int | None = None) -> int:
        """Return the engine of a request. Those that hand over get the divided ones, and what ends with its prompt."""
        first, ends_at_once = self.num_prefill, request.pooling is not None or request.sampling.max_tokens == 1
        computes_prompt = ends_at_once or self._is_divided(request)
        among = range(first) if computes_prompt else range(first, len(self.clients))
        return router.place(request, rank, among if first else ())

    def _is_divided(self, request: Request) -> bool:
        """Return whether one engine computes the first token and another one the rest.

        It does not pay without a whole block to copy, and media would be encoded twice.
        """
        has_block = len(request.prompt_token_ids) >= self._block_size
        continues = request.sampling.max_tokens > 1 and not request.generated_token_ids
        return has_block and continues and request.pooling is None and not request.media

    def _follow_states(self) -> None:
        """Report to the router which engines take requests: those that serve or, if none does, those that will."""
        assert self._router is not None
        is_any_up = any(client.is_up for client in self.clients)
        for rank, client in enumerate(self.clients):
            takes = client.is_up if is_any_up else client.is_alive
            if not takes:
                self._router.lose(rank)
            elif not self._router.is_alive(rank):
                self._router.join(rank)

    def _with_name(self, report: Callable[[str], None], rank: int) -> Callable[[str], None]:
        """Return `report` with the rank before each line, if there are several engines."""
        return report if len(self.clients) == 1 else lambda line: report(f"engine {rank}: {line}")

    def _route(self, info: EngineInfo) -> None:
        """Let a router choose engines from now on, by the events of all of them."""
        self._router = router = Router(len(self.clients), info.cache)
        self._block_size = info.cache.block_size

        def record(tokens: Tokens) -> None:
            for event in tokens.events:
                router.notify(event)

        for client in self.clients:
            client.observe(record)
        for client in self.clients[: info.num_prefill]:
            client.divides, client.hand_over = self._is_divided, self._hand_over


def merged(infos: Sequence[EngineInfo]) -> EngineInfo:
    """Return limits that hold for every engine: a request must fit in the smallest cache."""
    first = infos[0]
    if len(infos) == 1:
        return first
    cores = ", ".join(core_ranges(info.core_ids) for info in infos)
    return replace(
        first,
        cache=min((info.cache for info in infos), key=lambda cache: cache.num_blocks),
        core_ids=tuple(core for info in infos for core in info.core_ids),
        core_names=tuple(name for info in infos for name in info.core_names),
        memory=tuple(core for info in infos for core in info.memory),
        host_memory={use: sum(info.host_memory[use] for info in infos) for use in first.host_memory},
        notes=(*first.notes, f"{len(infos)} engines like this one, on NeuronCores {cores}"),
    )
