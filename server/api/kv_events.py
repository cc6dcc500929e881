"""Publisher of KV cache events over ZeroMQ, as vLLM's: a batch is an array of time, events as maps, and rank."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec

from ..errors import SettingsError
from ..kv_cache.events import Event
from .config import KvEventsConfig

log = logging.getLogger("neuronserve")
_END = (-1).to_bytes(8, "big", signed=True)  # in place of a number, after the last replayed batch


class KvEventPublisher:
    """Publisher of one engine's events. Used on one event loop; a slow or absent subscriber delays nothing."""

    def __init__(self, config: KvEventsConfig, rank: int, name_of: Callable[[str], str]) -> None:
        """`name_of` returns the name of an adapter by its digest. Raises SettingsError when it cannot publish."""
        self._rank, self._name_of, self._topic, self._numbers = rank, name_of, config.topic.encode(), count()
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)  # numbers and batches
        self._publisher, self._router = _sockets(config, rank)
        self._replaying = asyncio.ensure_future(self._replay())  # until the event loop ends

    def publish(self, events: list[Event]) -> None:
        """Send a batch, and keep it for replay."""
        for event in events:
            if event.get("lora_name"):
                event["lora_name"] = name = self._name_of(event["lora_name"])
                event["extra_keys"] = [[name, *keys[1:]] for keys in event["extra_keys"]]
        batch = msgspec.msgpack.encode([time.time(), events, self._rank])
        number = next(self._numbers).to_bytes(8, "big")
        self._kept.append((number, batch))
        self._publisher.send_multipart([self._topic, number, batch])

    async def _replay(self) -> None:
        """Answer requests for the batches from a number on."""
        try:
            while True:
                match await self._router.recv_multipart():
                    case [client, b"", bytes(first)] if len(first) == 8:
                        for number, batch in [*(each for each in self._kept if each[0] >= first), (_END, b"")]:
                            await self._router.send_multipart([client, b"", number, batch])
                    case _:
                        log.warning("a request for KV events must be an empty frame and 8 bytes; it is ignored")
        finally:
            self._publisher.close(linger=500)  # milliseconds
            self._router.close(linger=0)


def _sockets(config: KvEventsConfig, rank: int) -> tuple[Any, Any]:
    """Open the PUB socket of an engine, and the ROUTER socket, which without replay has no address."""
    try:
        import zmq
        from zmq.asyncio import Context
    except ImportError as error:
        raise SettingsError("--kv-events-config needs pyzmq, not installed: install neuronserve[events]") from error
    context: Any = zmq.Context.instance()
    publisher, router = context.socket(zmq.PUB), Context(shadow=context).socket(zmq.ROUTER)
    publisher.sndhwm = config.hwm
    router.sndhwm = 2 * (config.buffer_steps + 1)  # a whole replay never waits for its reader
    endpoints = [each for each in (config.endpoint, config.replay_endpoint) if each is not None]
    for socket, endpoint in zip((publisher, router), endpoints, strict=False):
        base, port = endpoint.rsplit(":", 1)
        address = f"{base}:{int(port) + rank if int(port) else 0}"
        socket.ipv6 = "[" in address
        try:
            (socket.bind if re.match(r"tcp://(\*|\[|0\.0\.0\.0:|127\.)", address) else socket.connect)(address)
        except zmq.ZMQError as error:
            raise SettingsError(f"--kv-events-config: cannot use {address}: {error.strerror}") from error
        log.info("KV events of engine %d at %s", rank, socket.get_string(zmq.LAST_ENDPOINT))
    return publisher, router
