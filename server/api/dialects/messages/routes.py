"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API over the pipeline of chats."""

import contextlib
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from neuronserve.server.api.anthropic_error import anthropic_error_bytes
from neuronserve.server.api.dialects.messages.run import count, prepare
from neuronserve.server.api.dialects.messages.writer import MessageWriter
from neuronserve.server.api.errors import as_request_error
from neuronserve.server.api.http.body import body_of
from neuronserve.server.api.http.event_stream import EventStream, ShortWay
from neuronserve.server.api.http.openapi import OF_BODIES, STREAM, anthropic_errors_of, documented
from neuronserve.server.api.http.origin import origin_of
from neuronserve.server.api.pipeline.respond import frames_of, respond
from neuronserve.server.api.service import ServiceOf
from neuronserve.server.api.wire.message import MessageAnswer, TokenCount
from neuronserve.server.api.wire.messages import CountTokensRequest, MessagesRequest

router = APIRouter()


@router.post(
    "/v1/messages",
    responses=STREAM | anthropic_errors_of(401, 429, *OF_BODIES),
    openapi_extra=documented(MessagesRequest, MessageAnswer),
)
async def create_message(
    request: Request, body: Annotated[MessagesRequest, Depends(body_of(MessagesRequest))], service: ServiceOf
) -> Response:
    """Answer a conversation, whole or as a stream."""
    writer = await prepare(origin_of(request), body, service)
    if not body.stream:
        return await respond(request.receive, writer, is_stream=False)
    way = ShortWay()
    return EventStream(_events(writer, way), b"", way)


@router.post(
    "/v1/messages/count_tokens",
    responses=anthropic_errors_of(401, *OF_BODIES),
    openapi_extra=documented(CountTokensRequest),
)
async def count_tokens(
    body: Annotated[CountTokensRequest, Depends(body_of(CountTokensRequest))], service: ServiceOf
) -> TokenCount:
    """Count the tokens of the prompt of such a message."""
    return TokenCount(input_tokens=await count(body, service))


async def _events(writer: MessageWriter, way: ShortWay) -> AsyncGenerator[bytes, None]:
    """Yield all events. An error before the first is raised, to become an HTTP error; a later one is an event."""
    is_begun = False
    try:
        async with contextlib.aclosing(frames_of(writer, way)) as frames:
            async for frame in frames:
                is_begun = True
                yield frame
    except Exception as error:
        if not is_begun:
            raise
        yield b"event: error\ndata: " + anthropic_error_bytes(as_request_error(error)) + b"\n\n"
