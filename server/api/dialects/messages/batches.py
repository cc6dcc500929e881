"""/v1/messages/batches: Anthropic's batches, with the same files, records and runner as /v1/batches."""

import contextlib
import json
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import StreamingResponse

from ....errors import InvalidRequest, NotFound, RequestError
from ...anthropic_error import anthropic_error
from ...http.body import BodyOf
from ...http.openapi import OF_BODIES, anthropic_errors_of, documented
from ...http.origin import CallerOf
from ...service import Service, ServiceOf
from ...store.batches import Tally, Wanted
from ...store.files import ENDED, FileLabel
from ...store.records import StoredBatch
from ...wire.message_batches import (
    BatchItem,
    DeletedMessageBatch,
    MessageBatch,
    MessageBatchCounts,
    MessageBatchList,
    MessageBatchRequest,
)

PATH = "/v1/messages/batches"
ENDPOINT = "/v1/messages"  # url of every line
WINDOW_S = 86_400
LIFETIME_S = 30 * 86_400  # of the input; the runner sets that of the results
MAX_LISTED = 1000
NO_BATCH = "There is no batch of messages {!r}."
STORED = anthropic_errors_of(400, 401, 404, 507)
router = APIRouter()


@router.post(
    PATH, responses=anthropic_errors_of(401, 429, 507, *OF_BODIES), openapi_extra=documented(MessageBatchRequest)
)
async def create_message_batch(
    request: Request, body: BodyOf[MessageBatchRequest], service: ServiceOf, caller: CallerOf
) -> MessageBatch:
    """Create a batch of messages."""
    files, lines = service.store.files, _lines(body.requests, service.config.max_body_bytes)
    files.require_space(2 * sum(map(len, lines)))
    batch_id, now = f"msgbatch_{uuid.uuid4().hex}", int(time.time())
    label = FileLabel(f"{batch_id}.jsonl", "batch", LIFETIME_S, caller.name)
    source = await files.create(lambda out: out.writelines(lines), label)
    batch = StoredBatch(
        id=batch_id,
        created_at=now,
        expires_at=now + WINDOW_S,
        status="validating",
        endpoint=ENDPOINT,
        input_file_id=source.id,
        completion_window="24h",
        api_key=caller.name,
        total=len(lines),
    )
    try:
        await service.store.batches.create(batch)
    except RequestError:
        await files.delete(source.id, None)
        raise
    return _batch_object(request, batch, Tally())


@router.get(PATH, responses=STORED)
async def list_message_batches(
    request: Request,
    service: ServiceOf,
    caller: CallerOf,
    before_id: str | None = None,
    after_id: str | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 20,
) -> MessageBatchList:
    """List batches of messages, the newest first."""
    param = "before_id" if after_id is None else "after_id"
    wanted = Wanted(after_id, before_id, ENDPOINT, param)
    found = await service.store.batches.page(caller.sees, wanted, limit + 1)
    listed = found[:limit] if after_id is not None or before_id is None else found[:limit][::-1]
    data = [_batch_object(request, *each) for each in listed]
    first_id, last_id = (data[0].id, data[-1].id) if data else (None, None)
    return MessageBatchList(data=data, has_more=len(found) > limit, first_id=first_id, last_id=last_id)


@router.get(PATH + "/{batch_id}", responses=STORED)
async def get_message_batch(batch_id: str, request: Request, service: ServiceOf, caller: CallerOf) -> MessageBatch:
    """Return the state of a batch."""
    return _batch_object(request, *await _found(batch_id, service, caller.sees))


@router.post(PATH + "/{batch_id}/cancel", responses=STORED)
async def cancel_message_batch(batch_id: str, request: Request, service: ServiceOf, caller: CallerOf) -> MessageBatch:
    """Stop answering the requests of a batch. A batch that has ended stays as it is."""
    await _found(batch_id, service, caller.sees)
    changes = {"status": "cancelling", "cancelling_at": int(time.time())}
    await service.store.batches.update(batch_id, ("validating", "in_progress"), **changes)
    return _batch_object(request, *await _found(batch_id, service, caller.sees))


