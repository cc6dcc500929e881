"""/v1/batches: requests of a file, answered in the background; they need --data-dir."""

import json
import time
import uuid
from typing import Annotated, Any

from fastapi import APIRouter, Query

from ...errors import InvalidRequest
from ..http.body import BodyOf
from ..http.openapi import OF_BODIES, documented, errors_of
from ..http.origin import CallerOf
from ..service import ServiceOf
from ..store.batches import Tally, Wanted
from ..store.records import StoredBatch
from ..wire.batches import (
    Batch,
    BatchErrors,
    BatchList,
    BatchRequest,
    BatchUsage,
    CachedTokens,
    ModelledCost,
    ReasoningTokens,
    RequestCounts,
)

MAX_LISTED = 100
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_WINDOW_S = 30 * 86400
STORED = errors_of(400, 401, 404, 507)
router = APIRouter()


@router.post("/v1/batches", responses=errors_of(401, 429, 507, *OF_BODIES), openapi_extra=documented(BatchRequest))
async def create_batch(body: BodyOf[BatchRequest], service: ServiceOf, caller: CallerOf) -> Batch:
    """Begin a batch. Its input is checked line by line before any line is answered."""
    batches, files = service.store.batches, service.store.files
    window_s = int(body.completion_window[:-1]) * SECONDS[body.completion_window[-1]]
    if window_s > MAX_WINDOW_S:
        raise InvalidRequest(f"completion_window is {body.completion_window}; it may be 30d.", "completion_window")
    source = await files.get(body.input_file_id, caller.sees, "input_file_id")
    if source.purpose != "batch":
        raise InvalidRequest(f"The purpose of {source.id!r} is {source.purpose!r}, not 'batch'.", "input_file_id")
    files.require_space(source.num_bytes)
    now = int(time.time())
    batch = StoredBatch(
        id=f"batch_{uuid.uuid4().hex}",
        created_at=now,
        expires_at=now + window_s,
        status="validating",
        endpoint=body.endpoint,
        input_file_id=source.id,
        completion_window=body.completion_window,
        metadata=None if body.metadata is None else json.dumps(body.metadata),
        output_lifetime_s=body.output_expires_after.seconds if body.output_expires_after else None,
        api_key=caller.name,
    )
    await batches.create(batch)
    return _shown(batch, Tally())


@router.get("/v1/batches", responses=STORED)
async def list_batches(
    service: ServiceOf,
    caller: CallerOf,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 20,
) -> BatchList:
    """Batches, the newest first."""
    found = await service.store.batches.page(caller.sees, Wanted(after), limit + 1)
    data = [_shown(*each) for each in found[:limit]]
    ends = {"first_id": data[0].id, "last_id": data[-1].id} if data else {}
    return BatchList(data=data, has_more=len(found) > limit, **ends)


@router.get("/v1/batches/{batch_id}", responses=STORED)
async def get_batch(batch_id: str, service: ServiceOf, caller: CallerOf) -> Batch:
    """Progress and results of a batch."""
    return _shown(*await service.store.batches.get(batch_id, caller.sees))


@router.post("/v1/batches/{batch_id}/cancel", responses=STORED)
async def cancel_batch(batch_id: str, service: ServiceOf, caller: CallerOf) -> Batch:
    """Cancel the remaining lines. An ended batch stays as it is."""
    await service.store.batches.get(batch_id, caller.sees)
    open_states, now = ("validating", "in_progress"), int(time.time())
    await service.store.batches.update(batch_id, open_states, status="cancelling", cancelling_at=now)
    return _shown(*await service.store.batches.get(batch_id))


def _shown(batch: StoredBatch, tally: Tally) -> Batch:
    shared: dict[str, Any] = {name: getattr(batch, name) for name in Batch.model_fields if hasattr(batch, name)}
    shared["errors"] = None if batch.errors is None else BatchErrors(data=json.loads(batch.errors))
    shared["metadata"] = None if batch.metadata is None else json.loads(batch.metadata)
    return Batch(
        **shared,
        request_counts=RequestCounts(total=batch.total, completed=tally.completed, failed=tally.failed),
        usage=BatchUsage(
            input_tokens=tally.input_tokens,
            input_tokens_details=CachedTokens(cached_tokens=tally.cached_tokens),
            output_tokens=tally.output_tokens,
            output_tokens_details=ReasoningTokens(reasoning_tokens=tally.reasoning_tokens),
            total_tokens=tally.input_tokens + tally.output_tokens,
            neuronserve=ModelledCost(device_seconds=tally.device_seconds, cost_usd=tally.cost_usd),
        ),
    )
