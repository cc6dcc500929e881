"""/v1/chat/completions on the wire, in OpenAI's shapes."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from .generation import INT32, GenerationRequest, TokenId, listed, needing
from .model import BodyModel, WireModel
from .tools import AnyToolCall, CustomCallDelta, ToolCallDelta, ToolChoice, Tools
from .usage import PromptLogprobs, RequestTimes, Usage, optional

MAX_TEMPLATE_CHARS = 2**20
MAX_DOCUMENTS = 1024
TEXT, IMAGE = PART_TYPES = ("text", "image_url")
ROLES = ("system", "developer", "user", "assistant", "tool")


class ImageUrl(BodyModel):
    """URL of a picture: with its data, or of an allowed host. `detail` changes nothing: the model decides the size."""

    url: str
    detail: str | None = Field(None, max_length=32)


class ContentPart(BodyModel):
    """A part of a message's content; its type decides which field it must have."""

    model_config = ConfigDict(json_schema_extra=needing("type"))

    type: Annotated[str, listed(*PART_TYPES)]
    text: str | None = None
    image_url: ImageUrl | str | None = None


class Message(BodyModel):
    role: Annotated[str, listed(*ROLES)]
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)] | None = None
    tool_calls: Annotated[list[AnyToolCall], Field(fail_fast=True)] | None = None


class ChatInput(WireModel):
    """A conversation, and how to render its prompt; /tokenize takes it too."""

    TEMPLATE_FIELDS: ClassVar[tuple[str, ...]] = ()  # fields that are passed to the chat template

    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1)]
    tools: Tools | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = Field(None, max_length=MAX_TEMPLATE_CHARS)
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Annotated[list[dict[str, Any]], Field(fail_fast=True, max_length=MAX_DOCUMENTS)] | None = None

    @property
    def template_fields(self) -> dict[str, Any]:
        """Fields of the request that its chat template may know."""
        return {name: value for name in self.TEMPLATE_FIELDS if (value := getattr(self, name))}


class Prediction(BodyModel):
    """OpenAI's guess of the output. It could only make the answer faster, and is ignored."""

    type: Literal["content"]
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)]


class TransferParams(BodyModel):
    """vLLM's `kv_transfer_params`: only the token ids of the prompt are read."""

    prompt_token_ids: Annotated[list[TokenId], Field(fail_fast=True, min_length=1)] | None = None


class ChatRequest(GenerationRequest, ChatInput):
    LOGPROBS_FIELD: ClassVar[str] = "top_logprobs"
    TEMPLATE_FIELDS: ClassVar[tuple[str, ...]] = ("reasoning_effort", "verbosity")

    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: int | None = Field(None, ge=1, le=INT32)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0)
    reasoning_effort: str | None = Field(None, max_length=32)
    include_reasoning: bool | None = None
    thinking_token_budget: int | None = Field(None, ge=-1, le=INT32)
    echo: bool | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    prediction: Prediction | None = None
    service_tier: str | None = Field(None, max_length=32)
    kv_transfer_params: TransferParams | None = None
    store: bool | None = None  # accepted: no chat is kept

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def token_limit(self) -> tuple[str, int | None]:
        if self.max_completion_tokens is None:
            return "max_tokens", self.max_tokens
        return "max_completion_tokens", self.max_completion_tokens


class TopLogprob(WireModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(WireModel):
    content: list[TokenLogprob]
    refusal: None = None


class ChatMessage(WireModel):
    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | None = optional()
    reasoning: str | None = None  # the same, under vLLM's present name
    refusal: str | None = None  # how the answer violates its schema
    tool_calls: list[AnyToolCall] | None = optional()


class ChatChoice(WireModel):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatCompletion(WireModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    service_tier: Literal["default"] | None = optional()  # if the request names any tier: there is only one
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    metrics: RequestTimes | None = optional()


class OpeningDelta(WireModel):
    """The first piece of a message; its content is null where the message begins with a call."""

    role: Literal["assistant"] = "assistant"
    content: str | None


class ChatDelta(WireModel):
    content: str | None = optional()
    reasoning_content: str | None = optional()
    refusal: str | None = optional()
    reasoning: str | None = optional()
    tool_calls: list[ToolCallDelta | CustomCallDelta] | None = optional()


class ChatChunkChoice(WireModel):
    index: int
    delta: ChatDelta | OpeningDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = optional()
    token_ids: list[int] | None = optional()


class ChatChunk(WireModel):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    service_tier: Literal["default"] | None = optional()
    choices: list[ChatChunkChoice]
    usage: Usage | None = optional()
    metrics: RequestTimes | None = optional()
    prompt_token_ids: list[int] | None = optional()
