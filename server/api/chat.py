"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from server.api.body import body_of, documented
from server.api.collect import collect
from server.api.generation import Delta, Generation, Planned, require_room
from server.api.logprobs import chat_logprobs
from server.api.prompts import chat_prompt
from server.api.sampling import SamplingBuilder, check_logprobs
from server.api.schemas_chat import (
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatRequest,
)
from server.api.service import Service, ServiceOf
from server.api.sse import until_disconnect
from server.api.streaming import StreamPlan, event_stream, stream_plan
from server.api.structured import asked_format
from server.api.telemetry.origin import Origin, origin_of
from server.api.tool_answer import Speech, whole_calls
from server.api.tools import ToolPlan, compile_plan, keep_tags, tool_plan
from server.api.unsupported import refuse_unsupported
from server.errors import InvalidRequest

router = APIRouter()


@router.post("/v1/chat/completions", response_model=ChatCompletion, openapi_extra=documented(ChatRequest))
async def create_chat_completion(
    request: Request, body: Annotated[ChatRequest, Depends(body_of(ChatRequest))], service: ServiceOf
) -> Response:
    """Answer a conversation, whole or as a stream."""
    answer = await _plan(origin_of(request), body, service)
    if body.stream:
        return await event_stream(request.receive, answer.chunks(stream_plan(body)))
    completion = await until_disconnect(request.receive, answer.whole())
    return Response(completion.model_dump_json(), media_type="application/json")


async def _plan(origin: Origin, body: ChatRequest, service: Service) -> _Answer:
    """Check everything that can be checked before the engine is asked."""
    model = service.model
    name = service.require_name(body.model)
    n = body.n or 1
    refuse_unsupported(body.model_extra, n)
    stream_plan(body)
    require_room(service, n)
    extra = {"reasoning_effort": body.reasoning_effort} if body.reasoning_effort else {}
    sampling = SamplingBuilder(body, model, _num_logprobs(body, service.config.max_logprobs))
    tools, wish = tool_plan(model, service.config, body), asked_format(body)
    body = keep_tags(model, tools, body)
    prompt = await chat_prompt(model, body, extra, list(tools.offered))
    grammar = await compile_plan(model, tools, wish)
    most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    planned = [Planned(prompt, sampling.build(len(prompt.token_ids), i, most, "messages", grammar)) for i in range(n)]
    generation = Generation(service, origin, body, planned)
    return _Answer(service, generation, body, tools, f"chatcmpl-{origin.request_id}", name)


def _num_logprobs(body: ChatRequest, most: int) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true.", "top_logprobs")
    check_logprobs(body.top_logprobs, most, "top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


class _Answer:
    """Puts deltas into OpenAI's chat shapes."""

    def __init__(
        self,
        service: Service,
        generation: Generation,
        body: ChatRequest,
        tools: ToolPlan,
        answer_id: str,
        name: str,
    ) -> None:
        self._tokenizer = service.model.tokenizer
        self._generation = generation
        self._body = body
        self._tools = tools
        self._speeches = [Speech(tools.reader()) for _ in generation.prompts]
        self._id = answer_id
        self._model = name
        self._created = int(time.time())

    async def whole(self) -> ChatCompletion:
        deltas = await collect(self._generation)
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[self._choice(delta) for delta in deltas],
            usage=self._generation.usage(),
            prompt_token_ids=self._prompt_ids(),
        )

    async def chunks(self, plan: StreamPlan) -> AsyncGenerator[bytes, None]:
        """JSON of each chunk; the first comes only when the engine has given something."""
        is_first = True
        async for batch in self._generation.deltas():
            if is_first:
                yield self._role_chunk(plan)
                is_first = False
            choices = [choice for delta in batch if (choice := self._chunk_choice(delta)) is not None]
            if choices:
                yield self._chunk(choices, plan)
        if plan.has_usage:
            yield plan.last(
                ChatChunk(id=self._id, created=self._created, model=self._model, choices=[]), self._generation
            )

    def _role_chunk(self, plan: StreamPlan) -> bytes:
        choices = range(len(self._generation.prompts))
        starts = [ChatChunkChoice(index=i, delta=ChatDelta(role="assistant", content="")) for i in choices]
        return self._chunk(starts, plan, self._prompt_ids())

    def _chunk(self, choices: list[ChatChunkChoice], plan: StreamPlan, prompt_ids: list[int] | None = None) -> bytes:
        chunk = ChatChunk(
            id=self._id, created=self._created, model=self._model, choices=choices, prompt_token_ids=prompt_ids
        )
        return plan.encode(chunk, self._generation)

    def _choice(self, delta: Delta) -> ChatChoice:
        said = self._speeches[delta.index].say(delta.text, is_last=True)
        calls = whole_calls(said)
        return ChatChoice(
            index=delta.index,
            message=ChatAnswer(content=None if calls and not said.content else said.content, tool_calls=calls),
            logprobs=self._logprobs(delta),
            finish_reason=self._finish_reason(delta) or "stop",
            stop_reason=delta.stop_reason,
            token_ids=delta.token_ids if self._body.return_token_ids else None,
        )

    def _chunk_choice(self, delta: Delta) -> ChatChunkChoice | None:
        """None when there is nothing to say: text may be held back while the token's other sides are not wanted."""
        said = self._speeches[delta.index].say(delta.text, is_last=delta.finish_reason is not None)
        has_more = delta.finish_reason or self._body.logprobs or self._body.return_token_ids
        if not (said.content or said.calls or has_more):
            return None
        return ChatChunkChoice(
            index=delta.index,
            delta=ChatDelta(content=said.content or None, tool_calls=said.calls or None),
            logprobs=self._logprobs(delta),
            finish_reason=self._finish_reason(delta),
            stop_reason=delta.stop_reason,
            token_ids=delta.token_ids if self._body.return_token_ids else None,
        )

    def _finish_reason(self, delta: Delta) -> str | None:
        """After the delta's text has been read."""
        if delta.finish_reason is None:
            return None
        return self._tools.finish_reason(delta.finish_reason, self._speeches[delta.index].num_calls)

    def _logprobs(self, delta: Delta) -> ChatLogprobs | None:
        return chat_logprobs(self._tokenizer, delta, self._body.top_logprobs or 0) if self._body.logprobs else None

    def _prompt_ids(self) -> list[int] | None:
        return list(self._generation.prompts[0].token_ids) if self._body.return_token_ids else None
