"""Which block of the KV cache is whose, for observers that ask. Reads the books between two steps, changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from server.kv_cache.blocks import NULL_BLOCK, BlockPool
from server.link.messages import BlockMap, Input, Order, ReadBlocks


class Inputs(Protocol):
    """Where all that the API sends comes from."""

    def drain(self, timeout_s: float) -> list[Input]:
        """All that has come, oldest first; waits up to `timeout_s` seconds for the first."""


class BlockMapInputs:
    """Inputs without the questions about blocks, which are answered before the others are carried out."""

    def __init__(self, inputs: Inputs, read: Callable[[], BlockMap], reply: Callable[[BlockMap], None]) -> None:
        self._inputs, self._read, self._reply = inputs, read, reply

    def drain(self, timeout_s: float) -> list[Order]:
        """As of `inputs`; may return nothing before `timeout_s` has passed."""
        orders: list[Order] = []
        for command in self._inputs.drain(timeout_s):
            if isinstance(command, ReadBlocks):
                self._reply(self._read())
            else:
                orders.append(command)
        return orders


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
