"""POST /v1/completions: text or ids in, text out; several prompts at once, each with n choices."""

from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from ...errors import InvalidRequest
from ...text.tokenizer import MAX_CHAR_BYTES
from ..http.body import BodyOf
from ..http.chance import unix_time
from ..http.openapi import OF_BODIES, STREAM, documented, errors_of
from ..http.origin import Origin, origin_of
from ..pipeline.chunks import ChunkWriter
from ..pipeline.deltas import Delta
from ..pipeline.fill_in import fill_in_prompts
from ..pipeline.generation import Generation
from ..pipeline.logprobs import (
    Entry,
    TextOffsets,
    TokenNames,
    completion_logprobs,
    echoed,
    num_shown,
    prompt_logprobs,
)
from ..pipeline.prompts import Prompt, completion_prompts, split_prompts
from ..pipeline.respond import respond
from ..pipeline.start import start
from ..pipeline.validate import validated
from ..service import Service, ServiceOf
from ..wire.completions import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    WholeCompletionChoice,
)
from ..wire.usage import PromptLogprobs

DEFAULT_MAX_TOKENS = 16  # OpenAI's
router = APIRouter()
RESPONSES = STREAM | errors_of(401, 408, 429, *OF_BODIES)


@router.post("/v1/completions", responses=RESPONSES, openapi_extra=documented(CompletionRequest, Completion))
async def create_completion(request: Request, body: BodyOf[CompletionRequest], service: ServiceOf) -> Response:
    """Continue the prompts, whole or as a stream."""
    writer = await prepare(origin_of(request), body, service)
    return await respond(request.receive, writer, bool(body.stream))


async def prepare(origin: Origin, body: CompletionRequest, service: Service) -> "CompletionWriter":
    """Check and render a request: everything that can be refused is refused before the engine gets anything."""
    given = split_prompts(body.prompt)
    request = validated(origin, body, service, len(given))
    has_specials = body.add_special_tokens is not False
    if body.suffix:
        if body.echo:
            raise InvalidRequest("echo and suffix exclude each other.", "echo")
        prompts = await fill_in_prompts(service.model, given, body.suffix, has_specials)
    else:
        prompts = await completion_prompts(service.model, given, has_specials, request.max_prompt_tokens)
    generation = await start(request, prompts, DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens)
    return CompletionWriter(generation, body, f"cmpl-{origin.request_id}")


class CompletionWriter:
    """Puts deltas into OpenAI's text completion shape, which its stream has too."""

    def __init__(self, generation: Generation, body: CompletionRequest, answer_id: str) -> None:
        self.generation = generation
        self._body = body
        request = generation.request
        self._tokenizer = request.service.model.tokenizer
        self._names = TokenNames(self._tokenizer, bool(body.return_tokens_as_token_ids))
        self._echoes = [self._echo(prompt) for prompt in generation.prompts]
        self._offsets = [TextOffsets(self._tokenizer) for _ in self._echoes]
        self._is_begun = [False for _ in self._echoes]
        self._has_ids = bool(body.return_token_ids)
        self._shows_more = self._has_ids or any(each is not None for each in (body.logprobs, body.prompt_logprobs))
        self._chunks = ChunkWriter(generation, self._text_chunk)
        self._head: dict[str, Any] = {
            "id": answer_id,
            "created": unix_time(),
            "model": request.model_name,
            "system_fingerprint": request.service.fingerprint_of(request.model_name),
        }

    def whole(self, deltas: list[Delta]) -> Completion:
        completion = self._completion([self._choice(delta, WholeCompletionChoice) for delta in deltas])
        completion.usage, completion.metrics = self.generation.usage(), self.generation.times()
        return completion

    def frames(self, deltas: list[Delta]) -> Iterable[bytes]:
        """Yield one chunk for each delta, but none while text is held back, unless it is the first of a choice."""
        for delta in deltas:
            if self._is_text(delta):
                if delta.text:
                    yield self._chunks.text_event(delta.index, delta.text)
            else:
                yield self._chunks.event(self._completion([self._choice(delta)]))

    def last_frames(self) -> Iterable[bytes]:
        return self._chunks.last_events(self._completion([]))

    def _completion(self, choices: Sequence[CompletionChoice]) -> Completion:
        return Completion(**self._head, choices=[*choices])

    def _choice(self, delta: Delta, kind: type[CompletionChoice] = CompletionChoice) -> CompletionChoice:
        is_first, self._is_begun[delta.index] = not self._is_begun[delta.index], True
        prompt = self.generation.prompts[delta.index]
        return kind(
            index=delta.index,
            text=self._echoes[delta.index] + delta.text if is_first else delta.text,
            logprobs=self._logprobs(delta, is_first),
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            refusal=delta.fault,
            token_ids=delta.token_ids if self._has_ids else None,
            prompt_token_ids=list(prompt.token_ids) if self._has_ids and is_first else None,
            prompt_logprobs=self._prompt_logprobs(delta),
        )

    def _is_text(self, delta: Delta) -> bool:
        """Whether a delta has nothing but text; if its text is held back too, no chunk is due."""
        has_more = delta.finish_reason or self._shows_more or not self._is_begun[delta.index]
        return not (has_more or (self._chunks.has_continuous_usage and delta.text))

    def _text_chunk(self, index: int, text: str) -> Completion:
        return self._completion([CompletionChoice(index=index, text=text)])

    def _echo(self, prompt: Prompt) -> str:
        if not self._body.echo:
            return ""
        return self._tokenizer.decode_whole(prompt.token_ids) if prompt.text is None else prompt.text

    def _logprobs(self, delta: Delta, is_first: bool) -> CompletionLogprobs | None:
        """Return the log-probabilities of the delta's tokens, behind those of the prompt if it is echoed."""
        if self._body.logprobs is None:
            return None
        entries: list[Entry] = list(zip(delta.token_ids, delta.logprobs, strict=True))
        offsets: list[int] = []
        text_offsets, prompt = self._offsets[delta.index], self.generation.prompts[delta.index]
        if is_first and self._body.echo:
            entries = [*echoed(prompt, delta), *entries]
            offsets = text_offsets.of_prompt(prompt.token_ids, len(self._echoes[delta.index]))
        elif is_first:
            text_offsets.of_prompt(
                prompt.token_ids[-MAX_CHAR_BYTES:], 0
            )  # the output may complete the last character of the prompt
        offsets += text_offsets.of(delta.token_ids, self._body.skip_special_tokens is not False)
        return completion_logprobs(self._names, entries, num_shown(self._body, self._body.logprobs), offsets)

    def _prompt_logprobs(self, delta: Delta) -> PromptLogprobs | None:
        num_top = self._body.prompt_logprobs
        prompt = self.generation.prompts[delta.index]
        return None if num_top is None else prompt_logprobs(self._names, prompt, delta, num_top)
