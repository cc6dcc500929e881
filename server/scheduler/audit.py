"""Faults in the scheduler's books, for tests and debugging. Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..kv_cache.audit import audit as audit_cache
from ..kv_cache.manager import KVCacheManager
from .sequence import Sequence


def audit(cache: KVCacheManager, open_seqs: Collection[Sequence], queued: Iterable[Sequence]) -> list[str]:
    """Return one line for each fault; `queued` are all running and waiting sequences. O(blocks + open sequences)."""
    problems = audit_cache(cache, [seq.blocks for seq in open_seqs])
    if {*queued} != {*open_seqs}:
        problems.append("running + waiting is not open")
    for seq in open_seqs:
        covered = min(map(len, seq.blocks.tables)) * cache.config.block_size
        computed, scheduled, known = seq.num_computed_tokens, seq.num_scheduled_tokens, len(seq.token_ids)
        is_ordered = computed <= scheduled <= min(known, covered) and computed < known
        if not is_ordered or (covered > 0) != seq.is_running:
            name = seq.request.request_id
            problems.append(f"{name}: {computed} computed, {scheduled} scheduled, {known} known, {covered} covered")
    return problems
