"""Hit rates of the prefix cache on traces, over its books alone: `python -m tools.cache_traces [--trace FILE]`.

Replays requests one after the other and prints the share of prompt tokens that are found: by vLLM's rule (whole blocks
of 16 tokens, least recently used first), by this cache, by this cache without parts of blocks, and with a tier of host
memory that evicts the least recently used copy, or the one that is cheapest to compute again (GDSF).
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from neuronserve.planner.simulate.scheduled_engine import no_copy, request_of
from neuronserve.server.config import CacheConfig
from neuronserve.server.kv_cache.hashing import Blob, HashChain
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.kv_cache.stores import Store
from neuronserve.server.kv_cache.tiers import PrefillRate, Tier, Tiers
from neuronserve.workload.traces import read_trace

Range = tuple[int, int]
Turn = tuple[list[int], int]  # known tokens after a request, of which the first so many are its prompt
BLOCK, PEER_BLOCK = 32, 16  # tokens


class PeerCache:
    """vLLM's rule: whole blocks of 16 tokens; of equally old blocks of a sequence the last one goes first."""

    def __init__(self, num_tokens: int) -> None:
        self._most, self._blocks = num_tokens // PEER_BLOCK, OrderedDict[bytes, None]()

    def serve(self, tokens: list[int], num_prompt: int) -> int:
        """Return the tokens of the prompt that are found, and cache all full blocks."""
        chain = HashChain(PEER_BLOCK, "")
        chain.extend(tokens, (len(tokens) - 1) // PEER_BLOCK)
        most = (num_prompt - 1) // PEER_BLOCK
        found = next((i for i, digest in enumerate(chain.digests[:most]) if digest not in self._blocks), most)
        for digest in reversed(chain.digests[: self._most]):
            self._blocks[digest] = None
            self._blocks.move_to_end(digest)
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)
        return found * PEER_BLOCK


