"""A request of /v1/responses, checked and rendered; and the number of tokens in its prompt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from ....errors import InvalidRequest, RequestError
from ....scheduler.admission import CODE as TOO_LONG
from ...errors import unsupported
from ...http.chance import unix_time
from ...http.origin import Origin
from ...pipeline.generation import Generation
from ...pipeline.sampling import first
from ...pipeline.start import chat_generation, prompt_of
from ...service import ServedModel, Service
from ...wire.response import ConversationId, Response
from ...wire.responses import FUNCTION, ResponsesRequest, ResponseTool
from .conversation import LOGPROBS, Messages, chat_request, messages_of
from .history import items_for
from .items import new_id
from .run import ResponseRun
from .tools import tools_of

T = TypeVar("T")
INSTEAD = {  # unsupported fields -> what to use instead
    "prompt": "instructions and input",
    "context_management": "truncation and /v1/responses/compact",
    "moderation": "models of another server",
}


async def prepare(origin: Origin, body: ResponsesRequest, service: Service) -> ResponseRun:
    """Check and render a request: everything that can be refused is refused before the engine gets anything."""
    _check(body)
    name = service.require_name(body.model)
    items, tools = await items_for(body, service, origin.caller.sees), tools_of(body.tools)
    messages = messages_of(body, items.before, items.new)

    async def rendered(kept: Messages) -> Generation:
        request, terms = await service.parsing.run_large(partial(chat_request, body, kept, tools))
        with terms.applied():
            return await chat_generation(origin, request, service)

    generation = await _fitted(body, messages, rendered)
    return ResponseRun(generation, body, _response(body, name, service.model), items.new, tools)


async def count(body: ResponsesRequest, service: Service, sees: str | None) -> int:
    """Count the tokens of the prompt of such a request. Raises RequestError."""
    _check(body)
    items, tools = await items_for(body, service, sees), tools_of(body.tools)
    messages = messages_of(body, items.before, items.new)

    request, terms = await service.parsing.run_large(partial(chat_request, body, messages, tools))
    with terms.applied():
        return len((await prompt_of(service, request)).token_ids)


def _check(body: ResponsesRequest) -> None:
    """Raise InvalidRequest for unsupported fields, and for fields that exclude each other."""
    for field, instead in INSTEAD.items():
        if getattr(body, field) is not None:
            raise unsupported(field, f" is not supported by this server; {instead} are.")
    options = (body.model_extra or {}).get("prompt_cache_options")
    if isinstance(options, dict) and options.get("prewarm"):
        raise unsupported("prompt_cache_options", ".prewarm is not supported by this server.")
    if body.background and not body.is_stored:
        raise InvalidRequest("background needs the response to be stored: store may not be false.", "store")


async def _fitted(body: ResponsesRequest, messages: Messages, rendered: Callable[[Messages], Awaitable[T]]) -> T:
    """Return the result of `rendered`; truncation "auto" drops as few of the oldest messages as needed to fit."""

    async def without(num_oldest: int) -> T:
        return await rendered(messages.without(num_oldest) if num_oldest else messages)

    try:
        return await without(0)
    except RequestError as error:
        if body.truncation != "auto" or error.code != TOO_LONG:
            raise
    low, high = 1, len(messages.messages) - 1  # the last message stays
    while low < high:
        middle = (low + high) // 2
        try:
            await without(middle)
            high = middle
        except InvalidRequest as error:
            if error.code != TOO_LONG:
                raise
            low = middle + 1
    return await without(low)


def _response(body: ResponsesRequest, name: str, model: ServedModel) -> Response:
    reasoning, text = body.reasoning, body.text
    text_format = text.format.model_dump(by_alias=True, exclude_none=True) if text and text.format else {"type": "text"}
    choice = body.tool_choice if body.tool_choice is not None else "auto"
    return Response(
        id=new_id("resp"),
        created_at=unix_time(),
        status="queued" if body.background else "in_progress",
        background=bool(body.background),
        conversation=None if body.conversation_id is None else ConversationId(id=body.conversation_id),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        model=name,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning={"effort": reasoning.effort if reasoning else None, "summary": None},
        safety_identifier=body.safety_identifier,
        store=body.is_stored,
        temperature=first(body.temperature, model.defaults.temperature, 1.0),
        text={"format": text_format} | ({"verbosity": text.verbosity} if text and text.verbosity else {}),
        tool_choice=choice if isinstance(choice, str) else choice.model_dump(exclude_none=True),
        tools=[_tool_object(tool) for tool in body.tools or ()],
        top_logprobs=(body.top_logprobs or 0) if LOGPROBS in (body.include or ()) else 0,
        top_p=first(body.top_p, model.defaults.top_p, 1.0),
        truncation=body.truncation or "disabled",
        user=body.user,
    )


def _tool_object(tool: ResponseTool) -> dict[str, Any]:
    """Return the tool as answers show it: a function has all of its fields."""
    fields = {"type", "name", "description", "parameters", "strict"} if tool.type == FUNCTION else None
    return tool.model_dump(include=fields, exclude_none=tool.type != FUNCTION)
