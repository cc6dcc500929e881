"""Bounds of stored objects: number, bytes and age; objects that were not used for longest are deleted first."""

from __future__ import annotations

import sqlite3
import time
from typing import Any

from ..config import StoreConfig
from .database import Table

DAY_S = 86400.0


def oldest(limits: StoreConfig) -> float:
    """Return the time before which stored objects are deleted."""
    return time.time() - limits.stored_response_days * DAY_S


def evict(db: sqlite3.Connection, table: Table[Any], limits: StoreConfig, may_go: str, age: str = "created_at") -> None:
    """Delete rows beyond the limits of a table with `used_at` and `num_bytes`.

    `may_go` is a condition on rows and `age` the column of their age, both SQL that no client has written.
    """
    table.delete(db, f"WHERE {age} < ? AND {may_go}", oldest(limits))
    count, size = db.execute(f"SELECT count(*), coalesce(sum(num_bytes), 0) FROM {table.name}").fetchone()
    most = limits.max_stored_responses, limits.max_stored_response_bytes
    if count <= most[0] and size <= most[1]:
        return
    for key, num_bytes in db.execute(
        f"SELECT id, num_bytes FROM {table.name} WHERE {may_go} ORDER BY used_at"
    ).fetchall():
        table.delete(db, "WHERE id = ?", key)
        count, size = count - 1, size - num_bytes
        if count <= most[0] and size <= most[1]:
            return
