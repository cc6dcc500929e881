"""The adapters (LoRA) that requests may name as their model: loaded, in use, on their way out.

A name is an adapter's until it is unloaded; the engines keep it as long as a request that began with it is open. Their
commands come in order, so that an adapter is forgotten behind the last of its requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from server.errors import EngineDead, InvalidRequest, ModelNotFound
from server.link.hub.engines import AnyEngines
from server.link.messages import LoadedAdapter, UnloadAdapter


@dataclass(slots=True)
class Adapter:
    """A loaded adapter."""

    loaded: LoadedAdapter
    created: int  # Unix seconds
    num_open: int = 0  # requests
    is_leaving: bool = False  # no request may begin with it

    @property
    def digest(self) -> str:
        """Of its files: `Request.lora`."""
        return self.loaded.digest


class Adapters:
    """By name. Used on one event loop."""

    def __init__(self, engine: AnyEngines) -> None:
        self._engine = engine
        self._by_name: dict[str, Adapter] = {}
        self._turn = asyncio.Lock()  # one change at a time
        self._leaving: set[asyncio.Task[None]] = set()

    def begin(self, loaded: Iterable[LoadedAdapter]) -> None:
        """Those that the engines have loaded at their start."""
        self._by_name = {each.name: Adapter(each, int(time.time())) for each in loaded}

    @property
    def names(self) -> tuple[str, ...]:
        """Oldest first."""
        return tuple(self._by_name)

    @property
    def loaded(self) -> tuple[LoadedAdapter, ...]:
        """The adapters that have names."""
        return tuple(adapter.loaded for adapter in self._by_name.values())

    def get(self, name: str | None) -> Adapter | None:
        """The adapter of that name, if there is one."""
        return None if name is None else self._by_name.get(name)

    @contextlib.contextmanager
    def using(self, adapter: Adapter | None) -> Iterator[None]:
        """A request with an adapter, or without. Raises ModelNotFound when it was unloaded meanwhile."""
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
                task = asyncio.ensure_future(self._forget(adapter))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)

    async def load(self, name: str, path: str, is_replaced: bool) -> None:
        """Load the adapter in a directory under a new name, or in the place of the one that has it.

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
            self._by_name[name] = Adapter(LoadedAdapter(name, path, reply.digest, reply.rank), int(time.time()))
            if before is not None:
                await self._retire(before)

    async def unload(self, name: str) -> None:
        """Let no request begin with it any more. Raises ModelNotFound for an unknown name."""
        async with self._turn:
            adapter = self._by_name.pop(name, None)
            if adapter is None:
                raise ModelNotFound(f"There is no adapter {name[:200]!r}.", "lora_name")
            await self._retire(adapter)

    async def _retire(self, adapter: Adapter) -> None:
        adapter.is_leaving = True
        if not adapter.num_open:
            await self._forget(adapter)

    async def _forget(self, adapter: Adapter) -> None:
        with contextlib.suppress(EngineDead):
            await self._engine.change_adapters(UnloadAdapter(adapter.digest))
