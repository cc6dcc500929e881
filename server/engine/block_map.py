"""Which block of the KV cache is whose, for observers that ask. Reads the books between two steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from neuronserve.server.kv_cache.blocks import NULL_BLOCK, BlockPool
from neuronserve.server.link.messages import BlockMap


def block_map(pool: BlockPool, tables: Mapping[str, Sequence[int]]) -> BlockMap:
    """The map of `pool`, whose blocks `tables` hold by request."""
    owners = np.full(pool.num_blocks, BlockMap.FREE, np.int32)
    owners[list(pool.cached.values())] = BlockMap.CACHED
    for i, ids in enumerate(tables.values()):
        owners[list(ids)] = BlockMap.FIRST_OWNER + i
    owners[np.asarray(pool.ref_counts) > 1] = BlockMap.SHARED
    owners = owners[NULL_BLOCK + 1 :]
    begins = np.flatnonzero(np.diff(owners, prepend=-1))
    lengths = np.diff(begins, append=len(owners))
    return BlockMap(list(zip(lengths.tolist(), owners[begins].tolist(), strict=True)), list(tables))
