"""Work that an engine does between two steps for observers and for its host."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..host.memory import GIB
from ..kv_cache.blocks import NULL_BLOCK, BlockPool
from ..kv_cache.manager import KVCacheManager
from ..link.messages import BlockMap
from .inbox import Grammars

log = logging.getLogger("neuronserve.engine")


def block_map(pool: BlockPool, tables: Mapping[str, Sequence[int]]) -> BlockMap:
    """Return the owner of each block of `pool`; `tables` are the blocks of each running request."""
    owners = np.full(pool.num_blocks, BlockMap.FREE, np.int32)
    owners[list(pool.cached.values())] = BlockMap.CACHED
    for i, ids in enumerate(tables.values()):
        owners[list(ids)] = BlockMap.FIRST_OWNER + i
    owners[np.asarray(pool.ref_counts) > 1] = BlockMap.SHARED
    owners = owners[NULL_BLOCK + 1 :]
    begins = np.flatnonzero(np.diff(owners, prepend=-1))
    lengths = np.diff(begins, append=len(owners))
    return BlockMap(list(zip(lengths.tolist(), owners[begins].tolist(), strict=True)), list(tables))


def release_memory(
    cache: KVCacheManager | None, give_back: Callable[[Sequence[int]], int] | None, grammars: Grammars | None
) -> None:
    """Forget cached prefixes and grammars, and return the pages of all free blocks to the host."""
    if cache is not None:
        cache.reset_prefix_cache()
        if give_back is not None:
            num_bytes = give_back(list(cache.pool.free_blocks()))
            log.info("returned %.2f GiB of free KV blocks to the host", num_bytes / GIB)
    if grammars is not None:
        grammars.forget()
