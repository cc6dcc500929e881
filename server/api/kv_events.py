"""Publisher of KV cache events: what an engine's prefix cache holds, for routers, in vLLM's format over ZeroMQ.

A batch is an array of the time, its events as tagged maps, and the engine's rank. pyzmq is an optional extra.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from ..config import CacheConfig
from ..config.kv_events import KvEventsConfig
from ..errors import SettingsError
from ..kv_cache.events import CacheChange
from ..link.client import EngineClient
from ..link.messages import CacheChanges

log = logging.getLogger("neuronserve")
MEDIUM = "GPU"  # the device, by its name in vLLM; copies in tiers are not published
LINGER_MS = 500
_SEQ_BYTES = 8
_END = (-1).to_bytes(_SEQ_BYTES, "big", signed=True)  # in place of a number, after the last replayed batch
_BOUND = re.compile(r"tcp://(\*|\[|0\.0\.0\.0:|127\.)")  # addresses of this host; others are connected to


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True):
    """Blocks that follow each other in one prefix are cached."""

    block_hashes: list[int]
    parent_block_hash: int | None  # of the block before the first one
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None
    extra_keys: list[list[str | tuple[str, int]] | None]  # of each block: adapter, media and their offsets, salt
    group_idx: int
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True):
    """Blocks are not cached any more."""

    block_hashes: list[int]
    medium: str
    group_idx: int


class AllBlocksCleared(msgspec.Struct, tag=True):
    """Nothing is cached any more; also the first event of an engine."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True):
    """Events of one turn of an engine."""

    ts: float  # Unix seconds
    events: list[Event]
    data_parallel_rank: int


class KvEventPublisher:
    """Publisher of one engine's events. Used on one event loop; a slow or absent subscriber delays nothing."""

    def __init__(self, config: KvEventsConfig, engine: EngineClient, rank: int, name_of: Callable[[str], str]) -> None:
        """`name_of` returns the name of an adapter by its digest. Raises SettingsError when it cannot publish."""
        self._engine, self._rank, self._name_of = engine, rank, name_of
        self._topic, self._encoder, self._num_batches = config.topic.encode(), msgspec.msgpack.Encoder(), 0
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)  # numbers and batches
        self._sockets, self._replaying = _sockets(config, rank), asyncio.ensure_future(self._replay())
        engine.on_cache_changes = self.publish

    def publish(self, message: CacheChanges) -> None:
        """Send a batch, and keep it for replay."""
        events = [self._event(change) for change in message.changes]
        batch = self._encoder.encode(EventBatch(time.time(), events, self._rank))
        number = self._num_batches.to_bytes(_SEQ_BYTES, "big")
        self._num_batches += 1
        self._kept.append((number, batch))
        self._sockets[0].send_multipart([self._topic, number, batch])

    async def close(self) -> None:
        """Close the sockets, after what is on its way to subscribers."""
        self._replaying.cancel()
        await asyncio.gather(self._replaying, return_exceptions=True)
        for each in self._sockets:
            each.close(linger=LINGER_MS)

    async def _replay(self) -> None:
        """Answer requests for the batches from a number on."""
        for router in self._sockets[1:]:
            while True:
                match await router.recv_multipart():
                    case [client, b"", bytes(first)] if len(first) == _SEQ_BYTES:
                        for number, batch in [each for each in self._kept if each[0] >= first]:
                            await router.send_multipart([client, b"", number, batch])
                        await router.send_multipart([client, b"", _END, b""])
                    case _:
                        log.warning("a request for KV events must be an empty frame and 8 bytes; it is ignored")

    def _event(self, change: CacheChange) -> Event:
        if change.kind == "cleared":
            return AllBlocksCleared()
        if change.kind == "removed":
            return BlockRemoved(change.hashes, MEDIUM, change.group)
        assert self._engine.info is not None
        name = self._name_of(change.lora) if change.lora else None
        return BlockStored(
            change.hashes,
            change.parent,
            change.token_ids,
            len(change.token_ids) // len(change.hashes),
            None,
            MEDIUM,
            name,
            extra_keys(change, name),
            change.group,
            *spec_of(self._engine.info.cache, change.group),
        )


def extra_keys(change: CacheChange, lora_name: str | None) -> list[list[str | tuple[str, int]] | None]:
    """Return what besides tokens distinguishes each block: the adapter, media, and in a first block the salt."""
    keys: list[list[str | tuple[str, int]]] = [[*([lora_name] if lora_name else []), *each] for each in change.media]
    if change.parent is None and change.salt:
        keys[0].append(change.salt.encode(errors="replace").decode())  # half of a surrogate pair has no UTF-8
    return [each or None for each in keys]


def spec_of(cache: CacheConfig, group: int) -> tuple[str, int | None]:
    """Return vLLM's names of the kinds of caches, and a window's tokens."""
    if group == len(cache.groups):
        return "mamba", None
    span = cache.groups[group]
    if span.is_chunked:
        return "chunked_local_attention", None
    return ("sliding_window", span.window) if span.window else ("full_attention", None)


def publishers(
    config: KvEventsConfig, engines: Iterable[EngineClient], name_of: Callable[[str], str]
) -> Sequence[KvEventPublisher]:
    """Return the publisher of each engine; none if the events are off. Raises SettingsError."""
    if not config.is_on:
        return ()
    return [KvEventPublisher(config, engine, rank, name_of) for rank, engine in enumerate(engines)]


def _sockets(config: KvEventsConfig, rank: int) -> list[Any]:
    """Open the PUB socket and, if replay is configured, the ROUTER socket of an engine."""
    try:
        import zmq
        from zmq.asyncio import Context
    except ImportError as error:
        why = f"--kv-events-config needs pyzmq, and {error.name} is not installed: install neuronserve[events]"
        raise SettingsError(why) from error
    context: Any = zmq.Context.instance()
    publisher = context.socket(zmq.PUB)
    publisher.sndhwm = config.hwm
    opened = [(publisher, config.endpoint)]
    if config.replay_endpoint is not None:
        router = Context(shadow=context).socket(zmq.ROUTER)
        router.sndhwm = 2 * (config.buffer_steps + 1)  # a whole replay never waits for its reader
        opened.append((router, config.replay_endpoint))
    for socket, endpoint in opened:
        base, port = endpoint.rsplit(":", 1)
        address = f"{base}:{int(port) + rank if int(port) else 0}"
        socket.ipv6 = "[" in address
        try:
            if _BOUND.match(address):
                socket.bind(address)
            else:
                socket.connect(address)
        except zmq.ZMQError as error:
            raise SettingsError(f"--kv-events-config: cannot use {address}: {error.strerror}") from error
        log.info("KV events of engine %d at %s", rank, socket.get_string(zmq.LAST_ENDPOINT))
    return [socket for socket, _ in opened]
