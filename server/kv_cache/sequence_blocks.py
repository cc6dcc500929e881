"""The blocks of one sequence, and those of a prefix that it may share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .hashing import HashChain
from .state_slots import NO_STATE, SequenceState


class SequenceBlocks:
    """The blocks of one sequence: `tables[g][i]` holds positions `i * block_size` and up for the layers of group `g`.

    Only the manager changes them. A table never gets shorter while the sequence runs. Freed tables are replaced, never
    emptied, because a plan may still refer to them.
    """

    __slots__ = ("chain", "num_blocks", "num_dropped", "num_named", "state", "tables")

    def __init__(self, chain: HashChain, num_groups: int) -> None:
        self.chain = chain
        self.clear(num_groups)

    def clear(self, num_groups: int) -> None:
        """Begin new tables without a block."""
        self.tables: tuple[list[int], ...] = tuple([] for _ in range(num_groups))
        self.num_blocks = 0  # allocated; a table with a window covers the later ones when it gets there
        self.num_named = 0  # leading blocks that were offered to the prefix cache
        self.num_dropped = [0] * num_groups  # leading blocks given back, replaced by the null block
        self.state = SequenceState()


class Part(NamedTuple):
    """The first tokens of a cached block, with which a sequence begins a block of its own."""

    num_tokens: int
    blocks: tuple[int, ...]  # of each group
    is_all: bool  # they are all that was computed in the block


class Prefix(NamedTuple):
    """Cached blocks of a prefix, for each group; the null block replaces blocks that no later token looks at.

    TO_LOAD replaces a block, or the state, that has only a copy in a tier.
    """

    num_blocks: int
    tables: tuple[Sequence[int], ...]
    state: int = NO_STATE  # slot of the state after these blocks, where layers keep one
    num_own: int = 0  # blocks of the prefix that is found without a copy
    part: Part | None = None  # tokens after these blocks


NO_PREFIX = Prefix(0, ())
