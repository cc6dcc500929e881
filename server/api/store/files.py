"""Files of clients and of batches: content in the data directory under the file's id, the rest in the database.

A file exists once its record does. Content without a record was left by a killed server and is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ...errors import InvalidRequest, NotFound, SettingsError, StorageFull
from ...host.private_file import make_private_directory, open_private, tighten
from ..config import StoreConfig
from .database import Database
from .records import BATCHES, FILES, StoredFile

MIN_FREE_BYTES = 64 * 2**20  # of the disk, reserved for open requests
ENDED = ("failed", "completed", "expired", "cancelled")  # states of a batch that no longer needs its input
COPY_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class FileLabel:
    """Name, purpose, lifetime and owner of a new file."""

    filename: str
    purpose: str
    lifetime_s: int | None
    owner: str


class FileStore:
    """Files by id. Every method may raise StorageFull. `sees` is the owner of visible files; None = all owners."""

    def __init__(self, database: Database, directory: Path, limits: StoreConfig) -> None:
        self._database = database
        self._directory = directory
        self._limits = limits
        try:
            make_private_directory(directory)
            tighten(directory)
        except OSError as error:
            raise SettingsError(f"--data-dir: cannot use {directory}: {error.strerror}") from error

    def path(self, file_id: str) -> Path:
        """Path of the content of an existing file."""
        return self._directory / file_id

    async def clean(self) -> None:
        """Delete content without a record, before anything is stored."""
        kept = await self._database.run(lambda db: {each.id for each in FILES.select(db)})
        await asyncio.to_thread(self._remove, lambda file_id: file_id not in kept)

    async def create(self, write: Callable[[BinaryIO], None], label: FileLabel) -> StoredFile:
        """Store a file whose content `write` writes, called in a thread."""
        await self._expire()
        file = await self.write(write, label)
        try:
            await self._database.run(lambda db: self._insert(db, file))
        except BaseException:
            self.path(file.id).unlink(missing_ok=True)
            raise
        return file

    async def write(self, write: Callable[[BinaryIO], None], label: FileLabel) -> StoredFile:
        """Write the content alone and return the record; the file exists once the record is in the database."""
        file_id = f"file-{uuid.uuid4().hex}"
        try:
            size = await asyncio.to_thread(self._write, file_id, write)
        except OSError as error:
            self.path(file_id).unlink(missing_ok=True)
            raise StorageFull(f"The server cannot write to its data directory: {error.strerror}.") from error
        now = int(time.time())
        expires_at = None if label.lifetime_s is None else now + label.lifetime_s
        return StoredFile(file_id, now, expires_at, label.filename, label.purpose, size, label.owner)

    async def page(
        self, sees: str | None, purpose: str | None, after: str | None, limit: int, is_newest_first: bool
    ) -> list[StoredFile]:
        """Return the files behind the file `after`. Raises NotFound when that does not exist."""
        wanted = ["coalesce(expires_at, ?1) >= ?1", "purpose = coalesce(?2, purpose)", "owner = coalesce(?4, owner)"]
        values = [int(time.time()), purpose, after, sees]
        if after is not None:
            await self.get(after, sees, "after")
            wanted.append(f"rowid {'<' if is_newest_first else '>'} (SELECT rowid FROM files WHERE id = ?3)")
        order = "DESC" if is_newest_first else "ASC"
        clause = f"WHERE {' AND '.join(wanted)} ORDER BY rowid {order} LIMIT ?5"
        return await self._database.run(lambda db: [*FILES.select(db, clause, *values, limit)])

    async def get(self, file_id: str, sees: str | None, param: str = "file_id") -> StoredFile:
        """Return a file's record. Raises NotFound."""
        record = await self._database.run(lambda db: FILES.get(db, file_id))
        is_there = record is not None and (record.expires_at or time.time()) >= int(time.time())
        if record is None or not is_there or sees not in (None, record.owner):
            raise NotFound(f"There is no file {file_id[:80]!r}.", param)
        return record

    async def delete(self, file_id: str, sees: str | None) -> None:
        """Delete a file. Raises NotFound, or InvalidRequest for the input of a batch that has not ended."""
        await self.get(file_id, sees)

        def work(db: sqlite3.Connection) -> int:
            clause = "WHERE input_file_id = ? AND status NOT IN (?, ?, ?, ?)"
            for batch in BATCHES.select(db, clause, file_id, *ENDED):
                raise InvalidRequest(
                    f"The file {file_id!r} is the input of {batch.id!r}, which is not done.", "file_id"
                )
            return FILES.delete(db, "WHERE id = ?", file_id)

        if not await self._database.run(work):
            raise NotFound(f"There is no file {file_id[:80]!r}.", "file_id")
        await asyncio.to_thread(self.path(file_id).unlink, missing_ok=True)

    def require_space(self, num_bytes: int) -> None:
        """Raise StorageFull when the disk is nearly full."""
        free = shutil.disk_usage(self._directory).free
        if free < MIN_FREE_BYTES + num_bytes:
            raise StorageFull(f"The disk of the data directory has {free} bytes left, too few for {num_bytes} more.")

    def _write(self, file_id: str, write: Callable[[BinaryIO], None]) -> int:
        with open_private(self.path(file_id), "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def _insert(self, db: sqlite3.Connection, record: StoredFile) -> None:
        (used,) = db.execute("SELECT coalesce(sum(num_bytes), 0) FROM files").fetchone()
        most = self._limits.max_data_bytes
        if used + record.num_bytes > most:
            raise StorageFull(
                f"Files take {used} bytes; {record.num_bytes} more would be over the {most} of --max-data-bytes."
            )
        FILES.put(db, record)

    async def _expire(self) -> None:
        clause = "WHERE expires_at < ? AND id NOT IN (SELECT input_file_id FROM batches WHERE status NOT IN (?,?,?,?))"

        def work(db: sqlite3.Connection) -> set[str]:
            values = int(time.time()), *ENDED
            expired = {each.id for each in FILES.select(db, clause, *values)}
            FILES.delete(db, clause, *values)
            return expired

        if expired := await self._database.run(work):
            await asyncio.to_thread(self._remove, expired.__contains__)

    def _remove(self, is_gone: Callable[[str], bool]) -> None:
        for path in self._directory.iterdir():
            if is_gone(path.name):
                with contextlib.suppress(OSError):
                    path.unlink()


def copy_of(source: BinaryIO) -> Callable[[BinaryIO], None]:
    """Return a writer of the rest of `source`."""
    return lambda file: shutil.copyfileobj(source, file, COPY_BYTES)
