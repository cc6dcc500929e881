"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API over the pipeline of chats."""

import contextlib
from collections.abc import AsyncGenerator
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from server.api.dialects.chat import prepare_conversation, template_fields
from server.api.dialects.messages.conversation import chat_request
from server.api.dialects.messages.writer import MessageWriter
from server.api.errors import anthropic_error_bytes, as_request_error
from server.api.http.body import body_of
from server.api.http.event_stream import EventStream, ShortWay, until_disconnect
from server.api.http.openapi import OF_BODIES, STREAM, anthropic_errors_of, documented
from server.api.http.origin import origin_of
from server.api.pipeline.prompts import chat_prompt, template_source
from server.api.pipeline.respond import frames_of, whole_answer
from server.api.pipeline.validate import validate
from server.api.service import Service, ServiceOf
from server.api.tools.chosen import chosen_parsers
from server.api.tools.plan import tool_plan
from server.api.wire.chat import ChatRequest
from server.api.wire.messages import CountTokensRequest, MessageAnswer, MessagesRequest, TokenCount

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
    origin = origin_of(request)
    chat = await _chat(service, body)
    conversation = await prepare_conversation(origin, chat, service, clips=True)  # it says so
    writer = MessageWriter(conversation, body, f"msg_{origin.request_id}")
    if body.stream:
        way = ShortWay()
        return EventStream(_events(writer, way), b"", way)
    answer = await until_disconnect(request.receive, whole_answer(writer))
    return Response(answer.model_dump_json(), media_type="application/json")


@router.post(
    "/v1/messages/count_tokens",
    responses=anthropic_errors_of(401, *OF_BODIES),
    openapi_extra=documented(CountTokensRequest),
)
async def count_tokens(
    body: Annotated[CountTokensRequest, Depends(body_of(CountTokensRequest))], service: ServiceOf
) -> TokenCount:
    """Number of tokens that the prompt of such a message has."""
    chat = await _chat(service, body)
    validate(service, chat)
    tools = tool_plan(service.model, service.config, chat)
    prompt = await chat_prompt(service.model, chat, template_fields(chat), list(tools.offered))
    return TokenCount(input_tokens=len(prompt.token_ids))


async def _chat(service: Service, body: CountTokensRequest) -> ChatRequest:
    """The chat request. A budget of thinking binds nothing where the model does not think."""
    chat = await service.parsing.run_large(partial(chat_request, body))
    _, reasoning = chosen_parsers(service.config, template_source(service.model, chat))
    return chat.model_copy(update={"thinking_token_budget": None}) if reasoning == "none" else chat


async def _events(writer: MessageWriter, way: ShortWay) -> AsyncGenerator[bytes, None]:
    """All events. An error after the first is an event; one before it is raised, to be an HTTP error."""
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
