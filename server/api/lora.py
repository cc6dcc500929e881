"""LoRA adapters that requests may name as their model: loaded, in use, or being unloaded.

A name belongs to an adapter until it is unloaded. The engines keep the adapter as long as a request uses it, or one of
several API processes that has such a request. Engine commands keep their order, so an adapter is removed after the last
of its requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from ..errors import EngineDead, InvalidRequest, ModelNotFound
from ..link.groups import EngineGroups
from ..link.hub.hub import Hub
from ..link.hub.remote import RemoteEngines
from ..link.messages import LoadedAdapter, UnloadAdapter

ADAPTERS = "adapters"  # name of questions to the hub, and of the list of Listed that the hub sends to workers
_ENCODER = msgspec.msgpack.Encoder()


@dataclass(slots=True)
class Adapter:
    """A loaded adapter. `number` is unique, also among adapters that replace each other under one name."""

    number: int
    loaded: LoadedAdapter
    created: int  # Unix seconds
    num_open: int = 0  # requests, or processes, that use it
    is_leaving: bool = False  # no new request may use it

    @property
    def digest(self) -> str:
        """Digest of its files: `Request.lora`."""
        return self.loaded.digest


class _Named:
    """Adapters by name. Used on one event loop."""

    def __init__(self) -> None:
        self._by_name: dict[str, Adapter] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names, oldest first."""
        return tuple(self._by_name)

    @property
    def loaded(self) -> tuple[LoadedAdapter, ...]:
        """Adapters that have names."""
        return tuple(adapter.loaded for adapter in self._by_name.values())

    def get(self, name: str | None) -> Adapter | None:
        """Return the adapter of that name, if there is one."""
        return None if name is None else self._by_name.get(name)

    def name_of(self, digest: str) -> str:
        """Return the name of the adapter with a digest; the digest itself when the name is gone."""
        return next((each.name for each in self.loaded if each.digest == digest), digest)

    @contextlib.contextmanager
    def using(self, adapter: Adapter | None) -> Iterator[None]:
        """Hold an adapter, or none, for a request. Raises ModelNotFound when it was unloaded meanwhile."""
        if adapter is None:
            yield
            return
        if adapter.is_leaving:
            raise ModelNotFound(f"The adapter {adapter.loaded.name!r} has been unloaded.", "model")
        adapter.num_open += 1
        try:
            yield
        finally:
            self.release(adapter)

    def release(self, adapter: Adapter) -> None:
        """Release an adapter for one of its users."""
        adapter.num_open -= 1
        if adapter.is_leaving and not adapter.num_open:
            self._unused(adapter)

    def _unused(self, adapter: Adapter) -> None:
        """Unload an adapter that has no name and no user any more."""
        raise NotImplementedError


class Adapters(_Named):
    """Adapters in the process that has the engines."""

    def __init__(self, engine: EngineGroups) -> None:
        super().__init__()
        self._engine = engine
        self._numbers = itertools.count()
        self._turn = asyncio.Lock()  # one change at a time
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def present(self) -> Mapping[str, Adapter]:
        """Adapters by name, oldest first."""
        return self._by_name

    async def begin(self, loaded: Iterable[LoadedAdapter]) -> None:
        """Set the adapters that the engines loaded at their start."""
        self._by_name = {each.name: self._new(each) for each in loaded}

    async def load(self, name: str, path: str, is_replaced: bool) -> None:
        """Load the adapter in a directory under a new name, or replace the one that has the name.

        Raises InvalidRequest with the reason when it cannot be loaded, and EngineDead.
        """
        async with self._turn:
            before = self._by_name.get(name)
            if before is not None and not is_replaced:
                raise InvalidRequest(
                    f"The adapter {name!r} is loaded already; load_inplace replaces it.", "lora_name", "already_loaded"
                )
            reply = await self._engine.load_adapter(path)
            if reply.error is not None:
                raise InvalidRequest(f"The adapter {name!r} cannot be loaded: {reply.error}", "lora_path")
            self._by_name[name] = self._new(LoadedAdapter(name, path, reply.digest, reply.rank))
            if before is not None:
                await self._retire(before)

    async def unload(self, name: str) -> None:
        """Accept no new request for an adapter. Raises ModelNotFound for an unknown name."""
        async with self._turn:
            adapter = self._by_name.pop(name, None)
            if adapter is None:
                raise ModelNotFound(f"There is no adapter {name[:200]!r}.", "lora_name")
            await self._retire(adapter)

    def _new(self, loaded: LoadedAdapter) -> Adapter:
        return Adapter(next(self._numbers), loaded, int(time.time()))

    async def _retire(self, adapter: Adapter) -> None:
        adapter.is_leaving = True
        if not adapter.num_open:
            await self._forget(adapter)

    def _unused(self, adapter: Adapter) -> None:
        task = asyncio.ensure_future(self._forget(adapter))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _forget(self, adapter: Adapter) -> None:
        with contextlib.suppress(EngineDead):
            await self._engine.change_adapters(UnloadAdapter(adapter.digest))


