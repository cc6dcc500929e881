"""Changes of what a prefix cache holds, in order, for those who follow it from outside. Nothing is kept by default."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

_PLAIN_BYTES = 32  # of a digest; a group's tag follows it
_HASH_BYTES = 8  # of a digest that are published: routers take integers of 64 bits
Media = list[tuple[str, int]]  # digests of what encoders read, and where it begins, in tokens from the block's begin


class Chain(Protocol):
    """A prefix (hashing.HashChain)."""

    digests: list[bytes]
    salt: str
    lora: str

    def media_in(self, begin: int, end: int) -> Media:
        """Return what encoders read that lies in these tokens."""
        ...


@dataclass(slots=True)
class CacheChange:
    """Blocks of one group that are found from now on, or no longer; `cleared` stands for all blocks of all groups.

    All fields but `group` and `hashes` describe stored blocks, which follow each other in one prefix.
    """

    kind: Literal["stored", "removed", "cleared"]
    group: int = 0  # the one after the last is that of states
    hashes: list[int] = field(default_factory=list)
    parent: int | None = None  # hash of the block before the first one
    token_ids: list[int] = field(default_factory=list)
    media: list[Media] = field(default_factory=list)  # of each block
    salt: str = ""
    lora: str = ""  # digest of the adapter, "" for none


class CacheLog:
    """The changes since the last `take`, of the pool that it is given to and of logs made by `beside`."""

    def __init__(self, changes: list[CacheChange] | None = None, group: int = 0) -> None:
        """`group` is added to the groups of blocks. The first change clears what an earlier engine has stored."""
        self.changes = [CacheChange("cleared")] if changes is None else changes
        self._group = group

    def beside(self, group: int) -> CacheLog:
        """Return a log for another pool that writes to the same changes."""
        return CacheLog(self.changes, group)

    def take(self) -> list[CacheChange]:
        """Return the changes, and forget them."""
        taken = self.changes[:]
        self.changes.clear()
        return taken

    def stored(self, name: bytes, text: bytes, chain: Chain, block: int) -> None:
        """Record that a block is cached, the given one of its prefix. `text` are its token ids as native int32."""
        token_ids = memoryview(text).cast("i").tolist()
        begin = block * len(token_ids)
        media, parent = (
            chain.media_in(begin, begin + len(token_ids)),
            _hash(chain.digests[block - 1]) if block else None,
        )
        last, group = self.changes[-1] if self.changes else None, self._group_of(name)
        if last is None or last.kind != "stored" or (last.group, last.hashes[-1]) != (group, parent):
            last = CacheChange("stored", group, parent=parent, salt=chain.salt, lora=chain.lora)
            self.changes.append(last)
        last.hashes.append(_hash(name))
        last.token_ids += token_ids
        last.media.append(media)

    def removed(self, name: bytes) -> None:
        """Record that a block is not cached any more."""
        group, last = self._group_of(name), self.changes[-1] if self.changes else None
        if last is None or (last.kind, last.group) != ("removed", group):
            last = CacheChange("removed", group)
            self.changes.append(last)
        last.hashes.append(_hash(name))

    def cleared(self) -> None:
        """Record that nothing is cached any more."""
        self.changes[:] = [CacheChange("cleared")]

    def _group_of(self, name: bytes) -> int:
        return self._group + (name[_PLAIN_BYTES] if len(name) > _PLAIN_BYTES else 0)


def _hash(name: bytes) -> int:
    return int.from_bytes(name[:_HASH_BYTES], "big")
