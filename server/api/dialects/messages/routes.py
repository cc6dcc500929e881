"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API over the pipeline of chats."""

import contextlib
from collections.abc import AsyncGenerator, Iterable
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from ...anthropic_error import anthropic_error_bytes
from ...errors import as_request_error
from ...http.body import BodyOf
from ...http.event_stream import EventStream, ShortWay
from ...http.openapi import OF_BODIES, STREAM, anthropic_errors_of, documented
from ...http.origin import Origin, origin_of
from ...pipeline.prompts import template_source
from ...pipeline.respond import frames_of, respond
from ...pipeline.start import chat_generation, prompt_of
from ...service import Service, ServiceOf
from ...tools.plan import chosen_parsers
from ...wire.chat import ChatRequest
from ...wire.message import MessageAnswer, TokenCount
from ...wire.messages import CountTokensRequest, MessagesRequest
from ..terms import Terms
from .conversation import chat_request
from .late_system import render_with_late_system
from .writer import MessageWriter

router = APIRouter()


@router.post(
    "/v1/messages",
    responses=STREAM | anthropic_errors_of(401, 429, *OF_BODIES),
    openapi_extra=documented(MessagesRequest, MessageAnswer),
)
async def create_message(request: Request, body: BodyOf[MessagesRequest], service: ServiceOf) -> Response:
    """Answer a conversation, whole or as a stream."""
    writer = await prepare(origin_of(request), body, service)
    if not body.stream:
        return await respond(request.receive, writer, is_stream=False)
    way = ShortWay()
    return EventStream(_events(writer, way), b"", way, writer.generation.journal)


@router.post(
    "/v1/messages/count_tokens",
    responses=anthropic_errors_of(401, *OF_BODIES),
    openapi_extra=documented(CountTokensRequest),
)
async def count_tokens(body: BodyOf[CountTokensRequest], service: ServiceOf) -> TokenCount:
    """Count the tokens of the prompt of such a message."""
    chat, terms = await _chat(service, body)
    prompt = await render_with_late_system(
        chat, terms, lambda given: prompt_of(service, given), lambda made: made.text or ""
    )
    return TokenCount(input_tokens=len(prompt.token_ids))


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


async def prepare(origin: Origin, body: MessagesRequest, service: Service) -> MessageWriter:
    """Check and render a request. Raises RequestError that names the fields of `body`."""
    chat, terms = await _chat(service, body)

    generation = await render_with_late_system(
        chat,
        terms,
        lambda given: chat_generation(origin, given, service, clips=True),  # the answer says if the context has cut it
        lambda made: made.prompts[0].text or "",
    )
    cache = service.model.info.cache
    cached_in = cache.block_size if cache.enable_prefix_caching and _has_cache_control(body) else None
    return MessageWriter(generation, body, f"msg_{origin.request_id}", cached_in)


def _has_cache_control(body: CountTokensRequest) -> bool:
    """Whether the client marks any part of its prompt for caching."""
    return any("cache_control" in (part.model_extra or {}) for part in _parts(body))


async def _chat(service: Service, body: CountTokensRequest) -> tuple[ChatRequest, Terms]:
    """Return the chat request. A thinking budget is ignored if the model does not think."""
    chat, terms = await service.parsing.run_large(partial(chat_request, body))
    _, reasoning = chosen_parsers(service.config, template_source(service.model, chat))
    return (chat.model_copy(update={"thinking_token_budget": None}) if reasoning == "none" else chat), terms


def _parts(body: CountTokensRequest) -> Iterable[BaseModel]:
    yield body
    yield from body.tools or ()
    contents: list[Any] = [body.system, *(message.content for message in body.messages)]
    for content in contents:
        yield from content if isinstance(content, list) else ()
