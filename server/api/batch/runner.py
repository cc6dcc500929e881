"""Runner of stored batches, oldest first; a batch that an earlier server left unfinished continues.

The result of a line is stored at once, and a line that has a result does not run again. One transaction ends a batch,
with its output file, its error file and its state.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from typing import Any, Literal, TypeVar

from ...errors import StorageFull
from ..service import Service
from ..store.batches import BatchStore
from ..store.files import FileLabel, FileStore
from ..store.records import LineResult, StoredBatch, StoredFile
from .answer import Worker
from .lines import BatchLine, LineRules, check_file, read_requests
from .slots import Slots

log = logging.getLogger("neuronserve.batch")
PURPOSE = "batch_output"
OUTPUT_LIFETIME_S = 30 * 86400
MAX_LINES = 50_000  # OpenAI's
DISK_RETRY_S = 5.0
WHY = {
    "cancelled": ("batch_cancelled", "The batch was cancelled before this request was answered."),
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
}
T = TypeVar("T")
Reason = Literal["cancelled", "expired"]


class BatchRunner:
    """Runs batches until `run` is cancelled; the next server runs again the lines that have no result by then."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._slots = Slots(service)
        self._batches: BatchStore = service.store.batches
        self._files: FileStore = service.store.files

    async def run(self) -> None:
        """Run batches as they come."""
        while True:
            self._batches.changed.clear()
            batch = await self._stored(self._batches.next)
            if batch is None:
                await self._batches.changed.wait()
            else:
                await self._work_on(batch)

    async def _work_on(self, batch: StoredBatch) -> None:
        try:
            if batch.status == "validating":
                batch = await self._validate(batch)
            if batch.status in {"in_progress", "cancelling"}:
                await self._answer_lines(batch)
                batch = await self._update(batch, status="finalizing", finalizing_at=_now())
            if batch.status == "finalizing":
                await self._finalize(batch)
        except Exception as error:
            if self._service.phase == "dead":
                raise  # the next server continues it
            log.exception("batch %s failed", batch.id)
            reason = [{"code": "server_error", "message": str(error)}]
            await self._update(batch, status="failed", failed_at=_now(), errors=json.dumps(reason))

    async def _validate(self, batch: StoredBatch) -> StoredBatch:
        checked = await asyncio.to_thread(check_file, self._files.path(batch.input_file_id), self._rules(batch))
        if checked.errors:
            log.info("batch %s refused: %s", batch.id, checked.errors[0].message)
            errors = json.dumps([asdict(error) for error in checked.errors])
            return await self._update(batch, status="failed", failed_at=_now(), errors=errors)
        log.info("batch %s started: %d requests to %s", batch.id, checked.total, batch.endpoint)
        await self._update(batch, total=checked.total)
        return await self._stored(
            lambda: self._batches.update(batch.id, ("validating",), status="in_progress", in_progress_at=_now())
        )

    async def _answer_lines(self, batch: StoredBatch) -> None:
        """Give every line a result; once the batch is cancelled or has expired, without an answer."""
        reason = await self._reason(batch)
        if reason is None:
            working = asyncio.create_task(self._answer_all(batch))
            ending = asyncio.create_task(self._until_ended(batch))
            try:
                await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    working.result()
                    return
                reason = ending.result()
            finally:
                working.cancel()
                ending.cancel()
                await asyncio.gather(working, ending, return_exceptions=True)
        if reason == "expired":
            await self._update(batch, expired_at=_now())
        if batch.total:  # the lines have been checked
            await self._give_up(batch, reason)

    async def _answer_all(self, batch: StoredBatch) -> None:
        worker = Worker(self._service, batch.id, self._service.keys.named(batch.api_key))
        done = await self._stored(lambda: self._batches.done_lines(batch.id))

        async def answer(line: BatchLine) -> None:
            with self._slots.taken():
                result = await worker.answer(line)
            await self._record(result)

        async with asyncio.TaskGroup() as group:
            for line in read_requests(self._files.path(batch.input_file_id), self._rules(batch)):
                if line.number not in done:
                    await self._slots.wait()
                    group.create_task(answer(line))
                    await asyncio.sleep(0)  # so that it takes its slot

    async def _until_ended(self, batch: StoredBatch) -> Reason:
        """Wait until the batch is cancelled or has expired."""
        while True:
            self._batches.changed.clear()
            if (reason := await self._reason(batch)) is not None:
                return reason
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, batch.expires_at - time.time())):
                    await self._batches.changed.wait()

    async def _reason(self, batch: StoredBatch) -> Reason | None:
        batch, _ = await self._stored(lambda: self._batches.get(batch.id))
        if batch.status == "cancelling":
            return "cancelled"
        return "expired" if time.time() >= batch.expires_at else None

    async def _give_up(self, batch: StoredBatch, reason: Reason) -> None:
        worker = Worker(self._service, batch.id, self._service.keys.named(batch.api_key))
        done = await self._stored(lambda: self._batches.done_lines(batch.id))
        for line in read_requests(self._files.path(batch.input_file_id), self._rules(batch)):
            if line.number not in done:
                await self._record(worker.given_up(line, *WHY[reason]))

    async def _finalize(self, batch: StoredBatch) -> None:
        """End a batch; all its lines have results."""
        output = await self._write(batch, is_error=False)
        errors = await self._write(batch, is_error=True)
        status = "cancelled" if batch.cancelling_at else "expired" if batch.expired_at else "completed"
        changes: dict[str, Any] = {"status": status, "output_file_id": output.id if output else None}
        if status != "expired":
            changes[f"{status}_at"] = _now()
        ended = replace(batch, error_file_id=errors.id if errors else None, **changes)
        await self._stored(lambda: self._batches.end(ended, [file for file in (output, errors) if file]))
        log.info("batch %s is %s", batch.id, status)

    async def _write(self, batch: StoredBatch, is_error: bool) -> StoredFile | None:
        name = f"{batch.id}_{'error' if is_error else 'output'}.jsonl"
        label = FileLabel(name, PURPOSE, batch.output_lifetime_s or OUTPUT_LIFETIME_S, batch.api_key)
        lines = self._batches.lines_of(batch.id, is_error)
        file = await self._stored(lambda: self._files.write(lambda out: out.writelines(lines()), label))
        if file.num_bytes:
            return file
        self._files.path(file.id).unlink(missing_ok=True)
        return None

    async def _record(self, result: LineResult) -> None:
        await self._stored(lambda: self._batches.record(result))

    async def _update(self, batch: StoredBatch, **changes: Any) -> StoredBatch:
        return await self._stored(lambda: self._batches.update(batch.id, None, **changes))

    async def _stored(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `work`, which is repeated while the disk is full."""
        is_logged = False
        while True:
            try:
                return await work()
            except StorageFull as error:
                if not is_logged:
                    log.warning("batches wait for space: %s", error)
                    is_logged = True
                await asyncio.sleep(DISK_RETRY_S)

    def _rules(self, batch: StoredBatch) -> LineRules:
        return LineRules((batch.endpoint,), self._service.config.max_body_bytes, MAX_LINES)


def _now() -> int:
    return int(time.time())
