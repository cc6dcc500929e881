"""Choice of an engine for a request: the one that computes its prompt soonest, with what it has cached of it.

Used by the server for data-parallel engines, by `route` for replicas, which are engines here, and by the simulator.
Pure: the caller reports what is sent, generated and ended. A request counts at the moment of its choice, so a burst is
spread; cached prefixes are an estimate (prefix_index.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from ..config import CacheConfig
from ..errors import EngineDead
from ..kv_cache.hashing import HashChain
from ..types import Request, TokenEvent
from .prefix_index import PrefixIndex

# An engine's load, in tenths of a prompt token, is 10 for each token that it must compute before it takes up the next
# prompt, and 1 for each token of its open requests, whose steps this prompt shares.
PENDING_WEIGHT = 10
MAX_SESSIONS = 65536  # remembered, the least recent forgotten first
TURN = 1 << 32  # between two turns of an engine


class EngineView(NamedTuple):
    """State of one engine for the choice of one request."""

    is_alive: bool
    num_pending_tokens: int  # of prompts without a first token, that were not cached
    num_open_tokens: int  # prompt and generated, of its waiting and running sequences
    num_uncached_tokens: int  # of this request's prompt, estimated
    turn: int  # requests assigned since the start, in an order of its own for each router: equal engines take turns
    distance: int = 0  # load that a nearer engine may have more

    @property
    def cost(self) -> int:
        """Tenths of prompt tokens until this request's first token."""
        load = load_of(self.num_pending_tokens, self.num_open_tokens) + self.distance
        return load + PENDING_WEIGHT * self.num_uncached_tokens


def load_of(num_pending_tokens: int, num_open_tokens: int) -> int:
    """Load of an engine, in tenths of a prompt token."""
    return PENDING_WEIGHT * num_pending_tokens + num_open_tokens


def choose(engines: Sequence[EngineView]) -> int:
    """Return the index of the live engine with the least cost; equal ones take turns.

    Raises EngineDead when none is alive.
    """
    alive = [i for i, engine in enumerate(engines) if engine.is_alive]
    if not alive:
        raise EngineDead("Every engine process has ended; this server cannot answer any more.")
    return min(alive, key=lambda i: (engines[i].cost, engines[i].turn))


class _Open(NamedTuple):
    """An open request."""

    engine: int
    num_tokens: int
    num_pending: int  # 0 once it has a token


@dataclass(slots=True)
class _Engine:
    prefixes: PrefixIndex
    turn: int
    distance: int = 0
    is_alive: bool = True
    num_open_tokens: int = 0
    num_pending_tokens: int = 0
    key: tuple[int, int] = (0, 0)  # load and turn when it was last sorted: a lower bound


