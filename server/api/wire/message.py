"""A message of /v1/messages on the wire, and the events of its stream, in Anthropic's shapes."""

from typing import Any, Literal

from pydantic import Field

from .model import WireModel
from .usage import DeviceUsage, optional

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "model_context_window_exceeded"]


class TextBlock(WireModel):
    type: Literal["text"] = "text"
    text: str = ""


class ThinkingBlock(WireModel):
    type: Literal["thinking"] = "thinking"
    thinking: str = ""
    signature: str = ""  # the text itself if it is not displayed


class ToolUseBlock(WireModel):
    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any] = Field({})


AnyBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessagesUsage(WireModel):
    """Token counts; the prompt is the sum of the three input counts."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int
    neuronserve: DeviceUsage | None = optional()  # when requested by a header


class StopDetails(WireModel):
    """Explanation of a refusal: how the answer violates its schema."""

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
    """A piece of one block, in the field that belongs to its type."""

    type: Literal["text_delta", "thinking_delta", "signature_delta", "input_json_delta"]
    text: str | None = optional()
    thinking: str | None = optional()
    signature: str | None = optional()
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
