"""Block hashes: a chain of sha256 in which each block's digest covers every token before it, and the cache salt.

Equal digests mean equal prefixes, so a hit never needs its tokens compared.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import sha256


def root_digest(cache_salt: str) -> bytes:
    """Parent digest of a sequence's first block: requests share blocks only under the same salt."""
    # A JSON string may hold lone surrogates; they are part of the salt like any other character.
    return sha256(b"neuronserve:" + cache_salt.encode("utf-8", "surrogatepass")).digest()


def block_digest(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """sha256 of the parent's digest and the block's tokens as little-endian int32."""
    return sha256(parent + struct.pack(f"<{len(token_ids)}i", *token_ids)).digest()


class HashChain:
    """The digests of a sequence's full blocks, each computed once as the sequence grows."""

    __slots__ = ("_block_size", "_root", "digests")

    def __init__(self, block_size: int, cache_salt: str) -> None:
        self._block_size = block_size
        self._root = root_digest(cache_salt)
        self.digests: list[bytes] = []

    def extend(self, token_ids: Sequence[int], num_blocks: int) -> None:
        """Name the first `num_blocks` blocks of `token_ids`; those already named keep their digests."""
        size = self._block_size
        for block in range(len(self.digests), num_blocks):
            parent = self.digests[-1] if self.digests else self._root
            self.digests.append(block_digest(parent, token_ids[block * size : (block + 1) * size]))
