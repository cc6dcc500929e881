"""What is wrong with the scheduler's books, for tests and debugging. Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from neuronserve.server.kv_cache.audit import audit as audit_cache
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.scheduler.sequence import Sequence


def audit(cache: KVCacheManager, open_seqs: Collection[Sequence], queued: Iterable[Sequence]) -> list[str]:
    """One line for each fault; `queued` are all that run or wait. O(blocks + open sequences)."""
    problems = audit_cache(cache, [seq.blocks for seq in open_seqs])
    if {*queued} != {*open_seqs}:
        problems.append("running + waiting is not open")
    for seq in open_seqs:
        covered = min(map(len, seq.blocks.tables)) * cache.config.block_size
        if seq.num_pending < 1 or seq.num_computed_tokens > covered or (covered > 0) != seq.is_running:
            problems.append(f"{seq.request.request_id}: {seq.num_computed_tokens} computed, {covered} covered")
    return problems