class Load(msgspec.Struct, tag=True, frozen=True):
    """Message for `Adapters.load`."""

    name: str
    path: str
    is_replaced: bool


class Unload(msgspec.Struct, tag=True, frozen=True):
    """Message for `Adapters.unload`."""

    name: str


class Show(msgspec.Struct, tag=True, frozen=True):
    """Question for the list, from a worker that starts."""


class Release(msgspec.Struct, tag=True, frozen=True):
    """Message that no request of the worker uses the adapter of that number, which has no name any more."""

    number: int


class Listed(msgspec.Struct, frozen=True):
    """An adapter that has a name."""

    number: int
    loaded: LoadedAdapter
    created: int


_MESSAGE: msgspec.msgpack.Decoder[Load | Unload | Show | Release] = msgspec.msgpack.Decoder(
    Load | Unload | Show | Release
)
_LIST = msgspec.msgpack.Decoder(list[Listed])


class RemoteAdapters(_Named):
    """Adapters in one of several API processes, by the list that the hub sends."""

    def __init__(self, engines: RemoteEngines) -> None:
        super().__init__()
        self._engines = engines
        engines.handle(ADAPTERS, self._take)

    async def begin(self, loaded: Iterable[LoadedAdapter]) -> None:
        """Get the current list."""
        del loaded
        await self._take(await self._ask(Show()))

    async def load(self, name: str, path: str, is_replaced: bool) -> None:
        """Load it into every engine; return when all workers know it. Raises as `Adapters.load`."""
        await self._ask(Load(name, path, is_replaced))

    async def unload(self, name: str) -> None:
        """Accept no new request for it in any worker. Raises as `Adapters.unload`."""
        await self._ask(Unload(name))

    async def _ask(self, message: Load | Unload | Show) -> bytes:
        return await self._engines.ask(ADAPTERS, _ENCODER.encode(message))

    async def _take(self, body: bytes) -> bytes:
        """Apply a new list."""
        before = {adapter.number: adapter for adapter in self._by_name.values()}
        listed = (Adapter(each.number, each.loaded, each.created) for each in _LIST.decode(body))
        self._by_name = {each.loaded.name: before.pop(each.number, each) for each in listed}
        for adapter in before.values():
            adapter.is_leaving = True
            if not adapter.num_open:
                self._unused(adapter)
        return b""

    def _unused(self, adapter: Adapter) -> None:
        self._engines.tell(ADAPTERS, _ENCODER.encode(Release(adapter.number)))


AnyAdapters = Adapters | RemoteAdapters


class AdaptersDesk:
    """Changes the adapters for the workers of a hub.

    A worker holds the adapters sent to it until it releases them or ends.
    """

    def __init__(self, adapters: Adapters, hub: Hub) -> None:
        self._adapters, self._hub = adapters, hub
        self._held: dict[int, dict[int, Adapter]] = {}  # by worker and number
        hub.offer(ADAPTERS, self._do)
        hub.at_end(self._ended)

    async def _do(self, worker: int, body: bytes) -> bytes:
        match _MESSAGE.decode(body):
            case Load(name=name, path=path, is_replaced=is_replaced):
                await self._adapters.load(name, path, is_replaced)
                await self._send_all()
            case Unload(name=name):
                await self._adapters.unload(name)
                await self._send_all()
            case Show():
                return self._list_for([worker])
            case Release(number=number):
                adapter = self._held.get(worker, {}).pop(number, None)
                if adapter is not None:
                    self._adapters.release(adapter)
        return b""

    async def _send_all(self) -> None:
        await self._hub.ask(ADAPTERS, self._list_for(self._hub.workers))

    def _list_for(self, workers: Iterable[int]) -> bytes:
        """Return the list for these workers, which hold its adapters from now on."""
        for worker in workers:
            if worker not in self._hub.workers:
                continue  # it has ended meanwhile
            held = self._held.setdefault(worker, {})
            for adapter in self._adapters.present.values():
                if adapter.number not in held:
                    held[adapter.number] = adapter
                    adapter.num_open += 1
        listed = [Listed(each.number, each.loaded, each.created) for each in self._adapters.present.values()]
        return _ENCODER.encode(listed)

    def _ended(self, worker: int) -> None:
        for adapter in self._held.pop(worker, {}).values():
            self._adapters.release(adapter)
