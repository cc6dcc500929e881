"""The conservation laws of the KV cache as a function, which changes nothing and costs O(blocks)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .blocks import NULL_BLOCK, BlockPool
from .manager import KVCacheManager
from .sequence_blocks import SequenceBlocks


def audit(cache: KVCacheManager, sequences: Iterable[SequenceBlocks]) -> list[str]:
    """Return the violations, one line each. `sequences` are the blocks of all open sequences.

    1. free + held = all, and no block is both or neither.
    2. a block's reference count is the number of tables that hold it, each once.
    3. a table holds the null block only in place of leading blocks that it has given back.
    4. a table covers the allocated blocks, as far as its group's width allows.
    5. a free block is reserved for each holder but the first of a block that its holders will give back.
    6. digests and the map from digest to block are inverse to each other.
    7. free blocks without a digest come before those with one.
    8. blocks that are not full are cached only while nobody holds them; the index of parts knows them and others.

    Laws 1, 2, 6 and 7 hold for slots of states too, and each sequence with blocks has a slot. Laws of tiers are in
    tiers.py.
    """
    sequences = list(sequences)
    each = [_held(blocks) for blocks in sequences]
    held = Counter(block for tables in each for table in tables for block in table)
    shared = Counter(block for tables in each for group in cache.windowed for block in tables[group])
    num_reserved = sum(count - 1 for count in shared.values())
    checks = {
        "a table holds a block that it has given back": not any(map(_holds_dropped, sequences)),
        "a sequence holds a block twice": all(map(_is_held_once, each)),
        "a table does not cover what it should": all(_is_covered(cache, blocks) for blocks in sequences),
        "more blocks are named than held": all(blocks.num_named <= _num_covered(blocks) for blocks in sequences),
        f"{cache.num_reserved} blocks are reserved, not {num_reserved}": cache.num_reserved == num_reserved,
        "more blocks are reserved than free": num_reserved <= cache.pool.num_free,
    }
    problems = _problems(checks) + _audit_pool(cache.pool, held, "block")
    problems += [] if cache.finder.parts is None else cache.finder.parts.audit()
    if cache.states is not None:
        slots = Counter(slot for blocks in sequences for slot in blocks.state.slots)
        has_slot = all(bool(blocks.num_blocks) == bool(blocks.state.slots) for blocks in sequences)
        problems += _problems({"a sequence with blocks has no slot, or one without has one": has_slot})
        problems += _audit_pool(cache.states.pool, slots, "slot")
    return problems


def _audit_pool(pool: BlockPool, held: Counter[int], what: str) -> list[str]:
    """Return the violations of one pool, whose members `held` counts by their holders."""
    free = list(pool.free_blocks())
    problems = _problems(
        {
            f"a {what} is twice in the free list": len(free) == len(set(free)),
            f"num_free is {pool.num_free}, the free list has {len(free)}": pool.num_free == len(free),
            f"both free and held: {sorted(held.keys() & set(free))}": not held.keys() & set(free),
            "free + held is not all": {*free, *held} == set(range(1, pool.num_blocks)),
            f"the null {what} is held or named": NULL_BLOCK not in held and pool.digests[NULL_BLOCK] is None,
            "a block that is not full is cached and held": not pool.parts & held.keys(),
            "digests and their map disagree": _digests(pool) == {b: d for d, b in pool.cached.items()},
            f"a named {what} is reused before an unnamed one": _unnamed_first([pool.digests[b] for b in free]),
        }
    )
    for block, count in enumerate(pool.ref_counts):
        if count != held[block]:
            problems.append(f"{what} {block} has count {count} and is held by {held[block]} tables")
    return problems if pool.tiers is None else problems + pool.tiers.audit(pool.cached)


def _problems(checks: dict[str, bool]) -> list[str]:
    return [problem for problem, holds in checks.items() if not holds]


def _held(blocks: SequenceBlocks) -> list[list[int]]:
    """Blocks of each group without the ones given back."""
    return [table[dropped:] for table, dropped in zip(blocks.tables, blocks.num_dropped, strict=True)]


def _num_covered(blocks: SequenceBlocks) -> int:
    return min(map(len, blocks.tables))


def _holds_dropped(blocks: SequenceBlocks) -> bool:
    return any(any(table[:dropped]) for table, dropped in zip(blocks.tables, blocks.num_dropped, strict=True))


def _is_held_once(tables: list[list[int]]) -> bool:
    return sum(map(len, tables)) == len({block for table in tables for block in table})


def _is_covered(cache: KVCacheManager, blocks: SequenceBlocks) -> bool:
    each = zip(blocks.tables, blocks.num_dropped, cache.widths, strict=True)
    return all(len(table) == min(blocks.num_blocks, dropped + width) for table, dropped, width in each)


def _digests(pool: BlockPool) -> dict[int, bytes]:
    return {block: digest for block, digest in enumerate(pool.digests) if digest is not None}


def _unnamed_first(digests: list[bytes | None]) -> bool:
    named = [digest is not None for digest in digests]
    return named == sorted(named)