@router.delete(PATH + "/{batch_id}", responses=STORED)
async def delete_message_batch(batch_id: str, service: ServiceOf, caller: CallerOf) -> DeletedMessageBatch:
    """Delete a batch that has ended, and its results."""
    batch, _ = await _found(batch_id, service, caller.sees)
    if batch.status not in ENDED:
        raise InvalidRequest(f"The batch {batch_id!r} has not ended: cancel it first.", "batch_id")
    await service.store.batches.delete(batch_id)
    for file_id in filter(None, (batch.input_file_id, batch.output_file_id, batch.error_file_id)):
        with contextlib.suppress(NotFound):  # it has expired
            await service.store.files.delete(file_id, None)
    return DeletedMessageBatch(id=batch_id)


@router.get(PATH + "/{batch_id}/results", responses=STORED | {200: {"content": {"application/x-jsonl": {}}}})
async def message_batch_results(batch_id: str, service: ServiceOf, caller: CallerOf) -> StreamingResponse:
    """Return a line for each request of a batch that has ended."""
    batch, _ = await _found(batch_id, service, caller.sees)
    if batch.status not in ENDED:
        raise InvalidRequest(f"The batch {batch_id!r} has not ended, so there are no results yet.", "batch_id")
    files = service.store.files
    found = [await files.get(each, None) for each in (batch.output_file_id, batch.error_file_id) if each]
    return StreamingResponse(_results([str(files.path(file.id)) for file in found]), media_type="application/x-jsonl")


async def _found(batch_id: str, service: Service, sees: str | None) -> tuple[StoredBatch, Tally]:
    batch, tally = await service.store.batches.get(batch_id, sees)
    if batch.endpoint != ENDPOINT:
        raise NotFound(NO_BATCH.format(batch_id[:80]), "batch_id")
    return batch, tally


def _lines(items: list[BatchItem], most: int) -> list[bytes]:
    """Return lines for the runner. Raises InvalidRequest for a custom_id that occurs twice, and for a long line."""
    seen: set[str] = set()
    lines = []
    for index, item in enumerate(items):
        if item.custom_id in seen:
            param = f"requests[{index}].custom_id"
            raise InvalidRequest(f"{param}: {item.custom_id!r} is the name of an earlier request too.", param)
        seen.add(item.custom_id)
        line = {"custom_id": item.custom_id, "method": "POST", "url": ENDPOINT, "body": item.params}
        lines.append(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
        if len(lines[-1]) > most:
            raise InvalidRequest(f"requests[{index}] has {len(lines[-1])} bytes; at most {most} are taken.", "requests")
    return lines


def _batch_object(request: Request, batch: StoredBatch, tally: Tally) -> MessageBatch:
    has_ended = batch.status in ENDED
    ended_at = batch.completed_at or batch.failed_at or batch.expired_at or batch.cancelled_at
    return MessageBatch(
        id=batch.id,
        processing_status="ended" if has_ended else "canceling" if batch.cancelling_at else "in_progress",
        request_counts=_counts(batch, tally) if has_ended else MessageBatchCounts(processing=batch.total),
        created_at=_time(batch.created_at),
        expires_at=_time(batch.expires_at),
        ended_at=_time(ended_at) if has_ended and ended_at else None,
        cancel_initiated_at=_time(batch.cancelling_at) if batch.cancelling_at else None,
        results_url=f"{str(request.base_url).rstrip('/')}{PATH}/{batch.id}/results" if has_ended else None,
    )


def _counts(batch: StoredBatch, tally: Tally) -> MessageBatchCounts:
    if batch.status == "failed":
        return MessageBatchCounts(errored=batch.total)
    counts = MessageBatchCounts(succeeded=tally.completed, errored=tally.failed - tally.given_up)
    return counts.model_copy(update={"expired" if batch.expired_at else "canceled": tally.given_up})


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _results(paths: list[str]) -> Iterator[bytes]:
    for path in paths:
        with open(path, "rb") as file:
            for line in file:
                record = json.loads(line)
                made = {"custom_id": record["custom_id"], "result": _result(record)}
                yield json.dumps(made).encode() + b"\n"


def _result(record: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a request in Anthropic's shape."""
    response, failure = record["response"], record["error"]
    if response is None:
        return {"type": "expired" if failure["code"] == "batch_expired" else "canceled"}
    if response["status_code"] == 200:
        return {"type": "succeeded", "message": response["body"]}
    error = response["body"]["error"]
    return {"type": "errored", "error": anthropic_error(response["status_code"], error["message"], error["code"])}
