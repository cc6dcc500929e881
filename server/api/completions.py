"""POST /v1/completions: text or ids in, text out; several prompts at once, each with n choices."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from server.api.body import body_of, documented
from server.api.collect import collect
from server.api.generation import Delta, Generation, Planned, require_room
from server.api.logprobs import completion_logprobs
from server.api.prompts import Prompt, completion_prompts, split_prompts
from server.api.sampling import SamplingBuilder, check_logprobs
from server.api.schemas_completions import Completion, CompletionChoice, CompletionLogprobs, CompletionRequest
from server.api.service import Service, ServiceOf
from server.api.sse import until_disconnect
from server.api.streaming import StreamPlan, event_stream, stream_plan
from server.api.structured import asked_format, compile_format
from server.api.telemetry.origin import Origin, origin_of
from server.api.unsupported import refuse_unsupported
from server.errors import InvalidRequest

DEFAULT_MAX_TOKENS = 16  # OpenAI's
router = APIRouter()


@router.post("/v1/completions", response_model=Completion, openapi_extra=documented(CompletionRequest))
async def create_completion(
    request: Request, body: Annotated[CompletionRequest, Depends(body_of(CompletionRequest))], service: ServiceOf
) -> Response:
    """Continue the prompts, whole or as a stream."""
    answer = await _plan(origin_of(request), body, service)
    if body.stream:
        return await event_stream(request.receive, answer.chunks(stream_plan(body)))
    completion = await until_disconnect(request.receive, answer.whole())
    return Response(completion.model_dump_json(), media_type="application/json")


async def _plan(origin: Origin, body: CompletionRequest, service: Service) -> _Answer:
    """Check everything that can be checked before the engine is asked."""
    model = service.model
    name = service.require_name(body.model)
    n = body.n or 1
    refuse_unsupported(body.model_extra, n)
    stream_plan(body)
    if body.echo and body.logprobs is not None:
        raise InvalidRequest("echo with logprobs needs prompt logprobs, which this server does not compute.", "echo")
    given = split_prompts(body.prompt)
    require_room(service, len(given) * n)
    sampling = SamplingBuilder(body, model, check_logprobs(body.logprobs, service.config.max_logprobs, "logprobs"))
    wish = asked_format(body)
    prompts = await completion_prompts(model, given, body.add_special_tokens is not False)
    grammar = "" if wish is None else await compile_format(model, wish)
    most = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    planned = [
        Planned(prompt, sampling.build(len(prompt.token_ids), i, most, prompt.param, grammar))
        for prompt in prompts
        for i in range(n)
    ]
    return _Answer(service, Generation(service, origin, body, planned), body, f"cmpl-{origin.request_id}", name)


class _Answer:
    """Puts deltas into OpenAI's text completion shape, which its stream has too."""

    def __init__(
        self, service: Service, generation: Generation, body: CompletionRequest, answer_id: str, name: str
    ) -> None:
        self._tokenizer = service.model.tokenizer
        self._generation = generation
        self._body = body
        self._id = answer_id
        self._model = name
        self._created = int(time.time())
        self._echoes = [self._echo(prompt) for prompt in generation.prompts]
        self._offsets = [len(echo) for echo in self._echoes]  # of the next token, for logprobs
        self._is_begun = [False for _ in self._echoes]

    async def whole(self) -> Completion:
        deltas = await collect(self._generation)
        return self._completion([self._choice(delta) for delta in deltas], is_last=True)

    async def chunks(self, plan: StreamPlan) -> AsyncGenerator[bytes, None]:
        """JSON of each chunk; the first comes only when the engine has given something."""
        is_first = True
        async for batch in self._generation.deltas():
            choices = [self._choice(delta) for delta in batch if is_first or self._says_something(delta)]
            is_first = False
            if choices:
                yield plan.encode(self._completion(choices), self._generation)
        if plan.has_usage:
            yield plan.last(self._completion([]), self._generation)

    def _completion(self, choices: list[CompletionChoice], is_last: bool = False) -> Completion:
        usage = self._generation.usage() if is_last else None
        return Completion(id=self._id, created=self._created, model=self._model, choices=choices, usage=usage)

    def _choice(self, delta: Delta) -> CompletionChoice:
        is_first, self._is_begun[delta.index] = not self._is_begun[delta.index], True
        has_ids = bool(self._body.return_token_ids)
        prompt = self._generation.prompts[delta.index]
        return CompletionChoice(
            index=delta.index,
            text=self._echoes[delta.index] + delta.text if is_first else delta.text,
            logprobs=self._logprobs(delta),
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            token_ids=delta.token_ids if has_ids else None,
            prompt_token_ids=list(prompt.token_ids) if has_ids and is_first else None,
        )

    def _says_something(self, delta: Delta) -> bool:
        """Text may be held back while the token's other sides are wanted already."""
        has_more = self._body.logprobs is not None or bool(self._body.return_token_ids)
        return bool(delta.text or delta.finish_reason or has_more or not self._is_begun[delta.index])

    def _echo(self, prompt: Prompt) -> str:
        if not self._body.echo:
            return ""
        return self._tokenizer.decode(prompt.token_ids) if prompt.text is None else prompt.text

    def _logprobs(self, delta: Delta) -> CompletionLogprobs | None:
        if self._body.logprobs is None:
            return None
        offset = self._offsets[delta.index]
        entry = completion_logprobs(self._tokenizer, delta, self._body.logprobs, offset)
        self._offsets[delta.index] = offset + sum(map(len, entry.tokens))
        return entry
