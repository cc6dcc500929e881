"""Several models behind one address: each in a server of its own, which starts when it is needed.

Where there is no room, models that nobody uses end first, from the least recently used. A model has one task from its
start to its end (`_live`), and each change wakes those that wait for one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from multiprocessing.process import BaseProcess

from ..errors import ModelNotFound, RequestError, StartError, StorageFull, Unavailable
from ..link.restarts import Healing
from ..placement.shared_cores import Account, SharedCores
from .children import Children
from .fleet import Fleet

log = logging.getLogger("neuronserve.route")
FAILED_S = 10.0  # for which a model that could not be loaded is refused
START_S = 0.05  # between two looks at a server that starts
StartModel = Callable[[str, str, socket.socket], BaseProcess]  # a name, on these cores, listening there


class Model:
    """One model, loaded or not. Of its `names` for clients the first identifies it."""

    def __init__(self, names: tuple[str, ...], path: str, account: Account, children: Children) -> None:
        self.names, self.path, self.account, self.children = names, path, account, children
        self.name, self.address = names[0], children.addresses[0]
        self.created = int(time.time())
        self.has_adapters = False  # which have names too
        self.is_started = self.is_loaded = False  # its server is there, and takes requests
        self.num_open = 0  # requests that use it, or wait for it
        self.used_at = self.failed_at = 0.0
        self.life: asyncio.Task[None] | None = None  # from the wait for room to the end of its server
        self.failure: Exception | None = None  # of the last start


class Models:
    """Models by name, the default first. Implements `Replicas` of a router."""

    def __init__(self, room: SharedCores, start: StartModel, healing: Healing, wait_s: float, grace_s: float) -> None:
        """A request waits `wait_s` for its model; a server that has to end gets `grace_s`."""
        self.room, self._start, self._healing, self._wait_s, self._grace_s = room, start, healing, wait_s, grace_s
        self.by_name: dict[str, Model] = {}
        self.num_needed = 1  # the default, for requests that name no model; 0: there is none, and no model ends unasked
        self._changed = asyncio.Event()
        self._fleet: Fleet | None = None

    @property
    def loaded(self) -> list[Model]:
        """Models that take requests."""
        return [each for each in self.by_name.values() if each.is_loaded]

    def add(self, names: tuple[str, ...], path: str, account: Account) -> Model:
        """Add a model. Raises DeviceMemoryError for one that never fits."""
        name, room, start = names[0], self.room, self._start
        room.require(name, account)
        children = Children(1, lambda _, at: start(name, room.cores_of(name), at), self._healing)
        model = self.by_name[name] = Model(names, path, account, children)
        return model

    def named(self, name: str) -> Model:
        """Return the model with a name; the default for "", and for names of its adapters. Raises ModelNotFound."""
        for model in self.by_name.values():
            if name in model.names:
                return model
        for default in list(self.by_name.values())[: self.num_needed]:
            if not name or default.has_adapters:
                return default
        known = ", ".join(each for model in self.by_name.values() for each in model.names) or "none"
        raise ModelNotFound(f"The model {name[:200]!r} does not exist here; this server has {known}.", "model")

    @contextlib.asynccontextmanager
    async def using(self, model: Model) -> AsyncIterator[None]:
        """Load a model if it is not there, and keep it until the end of the block. Raises as `until_loaded`."""
        model.num_open += 1
        try:
            async with asyncio.timeout(self._wait_s) as limit:
                await self.until_loaded(model)
                limit.reschedule(None)
                yield
        except TimeoutError as error:
            what = f"The model {model.name!r} was not loaded within {self._wait_s:g} s: {self.room.report()}."
            raise Unavailable(what, code="model_not_loaded") from error
        finally:
            model.num_open -= 1
            model.used_at = time.monotonic()
            self._notify()

    async def until_loaded(self, model: Model) -> None:
        """Load a model if it is not there. Raises Unavailable when it fails; StorageFull where no other may end."""
        while not model.is_loaded:
            if isinstance(model.failure, RequestError):
                raise model.failure
            if model.failure is not None and time.monotonic() < model.failed_at + FAILED_S:
                why = f"The model {model.name!r} cannot be loaded: {model.failure}; the server's log says more."
                raise Unavailable(why, code="model_failed")
            if model.life is None:
                model.failure, model.life = None, asyncio.get_running_loop().create_task(self._live(model))
            await self._changed.wait()

    async def remove(self, model: Model) -> None:
        """Take no more requests for a model, and end it after those that use it."""
        model.names = ()
        while model.num_open:
            await self._changed.wait()
        await self._end(model)
        del self.by_name[model.name]

    async def keep(self, fleet: Fleet) -> None:
        """Load the default model, then others as they are needed; never return. Raises StartError of the first."""
        self._fleet = fleet
        for default in list(self.by_name.values())[: self.num_needed]:
            try:
                await self.until_loaded(default)
            except Unavailable as error:
                raise default.failure or error from None
        fleet.is_on_demand = True
        await asyncio.Event().wait()

    def signal(self, number: int) -> None:
        """Send a signal to each model's server."""
        for model in self.by_name.values():
            model.children.signal(number)

    async def close(self) -> None:
        """End all models."""
        await asyncio.gather(*map(self._end, self.by_name.values()))

    async def _live(self, model: Model) -> None:
        """Find room for a model, run its server, and give the room back."""
        try:
            if await self._make_room(model):
                await self._serve(model)
        except (StartError, StorageFull, OSError, EOFError) as error:
            model.failure, model.failed_at = error, time.monotonic()
            log.error("model %s: %s", model.name, error)
        finally:
            model.is_started = model.is_loaded = False
            self._follow()
            await model.children.close(self._grace_s)
            model.children.keep_ports()
            self.room.leave(model.name)
            model.life = None
            self._notify()

    async def _make_room(self, model: Model) -> bool:
        """Enter a model in the ledger, and end those in its place; False when nobody waits for it any more."""
        while (names := self.room.enter(model.name, model.account, self._idle)) is None:
            if not self.num_needed:
                what = f"The model {model.name!r} has no room: {self.room.report()}."
                raise StorageFull(what, code="insufficient_memory")
            if not model.num_open:
                return False
            await self._changed.wait()
        leaving = [self.by_name[name] for name in names]
        for each in leaving:
            log.info("model %s ends: its memory is for %s", each.name, model.name)
            each.is_loaded = False
        await asyncio.gather(*map(self._end, leaving))
        return True

    @property
    def _idle(self) -> list[str]:
        """Names of the models that may end, from the least recently used."""
        idle = [each for each in self.loaded if self.num_needed and not each.num_open]
        return [each.name for each in sorted(idle, key=lambda each: each.used_at)]

    async def _serve(self, model: Model) -> None:
        """Run the model's server, which is loaded when it is up. Raises StartError when it ends too often."""
        assert self._fleet is not None
        begin, model.is_started = time.monotonic(), True
        self._follow()
        keeping = asyncio.create_task(model.children.keep(self._fleet))
        try:
            while not keeping.done() and not self._fleet.at(model.address.name):
                await asyncio.wait([keeping], timeout=START_S)
            if not keeping.done():
                model.is_loaded = True
                log.info(
                    "model %s is loaded after %.1f s: %s", model.name, time.monotonic() - begin, self.room.report()
                )
                self._notify()
            await keeping
        finally:
            keeping.cancel()

    async def _end(self, model: Model) -> None:
        if (life := model.life) is not None:
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)

    def _follow(self) -> None:
        """Let the fleet have the servers that are there."""
        if self._fleet is not None:
            self._fleet.follow([each.address for each in self.by_name.values() if each.is_started])

    def _notify(self) -> None:
        """Wake all that wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()
