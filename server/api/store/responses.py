"""Stored responses, bounded in number, bytes and age; those not used for longest are deleted first."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from dataclasses import replace

from ...errors import NotFound
from ..config import StoreConfig
from .bounds import evict, oldest
from .database import Database
from .records import RESPONSES, StoredResponse

RUNNING = ("queued", "in_progress")
INTERRUPTED = {"code": "server_error", "message": "The server has ended while it generated this response."}
MAX_CHAIN = 1000  # responses that follow each other


class ResponseStore:
    """Responses by id. Every method may raise StorageFull. `sees` is the owner of visible responses; None = all."""

    def __init__(self, database: Database, limits: StoreConfig) -> None:
        self._database = database
        self._limits = limits

    async def put(self, response: StoredResponse) -> None:
        """Store a response or replace the one with its id, and delete old ones beyond the limits."""

        def work(db: sqlite3.Connection) -> None:
            RESPONSES.put(db, response)
            evict(db, RESPONSES, self._limits, f"status NOT IN {RUNNING}")

        await self._database.run(work)

    async def get(self, response_id: str, sees: str | None) -> StoredResponse:
        """Return a response. Raises NotFound."""
        return (await self.chain(response_id, sees, "response_id"))[-1]

    async def require(self, response_id: str, sees: str | None) -> StoredResponse:
        """Return the response alone, even if earlier ones are gone. Raises NotFound."""
        response = await self._database.run(lambda db: RESPONSES.get(db, response_id))
        if response is None or sees not in (None, response.owner):
            raise _missing(response_id, response_id, "response_id")
        return response

    async def chain(self, response_id: str, sees: str | None, param: str) -> list[StoredResponse]:
        """Return the response and the ones it follows, oldest first; all count as used now. Raises NotFound."""

        def work(db: sqlite3.Connection) -> list[StoredResponse]:
            found: list[StoredResponse] = []
            next_id: str | None = response_id
            while next_id is not None and len(found) < MAX_CHAIN:
                response = RESPONSES.get(db, next_id)
                if response is None or response.created_at < self._oldest or sees not in (None, response.owner):
                    raise _missing(response_id, next_id, param)
                found.append(response)
                next_id = response.previous_id
            now = time.time()
            with contextlib.suppress(sqlite3.OperationalError):  # a full disk does not prevent reading
                db.executemany("UPDATE responses SET used_at = ? WHERE id = ?", [(now, each.id) for each in found])
            return found[::-1]

        return await self._database.run(work)

    async def delete(self, response_id: str) -> None:
        """Delete a response. Raises NotFound."""
        if not await self._database.run(lambda db: RESPONSES.delete(db, "WHERE id = ?", response_id)):
            raise _missing(response_id, response_id, "response_id")

    async def recover(self) -> None:
        """Mark responses as failed that an earlier server left unfinished."""

        def work(db: sqlite3.Connection) -> None:
            for response in list(RESPONSES.select(db, "WHERE status IN (?, ?)", *RUNNING)):
                body = json.loads(response.body) | {"status": "failed", "error": INTERRUPTED}
                RESPONSES.put(db, replace(response, status="failed", body=json.dumps(body).encode()))

        await self._database.run(work)

    @property
    def _oldest(self) -> float:
        return oldest(self._limits)


def _missing(response_id: str, missing_id: str, param: str) -> NotFound:
    what = f"There is no response {response_id[:80]!r}"
    if missing_id != response_id:
        what = f"The response {response_id[:80]!r} follows {missing_id!r}, which is stored no more"
    code = "previous_response_not_found" if param == "previous_response_id" else "not_found"
    return NotFound(f"{what}.", param, code)
