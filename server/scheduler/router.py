"""Choice of an engine for a request: the one that has most of its prompt cached, unless it is overloaded.

Used by the server for data-parallel engines, and by the simulator. Pure: the caller reports what is sent, generated and
ended. Only the router assigns requests, so its count of open tokens is exact; cached prefixes are an estimate
(prefix_index.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

from ..config import CacheConfig
from ..errors import EngineDead
from ..kv_cache.hashing import HashChain
from ..types import Request, TokenEvent
from .prefix_index import PrefixIndex

# An engine is overloaded for a request when its open tokens exceed
#     LOAD_MARGIN x those of the least loaded + TOKENS_PER_HIT x the tokens of the prompt it has cached.
# The first term keeps conversations on their engine under even load. The second weighs the prefill that a hit saves
# against waiting behind other requests: open tokens are mostly computed already, so a hit counts double.
LOAD_MARGIN = 1.25
TOKENS_PER_HIT = 2


@dataclass(frozen=True, slots=True)
class EngineView:
    """State of one engine for the choice of one request."""

    is_alive: bool
    num_open_tokens: int  # prompt and generated, of its waiting and running sequences
    num_cached_tokens: int  # leading tokens of this request's prompt, estimated
    num_placed: int  # requests assigned since the start: equal engines take turns


def limit_tokens(least: int, num_cached_tokens: int) -> float:
    """Return the open tokens above which an engine with such a hit is overloaded; the least loaded has `least`."""
    return LOAD_MARGIN * least + TOKENS_PER_HIT * num_cached_tokens


def choose(engines: Sequence[EngineView]) -> int:
    """Return the index of the engine: alive and not overloaded, with the longest hit, then least load, then in turns.

    Raises EngineDead when none is alive.
    """
    alive = [i for i, engine in enumerate(engines) if engine.is_alive]
    if not alive:
        raise EngineDead("Every engine process has ended; this server cannot answer any more.")
    least = min(engines[i].num_open_tokens for i in alive)

    def rank(i: int) -> tuple[int, int, int]:
        engine = engines[i]
        return -engine.num_cached_tokens, engine.num_open_tokens, engine.num_placed

    welcome = [i for i in alive if engines[i].num_open_tokens <= limit_tokens(least, engines[i].num_cached_tokens)]
    return min(welcome, key=rank)


@dataclass(slots=True)
class _Engine:
    prefixes: PrefixIndex
    is_alive: bool = True
    num_open_tokens: int = 0
    num_placed: int = 0
    key: tuple[int, int] = (0, 0)  # open tokens and requests when it was last sorted: a lower bound


class Router:
    """Open requests of each engine, and the prompts it was sent. Conservation: its load is the sum of its requests.

    Looks only at engines that can win, the least loaded one and those with the prompt's first block, so that thousands
    of engines cost little more than a few.
    """

    def __init__(self, num_engines: int, cache: CacheConfig) -> None:
        """Begin with `num_engines` alive; `cache` is the configuration of one engine's cache."""
        self._cache = cache
        self._engines: list[_Engine] = []
        self._open: dict[str, tuple[int, int]] = {}  # engine and tokens of each open request
        self._order: list[tuple[int, int, int]] = []  # heap of (*key, engine); stale once the engine's own key differs
        self._holders: dict[bytes, set[int]] = {}  # engines with a block that begins a prompt, estimated
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

    def place(self, request: Request, wanted: int | None = None) -> int:
        """Choose an engine for `request`, whose id must not be open, and count it there; `wanted` fixes the engine.

        Raises EngineDead when that engine, or every engine, is dead.
        """
        assert request.request_id not in self._open
        digests = self._digests(request)
        # The engine computes at least the prompt's last token, so it never hits a block that ends the prompt.
        findable = digests[: (len(request.prompt_token_ids) - 1) // self._cache.block_size]
        if wanted is not None and not self._engines[wanted].is_alive:
            raise EngineDead(f"Engine {wanted} has ended; the others take requests that do not ask for it.")
        index = self._choose(findable) if wanted is None else wanted
        engine, num_tokens = self._engines[index], len(request.prompt_token_ids)
        self._remember(index, digests)
        engine.num_placed += 1
        engine.num_open_tokens += num_tokens
        self._open[request.request_id] = (index, num_tokens)
        return index

    def notify(self, event: TokenEvent) -> None:
        """Count an engine's event: one more token, or the end of a request."""
        if event.finish_reason is not None:
            self.end(event.request_id)
        else:
            self.generated(event.request_id)

    def generated(self, request_id: str, count: int = 1) -> None:
        """Count `count` more tokens of an open request; unknown ids are ignored."""
        if (entry := self._open.get(request_id)) is not None:
            index, num_tokens = entry
            self._open[request_id] = (index, num_tokens + count)
            self._engines[index].num_open_tokens += count

    def end(self, request_id: str) -> None:
        """Remove a request from its engine; unknown ids are ignored."""
        if (entry := self._open.pop(request_id, None)) is not None:
            index, num_tokens = entry
            self._engines[index].num_open_tokens -= num_tokens
            self._sort(index)

    def is_alive(self, index: int) -> bool:
        """Return whether an engine takes requests."""
        return self._engines[index].is_alive

    def join(self, index: int) -> None:
        """Add engine `index`, with an empty cache: a lost engine again, or the next number."""
        engine = _Engine(PrefixIndex((self._cache.num_blocks - 1) // len(self._cache.groups)))
        self._engines[index : index + 1] = [engine]
        self._sort(index)

    def lose(self, index: int) -> None:
        """Remove a dead engine and its requests. May be called twice."""
        engine = self._engines[index]
        if engine.is_alive:
            engine.is_alive, engine.num_open_tokens = False, 0
            self._forget(index)
            self._open = {name: entry for name, entry in self._open.items() if entry[0] != index}

    def forget_prefixes(self) -> None:
        """Note that the engines' prefix caches are empty."""
        for index in range(len(self._engines)):
            self._forget(index)

    def num_open_tokens(self, index: int) -> int:
        """Open tokens of an engine; 0 for a dead one. They fall only when a request ends."""
        return self._engines[index].num_open_tokens

    def _choose(self, findable: Sequence[bytes]) -> int:
        """Choose among all engines. An engine without a hit can win only as the least loaded, so few are compared."""
        holders = self._holders.get(findable[0], set()) if findable else set()
        indices = sorted({self._least_loaded()} | holders)
        return indices[choose([self._view(index, findable) for index in indices])]

    def _least_loaded(self) -> int:
        """Return the live engine with the fewest open tokens, then requests placed. Raises EngineDead without any.

        Keys are lower bounds, so the first engine with an exact key is the least.
        """
        while self._order:
            num_open_tokens, num_placed, index = self._order[0]
            engine, now = self._engines[index], (self.num_open_tokens(index), self._engines[index].num_placed)
            if not engine.is_alive or engine.key != (num_open_tokens, num_placed):
                heappop(self._order)
            elif engine.key != now:
                engine.key = now
                heapreplace(self._order, (*now, index))
            else:
                return index
        raise EngineDead("Every engine process has ended; this server cannot answer any more.")

    def _sort(self, index: int) -> None:
        """Sort an engine again after its load fell."""
        engine = self._engines[index]
        engine.key = (engine.num_open_tokens, engine.num_placed)
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

    def _view(self, index: int, digests: Sequence[bytes]) -> EngineView:
        engine = self._engines[index]
        num_cached = engine.prefixes.match(digests) * self._cache.block_size
        return EngineView(engine.is_alive, self.num_open_tokens(index), num_cached, engine.num_placed)
