"""Block hashes: a chain of sha256 in which each block's digest covers every token before it, and the cache salt.

Equal digests mean equal prefixes, so a hit never needs its tokens compared.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import sha256

TOKEN_BYTES = 4


def root_digest(cache_salt: str) -> bytes:
    """Parent digest of a sequence's first block: requests share blocks only under the same salt."""
    # A JSON string may hold lone surrogates; they are part of the salt like any other character.
    return sha256(b"neuronserve:" + cache_salt.encode("utf-8", "surrogatepass")).digest()


class HashChain:
    """The digests of a sequence's full blocks, each computed once as the sequence grows.

    A digest is the sha256 of the one before it and the block's tokens as little-endian int32.
    """

    __slots__ = ("_block_size", "_root", "digests")

    def __init__(self, block_size: int, cache_salt: str) -> None:
        self._block_size = block_size
        self._root = root_digest(cache_salt)
        self.digests: list[bytes] = []

    def extend(self, token_ids: Sequence[int], num_blocks: int) -> None:
        """Name the first `num_blocks` blocks of `token_ids`; those already named keep their digests."""
        digests, size = self.digests, self._block_size
        new = token_ids[len(digests) * size : num_blocks * size]
        packed, block_bytes = struct.pack(f"<{len(new)}i", *new), size * TOKEN_BYTES
        parent = digests[-1] if digests else self._root
        for begin in range(0, len(packed), block_bytes):
            parent = sha256(parent + packed[begin : begin + block_bytes]).digest()
            digests.append(parent)
