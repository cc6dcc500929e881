"""POST /v1/chat/completions: a conversation in, a message with content and tool calls out."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request, Response

from neuronserve.server.api.http.body import body_of
from neuronserve.server.api.http.openapi import OF_BODIES, STREAM, documented, errors_of
from neuronserve.server.api.http.origin import Origin, origin_of
from neuronserve.server.api.pipeline.deltas import Delta
from neuronserve.server.api.pipeline.generation import AnyGeneration
from neuronserve.server.api.pipeline.logprobs import TokenNames, chat_logprobs, num_shown, prompt_logprobs
from neuronserve.server.api.pipeline.output_format import requested_format
from neuronserve.server.api.pipeline.prompts import (
    Prompt,
    chat_prompt,
    check_ids,
    content_text,
    most_tokens,
    template_source,
)
from neuronserve.server.api.pipeline.respond import respond
from neuronserve.server.api.pipeline.room import require_room
from neuronserve.server.api.pipeline.sampling import SamplingBuilder, check_logprobs
from neuronserve.server.api.pipeline.start import generation_of
from neuronserve.server.api.pipeline.stream_options import stream_usage
from neuronserve.server.api.pipeline.text_chunks import TextChunks
from neuronserve.server.api.pipeline.validate import validate
from neuronserve.server.api.service import ServedModel, Service, ServiceOf
from neuronserve.server.api.tools.message import MessagePart, MessageReader, whole_calls
from neuronserve.server.api.tools.plan import tool_plan
from neuronserve.server.api.tools.reasoning import OutputPlan, compile_output, keep_tags, output_plan
from neuronserve.server.api.wire.chat import (
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
from neuronserve.server.api.wire.usage import PromptLogprobs
from neuronserve.server.errors import InvalidRequest

router = APIRouter()
TEMPLATE_FIELDS = ("reasoning_effort", "verbosity")  # given to the chat template, which may know them
RESPONSES = STREAM | errors_of(401, 408, 429, *OF_BODIES)


@router.post("/chat/completions", responses=RESPONSES, openapi_extra=documented(ChatRequest, ChatCompletion))
@router.post("/v1/chat/completions", responses=RESPONSES, openapi_extra=documented(ChatRequest, ChatCompletion))
async def create_chat_completion(
    request: Request, body: Annotated[ChatRequest, Depends(body_of(ChatRequest))], service: ServiceOf
) -> Response:
    """Answer a conversation, whole or as a stream."""
    adapter = await prepare(origin_of(request), body, service)
    return await respond(request.receive, adapter, bool(body.stream))


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation that is checked and rendered, whichever dialect it came in."""

    name: str  # of the model, for the answer
    generation: AnyGeneration
    plan: OutputPlan


async def prepare(origin: Origin, body: ChatRequest, service: Service) -> "ChatAdapter":
    """Validate and render: everything that can be refused is refused before the engine gets anything."""
    conversation = await prepare_conversation(origin, body, service)
    return ChatAdapter(service, conversation, body, f"chatcmpl-{origin.request_id}")


async def prepare_conversation(
    origin: Origin, body: ChatRequest, service: Service, clips: bool = False
) -> Conversation:
    """`prepare` without the shapes of the answer. `clips`: more tokens than there is room for are never refused."""
    name = validate(service, body)
    model = service.model
    require_room(service, body.n or 1)
    sampling = SamplingBuilder(service, body, _num_logprobs(body, service.config.max_logprobs), clips=clips)
    tools, output_format = tool_plan(model, service.config, body), requested_format(model, body)
    plan = output_plan(service.config, template_source(model, body), body, tools)
    body = keep_tags(model, plan, body)
    extra, most = template_fields(body), most_tokens(model, body)
    given = _given_prompt(model, body)
    prompt = given or await chat_prompt(model, body, extra, list(tools.offered), most=most)
    held = await compile_output(model, plan, output_format, prompt.text or "")
    most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    planned = [prompt], most, held
    generation = generation_of(
        service, origin, body, sampling, planned, parser_of=lambda each: plan.parser(each.text or "")
    )
    return Conversation(name, generation, plan)


async def prompt_of(service: Service, body: ChatRequest) -> Prompt:
    """The prompt of a conversation, which nothing is generated for. Raises RequestError."""
    validate(service, body)
    tools = tool_plan(service.model, service.config, body)
    return await chat_prompt(service.model, body, template_fields(body), list(tools.offered))


def _given_prompt(model: ServedModel, body: ChatRequest) -> Prompt | None:
    """Return the prompt of `kv_transfer_params.prompt_token_ids`, which another server has made of the messages."""
    given = body.kv_transfer_params
    if given is None:
        return None
    refused = next((name for name, value in (given.model_extra or {}).items() if value), None)
    if refused is not None:
        field = f"kv_transfer_params.{refused[:40]}"
        raise InvalidRequest(f"{field} is not supported by this server.", field, "unsupported_parameter")
    if given.prompt_token_ids is None:
        return None
    param = "kv_transfer_params.prompt_token_ids"
    ids = check_ids(given.prompt_token_ids, model.vocab_size, param)
    return Prompt(ids, model.tokenizer.decode(ids, skip_special_tokens=False), param)


