"""Owners of stored objects. Objects of an older server's tables have none, and only operators see all."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from neuronserve.server.api.config import StoreConfig
from neuronserve.server.api.store.files import FileLabel
from neuronserve.server.api.store.store import Store
from neuronserve.server.errors import NotFound, SettingsError

# What version 1 of the tables had.
OLD_FILES = (
    "CREATE TABLE files (id TEXT NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER, filename TEXT NOT NULL, "
    "purpose TEXT NOT NULL, num_bytes INTEGER NOT NULL, PRIMARY KEY (id))"
)
OLD_RESPONSES = (
    "CREATE TABLE responses (id TEXT NOT NULL, created_at REAL NOT NULL, used_at REAL NOT NULL, previous_id TEXT, "
    "status TEXT NOT NULL, num_bytes INTEGER NOT NULL, body BLOB NOT NULL, input_items BLOB NOT NULL, PRIMARY KEY (id))"
)


def write_old_tables(directory: Path) -> None:
    with sqlite3.connect(directory / "neuronserve.sqlite3") as db:
        db.execute(OLD_FILES)
        db.execute(OLD_RESPONSES)
        db.execute("INSERT INTO files VALUES ('file-old', 1, NULL, 'a.jsonl', 'batch', 0)")
        db.execute("INSERT INTO responses VALUES ('resp_old', 9e12, 1, NULL, 'completed', 2, '{}', '[]')")
        db.execute("PRAGMA user_version = 1")
    db.close()


async def test_an_older_servers_tables_are_read_on_and_are_nobodys(tmp_path: Path) -> None:
    write_old_tables(tmp_path)
    for _ in range(2):  # as they are then, they are opened once more
        store = Store(StoreConfig(tmp_path))
        assert (await store.files.get("file-old", None)).owner == ""
        assert (await store.responses.get("resp_old", None)).owner == ""
        for look in (store.files.get("file-old", "a"), store.responses.get("resp_old", "a")):
            with pytest.raises(NotFound):
                await look
        file = await store.files.create(lambda out: None, FileLabel("b", "batch", None, "a"))
        assert [each.id for each in await store.files.page("a", None, None, 9, False)][-1] == file.id
        assert (await store.files.get(file.id, "a")).owner == "a"
        await store.close()


async def test_tables_of_a_newer_server_are_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "neuronserve.sqlite3") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(SettingsError, match="version 99"):
        Store(StoreConfig(tmp_path))
