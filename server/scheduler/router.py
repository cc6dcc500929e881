"""Which of several engines takes a request: the one that has most of its prompt cached, unless it is overloaded.

The server's data-parallel engines and those of a simulation are chosen by it. Pure: its caller reports what is sent,
generated and ended, and it asks no clock and no engine. Only the router places requests, so its account of open tokens
is exact; what an engine has cached is a belief (prefix_index.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

from neuronserve.server.config import CacheConfig
from neuronserve.server.errors import EngineDead
from neuronserve.server.kv_cache.hashing import HashChain
from neuronserve.server.scheduler.prefix_index import PrefixIndex
from neuronserve.server.types import Request, TokenEvent

# An engine is overloaded for a request when its open tokens exceed
#     LOAD_MARGIN x those of the least loaded + TOKENS_PER_HIT x the tokens of the prompt it has cached.
# The first term lets conversations stay where they are under even load. The second weighs what a hit saves, a prefill
# of that many tokens, against waiting behind others: open tokens are mostly computed already, so a hit counts double.
LOAD_MARGIN = 1.25
TOKENS_PER_HIT = 2


@dataclass(frozen=True, slots=True)
class EngineView:
    """What the choice for one request depends on."""

    is_alive: bool
    num_open_tokens: int  # prompt and generated, of its waiting and running sequences
    num_cached_tokens: int  # leading tokens of this request's prompt that it is believed to have
    num_placed: int  # requests it was ever given: among equals the idle ones take turns


def limit_tokens(least: int, num_cached_tokens: int) -> float:
    """Open tokens beyond which an engine with such a hit is overloaded, when the least loaded has `least`."""
    return LOAD_MARGIN * least + TOKENS_PER_HIT * num_cached_tokens


def choose(engines: Sequence[EngineView]) -> int:
    """Index of the engine for a request: of those alive and not overloaded, longest hit, then least load, then turns.

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
    key: tuple[int, int] = (0, 0)  # open tokens and placed when it was last put in order: neither is less since


class Router:
    """The open requests of each engine, and the prompts it was sent. Conservation: its load is that of its requests.

    Looks at those engines alone that can win, so that thousands cost little more than a few: the least loaded one, and
    those that have the prompt's first block.
    """

    def __init__(self, num_engines: int, cache: CacheConfig) -> None:
        """`cache` is that of one engine."""
        self._cache = cache
        self._engines: list[_Engine] = []
        self._open: dict[str, tuple[int, int]] = {}  # engine and tokens of each open request
        self._order: list[tuple[int, int, int]] = []  # heap of (*key, engine); stale once the engine's own key differs
        self._holders: dict[bytes, set[int]] = {}  # engines that are believed to have a block that begins a prompt
        for index in range(num_engines):
            self.join(index)

    @property
    def loads(self) -> list[int]:
        """Open tokens of each engine; 0 of a dead one."""
        return [self.num_open_tokens(index) for index in range(len(self._engines))]

    @property
    def num_open(self) -> int:
        """Requests placed and not ended."""
        return len(self._open)

    def place(self, request: Request, wanted: int | None = None) -> int:
        """Choose an engine for `request`, whose id must not be open, and count it there; `wanted` leaves no choice.

        Raises EngineDead when it, or every engine, is dead.
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
        """Count what an engine reports of a request: a token more, or its end."""
        if event.finish_reason is not None:
            self.end(event.request_id)
        else:
            self.generated(event.request_id)

    def generated(self, request_id: str, count: int = 1) -> None:
        """So many more tokens of an open request; unknown ids are ignored."""
        if (entry := self._open.get(request_id)) is not None:
            index, num_tokens = entry
            self._open[request_id] = (index, num_tokens + count)
            self._engines[index].num_open_tokens += count

    def end(self, request_id: str) -> None:
        """A request has left its engine; unknown ids are ignored."""
        if (entry := self._open.pop(request_id, None)) is not None:
            index, num_tokens = entry
            self._engines[index].num_open_tokens -= num_tokens
            self._put_in_order(index)

    def is_alive(self, index: int) -> bool:
        """Whether an engine takes requests."""
        return self._engines[index].is_alive

    def join(self, index: int) -> None:
        """Engine `index`, a lost one or the next number, takes requests, with nothing in its cache."""
        engine = _Engine(PrefixIndex((self._cache.num_blocks - 1) // len(self._cache.groups)))
        self._engines[index : index + 1] = [engine]
        self._put_in_order(index)

    def lose(self, index: int) -> None:
        """An engine has died, and its requests with it. May be reported twice."""
        engine = self._engines[index]
        if engine.is_alive:
            engine.is_alive, engine.num_open_tokens = False, 0
            self._forget(index)
            self._open = {name: entry for name, entry in self._open.items() if entry[0] != index}

    def forget_prefixes(self) -> None:
        """The engines' prefix caches are empty from now on."""
        for index in range(len(self._engines)):
            self._forget(index)

    def num_open_tokens(self, index: int) -> int:
        """Of an engine, now; 0 of a dead one. Falls only when a request ends."""
        return self._engines[index].num_open_tokens

    def _choose(self, findable: Sequence[bytes]) -> int:
        """As `choose` among all engines: one without a hit can only win as the least loaded, which no hit excludes."""
        holders = self._holders.get(findable[0], set()) if findable else set()
        indices = sorted({self._least_loaded()} | holders)
        return indices[choose([self._view(index, findable) for index in indices])]

    def _least_loaded(self) -> int:
        """The engine alive with the fewest open tokens, then requests ever placed. Raises EngineDead without any.

        Keys never overstate, so that the first whose key is exact is the least.
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

    def _put_in_order(self, index: int) -> None:
        """After the engine has less than it was last put in order with."""
        engine = self._engines[index]
        engine.key = (engine.num_open_tokens, engine.num_placed)
        heappush(self._order, (*engine.key, index))
        if len(self._order) > 64 + 8 * len(self._engines):  # stale entries
            self._order = [(*each.key, i) for i, each in enumerate(self._engines) if each.is_alive]
            heapify(self._order)

    def _remember(self, index: int, digests: Sequence[bytes]) -> None:
        """An engine is sent a prompt of these blocks."""
        if digests:
            for gone in self._engines[index].prefixes.add(digests):
                self._holders.get(gone, set()).discard(index)
                if not self._holders.get(gone, True):
                    del self._holders[gone]
            self._holders.setdefault(digests[0], set()).add(index)

    def _forget(self, index: int) -> None:
        """An engine has nothing cached any more."""
        self._engines[index].prefixes.clear()
        for holders in self._holders.values():
            holders.discard(index)
        self._holders = {digest: holders for digest, holders in self._holders.items() if holders}

    def _digests(self, request: Request) -> list[bytes]:
        """Names of the prompt's full blocks, as the prefix cache names them."""
        if not self._cache.enable_prefix_caching:
            return []
        chain = HashChain(self._cache.block_size, request.cache_salt, request.lora)
        chain.extend(request.prompt_token_ids, len(request.prompt_token_ids) // self._cache.block_size)
        return chain.digests

    def _view(self, index: int, digests: Sequence[bytes]) -> EngineView:
        engine = self._engines[index]
        num_cached = engine.prefixes.match(digests) * self._cache.block_size
        return EngineView(engine.is_alive, self.num_open_tokens(index), num_cached, engine.num_placed)
