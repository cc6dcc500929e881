"""Stored conversations, with the bounds of responses."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace

from ...errors import NotFound
from ..config import StoreConfig
from .bounds import evict, oldest
from .database import Database
from .records import CONVERSATIONS, StoredConversation

Change = Callable[[StoredConversation], StoredConversation]


class ConversationStore:
    """Conversations by id. Every method may raise StorageFull. `sees` is the owner of visible ones; None = all."""

    def __init__(self, database: Database, limits: StoreConfig) -> None:
        self._database = database
        self._limits = limits

    async def create(self, conversation: StoredConversation) -> None:
        """Store a new conversation, and delete old ones beyond the limits."""
        await self._database.run(lambda db: self._put(db, conversation))

    async def get(self, conversation_id: str, sees: str | None, param: str = "conversation_id") -> StoredConversation:
        """Return a conversation. Raises NotFound."""
        return await self._database.run(lambda db: self._found(db, conversation_id, sees, param))

    async def update(self, conversation_id: str, sees: str | None, change: Change) -> StoredConversation:
        """Apply `change` to the conversation in one transaction and return the result. Raises NotFound."""

        def work(db: sqlite3.Connection) -> StoredConversation:
            changed = change(self._found(db, conversation_id, sees, "conversation_id"))
            num_bytes = len(changed.metadata) + len(changed.items)
            changed = replace(changed, used_at=time.time(), num_bytes=num_bytes)
            self._put(db, changed)
            return changed

        return await self._database.run(work)

    async def delete(self, conversation_id: str, sees: str | None) -> None:
        """Delete a conversation. Raises NotFound."""

        def work(db: sqlite3.Connection) -> None:
            self._found(db, conversation_id, sees, "conversation_id")
            CONVERSATIONS.delete(db, "WHERE id = ?", conversation_id)

        await self._database.run(work)

    def _put(self, db: sqlite3.Connection, conversation: StoredConversation) -> None:
        CONVERSATIONS.put(db, conversation)
        evict(db, CONVERSATIONS, self._limits, "true", age="used_at")

    def _found(self, db: sqlite3.Connection, key: str, sees: str | None, param: str) -> StoredConversation:
        found = CONVERSATIONS.get(db, key)
        if found is None or found.used_at < oldest(self._limits) or sees not in (None, found.owner):
            raise NotFound(f"There is no conversation {key[:80]!r}.", param)
        return found
