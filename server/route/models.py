"""Several models behind one address: each in a server of its own, which starts when it is needed.

Where there is no room, unused models end, from the least recently used. A model has one task from its
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

from ..api.keys.key import NO_KEYS
from ..errors import ModelNotFound, StartError, Unavailable
from ..link.restarts import Healing
from ..placement.shared_cores import Account, SharedCores
from .children import Children
from .fleet import Fleet

log = logging.getLogger("neuronserve.route")
FAILED_S = 10.0  # for which a model that could not be loaded is refused
TAG = ":latest"  # which Ollama's clients put behind names
Describe = Callable[[str, str], Account]  # by a name and a path; raises StartError, takes seconds
StartModel = Callable[[str, str, socket.socket], BaseProcess]  # a name, on these cores, listening there


class Model:
    """One model, loaded or not. Of its `names` for clients the first identifies it."""

    def __init__(self, names: tuple[str, ...], path: str, account: Account, children: Children) -> None:
        self.names, self.path, self.account, self.children = names, path, account, children
        self.name, self.address = names[0], children.addresses[0]
        self.has_adapters = False  # which have names too
        self.is_started = self.is_loaded = False  # its server is there, and takes requests
        self.num_open = 0  # requests that use it, or wait for it
        self.used_at = self.failed_at = 0.0
        self.life: asyncio.Task[None] | None = None  # from the wait for room to the end of its server
        self.failure: Unavailable | None = None  # of the last start


class Models:
    """Models by name. Implements `Replicas` of a router."""

    def __init__(self, room: SharedCores, start: StartModel, healing: Healing, wait_s: float, grace_s: float) -> None:
        """A request waits `wait_s` for its model; a server that has to end gets `grace_s`."""
        self.room, self._start, self._healing, self._wait_s, self._grace_s = room, start, healing, wait_s, grace_s
        self.by_name: dict[str, Model] = {}
        self.num_needed = 1  # the first model, for requests that name none; 0: SageMaker says which are loaded
        self.keys = NO_KEYS  # without which nothing is loaded
        self.describe: Describe | None = None  # None: SageMaker adds no models
        self._changed, self.adding = asyncio.Event(), asyncio.Lock()
        self._fleet: Fleet  # set by `keep`

    @property
    def loaded(self) -> list[Model]:
        """Models that take requests."""
        return [each for each in self.by_name.values() if each.is_loaded]

    def add(self, names: tuple[str, ...], path: str, account: Account) -> Model:
        """Add a model, which fits where no other is."""
        name, room, start = names[0], self.room, self._start
        children = Children(1, lambda _, at: start(name, room.cores_of(name), at), self._healing)
        model = self.by_name[name] = Model(names, path, account, children)
        return model

    def named(self, name: str) -> Model:
        """Return the model with a name; the first for "", and for names of its adapters. Raises ModelNotFound."""
        models, names = list(self.by_name.values()), {name, name.removesuffix(TAG)}
        found = [each for each in models if names.intersection(each.names)]
        found += [first for first in models[: self.num_needed] if not name or first.has_adapters]
        if not found:
            known = ", ".join(each for model in models for each in model.names) or "none"
            raise ModelNotFound(f"The model {name[:200]!r} does not exist here; this server has {known}.", "model")
        return found[0]

    @contextlib.asynccontextmanager
    async def using(self, model: Model) -> AsyncIterator[None]:
        """Load a model if it is not there, and keep it until the end of the block. Raises Unavailable."""
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
            model.num_open, model.used_at = model.num_open - 1, time.monotonic()
            self._notify()

    async def until_loaded(self, model: Model) -> None:
        """Load a model if it is not there. Raises Unavailable when that fails."""
        while not model.is_loaded:
            if model.failure is not None and time.monotonic() < model.failed_at + FAILED_S:
                raise model.failure
            model.life = model.life or asyncio.create_task(self._live(model))
            await self._changed.wait()

    async def remove(self, model: Model) -> None:
        """Take no more requests for a model, and end it after those that use it."""
        model.names = ()
        while model.num_open:
            await self._changed.wait()
        await self._end(model)
        del self.by_name[model.name]

    async def keep(self, fleet: Fleet) -> None:
        """Load the first model, then others as they are needed; never return. Raises StartError of the first."""
        self._fleet = fleet
        try:
            for model in list(self.by_name.values())[: self.num_needed]:
                await self.until_loaded(model)
        except Unavailable as error:
            raise StartError(error.message) from error
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
        except (StartError, OSError, EOFError) as error:
            log.error("model %s: %s", model.name, error)
            model.failure = Unavailable(f"The model {model.name!r} cannot be loaded: {error}", code="model_failed")
            model.failed_at = time.monotonic()
        finally:
            model.is_started = model.is_loaded = False
            self._fleet.follow([each.address for each in self.by_name.values() if each.is_started])
            await model.children.close(self._grace_s)
            self.room.leave(model.name)
            model.life = None
            self._notify()

    async def _make_room(self, model: Model) -> bool:
        """Enter a model in the ledger, and end those in its place; False when nobody waits for it any more."""
        while True:
            idle = sorted((each for each in self.loaded if not each.num_open), key=lambda each: each.used_at)
            gone = self.room.enter(model.name, model.account, [each.name for each in idle])
            if gone is not None:
                break
            if not model.num_open:
                return False
            await self._changed.wait()
        for name in gone:
            log.info("model %s ends: its memory is for %s", name, model.name)
            self.by_name[name].is_loaded = False
        await asyncio.gather(*(self._end(self.by_name[name]) for name in gone))
        return True

    async def _serve(self, model: Model) -> None:
        """Run the model's server, which is loaded when it is up. Raises StartError when it ends too often."""
        model.is_started = True
        self._fleet.follow([each.address for each in self.by_name.values() if each.is_started])
        keeping = asyncio.create_task(model.children.keep(self._fleet))
        try:
            while not keeping.done() and not self._fleet.at(model.address.name):
                await asyncio.wait([keeping], timeout=0.05)
            model.is_loaded = not keeping.done()
            if model.is_loaded:
                log.info("model %s is loaded: %s", model.name, self.room.report())
                self._notify()
            await keeping
        finally:
            keeping.cancel()

    async def _end(self, model: Model) -> None:
        if model.life is not None:
            model.life.cancel()
            await asyncio.wait([model.life])

    def _notify(self) -> None:
        self._changed.set()  # wakes those that wait
        self._changed = asyncio.Event()
