"""Stored conversations: lists of items that requests and responses add to."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ....errors import InvalidRequest
from ...store.conversations import ConversationStore
from ...store.records import StoredConversation
from ...wire.model import MAX_ITEMS
from ...wire.responses import InputItem
from .conversation import Messages
from .items import ItemIds, listed, new_id

MAX_BYTES = 8 * 2**20  # items of a conversation that can still grow


def new_conversation(metadata: dict[str, str] | None, items: Sequence[InputItem], owner: str) -> StoredConversation:
    """Return a conversation that begins with `items`. Raises InvalidRequest."""
    now, conversation_id = time.time(), new_id("conv")
    ids = ItemIds(conversation_id)
    data, kept = encoded(listed(_checked(items), ids)), encoded(metadata or {})
    return StoredConversation(
        conversation_id, now, now, len(data) + len(kept), kept, data, num_made=ids.num_made, owner=owner
    )


async def add_items(
    store: ConversationStore, conversation_id: str, sees: str | None, items: Sequence[dict[str, Any]]
) -> None:
    """Add items that have ids. The caller has checked that there is room. Raises NotFound."""
    await store.update(conversation_id, sees, lambda stored: _with(stored, items, stored.num_made))


async def add_new_items(
    store: ConversationStore, conversation_id: str, sees: str | None, items: Sequence[InputItem]
) -> list[dict[str, Any]]:
    """Add items; return them as they are listed. Raises NotFound, and InvalidRequest if there is no room."""
    added: list[dict[str, Any]] = []
    _checked(items)

    def change(stored: StoredConversation) -> StoredConversation:
        require_room(stored, len(items), "items")
        ids = ItemIds(conversation_id, stored.num_made)
        added.extend(listed(items, ids))
        return _with(stored, added, ids.num_made)

    await store.update(conversation_id, sees, change)
    return added


def require_room(stored: StoredConversation, num_new: int, param: str) -> None:
    """Raise InvalidRequest if a conversation is too long, or would be with `num_new` more items."""
    if len(stored.items) > MAX_BYTES:
        raise InvalidRequest(f"The conversation has {len(stored.items)} bytes; its limit is {MAX_BYTES}.", param)
    there = len(json.loads(stored.items))
    if there + num_new > MAX_ITEMS:
        raise InvalidRequest(f"The conversation has {there} items; with {num_new} more it passes {MAX_ITEMS}.", param)


def encoded(value: Any) -> bytes:
    """Encode a value as records store it."""
    return json.dumps(value, ensure_ascii=False).encode()


def _checked(items: Sequence[InputItem]) -> Sequence[InputItem]:
    """Return the items. Raises InvalidRequest for an item that no request could have."""
    for index, item in enumerate(items):
        Messages().add(item, f"items[{index}]")
    return items


def _with(stored: StoredConversation, items: Sequence[dict[str, Any]], num_made: int) -> StoredConversation:
    return replace(stored, items=encoded([*json.loads(stored.items), *items]), num_made=num_made)
