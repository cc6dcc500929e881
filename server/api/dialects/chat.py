"""POST /v1/chat/completions: a conversation in, a message with content and tool calls out."""

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Request, Response

from ..http.body import BodyOf
from ..http.chance import unix_time
from ..http.openapi import OF_BODIES, STREAM, documented, errors_of
from ..http.origin import Origin, origin_of
from ..pipeline.chunks import ChunkWriter
from ..pipeline.deltas import Delta
from ..pipeline.generation import Generation
from ..pipeline.logprobs import TokenNames, chat_logprobs, num_shown, prompt_logprobs
from ..pipeline.prompts import content_text
from ..pipeline.respond import respond
from ..pipeline.start import chat_generation
from ..service import Service, ServiceOf
from ..tools.message import MessagePart, whole_calls
from ..wire.chat import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
    OpeningDelta,
)
from ..wire.usage import PromptLogprobs

router = APIRouter()
RESPONSES = STREAM | errors_of(401, 408, 429, *OF_BODIES)


@router.post("/chat/completions", responses=RESPONSES, openapi_extra=documented(ChatRequest, ChatCompletion))
@router.post("/v1/chat/completions", responses=RESPONSES, openapi_extra=documented(ChatRequest, ChatCompletion))
async def create_chat_completion(request: Request, body: BodyOf[ChatRequest], service: ServiceOf) -> Response:
    """Answer a conversation, whole or as a stream."""
    writer = await prepare(origin_of(request), body, service)
    return await respond(request.receive, writer, bool(body.stream))


async def prepare(origin: Origin, body: ChatRequest, service: Service) -> "ChatWriter":
    """Check and render a request: everything that can be refused is refused before the engine gets anything."""
    return ChatWriter(await chat_generation(origin, body, service), body, f"chatcmpl-{origin.request_id}")


def _echo(body: ChatRequest) -> str:
    """Text that `echo` puts before every choice, as vLLM does: the last message, if it is the assistant's own."""
    last = body.messages[-1]
    if not body.echo or last.role != "assistant":
        return ""
    return content_text(last, f"messages[{len(body.messages) - 1}]")


