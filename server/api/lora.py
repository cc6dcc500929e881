"""LoRA adapters that requests may name as their model: loaded, in use, or being unloaded.

A name belongs to an adapter until it is unloaded. The engines keep the adapter as long as a request uses it. Engine
commands keep their order, so an adapter is removed after the last of its requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..errors import EngineDead, InvalidRequest, ModelNotFound
from ..link.groups import EngineGroups
from ..link.messages import LoadedAdapter, UnloadAdapter


@dataclass(slots=True)
class Adapter:
    """A loaded adapter."""

    loaded: LoadedAdapter
    created: int  # Unix seconds
    num_open: int = 0  # requests that use it
    is_leaving: bool = False  # no new request may use it

    @property
    def digest(self) -> str:
        """Digest of its files: `Request.lora`."""
        return self.loaded.digest


class Adapters:
    """Adapters by name. Used on one event loop."""

    def __init__(self, engine: EngineGroups) -> None:
        self._by_name: dict[str, Adapter] = {}
        self._engine = engine
        self._turn = asyncio.Lock()  # one change at a time
        self._leaving: set[asyncio.Task[None]] = set()

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
            adapter.num_open -= 1
            if adapter.is_leaving and not adapter.num_open:
                self._unused(adapter)

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
        return Adapter(loaded, int(time.time()))

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
