"""/v1/responses: create a response, whole, as a stream or in the background; read, cancel and delete stored ones."""

import json
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi import Response as HttpResponse

from ....errors import InvalidRequest
from ...http.body import JSON, BodyOf
from ...http.event_stream import EventStream, until_disconnect
from ...http.openapi import OF_BODIES, STREAM, answered_with, documented, errors_of
from ...http.origin import CallerOf, caller_of, origin_of
from ...service import ServiceOf
from ...wire.response import Compaction, DeletedResponse, InputTokens, ItemList, Response
from ...wire.responses import CompactRequest, ResponsesRequest
from .background import Background, the_background
from .compact import compacted
from .items import MAX_LISTED, page
from .prepare import count, prepare

router = APIRouter()
BackgroundOf = Annotated[Background, Depends(the_background)]
STORED = errors_of(400, 401, 404, 507)


@router.post(
    "/v1/responses",
    responses=STREAM | errors_of(401, 429, 507, *OF_BODIES),
    openapi_extra=documented(ResponsesRequest, Response),
)
async def create_response(
    request: Request, body: BodyOf[ResponsesRequest], service: ServiceOf, background: BackgroundOf
) -> HttpResponse:
    """Answer the items of a request, behind those of an earlier response."""
    origin = origin_of(request)
    if body.background:  # it goes on without its client, and so without a router
        origin = replace(origin, resumed=None)
    run = await prepare(origin, body, service)
    if body.background:
        await background.start(run, bool(body.stream))
        if body.stream:
            return EventStream(background.follow(run.response.id, -1), end=b"")
        return _json(run.response)
    if body.stream:
        return EventStream(run.frames(), end=b"", journal=run.journal)
    return _json(await until_disconnect(request.receive, run.finished()))


@router.post(
    "/v1/responses/input_tokens", responses=errors_of(401, *OF_BODIES), openapi_extra=documented(ResponsesRequest)
)
async def count_input_tokens(body: BodyOf[ResponsesRequest], service: ServiceOf, caller: CallerOf) -> InputTokens:
    """Count the tokens of the prompt of such a response."""
    return InputTokens(input_tokens=await count(body, service, caller.sees))


@router.post(
    "/v1/responses/compact",
    responses=errors_of(401, 429, *OF_BODIES),
    openapi_extra=documented(CompactRequest, Compaction),
)
async def compact_conversation(request: Request, body: BodyOf[CompactRequest], service: ServiceOf) -> HttpResponse:
    """Return items that stand for a conversation: the messages of its user, and a summary of the rest."""
    made = await until_disconnect(request.receive, compacted(origin_of(request), body, service))
    return HttpResponse(made.model_dump_json(), media_type=JSON)


@router.get("/v1/responses/{response_id}", responses=STREAM | STORED, openapi_extra=answered_with(Response))
async def get_response(
    request: Request,
    response_id: str,
    service: ServiceOf,
    background: BackgroundOf,
    is_stream: Annotated[bool, Query(alias="stream")] = False,
    starting_after: Annotated[int, Query(ge=-1)] = -1,
) -> HttpResponse:
    """Return a stored response; with `stream`, the events of a response that was streamed in the background."""
    stored = await service.store.responses.get(response_id, caller_of(request).sees)
    if is_stream:
        return EventStream(background.follow(response_id, starting_after), end=b"")
    if (run := background.get(response_id)) is not None:
        return _json(run.response)
    return HttpResponse(stored.body, media_type=JSON)


@router.delete("/v1/responses/{response_id}", responses=STORED)
async def delete_response(
    response_id: str, service: ServiceOf, caller: CallerOf, background: BackgroundOf
) -> DeletedResponse:
    """Delete a response; if it still runs, it is cancelled."""
    await service.store.responses.require(response_id, caller.sees)
    await background.cancel(response_id)
    await service.store.responses.delete(response_id)
    return DeletedResponse(id=response_id)


@router.post("/v1/responses/{response_id}/cancel", responses=STORED, openapi_extra=answered_with(Response))
async def cancel_response(
    response_id: str, service: ServiceOf, caller: CallerOf, background: BackgroundOf
) -> HttpResponse:
    """Cancel a response in the background; a response that has ended stays as it is."""
    await service.store.responses.require(response_id, caller.sees)
    await background.cancel(response_id)
    stored = await service.store.responses.get(response_id, caller.sees)
    response = Response.model_validate_json(stored.body)
    if not response.background:
        raise InvalidRequest(f"{response_id!r} was not created with background.", "response_id")
    return _json(response)


@router.get("/v1/responses/{response_id}/input_items", responses=STORED)
async def list_input_items(
    response_id: str,
    service: ServiceOf,
    caller: CallerOf,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> ItemList:
    """List the items of a response's request, without those of earlier responses."""
    stored = await service.store.responses.get(response_id, caller.sees)
    return page(json.loads(stored.input_items), after, limit, order)


def _json(response: Response) -> HttpResponse:
    return HttpResponse(response.model_dump_json(), media_type=JSON)