class ChatWriter:
    """Puts deltas into OpenAI's chat shapes."""

    def __init__(self, generation: Generation, body: ChatRequest, answer_id: str) -> None:
        self.generation = generation
        self._body = body
        request = generation.request
        service, plan = request.service, request.plan
        self._tools = plan.tools
        has_reasoning = body.include_reasoning is not False
        self._readers = [plan.reader(each.text, has_reasoning) for each in generation.prompts]
        self._names = TokenNames(service.model.tokenizer, bool(body.return_tokens_as_token_ids))
        self._echo = _echo(body)
        self._begun: set[int] = set()  # choices whose chunk with the role has been sent
        self._shows_more = bool(body.logprobs or body.return_token_ids)  # chunks have more than text
        self._chunks = ChunkWriter(generation, self._text_chunk)
        self._head: dict[str, Any] = {
            "id": answer_id,
            "created": unix_time(),
            "model": request.model_name,
            "system_fingerprint": service.fingerprint_of(request.model_name),
            "service_tier": "default" if body.service_tier else None,
        }

    def whole(self, deltas: list[Delta]) -> ChatCompletion:
        return ChatCompletion(
            **self._head,
            choices=[self._choice(delta) for delta in deltas],
            usage=self.generation.usage(),
            prompt_token_ids=self._prompt_ids(),
            prompt_logprobs=self._prompt_logprobs(deltas[0]),
            metrics=self.generation.times(),
        )

    def frames(self, deltas: list[Delta]) -> Iterable[bytes]:
        """Yield chunks of deltas that have something to show; before the first of a choice, one with its role."""
        if self._tools.mode == "none" and not self._begun:
            for index in range(len(self._readers)):
                yield self._opening(index, self._echo)
        for delta in deltas:
            part = self._readers[delta.index].read(delta.text, is_last=delta.finish_reason is not None)
            if delta.index not in self._begun and self._may_begin(part, delta):
                is_call = self._readers[delta.index].num_calls and not (part.content or part.reasoning or self._echo)
                yield self._opening(delta.index, None if is_call else self._echo)
            if self._is_text(part, delta):
                if part.content:
                    yield self._chunks.text_event(delta.index, part.content)
                continue
            for choice in self._chunk_choices(part, delta):
                yield self._chunks.event(self._chunk([choice]))

    def last_frames(self) -> Iterable[bytes]:
        return self._chunks.last_events(self._chunk([]))

    def _may_begin(self, part: MessagePart, delta: Delta) -> bool:
        """Whether the first chunk may be sent: its content is null if the message begins with a call."""
        has_more = bool(part.content or part.reasoning or self._readers[delta.index].num_calls)
        return has_more or self._shows_more or delta.finish_reason is not None

    def _opening(self, index: int, content: str | None) -> bytes:
        """Return the chunk with the role of a choice; like OpenAI's, its content is null before a call."""
        self._begun.add(index)
        choice = ChatChunkChoice(index=index, delta=OpeningDelta(content=content))
        chunk = self._chunk([choice], self._prompt_ids() if index == 0 else None)
        return self._chunks.event(chunk, has_output=False)

    def _chunk(self, choices: list[ChatChunkChoice], prompt_ids: list[int] | None = None) -> ChatChunk:
        return ChatChunk(**self._head, choices=choices, prompt_token_ids=prompt_ids)

    def _choice(self, delta: Delta) -> ChatChoice:
        part = self._readers[delta.index].read(delta.text, is_last=True)
        calls, content = whole_calls(part), self._echo + part.content
        return ChatChoice(
            index=delta.index,
            message=ChatMessage(
                content=None if calls and not content else content,
                reasoning_content=part.reasoning or None,
                refusal=delta.fault,
                reasoning=part.reasoning or None,
                tool_calls=calls,
            ),
            logprobs=self._logprobs(delta),
            finish_reason=self._finish_reason(delta) or "stop",
            stop_reason=delta.stop_reason,
            token_ids=delta.token_ids if self._body.return_token_ids else None,
        )

    def _is_text(self, part: MessagePart, delta: Delta) -> bool:
        """Whether a delta has nothing but text; if its text is held back too, no chunk is due."""
        has_more = delta.finish_reason or part.reasoning or part.calls or part.custom_calls
        return not (has_more or self._shows_more or (self._chunks.has_continuous_usage and part.content))

    def _text_chunk(self, index: int, text: str) -> ChatChunk:
        return self._chunk([ChatChunkChoice(index=index, delta=ChatDelta(content=text))])

    def _chunk_choices(self, part: MessagePart, delta: Delta) -> Iterable[ChatChunkChoice]:
        """Return the chunks of a delta. Calls end in a chunk before the last, as OpenAI's helper needs it."""
        calls = [*part.calls, *part.custom_calls]
        choice = ChatChunkChoice(
            index=delta.index,
            delta=ChatDelta(
                content=part.content or None,
                reasoning_content=part.reasoning or None,
                refusal=delta.fault,
                reasoning=part.reasoning or None,
                tool_calls=calls or None,
            ),
            logprobs=self._logprobs(delta),
            token_ids=delta.token_ids if self._body.return_token_ids else None,
        )
        end = {"finish_reason": self._finish_reason(delta), "stop_reason": delta.stop_reason}
        if calls and delta.finish_reason is not None:
            yield choice
            choice = ChatChunkChoice(index=delta.index, delta=ChatDelta())
        yield choice.model_copy(update=end)

    def _finish_reason(self, delta: Delta) -> str | None:
        """Return OpenAI's finish_reason. The delta's text must have been read."""
        if delta.finish_reason is None:
            return None
        return self._tools.finish_reason(delta.finish_reason, self._readers[delta.index].num_calls)

    def _logprobs(self, delta: Delta) -> ChatLogprobs | None:
        num_top = num_shown(self._body, self._body.top_logprobs)
        return chat_logprobs(self._names, delta, num_top) if self._body.logprobs else None

    def _prompt_logprobs(self, delta: Delta) -> PromptLogprobs | None:
        num_top = self._body.prompt_logprobs
        prompt = self.generation.prompts[0]
        return None if num_top is None else prompt_logprobs(self._names, prompt, delta, num_top)

    def _prompt_ids(self) -> list[int] | None:
        return list(self.generation.prompts[0].token_ids) if self._body.return_token_ids else None