def template_fields(body: ChatRequest) -> dict[str, Any]:
    """The fields of a request that its chat template may know."""
    return {name: value for name in TEMPLATE_FIELDS if (value := getattr(body, name))}


def _num_logprobs(body: ChatRequest, most: int) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true.", "top_logprobs")
    check_logprobs(body.top_logprobs, most, "top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _echo(body: ChatRequest) -> str:
    """What `echo` puts before every choice, as vLLM has it: the last message, where it is the assistant's own."""
    last = body.messages[-1]
    if not body.echo or last.role != "assistant":
        return ""
    return content_text(last, f"messages[{len(body.messages) - 1}]")


class ChatAdapter:
    """Puts deltas into OpenAI's chat shapes."""

    def __init__(self, service: Service, conversation: Conversation, body: ChatRequest, answer_id: str) -> None:
        self.generation: AnyGeneration = conversation.generation
        generation, plan, name = conversation.generation, conversation.plan, conversation.name
        self._body = body
        self._usage = stream_usage(body)
        self._tools = plan.tools
        has_reasoning = body.include_reasoning is not False
        self._readers = [
            MessageReader(plan.parser(each.text or ""), has_reasoning, plan.tools.custom) for each in generation.prompts
        ]
        self._id = answer_id
        self._model = name
        self._fingerprint = service.fingerprint_of(name)
        self._tier: Literal["default"] | None = "default" if body.service_tier else None
        self._names = TokenNames(service.model.tokenizer, bool(body.return_tokens_as_token_ids))
        self._created = int(time.time())
        self._echo = _echo(body)
        self._begun: set[int] = set()  # choices whose chunk with the role has been sent
        self._shows_more = bool(body.logprobs or body.return_token_ids)  # in each chunk, than its text
        self._texts = TextChunks(self._text_event)

    def whole(self, deltas: list[Delta]) -> ChatCompletion:
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            system_fingerprint=self._fingerprint,
            service_tier=self._tier,
            choices=[self._choice(delta) for delta in deltas],
            usage=self.generation.usage(),
            prompt_token_ids=self._prompt_ids(),
            prompt_logprobs=self._prompt_logprobs(deltas[0]),
            metrics=self.generation.times(),
        )

    def frames(self, deltas: list[Delta]) -> Iterable[bytes]:
        """One chunk for each delta that has something to show; before the first of a choice, one with its role."""
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
                    yield self._texts.event(delta.index, part.content)
                continue
            for choice in self._chunk_choices(part, delta):
                yield self._usage.encode(self._chunk([choice]), self.generation)

    def last_frames(self) -> Iterable[bytes]:
        return self._usage.last_frames(self._chunk([]), self.generation)

    def _may_begin(self, part: MessagePart, delta: Delta) -> bool:
        """Whether it is known that the message begins with a call or with something else, or need not be."""
        has_more = bool(part.content or part.reasoning or self._readers[delta.index].num_calls)
        return has_more or self._shows_more or delta.finish_reason is not None

    def _opening(self, index: int, content: str | None) -> bytes:
        """The chunk with the role of a choice; OpenAI has null for the content of one that begins with a call."""
        self._begun.add(index)
        choice = ChatChunkChoice(index=index, delta=OpeningDelta(content=content))
        chunk = self._chunk([choice], self._prompt_ids() if index == 0 else None)
        return self._usage.encode(chunk, self.generation, has_output=False)

    def _chunk(self, choices: list[ChatChunkChoice], prompt_ids: list[int] | None = None) -> ChatChunk:
        return ChatChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            system_fingerprint=self._fingerprint,
            service_tier=self._tier,
            choices=choices,
            prompt_token_ids=prompt_ids,
        )

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
        """Whether its chunk has content alone; without any no chunk is due, as the text is held back."""
        has_more = delta.finish_reason or part.reasoning or part.calls or part.custom_calls
        return not (has_more or self._shows_more or (self._usage.is_continuous and part.content))

    def _text_event(self, index: int, text: str) -> bytes:
        choice = ChatChunkChoice(index=index, delta=ChatDelta(content=text))
        return self._usage.encode(self._chunk([choice]), self.generation)

    def _chunk_choices(self, part: MessagePart, delta: Delta) -> Iterable[ChatChunkChoice]:
        """Chunks of a delta. The end comes apart from calls: OpenAI's helper would miss that they are done."""
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
        """OpenAI's finish_reason; to be called when the delta's text has been read."""
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
