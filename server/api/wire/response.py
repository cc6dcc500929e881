"""A response of /v1/responses on the wire, and its items, in OpenAI's shapes. Items change while they are streamed."""

from typing import Any, Literal

from pydantic import Field

from .chat import TokenLogprob
from .model import WireModel
from .usage import DeviceUsage, optional

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class OutputText(WireModel):
    type: Literal["output_text"] = "output_text"
    text: str = ""
    annotations: list[Any] = Field([])
    logprobs: list[TokenLogprob] = Field([])


class Refusal(WireModel):
    """Explanation how the output violates its schema."""

    type: Literal["refusal"] = "refusal"
    refusal: str


class ReasoningText(WireModel):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str = ""


class MessageItem(WireModel):
    type: Literal["message"] = "message"
    id: str
    role: Literal["assistant"] = "assistant"
    status: ItemStatus = "in_progress"
    content: list[OutputText | Refusal] = Field([])


class ReasoningItem(WireModel):
    type: Literal["reasoning"] = "reasoning"
    id: str
    status: ItemStatus = "in_progress"
    summary: list[Any] = Field([])  # always empty
    content: list[ReasoningText] = Field([])
    encrypted_content: str | None = optional()


class FunctionCallItem(WireModel):
    type: Literal["function_call"] = "function_call"
    id: str
    call_id: str
    name: str
    namespace: str | None = optional()
    arguments: str = ""
    status: ItemStatus = "in_progress"


class CustomCallItem(WireModel):
    type: Literal["custom_tool_call"] = "custom_tool_call"
    id: str
    call_id: str
    name: str
    namespace: str | None = optional()
    input: str = ""
    status: ItemStatus = Field("in_progress", exclude=True)  # OpenAI's type does not have it


OutputItem = MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem


class InputTokensDetails(WireModel):
    cached_tokens: int
    cache_write_tokens: int = 0  # writing to the cache is not charged


class OutputTokensDetails(WireModel):
    reasoning_tokens: int


class ResponseUsage(WireModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int
    neuronserve: DeviceUsage | None = optional()


class ResponseError(WireModel):
    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteDetails(WireModel):
    reason: Literal["max_output_tokens"]


class ConversationId(WireModel):
    id: str


class Response(WireModel):
    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    background: bool
    conversation: ConversationId | None = optional()
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem] = Field([])
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None = optional()
    user: str | None = optional()


class DeletedResponse(WireModel):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputTokens(WireModel):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class Compaction(WireModel):
    """A conversation in short: the messages of its user, and an item with a summary of the rest."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponseUsage


class ConversationObject(WireModel):
    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(WireModel):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: Literal[True] = True


class ItemList(WireModel):
    """Items of a response's input or of a conversation; both ids are empty if there are none."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool
