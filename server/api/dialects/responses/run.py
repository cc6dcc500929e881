"""One response, from its request to its end: prepared, generated, written and stored."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any

from server.api.dialects import chat
from server.api.dialects.responses.conversation import LOGPROBS, Messages, chat_request, messages_of, own_terms
from server.api.dialects.responses.items import items_of, listed, new_id, own_items
from server.api.dialects.responses.writer import ResponseWriter
from server.api.errors import StorageFull
from server.api.http.origin import Origin
from server.api.pipeline.logprobs import TokenNames
from server.api.pipeline.sampling import first
from server.api.service import ServedModel, Service
from server.api.store.records import StoredResponse
from server.api.tools.message import MessageReader
from server.api.wire.response import Response
from server.api.wire.responses import InputItem, ResponsesRequest
from server.errors import InvalidRequest, RequestError
from server.scheduler.admission import CODE as TOO_LONG

log = logging.getLogger("neuronserve.api")
OFFERED = {"conversation": "previous_response_id", "prompt": "instructions and input"}  # instead of these


class ResponseRun:
    """`frames` generates it, once. `response` is what there is of it meanwhile."""

    def __init__(
        self,
        service: Service,
        origin: Origin,
        conversation: chat.Conversation,
        response: Response,
        asked: tuple[list[dict[str, Any]], ResponsesRequest],
    ) -> None:
        """`asked` are the items of the request, as they are listed, and its body."""
        items, body = asked
        self.response = response
        self._service = service
        self._owner = origin.caller.name
        self._generation = generation = conversation.generation
        self._items = json.dumps(items, ensure_ascii=False).encode()
        names = TokenNames(service.model.tokenizer, False) if LOGPROBS in (body.include or ()) else None
        has_reasoning = (body.model_extra or {}).get("include_reasoning") is not False
        reader = MessageReader(conversation.plan.parser(generation.prompts[0].text or ""), has_reasoning)
        self._writer = ResponseWriter(response, reader, names)
        self._is_begun = False  # there are events

    async def require_welcome(self) -> None:
        """Raise what would end it at once: Overloaded, or RateLimited."""
        await self._generation.require_welcome()

    async def finished(self) -> Response:
        """The whole response. Raises RequestError when it fails."""
        async with contextlib.aclosing(self._frames()) as frames:
            async for _ in frames:
                pass
        return self.response

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Events; a failure before there is any output is raised, a later one is an event."""
        try:
            async with contextlib.aclosing(self._frames()) as frames:
                async for frame in frames:
                    yield frame
        except Exception as error:
            if not self._is_begun:
                raise
            self._writer.fail(error)
            await self.store()
            yield self._writer.last()

    def begin(self) -> list[bytes]:
        """The events that come before any output; once it has been called, no failure is raised."""
        self._is_begun = True
        return list(self._writer.begin())

    async def store(self, is_required: bool = False) -> None:
        """Store the response as it is. Unless that `is_required`, a full disk makes it one that is not stored."""
        if not self.response.store:
            return
        try:
            await self._service.store.responses.put(self._stored())
        except StorageFull as error:
            if is_required:
                raise
            log.warning("%s is not stored: %s", self.response.id, error)
            self.response.store = False

    async def cancel(self) -> None:
        """Store what there is, when `frames` has been closed."""
        self._writer.cancel()
        await self.store()

    async def _frames(self) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(self._generation.deltas()) as batches:
            async for batch in batches:
                if not self._writer.is_started:
                    for frame in (*(() if self._is_begun else self.begin()), *self._writer.start()):
                        yield frame
                for delta in batch:
                    for frame in self._writer.write(delta):
                        yield frame
        for frame in self._writer.finish(self._generation.usage()):
            yield frame
        await self.store()  # before the client knows that it has ended, as it may go on from there
        yield self._writer.last()

    def _stored(self) -> StoredResponse:
        response, body = self.response, self.response.model_dump_json().encode()
        return StoredResponse(
            id=response.id,
            created_at=float(response.created_at),
            used_at=time.time(),
            previous_id=response.previous_response_id,
            status=response.status,
            num_bytes=len(body) + len(self._items),
            body=body,
            input_items=self._items,
            owner=self._owner,
            worker="" if (worker := self._service.config.worker) is None else worker.life,
        )


async def prepare(origin: Origin, body: ResponsesRequest, service: Service) -> ResponseRun:
    """Validate and render: everything that can be refused is refused before the engine gets anything."""
    _check(body)
    name = service.require_name(body.model)
    before: Sequence[InputItem] = ()
    if body.previous_response_id is not None:
        chain = await service.store.responses.chain(
            body.previous_response_id, origin.caller.sees, "previous_response_id"
        )
        if chain[-1].status not in {"completed", "incomplete"}:
            raise InvalidRequest(
                f"The response {chain[-1].id!r} is {chain[-1].status}: nothing can follow it.", "previous_response_id"
            )
        before = items_of(chain)
    items = own_items(body)
    messages = messages_of(body, before, items)
    conversation = await _conversation(origin, body, service, messages)
    response = _response(body, name, service.model)
    return ResponseRun(service, origin, conversation, response, (listed(items), body))


def _check(body: ResponsesRequest) -> None:
    """Raise InvalidRequest for what this server does not have, and for fields that exclude each other."""
    for field, instead in OFFERED.items():
        if getattr(body, field) is not None:
            raise InvalidRequest(
                f"{field} is not supported by this server; {instead} are.", field, "unsupported_parameter"
            )
    if body.background and not body.is_stored:
        raise InvalidRequest("background needs the response to be stored: store may not be false.", "store")
    reasoning = body.reasoning
    for field in ("summary", "generate_summary"):
        if reasoning is not None and getattr(reasoning, field) not in (None, "auto"):
            raise InvalidRequest(
                f"reasoning.{field} asks for a summary, and this server writes none: the items have the reasoning "
                "itself. null and 'auto' are taken.",
                f"reasoning.{field}",
                "unsupported_parameter",
            )


async def _conversation(
    origin: Origin, body: ResponsesRequest, service: Service, messages: Messages
) -> chat.Conversation:
    """Rendered by chat; with truncation "auto" without as few of the oldest messages as are too many."""

    async def without(num_oldest: int) -> chat.Conversation:
        kept = messages.without(num_oldest) if num_oldest else messages
        request = await service.parsing.run_large(partial(chat_request, body, kept))
        try:
            return await chat.prepare_conversation(origin, request, service)
        except InvalidRequest as error:
            raise own_terms(error, kept) from error

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
        created_at=int(time.time()),
        status="queued" if body.background else "in_progress",
        background=bool(body.background),
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
        tools=[
            tool.model_dump(include={"type", "name", "description", "parameters", "strict"})
            for tool in body.tools or ()
        ],
        top_logprobs=(body.top_logprobs or 0) if LOGPROBS in (body.include or ()) else 0,
        top_p=first(body.top_p, model.defaults.top_p, 1.0),
        truncation=body.truncation or "disabled",
        user=body.user,
    )
