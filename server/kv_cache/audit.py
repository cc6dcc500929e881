"""The conservation law of the KV cache as a function, which changes nothing and costs O(blocks)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from server.kv_cache.blocks import NULL_BLOCK, BlockPool
from server.kv_cache.manager import KVCacheManager, SequenceBlocks


def audit(cache: KVCacheManager, tables: Iterable[SequenceBlocks]) -> list[str]:
    """Violations, one line each; empty when there are none. `tables` are those of all open sequences.

    1. free + held = all, and no block is both or neither.
    2. a block's reference count is the number of tables that hold it, each once.
    3. no table holds the null block, but in the place of leading blocks that it has given back.
    4. digests and the map from digest to block are each other's inverse.
    5. free blocks without a digest come before those with one.
    """
    pool = cache.pool
    tables = list(tables)
    free = list(pool.free_blocks())
    kept = [table.ids[table.num_dropped :] for table in tables]
    held = Counter(block for ids in kept for block in ids)
    checks = {
        "a block is twice in the free list": len(free) == len(set(free)),
        f"num_free is {pool.num_free}, the free list has {len(free)}": pool.num_free == len(free),
        f"both free and held: {sorted(held.keys() & set(free))}": not held.keys() & set(free),
        "free + held is not all": {*free, *held} == set(range(1, pool.num_blocks)),
        "the null block is held or named": NULL_BLOCK not in held and pool.digests[NULL_BLOCK] is None,
        "a table holds a block that it has given back": not any(any(t.ids[: t.num_dropped]) for t in tables),
        "a table holds a block twice": all(len(ids) == len(set(ids)) for ids in kept),
        "more blocks are named than held": all(t.num_named <= len(t.ids) for t in tables),
        "digests and their map disagree": _digests(pool) == {b: d for d, b in pool.cached.items()},
        "a named block is reused before an unnamed one": _unnamed_first([pool.digests[b] for b in free]),
    }
    problems = [problem for problem, holds in checks.items() if not holds]
    for block, count in enumerate(pool.ref_counts):
        if count != held[block]:
            problems.append(f"block {block} has count {count} and is held by {held[block]} tables")
    return problems


def _digests(pool: BlockPool) -> dict[int, bytes]:
    return {block: digest for block, digest in enumerate(pool.digests) if digest is not None}


def _unnamed_first(digests: list[bytes | None]) -> bool:
    named = [digest is not None for digest in digests]
    return named == sorted(named)
