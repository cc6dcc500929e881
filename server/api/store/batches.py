"""Batches and the results of their lines. A line's result is one row, whose key makes it unique."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...errors import NotFound, QueueFull
from .database import Database
from .files import ENDED
from .records import BATCHES, FILES, RESULTS, LineResult, StoredBatch, StoredFile

MAX_OPEN = 1000  # batches that have not ended
MAX_ENDED = 10_000  # older ones are deleted
READ_LINES = 100  # results in memory at once
_IS_OPEN = "status NOT IN (?, ?, ?, ?)"


@dataclass(frozen=True, slots=True)
class Tally:
    """Totals of the lines of a batch, or of a file."""

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    device_seconds: float = 0.0  # modelled
    cost_usd: float | None = None  # None when no price is known
    given_up: int = 0  # failed lines that were not computed, because the batch was cancelled or expired

    def plus(self, result: LineResult) -> Tally:
        """Return the tally with one more line."""
        costs = [cost for cost in (self.cost_usd, result.cost_usd) if cost is not None]
        return Tally(
            self.completed + (not result.is_error),
            self.failed + result.is_error,
            self.input_tokens + result.input_tokens,
            self.cached_tokens + result.cached_tokens,
            self.output_tokens + result.output_tokens,
            self.reasoning_tokens + result.reasoning_tokens,
            self.device_seconds + result.device_seconds,
            sum(costs) if costs else None,
            self.given_up + result.is_given_up,
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """Batches of a page: the ones after a batch, or right before one, which then start with the oldest."""

    after: str | None = None
    before: str | None = None
    endpoint: str | None = None  # of their lines; None = any
    param: str = "after"  # field that names the begin of the page


_SUMS = (
    "SELECT coalesce(sum(NOT is_error), 0), coalesce(sum(is_error), 0), coalesce(sum(input_tokens), 0), "
    "coalesce(sum(cached_tokens), 0), coalesce(sum(output_tokens), 0), coalesce(sum(reasoning_tokens), 0), "
    "coalesce(sum(device_seconds), 0.0), sum(cost_usd), coalesce(sum(is_given_up), 0) "
    "FROM results WHERE batch_id = ?"
)


class BatchStore:
    """Batches by id. Every method may raise StorageFull. `changed` is set by changes that the runner must see.

    `sees` is the owner of visible batches; None = all owners.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.changed = asyncio.Event()

    async def create(self, batch: StoredBatch) -> None:
        """Store a new batch. Raises QueueFull when too many batches have not ended."""

        def work(db: sqlite3.Connection) -> None:
            (num_open,) = db.execute(f"SELECT count(*) FROM batches WHERE {_IS_OPEN}", ENDED).fetchone()
            if num_open >= MAX_OPEN:
                raise QueueFull(f"The server has {num_open} open batches, which is the limit.")
            kept = f"SELECT id FROM batches WHERE NOT {_IS_OPEN} ORDER BY rowid DESC LIMIT {MAX_ENDED}"
            BATCHES.delete(db, f"WHERE NOT {_IS_OPEN} AND id NOT IN ({kept})", *ENDED, *ENDED)
            BATCHES.put(db, batch)

        await self._database.run(work)
        self.changed.set()

    async def get(self, batch_id: str, sees: str | None = None) -> tuple[StoredBatch, Tally]:
        """Return a batch. Raises NotFound."""
        return await self._database.run(lambda db: _found(db, batch_id, sees))

    async def page(self, sees: str | None, wanted: Wanted, limit: int) -> list[tuple[StoredBatch, Tally]]:
        """Return batches, the newest first. Raises NotFound when the batch that bounds the page does not exist."""

        def work(db: sqlite3.Connection) -> list[tuple[StoredBatch, Tally]]:
            clause = "WHERE api_key = coalesce(?1, api_key) AND endpoint = coalesce(?2, endpoint)"
            place, is_before = wanted.after or wanted.before, wanted.after is None and wanted.before is not None
            if place is not None:
                _found(db, place, sees, wanted.param)
                clause += f" AND rowid {'>' if is_before else '<'} (SELECT rowid FROM batches WHERE id = ?3)"
            clause += f" ORDER BY rowid {'ASC' if is_before else 'DESC'} LIMIT ?4"
            found = list(BATCHES.select(db, clause, sees, wanted.endpoint, place, limit))
            return [(each, _tally(db, each)) for each in found]

        return await self._database.run(work)

    async def delete(self, batch_id: str) -> None:
        """Delete a batch that has ended."""
        await self._database.run(lambda db: BATCHES.delete(db, "WHERE id = ?", batch_id))

    async def next(self) -> StoredBatch | None:
        """Return the oldest batch that has not ended."""
        clause = f"WHERE {_IS_OPEN} ORDER BY rowid LIMIT 1"
        return await self._database.run(lambda db: next(BATCHES.select(db, clause, *ENDED), None))

    async def update(self, batch_id: str, only_if: tuple[str, ...] | None, **changes: Any) -> StoredBatch:
        """Apply `changes` if the status is among `only_if` (None = any), and return the batch. Raises NotFound."""

        def work(db: sqlite3.Connection) -> StoredBatch:
            batch, _ = _found(db, batch_id)
            if only_if is None or batch.status in only_if:
                batch = replace(batch, **changes)
                _put(db, batch)
            return batch

        batch = await self._database.run(work)
        self.changed.set()
        return batch

    async def record(self, result: LineResult) -> None:
        """Store the result of a line, unless it has one."""
        await self._database.run(lambda db: RESULTS.put(db, result, is_new=True))

    async def done_lines(self, batch_id: str) -> set[int]:
        """Return the numbers of the lines that have results."""
        query = "SELECT line FROM results WHERE batch_id = ?"
        return await self._database.run(lambda db: {line for (line,) in db.execute(query, (batch_id,))})

    def lines_of(self, batch_id: str, is_error: bool) -> Callable[[], Iterator[bytes]]:
        """Return a function that yields the lines of the output or error file, to be called in a thread."""
        clause = "WHERE batch_id = ? AND is_error = ? AND line > ? ORDER BY line LIMIT ?"

        def lines() -> Iterator[bytes]:
            last = 0
            while True:
                values = batch_id, is_error, last, READ_LINES
                found = self._database.wait(lambda db: list(RESULTS.select(db, clause, *values)))  # noqa: B023
                if not found:
                    return
                yield from (result.data for result in found)
                last = found[-1].line

        return lines

    async def end(self, batch: StoredBatch, files: list[StoredFile]) -> None:
        """Mark the batch as ended, store its files and delete its results, in one transaction."""

        def work(db: sqlite3.Connection) -> None:
            tally = json.dumps(asdict(_tally(db, batch)))
            for file in files:
                FILES.put(db, file)
            _put(db, replace(batch, tally=tally))
            RESULTS.delete(db, "WHERE batch_id = ?", batch.id)

        await self._database.run(work)


def _found(
    db: sqlite3.Connection, batch_id: str, sees: str | None = None, param: str = "batch_id"
) -> tuple[StoredBatch, Tally]:
    batch = BATCHES.get(db, batch_id)
    if batch is None or sees not in (None, batch.api_key):
        raise NotFound(f"There is no batch {batch_id[:80]!r}.", param)
    return batch, _tally(db, batch)


def _tally(db: sqlite3.Connection, batch: StoredBatch) -> Tally:
    if batch.tally is not None:
        return Tally(**json.loads(batch.tally))
    return Tally(*db.execute(_SUMS, (batch.id,)).fetchone())


def _put(db: sqlite3.Connection, batch: StoredBatch) -> None:
    """Replace a batch in its row: the order of rows is that of their creation."""
    columns = asdict(batch)
    assigned = ", ".join(f"{name} = ?" for name in columns)
    db.execute(f"UPDATE batches SET {assigned} WHERE id = ?", (*columns.values(), batch.id))
