"""SQLite in one thread: records in tables, and one transaction a call. Knows nothing of the records' meaning.

In WAL mode committed data survives kill -9, and a loss of power costs at most the last transactions. The database is
locked while it is open, so that two servers cannot use one data directory.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ...errors import SettingsError, StorageFull

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SCHEMA_VERSION = 5
LOCK_TIMEOUT_S = 10.0  # for a previous server to end
_COLUMNS = {"str": "TEXT", "int": "INTEGER", "float": "REAL", "bytes": "BLOB", "bool": "INTEGER"}

R = TypeVar("R", bound="DataclassInstance")
T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]


@dataclass(frozen=True)
class Table(Generic[R]):
    """Table whose rows are records: columns are the fields, the primary key is the first `num_keys` of them."""

    name: str
    record: type[R]
    num_keys: int = 1

    @property
    def schema(self) -> str:
        columns = [(each.name, str(each.type).split(" | ")) for each in fields(self.record)]
        keys = ", ".join(name for name, _ in columns[: self.num_keys])
        typed = [f"{name} {_COLUMNS[kinds[0]]}{'' if 'None' in kinds else ' NOT NULL'}" for name, kinds in columns]
        return f"CREATE TABLE IF NOT EXISTS {self.name} ({', '.join(typed)}, PRIMARY KEY ({keys}))"

    def change_columns(self, db: sqlite3.Connection) -> None:
        """Add the fields that an older server's table lacks, the last ones, which have defaults; drop those it had."""
        known = {row[1] for row in db.execute(f"PRAGMA table_info({self.name})")}
        for gone in known - {each.name for each in fields(self.record)}:
            db.execute(f"ALTER TABLE {self.name} DROP COLUMN {gone}")
        for each in fields(self.record):
            if each.name not in known:
                kind, *others = str(each.type).split(" | ")
                default = "" if others else f" NOT NULL DEFAULT {each.default!r}"
                db.execute(f"ALTER TABLE {self.name} ADD COLUMN {each.name} {_COLUMNS[kind]}{default}")

    def put(self, db: sqlite3.Connection, record: R, is_new: bool = False) -> bool:
        """Insert a record or replace the one with its key;

        `is_new` keeps an existing one. Return whether it was stored.
        """
        marks = ", ".join("?" * len(fields(self.record)))
        how = "IGNORE" if is_new else "REPLACE"
        return db.execute(f"INSERT OR {how} INTO {self.name} VALUES ({marks})", astuple(record)).rowcount == 1

    def get(self, db: sqlite3.Connection, key: str) -> R | None:
        """Return the record whose first field is `key`."""
        return next(self.select(db, f"WHERE {fields(self.record)[0].name} = ?", key), None)

    def select(self, db: sqlite3.Connection, clause: str = "", *values: Any) -> Iterator[R]:
        """Return the records that a clause after FROM finds;

        `values` replace its question marks. No client writes SQL.
        """
        return (self._made(row) for row in db.execute(f"SELECT * FROM {self.name} {clause}", values))

    def delete(self, db: sqlite3.Connection, clause: str, *values: Any) -> int:
        """Delete the records that a clause finds, and return their number."""
        return db.execute(f"DELETE FROM {self.name} {clause}", values).rowcount

    def _made(self, row: tuple[Any, ...]) -> R:
        return self.record(*row)


class Database:
    """A database file, or memory of this process if `path` is None. Raises SettingsError when it cannot be opened."""

    def __init__(self, path: Path | None, tables: Sequence[Table[Any]]) -> None:
        self._thread = ThreadPoolExecutor(1, "store")
        try:
            self._db = _opened(path, tables)
        except sqlite3.Error as error:
            raise SettingsError(f"--data-dir: cannot use {path}: {error}") from error

    async def run(self, work: Work[T]) -> T:
        """Return the result of `work`, a transaction that is rolled back when it raises. Raises StorageFull.

        The transaction continues when the caller is cancelled.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._transact, work)

    def wait(self, work: Work[T]) -> T:
        """Do the same as `run` and block the calling thread."""
        return self._thread.submit(self._transact, work).result()

    async def close(self) -> None:
        """Write pending data into the database file, and close it."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._db.close)
        self._thread.shutdown()

    def _transact(self, work: Work[T]) -> T:
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                return work(self._db)
        except (sqlite3.OperationalError, OSError) as error:
            raise StorageFull(f"The server cannot write to its data directory: {error}.") from error


def _opened(path: Path | None, tables: Sequence[Table[Any]]) -> sqlite3.Connection:
    db = sqlite3.connect(path or ":memory:", timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        _begin(db, tables)
    except sqlite3.Error:
        db.close()
        raise
    return db


def _begin(db: sqlite3.Connection, tables: Sequence[Table[Any]]) -> None:
    """Create the tables, or update those of an older server."""
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("BEGIN EXCLUSIVE")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if not 0 <= version <= SCHEMA_VERSION:
        raise sqlite3.DatabaseError(f"it has version {version} of another server's tables, not {SCHEMA_VERSION}")
    # New or of an older server; otherwise nothing is written, because the disk may be full.
    if version != SCHEMA_VERSION:
        for table in tables:
            db.execute(table.schema)
            table.change_columns(db)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    db.execute("COMMIT")
