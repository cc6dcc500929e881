"""Which of several engines takes a request: the one that has most of its prompt cached, unless it is overloaded.

The server's data-parallel engines and those of a simulation are chosen by it. Pure: its caller reports what is sent,
generated and ended, and it asks no clock and no engine. Only the router places requests, so its account of open tokens
is exact; what an engine has cached is a belief (prefix_index.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from server.config import CacheConfig
from server.errors import EngineDead
from server.kv_cache.hashing import HashChain
from server.scheduler.prefix_index import PrefixIndex
from server.types import Request, TokenEvent

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


class Router:
    """The open requests of each engine, and the prompts it was sent. Conservation: its load is that of its requests."""

    def __init__(self, num_engines: int, cache: CacheConfig) -> None:
        """`cache` is that of one engine."""
        self._cache = cache
        self._engines = [_Engine(PrefixIndex(cache.num_blocks - 1)) for _ in range(num_engines)]
        self._open: dict[str, tuple[int, int]] = {}  # engine and tokens of each open request

    @property
    def loads(self) -> list[int]:
        """Open tokens of each engine; 0 of a dead one."""
        return [engine.num_open_tokens for engine in self._engines]

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
        views = [self._view(engine, findable) for engine in self._engines]
        if wanted is not None and not views[wanted].is_alive:
            raise EngineDead(f"Engine {wanted} has ended; the others take requests that do not ask for it.")
        index = choose(views) if wanted is None else wanted
        engine, num_tokens = self._engines[index], len(request.prompt_token_ids)
        engine.prefixes.add(digests)
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

    def generated(self, request_id: str) -> None:
        """One more token of an open request; unknown ids are ignored."""
        if (entry := self._open.get(request_id)) is not None:
            index, num_tokens = entry
            self._open[request_id] = (index, num_tokens + 1)
            self._engines[index].num_open_tokens += 1

    def end(self, request_id: str) -> None:
        """A request has left its engine; unknown ids are ignored."""
        if (entry := self._open.pop(request_id, None)) is not None:
            index, num_tokens = entry
            self._engines[index].num_open_tokens -= num_tokens

    def lose(self, index: int) -> None:
        """An engine has died, and its requests with it. May be reported twice."""
        engine = self._engines[index]
        if engine.is_alive:
            engine.is_alive, engine.num_open_tokens = False, 0
            engine.prefixes.clear()
            self._open = {name: entry for name, entry in self._open.items() if entry[0] != index}

    def forget_prefixes(self) -> None:
        """The engines' prefix caches are empty from now on."""
        for engine in self._engines:
            engine.prefixes.clear()

    def _digests(self, request: Request) -> list[bytes]:
        """Names of the prompt's full blocks, as the prefix cache names them."""
        if not self._cache.enable_prefix_caching:
            return []
        chain = HashChain(self._cache.block_size, request.cache_salt)
        chain.extend(request.prompt_token_ids, len(request.prompt_token_ids) // self._cache.block_size)
        return chain.digests

    def _view(self, engine: _Engine, digests: Sequence[bytes]) -> EngineView:
        num_cached = engine.prefixes.match(digests) * self._cache.block_size
        return EngineView(engine.is_alive, engine.num_open_tokens, num_cached, engine.num_placed)
