"""Log of what becomes cached and what does not stay: maps with vLLM's keys, which api/kv_events.py publishes."""

from __future__ import annotations

from copy import copy
from typing import Any

from ..config import AttentionSpan, CacheConfig
from .hashing import HashChain

Event = dict[str, Any]
_DEVICE = {"medium": "GPU"}  # the device, by its name in vLLM; copies in tiers are not logged
_PLAIN_BYTES, _HASH_BYTES = 32, 8  # of a digest before a group's tag, and of those that are published


class CacheLog:
    """Events since `events` was cleared last. The first one says that what an earlier engine had cached is gone."""

    def __init__(self, config: CacheConfig) -> None:
        self.events: list[Event] = []
        self._size, self._first_group = config.block_size, 0
        self._kinds = [*map(_kind, config.groups), {"kv_cache_spec_kind": "mamba"}]
        self.cleared()

    def of_states(self) -> CacheLog:
        """Return a log of the states' pool that adds to these events; their group follows those of blocks."""
        log = copy(self)
        log._first_group = len(self._kinds) - 1
        return log

    def stored(self, name: bytes, text: bytes, chain: HashChain, block: int) -> None:
        """Log that the given block of a prefix is cached. `text` are its token ids as native int32."""
        parent, group = _hash(chain.digests[block - 1]) if block else None, self._group(name)
        last = self.events[-1] if self.events else {}
        if last.get("group_idx") != group or "token_ids" not in last or last["block_hashes"][-1] != parent:
            last = {"type": "BlockStored", "block_hashes": [], "parent_block_hash": parent, "token_ids": []} | _DEVICE
            last |= {"block_size": self._size, "lora_id": None, "lora_name": chain.lora or None, "extra_keys": []}
            last |= {"group_idx": group} | self._kinds[group]
            self.events.append(last)
        last["block_hashes"].append(_hash(name))
        last["token_ids"] += memoryview(text).cast("i").tolist()
        last["extra_keys"].append(chain.extra_keys(block * self._size, (block + 1) * self._size) or None)

    def removed(self, name: bytes) -> None:
        """Log that a block is not cached any more."""
        group, last = self._group(name), self.events[-1] if self.events else {}
        if last.get("group_idx") != group or "token_ids" in last:
            self.events.append({"type": "BlockRemoved", "block_hashes": [], "group_idx": group} | _DEVICE)
        self.events[-1]["block_hashes"].append(_hash(name))

    def cleared(self) -> None:
        """Log that nothing is cached any more."""
        self.events[:] = [{"type": "AllBlocksCleared"}]

    def _group(self, name: bytes) -> int:
        return self._first_group + sum(name[_PLAIN_BYTES:])  # the tag is no byte or one


def _hash(name: bytes) -> int:
    return int.from_bytes(name[:_HASH_BYTES], "big")


def _kind(span: AttentionSpan) -> Event:
    if span.window and not span.is_chunked:
        return {"kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": span.window}
    return {"kv_cache_spec_kind": "chunked_local_attention" if span.is_chunked else "full_attention"}