class NoBytes:
    """A store of nothing: its loads take no time. Implements neuronserve.server.kv_cache.tiers.Store."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots, self.medium, self.load_s, self.transfers = num_slots, "", 0.0, dict[str, tuple[int, float]]()

    def open(self) -> Iterator[tuple[int, bytes]]:
        return iter(())

    def save(self, slot: int, blob: Blob, place: int) -> bool:
        del slot, blob, place
        return True

    def move(self, slot: int, source: Store, source_slot: int) -> bool:
        del slot, source, source_slot
        return True

    def raw(self, slot: int) -> None:
        del slot

    def load(self, slot: int, blob: Blob, place: int) -> bool:
        del slot, blob, place
        return True

    def relax(self) -> None:
        pass

    def erase(self, slot: int) -> None:
        del slot

    def clear(self) -> None:
        pass


class CostAware(Tiers):
    """Evicts the copy of the least age + uses * seconds to compute it again (GreedyDual-Size-Frequency; equal sizes).

    `cost` gives the seconds of a block by its name.
    """

    def __init__(self, stores: Sequence[Store], rate: PrefillRate, cost: Callable[[bytes], float]) -> None:
        super().__init__(stores, rate)
        self._cost, self._age, self._heap = cost, 0.0, list[tuple[float, bytes]]()
        self._uses, self._rank = defaultdict[bytes, int](int), dict[bytes, float]()

    def leave(self, blob: Blob, place: int) -> None:
        self._uses[blob.name] += 1
        self._rank[blob.name] = rank = self._age + self._uses[blob.name] * self._cost(blob.name)
        heapq.heappush(self._heap, (rank, blob.name))
        super().leave(blob, place)

    def _victim(self, tier: Tier) -> bytes | None:
        while self._heap:
            rank, name = heapq.heappop(self._heap)
            if name in tier.slots and self._rank[name] == rank:
                self._age = rank
                return name
        return super()._victim(tier)


class Replay:
    """This cache."""

    def __init__(self, num_tokens: int, tiers: Tiers | None = None, has_parts: bool = True) -> None:
        copy = no_copy if has_parts else None
        self.cache = KVCacheManager(CacheConfig(1 + num_tokens // BLOCK, BLOCK), tiers, copy=copy)
        self.position: dict[bytes, int] = {}  # of each block's first token

    def serve(self, tokens: list[int], num_prompt: int) -> int:
        """Return the tokens of the prompt that are found."""
        blocks, cache = self.cache.open(""), self.cache
        while True:
            prefix = cache.lookup(blocks, tokens[:num_prompt])
            if not cache.allocate(blocks, len(tokens), prefix):
                return 0
            if cache.load(blocks, tokens, prefix):
                break
            cache.free(blocks)  # the tier has no room for all of it
        cache.commit(blocks, tokens, len(tokens) - 1)
        self.position |= {digest: i * BLOCK for i, digest in enumerate(blocks.chain.digests)}
        cache.free(blocks, tokens, len(tokens) - 1)
        return cache.num_tokens(prefix)


def trace(path: Path, most: int) -> Iterator[Turn]:
    """Yield the requests of a recorded trace; answers are tokens of their own."""
    workload = read_trace(path, max_requests=most)
    for index in range(len(workload)):
        request = request_of(workload, index, 1 << 20)
        yield [*request.prompt_token_ids, *[-1 - index] * request.sampling.max_tokens], len(request.prompt_token_ids)


def _fresh(chance: random.Random, low: int, high: int) -> list[int]:
    return [chance.randrange(1 << 30)] * 2 + [chance.randrange(1 << 17) for _ in range(chance.randint(low, high) - 2)]


def system_prompts(most: int) -> Iterator[Turn]:
    """Yield questions below one of 20 system prompts."""
    chance = random.Random(1)
    prompts = [_fresh(chance, 100, 2000) for _ in range(20)]
    for _ in range(most):
        prompt = chance.choice(prompts) + _fresh(chance, 20, 400)
        yield prompt + _fresh(chance, 20, 300), len(prompt)


def talks(
    most: int, open_at_once: int, system: tuple[int, int], turn: tuple[int, int], answer: tuple[int, int]
) -> Iterator[Turn]:
    """Yield the turns of talks, of which so many are open; each turn repeats all before it."""
    chance = random.Random(2)
    prompts = [_fresh(chance, *system) for _ in range(4)]
    known: list[list[int]] = [[] for _ in range(open_at_once)]
    for _ in range(most):
        slot = chance.randrange(open_at_once)
        if not known[slot] or len(known[slot]) > 12_000 or chance.random() < 0.1:
            known[slot] = list(chance.choice(prompts))
        prompt = known[slot] + _fresh(chance, *turn)
        known[slot] = prompt + _fresh(chance, *answer)
        yield list(known[slot]), len(prompt)


def _shares(turns: Callable[[], Iterator[Turn]], num_tokens: int, tier_tokens: int) -> dict[str, float]:
    rate = PrefillRate(1.0)
    lru = Replay(num_tokens, Tiers([NoBytes(tier_tokens // BLOCK)], rate))
    cost = Replay(num_tokens, CostAware([NoBytes(tier_tokens // BLOCK)], rate, lambda name: _cost(cost.position[name])))
    caches: dict[str, PeerCache | Replay] = {
        "vLLM's rule": PeerCache(num_tokens),
        "this cache": Replay(num_tokens),
        "whole blocks": Replay(num_tokens, has_parts=False),
        "memory, LRU": lru,
        "memory, GDSF": cost,
    }
    found, total, computed = dict.fromkeys(caches, 0), 0, dict.fromkeys(caches, 0.0)
    for tokens, num_prompt in turns():
        total += num_prompt
        for name, cache in caches.items():
            hits = cache.serve(tokens, num_prompt)
            found[name] += hits
            computed[name] += sum(map(_cost, range(hits, num_prompt, BLOCK)))
    shares = {name: hits / total for name, hits in found.items()}
    shares["GDSF / LRU work"] = computed["memory, GDSF"] / computed["memory, LRU"]
    return shares


def _cost(position: int) -> float:
    """Work of a token of a 0.5B model: attention doubles it at some 10,000 tokens."""
    return 1 + position / 10_000


def main(arguments: list[str]) -> int:
    """Return 0 if no hit rate is below that of vLLM's rule."""
    parser = argparse.ArgumentParser(prog="python -m tools.cache_traces", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trace", type=Path, action="append", default=[], help="a recorded trace, such as Mooncake's")
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--cache-tokens", type=int, default=100_000)
    parser.add_argument("--tier-tokens", type=int, default=400_000)
    asked = parser.parse_args(arguments)
    loads: dict[str, Callable[[], Iterator[Turn]]] = {
        "system prompts": lambda: system_prompts(asked.requests),
        "talks": lambda: talks(asked.requests, 40, (50, 200), (20, 300), (50, 500)),
        "agents": lambda: talks(asked.requests, 10, (1500, 3000), (30, 800), (20, 150)),
        **{path.stem: lambda path=path: trace(path, asked.requests) for path in asked.trace},  # type: ignore[misc]
    }
    is_below = False
    for name, turns in loads.items():
        shares = _shares(turns, asked.cache_tokens, asked.tier_tokens)
        print(f"{name:22}", ", ".join(f"{which} {share:.4f}" for which, share in shares.items()), flush=True)
        is_below |= shares["this cache"] < shares["vLLM's rule"]
    return int(is_below)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
