"""Block hashes: a chain of sha256 in which a block's digest covers all tokens up to it, the cache salt and the adapter.

Equal digests mean equal prefixes, so a hit never needs its tokens compared.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from hashlib import sha256

from ..types import MediaItem


def root_digest(cache_salt: str, lora: str = "") -> bytes:
    """Return the parent digest of a first block: requests share blocks only under the same salt and adapter.

    `lora` is an adapter's digest, "" for none. The words before the salt keep adapters apart for any salt.
    """
    # A JSON string may hold lone surrogates; they are part of the salt like any other character.
    scope = f"lora {lora}:" if lora else "neuronserve:"
    return sha256(scope.encode() + cache_salt.encode("utf-8", "surrogatepass")).digest()


@cache
def _block_layout(block_size: int) -> struct.Struct:
    """Layout of the token ids of one block: little-endian int32."""
    return struct.Struct(f"<{block_size}i")


class HashChain:
    """The digests of a sequence's full blocks, each computed once as the sequence grows.

    A digest is the sha256 of the one before it, the block's tokens as little-endian int32, and offsets and digests
    of what encoders read that begins in the block: the tokens in place of all pictures are the same.
    """

    __slots__ = ("_block_size", "_media", "_pack", "_root", "digests")

    def __init__(self, block_size: int, cache_salt: str, lora: str = "", media: Sequence[MediaItem] = ()) -> None:
        self._block_size = block_size
        self._media = tuple((item.offset, item.digest) for item in media)
        self._pack = _block_layout(block_size).pack
        self._root = root_digest(cache_salt, lora)
        self.digests: list[bytes] = []

    def extend(self, token_ids: Sequence[int], num_blocks: int) -> None:
        """Compute the digests of the first `num_blocks` blocks of `token_ids` that have none yet."""
        digests, size, pack = self.digests, self._block_size, self._pack
        parent = digests[-1] if digests else self._root
        for begin in range(len(digests) * size, num_blocks * size, size):
            shown = b""
            if self._media:
                here = [(at - begin, digest) for at, digest in self._media if begin <= at < begin + size]
                shown = b"".join(at.to_bytes(4, "little") + digest for at, digest in here)
            parent = sha256(parent + pack(*token_ids[begin : begin + size]) + shown).digest()
            digests.append(parent)