class Router:
    """Open requests of each engine, and the prompts it was sent. Conservation: its load is the sum of its requests.

    Looks only at engines that can win, the least loaded one and those with the prompt's first block, so that thousands
    of engines cost little more than a few.
    """

    def __init__(self, num_engines: int, cache: CacheConfig, name: str = "") -> None:
        """Begin with `num_engines` alive; `cache` is the configuration of one engine's cache.

        Several routers of the same engines have different names, so that they do not begin with the same engine.
        """
        self._cache, self._name = cache, name
        self._engines: list[_Engine] = []
        self._open: dict[str, _Open] = {}
        self._order: list[tuple[int, int, int]] = []  # heap of (*key, engine); stale once the engine's own key differs
        self._holders: dict[bytes, set[int]] = {}  # engines with a block that begins a prompt, estimated
        self._sessions: OrderedDict[str, int] = OrderedDict()  # engine of the last request of each session
        for index in range(num_engines):
            self.join(index)

    @property
    def loads(self) -> list[int]:
        """Open tokens of each engine; 0 for a dead one."""
        return [self.num_open_tokens(index) for index in range(len(self._engines))]

    @property
    def num_open(self) -> int:
        """Number of requests that were placed and have not ended."""
        return len(self._open)

    def place(self, request: Request, wanted: int | None = None, among: Sequence[int] = ()) -> int:
        """Choose an engine for `request`, whose id must not be open, and count it there.

        `wanted` fixes the engine; `among` are those of which one is chosen while any is alive, () = all.

        Raises EngineDead when that engine, or every engine, is dead.
        """
        num_tokens = len(request.prompt_token_ids)
        digests = self._digests(request)
        return self.place_prompt(request.request_id, digests, num_tokens, request.session, wanted, among)

    def place_prompt(
        self,
        name: str,
        digests: Sequence[bytes],
        num_tokens: int,
        session: str = "",
        wanted: int | None = None,
        among: Sequence[int] = (),
    ) -> int:
        """Choose as `place` does for a prompt of `num_tokens`, whose whole blocks have `digests`."""
        assert name not in self._open
        # The engine computes at least the prompt's last token, so it never hits a block that ends the prompt.
        findable = digests[: (num_tokens - 1) // self._cache.block_size]
        if wanted is not None and not self._engines[wanted].is_alive:
            raise EngineDead(f"Engine {wanted} has ended; the others take requests that do not ask for it.")
        home = self._sessions.get(session) if session else None
        some = [index for index in among if self._engines[index].is_alive]
        index = self._choose(findable, num_tokens, home, some) if wanted is None else wanted
        num_pending = self._view(index, findable, num_tokens).num_uncached_tokens
        self._remember(index, digests)
        if session:
            self._sessions[session] = index
            self._sessions.move_to_end(session)
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        self._engines[index].turn += TURN
        self._count(name, _Open(index, num_tokens, num_pending))
        return index

    def notify(self, event: TokenEvent) -> None:
        """Count an engine's event: one more token, or the end of a request."""
        if event.finish_reason is not None:
            self.end(event.request_id)
        else:
            self.generated(event.request_id)

    def generated(self, request_id: str, count: int = 1) -> None:
        """Count `count` more tokens of an open request; unknown ids are ignored."""
        if (entry := self._open.get(request_id)) is None:
            return
        self._open[request_id] = _Open(entry.engine, entry.num_tokens + count, 0)
        engine = self._engines[entry.engine]
        engine.num_open_tokens += count
        if entry.num_pending:
            engine.num_pending_tokens -= entry.num_pending
            self._sort(entry.engine)

    def end(self, request_id: str) -> None:
        """Remove a request from its engine; unknown ids are ignored."""
        if (entry := self._open.pop(request_id, None)) is not None:
            engine = self._engines[entry.engine]
            engine.num_open_tokens -= entry.num_tokens
            engine.num_pending_tokens -= entry.num_pending
            self._sort(entry.engine)

    def is_alive(self, index: int) -> bool:
        """Return whether an engine takes requests."""
        return self._engines[index].is_alive

    def join(self, index: int, distance: int = 0) -> None:
        """Add engine `index`, with an empty cache: a lost engine again, or the next number."""
        prefixes = PrefixIndex((self._cache.num_blocks - 1) // len(self._cache.groups))
        self._engines[index : index + 1] = [_Engine(prefixes, _first_turn(self._name, index), distance)]
        self._sort(index)

    def pause(self, index: int) -> None:
        """Choose an engine no more, whose open requests go on and count, until it is continued."""
        self._engines[index].is_alive = False

    def go_on(self, index: int) -> None:
        """Choose a paused engine again, which has kept its cache."""
        self._engines[index].is_alive = True
        self._sort(index)

    def lose(self, index: int) -> None:
        """Remove a dead engine and its requests. May be called twice."""
        engine = self._engines[index]
        if engine.is_alive:
            engine.is_alive, engine.num_open_tokens, engine.num_pending_tokens = False, 0, 0
            self._forget(index)
            self._open = {name: entry for name, entry in self._open.items() if entry.engine != index}

    def forget_prefixes(self) -> None:
        """Note that the engines' prefix caches are empty."""
        for index in range(len(self._engines)):
            self._forget(index)

    def num_open_tokens(self, index: int) -> int:
        """Open tokens of an engine; 0 for a dead one. They fall only when a request ends."""
        return self._engines[index].num_open_tokens

    def _count(self, request_id: str, entry: _Open) -> None:
        self._open[request_id] = entry
        engine = self._engines[entry.engine]
        engine.num_open_tokens += entry.num_tokens
        engine.num_pending_tokens += entry.num_pending

    def _choose(self, findable: Sequence[bytes], num_tokens: int, home: int | None, some: Sequence[int]) -> int:
        """Choose among `some` engines, or all. One without a hit can win only as the least loaded, so few are compared.

        `home` is the engine of the request's session, which is taken to have the whole prompt.
        """
        holders = self._holders.get(findable[0], set()) if findable else set()
        indices = some or sorted({self._least_loaded()} | holders | ({home} if home is not None else set()))
        views = [self._view(index, findable, num_tokens) for index in indices]
        if home in indices:
            at = indices.index(home)
            views[at] = views[at]._replace(num_uncached_tokens=0)
        return indices[choose(views)]

    def _least_loaded(self) -> int:
        """Return the live engine with the least load, then turn. Raises EngineDead without any.

        Keys are lower bounds, so the first engine with an exact key is the least.
        """
        while self._order:
            *key, index = self._order[0]
            engine, now = self._engines[index], self._key(index)
            if not engine.is_alive or engine.key != tuple(key):
                heappop(self._order)
            elif engine.key != now:
                engine.key = now
                heapreplace(self._order, (*now, index))
            else:
                return index
        raise EngineDead("Every engine process has ended; this server cannot answer any more.")

    def _key(self, index: int) -> tuple[int, int]:
        engine = self._engines[index]
        return load_of(engine.num_pending_tokens, engine.num_open_tokens) + engine.distance, engine.turn

    def _sort(self, index: int) -> None:
        """Sort an engine again after its load fell."""
        engine = self._engines[index]
        engine.key = self._key(index)
        heappush(self._order, (*engine.key, index))
        if len(self._order) > 64 + 8 * len(self._engines):  # stale entries
            self._order = [(*each.key, i) for i, each in enumerate(self._engines) if each.is_alive]
            heapify(self._order)

    def _remember(self, index: int, digests: Sequence[bytes]) -> None:
        """Note that an engine is sent a prompt of these blocks."""
        if digests:
            for gone in self._engines[index].prefixes.add(digests):
                self._holders.get(gone, set()).discard(index)
                if not self._holders.get(gone, True):
                    del self._holders[gone]
            self._holders.setdefault(digests[0], set()).add(index)

    def _forget(self, index: int) -> None:
        """Note that an engine has nothing cached."""
        self._engines[index].prefixes.clear()
        for holders in self._holders.values():
            holders.discard(index)
        self._holders = {digest: holders for digest, holders in self._holders.items() if holders}

    def _digests(self, request: Request) -> list[bytes]:
        """Digests of the prompt's full blocks, as the prefix cache computes them."""
        if not self._cache.enable_prefix_caching:
            return []
        chain = HashChain(self._cache.block_size, request.cache_salt, request.lora, request.media)
        chain.extend(request.prompt_token_ids, len(request.prompt_token_ids) // self._cache.block_size)
        return chain.digests

    def _view(self, index: int, findable: Sequence[bytes], num_tokens: int) -> EngineView:
        engine = self._engines[index]
        num_uncached = num_tokens - engine.prefixes.match(findable) * self._cache.block_size
        num_pending, num_open = engine.num_pending_tokens, self.num_open_tokens(index)
        return EngineView(engine.is_alive, num_pending, num_open, num_uncached, engine.turn, engine.distance)


def _first_turn(name: str, index: int) -> int:
    """Return the turn of an engine that has none: engines in order for a router without a name, else in any."""
    if not name:
        return index
    return int.from_bytes(blake2b(f"{name} {index}".encode(), digest_size=4).digest())
