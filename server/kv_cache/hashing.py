"""Block hashes: a chain of sha256 in which a block's digest covers all tokens up to it, the cache salt and the adapter.

Equal digests mean equal prefixes, so a hit never needs its tokens compared.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from ..types import MediaItem


def root_digest(cache_salt: str, lora: str = "") -> bytes:
    """Return the parent digest of a first block: requests share blocks only under the same salt and adapter.

    `lora` is an adapter's digest, "" for none. The words before the salt keep adapters apart for any salt.
    """
    # A JSON string may hold lone surrogates; they are part of the salt like any other character.
    scope = f"lora {lora}:" if lora else "neuronserve:"
    return sha256(scope.encode() + cache_salt.encode("utf-8", "surrogatepass")).digest()


def packed(token_ids: Sequence[int]) -> bytes:
    """Return token ids as little-endian int32."""
    return struct.pack(f"<{len(token_ids)}i", *token_ids)


class Blob(NamedTuple):
    """Identity of a block, or of the state after it, wherever it lies."""

    name: bytes
    text: bytes  # token ids of its block
    chain: HashChain | None = None  # a prefix that contains it
    block: int = 0  # its place there
    tag: bytes = b""  # of its group, with which the name ends
    is_whole: bool = True  # False: the block has the tokens of `text` alone


class HashChain:
    """The digests of a sequence's full blocks, each computed once as the sequence grows.

    A digest is the sha256 of the one before it, the block's tokens as little-endian int32, and offsets and digests
    of what encoders read that begins in the block: the tokens in place of all pictures are the same.
    """

    __slots__ = ("_block_size", "_root", "_salt", "digests", "lora", "media")

    def __init__(self, block_size: int, cache_salt: str, lora: str = "", media: Sequence[MediaItem] = ()) -> None:
        self._block_size = block_size
        self.media = tuple((item.offset, item.digest, item.num_tokens) for item in media)  # read by encoders
        self._salt, self.lora = cache_salt, lora
        self._root = root_digest(cache_salt, lora)
        self.digests: list[bytes] = []

    def extend(self, token_ids: Sequence[int], num_blocks: int) -> None:
        """Compute the digests of the first `num_blocks` blocks of `token_ids` that have none yet."""
        digests, size = self.digests, self._block_size
        first, end = len(digests) * size, num_blocks * size
        if first >= end:
            return
        parent, text = digests[-1] if digests else self._root, packed(token_ids[first:end])
        for own in range(0, len(text), 4 * size):
            known = parent + text[own : own + 4 * size]
            if self.media:
                known += self._shown(first + own // 4)
            parent = sha256(known).digest()
            digests.append(parent)

    def _shown(self, begin: int) -> bytes:
        """Offsets and digests of what encoders read that begins in the block at `begin`."""
        end = begin + self._block_size
        here = [(at - begin, digest) for at, digest, _ in self.media if begin <= at < end]
        return b"".join(at.to_bytes(4, "little") + digest for at, digest in here)

    def blob(self, token_ids: Sequence[int], block: int, tag: bytes = b"", num_tokens: int | None = None) -> Blob:
        """Return the identity of a block whose digest is known, or of its first `num_tokens`; `tag` is its group's."""
        begin = block * self._block_size
        text = packed(token_ids[begin : begin + (num_tokens or self._block_size)])
        digest = sha256(self.parent(block) + text).digest() if num_tokens else self.digests[block]
        return Blob(digest + tag, text, self, block, tag, num_tokens is None)

    def parent(self, block: int) -> bytes:
        """Return what the digest of a block begins with: that of the block before, or of salt and adapter."""
        return self.digests[block - 1] if block else self._root

    def extra_keys(self, begin: int, end: int) -> list[Any]:
        """Return what besides tokens distinguishes a block: adapter, media with offsets, and in the first the salt."""
        media = [(digest.hex(), at - begin) for at, digest, num in self.media if at < end and begin < at + num]
        salt = "" if begin else self._salt.encode(errors="replace").decode()
        return [*filter(None, [self.lora]), *media, *filter(None, [salt])]
