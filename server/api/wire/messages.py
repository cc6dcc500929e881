"""/v1/messages on the wire, in Anthropic's shapes."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from server.api.config import MAX_STOP_STRINGS
from server.api.wire.generation import INT32, StopString, listed, needing
from server.api.wire.model import WireModel
from server.api.wire.tools import MAX_TOOLS, FunctionName
from server.api.wire.usage import optional

TEXT, THINKING, REDACTED, TOOL_USE, TOOL_RESULT = BLOCK_TYPES = (
    "text",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
)
OF_CLIENTS = "custom"  # type of a tool that the client runs itself
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "model_context_window_exceeded"]


class Block(WireModel):
    """Any content block of a request; which of the fields there must be depends on its type."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: Annotated[str, listed(*BLOCK_TYPES)]
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | Annotated[list["Block"], Field(fail_fast=True)] | None = None
    is_error: bool | None = None


class TextParam(Block):
    """A block where nothing but text is possible."""

    model_config = ConfigDict(json_schema_extra=needing("type", "text"))

    type: Annotated[str, listed(TEXT)]
    text: str | None = None


Content = str | Annotated[list["Block"], Field(fail_fast=True)]
TextContent = str | Annotated[list[TextParam], Field(fail_fast=True)]


class MessageParam(WireModel):
    model_config = ConfigDict(strict=True, extra="allow")

    role: Literal["user", "assistant", "system"]
    content: Content


class ToolParam(WireModel):
    """A tool of the client's. Those that a server would run have another `type` and no schema."""

    model_config = ConfigDict(strict=True, extra="allow", json_schema_extra=needing("name", "input_schema"))

    type: Annotated[str, listed(OF_CLIENTS)] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoiceParam(WireModel):
    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingParam(WireModel):
    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1, le=INT32)


class FormatParam(WireModel):
    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputParam(WireModel):
    model_config = ConfigDict(strict=True, extra="allow")

    effort: str | None = Field(None, max_length=32)
    format: FormatParam | None = None


class CountTokensRequest(WireModel):
    """What of a request makes its prompt."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    model: str = Field(max_length=4096)
    messages: Annotated[list[MessageParam], Field(fail_fast=True, min_length=1)]
    system: TextContent | None = None
    tools: Annotated[list[ToolParam], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoiceParam | None = None
    thinking: ThinkingParam | None = None
    output_config: OutputParam | None = None


class MessagesRequest(CountTokensRequest):
    max_tokens: int = Field(ge=1, le=INT32)
    stop_sequences: Annotated[list[StopString], Field(fail_fast=True, max_length=MAX_STOP_STRINGS)] | None = None
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0, le=INT32)


class TextBlock(WireModel):
    type: Literal["text"] = "text"
    text: str = ""


class ThinkingBlock(WireModel):
    type: Literal["thinking"] = "thinking"
    thinking: str = ""
    signature: str = ""  # there is nothing to verify


class ToolUseBlock(WireModel):
    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any] = Field({})


AnyBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessagesUsage(WireModel):
    """All tokens of the prompt are the sum of its three counts."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int


class StopDetails(WireModel):
    """Why the answer counts as refused: in what it does not follow its schema."""

    type: Literal["refusal"] = "refusal"
    category: None = None
    explanation: str


class MessageAnswer(WireModel):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnyBlock]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    stop_details: StopDetails | None = optional()
    usage: MessagesUsage


class MessageStart(WireModel):
    type: Literal["message_start"] = "message_start"
    message: MessageAnswer


class Ping(WireModel):
    type: Literal["ping"] = "ping"


class BlockStart(WireModel):
    type: Literal["content_block_start"] = "content_block_start"
    index: int
    content_block: AnyBlock


class BlockPiece(WireModel):
    """A piece of one block, in the field that its type has."""

    type: Literal["text_delta", "thinking_delta", "input_json_delta"]
    text: str | None = optional()
    thinking: str | None = optional()
    partial_json: str | None = optional()


class BlockDelta(WireModel):
    type: Literal["content_block_delta"] = "content_block_delta"
    index: int
    delta: BlockPiece


class BlockStop(WireModel):
    type: Literal["content_block_stop"] = "content_block_stop"
    index: int


class Stop(WireModel):
    stop_reason: StopReason
    stop_sequence: str | None
    stop_details: StopDetails | None = optional()


class MessageDelta(WireModel):
    type: Literal["message_delta"] = "message_delta"
    delta: Stop
    usage: MessagesUsage


class MessageStop(WireModel):
    type: Literal["message_stop"] = "message_stop"


Event = MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop


class TokenCount(WireModel):
    input_tokens: int
