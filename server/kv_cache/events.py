"""Log of what becomes cached and what does not stay: maps with vLLM's keys, which api/kv_events.py publishes."""

from __future__ import annotations

from copy import copy
from typing import Any

from ..config import AttentionSpan, CacheConfig
from .hashing import Blob

Event = dict[str, Any]
_DEVICE = "GPU"  # name of the device's memory, as in vLLM; copies in tiers have that of their store
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

    def stored(self, blob: Blob) -> None:
        """Log that a whole block of a prefix is cached."""
        name, chain, block = blob.name, blob.chain, blob.block
        if chain is None or not blob.is_whole:
            return
        parent, group = _hash(chain.digests[block - 1]) if block else None, self._group(name)
        last = self._event("BlockStored", _DEVICE, group, parent)
        if not last["block_hashes"]:
            last |= {"parent_block_hash": parent, "lora_name": chain.lora or None, "extra_keys": []}
        last["block_hashes"].append(_hash(name))
        last["token_ids"] += memoryview(blob.text).cast("i").tolist()
        last["extra_keys"].append(chain.extra_keys(block * self._size, (block + 1) * self._size) or None)

    def removed(self, name: bytes, is_whole: bool) -> None:
        """Log that a whole block is not cached any more."""
        if is_whole:
            self.note(name, _DEVICE, False)

    def note(self, name: bytes, medium: str, is_there: bool) -> None:
        """Log that a tier has a copy, by its name alone as in vLLM, or none any more."""
        kind = "BlockStored" if is_there else "BlockRemoved"
        self._event(kind, medium, self._group(name))["block_hashes"].append(_hash(name))

    def _event(self, kind: str, medium: str, group: int, parent: int | None = None) -> Event:
        """Return an event for one more block: the last one, if it is alike and, on the device, ends with `parent`."""
        last = self.events[-1] if self.events else {"type": ""}
        is_alike = last["type"] == kind and (last["medium"], last["group_idx"]) == (medium, group)
        is_next = kind == "BlockRemoved" or medium != _DEVICE or last.get("block_hashes", [None])[-1] == parent
        if not (is_alike and is_next):
            last = {"type": kind, "block_hashes": [], "medium": medium, "group_idx": group}
            if kind == "BlockStored":
                last |= {"parent_block_hash": None, "token_ids": [], "block_size": self._size, "lora_id": None}
                last |= {"lora_name": None, "extra_keys": None} | self._kinds[group]
            self.events.append(last)
        return last

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
