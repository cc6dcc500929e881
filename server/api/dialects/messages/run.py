"""One message of Anthropic's API, from its request to its writer; and the number of tokens in its prompt."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from pydantic import BaseModel

from neuronserve.server.api.dialects.messages.conversation import chat_request
from neuronserve.server.api.dialects.messages.late_system import render_with_late_system
from neuronserve.server.api.dialects.messages.writer import MessageWriter
from neuronserve.server.api.dialects.terms import Terms
from neuronserve.server.api.http.origin import Origin
from neuronserve.server.api.pipeline.generation import Generation
from neuronserve.server.api.pipeline.prompts import template_source
from neuronserve.server.api.pipeline.start import chat_generation, prompt_of
from neuronserve.server.api.service import Service
from neuronserve.server.api.tools.plan import chosen_parsers
from neuronserve.server.api.wire.chat import ChatRequest
from neuronserve.server.api.wire.messages import CountTokensRequest, MessagesRequest


async def prepare(origin: Origin, body: MessagesRequest, service: Service) -> MessageWriter:
    """Check and render a request. Raises RequestError that names the fields of `body`."""
    chat, terms = await _chat(service, body)

    async def render(given: ChatRequest) -> Generation:  # the answer says if the context has cut it
        return await chat_generation(origin, given, service, clips=True)

    generation = await render_with_late_system(chat, terms, render, lambda made: made.prompts[0].text or "")
    cache = service.model.info.cache
    cached_in = cache.block_size if cache.enable_prefix_caching and has_cache_control(body) else None
    return MessageWriter(generation, body, f"msg_{origin.request_id}", cached_in)


async def count(body: CountTokensRequest, service: Service) -> int:
    """Count the tokens of the prompt of such a message. Raises RequestError."""
    chat, terms = await _chat(service, body)
    prompt = await render_with_late_system(
        chat, terms, lambda given: prompt_of(service, given), lambda made: made.text or ""
    )
    return len(prompt.token_ids)


def has_cache_control(body: CountTokensRequest) -> bool:
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
