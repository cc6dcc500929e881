"""Requests of /v1/messages on the wire, in Anthropic's shapes."""

import re
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, WithJsonSchema

from ..config import MAX_STOP_STRINGS
from .generation import INT32, StopString, listed, needing
from .model import BodyModel
from .tools import MAX_TOOLS, FunctionName

TEXT, IMAGE, THINKING, REDACTED, TOOL_USE, TOOL_RESULT, DOCUMENT, SEARCH_RESULT, TOOL_REFERENCE = BLOCK_TYPES = (
    "text",
    "image",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
    "document",
    "search_result",
    "tool_reference",
)
CUSTOM = "custom"  # type of a tool with the client's own schema
CLEAR_THINKING = "clear_thinking_20251015"
KEPT = {  # turns of the assistant that keep their thinking: all, or a number of the last
    "anyOf": [
        {"enum": ["all", {"type": "all"}, None]},
        {
            "type": "object",
            "properties": {"type": {"const": "thinking_turns"}, "value": {"type": "integer", "minimum": 1}},
            "required": ["type", "value"],
        },
    ]
}
MAX_EDITS = 16  # in `context_management`


class Citations(BodyModel):
    """Whether the answer should cite the block. No model here does."""

    enabled: Literal[False] | None = None


class Source(BodyModel):
    """Source of a document (plain text, or content blocks) or of an image. PDFs and files have other types."""

    model_config = ConfigDict(json_schema_extra=needing("type"))

    type: Annotated[str, listed("text", "content", "base64", "url")]
    data: str | None = None
    media_type: str | None = Field(None, max_length=64)
    url: str | None = None
    content: str | Annotated[list["TextParam"], Field(fail_fast=True)] | None = None


class Block(BodyModel):
    """Any content block of a request; its type decides which fields it must have."""

    type: Annotated[str, listed(*BLOCK_TYPES)]
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | Annotated[list["Block"], Field(fail_fast=True)] | None = None
    is_error: bool | None = None
    title: str | None = None
    context: str | None = None
    source: Source | str | None = None
    citations: Citations | None = None
    tool_name: str | None = None


class TextParam(Block):
    """A block that must be text."""

    model_config = ConfigDict(json_schema_extra=needing("type", "text"))

    type: Annotated[str, listed(TEXT)]
    text: str | None = None


BlockContent = str | Annotated[list["Block"], Field(fail_fast=True)]
TextContent = str | Annotated[list[TextParam], Field(fail_fast=True)]


class MessageParam(BodyModel):
    role: Literal["user", "assistant", "system"]
    content: BlockContent


class ToolParam(BodyModel):
    """A tool of the client. Tools that a server would run have another `type` and no schema."""

    model_config = ConfigDict(json_schema_extra=needing("name", "input_schema"))

    type: Annotated[str, listed(CUSTOM)] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None  # the prompt lists it only after a result refers to it


class ClientToolParam(BodyModel):
    """A tool that Anthropic has defined and the client runs, by its type; its schema is the server's."""

    type: Literal[
        "bash_20241022",
        "bash_20250124",
        "text_editor_20241022",
        "text_editor_20250124",
        "text_editor_20250429",
        "text_editor_20250728",
        "memory_20250818",
        "computer_20241022",
        "computer_20250124",
        "computer_20251124",
    ]
    name: FunctionName
    strict: bool | None = None
    defer_loading: bool | None = None
    max_characters: int | None = Field(None, ge=1, le=INT32)
    display_width_px: int | None = Field(None, ge=1, le=INT32)
    display_height_px: int | None = Field(None, ge=1, le=INT32)


CLIENT_TOOLS = re.compile(r"(bash|text_editor|memory|computer)_\d+")


def _kind_of_tool(value: Any) -> str:
    """Return the kind of a tool, so that validation errors are about that kind alone."""
    given = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "a client tool" if isinstance(given, str) and CLIENT_TOOLS.fullmatch(given) else "a custom tool"


AnthropicTool = Annotated[
    Annotated[ToolParam, Tag("a custom tool")] | Annotated[ClientToolParam, Tag("a client tool")],
    Discriminator(_kind_of_tool),
]


class ToolChoiceParam(BodyModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingParam(BodyModel):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1, le=INT32)
    display: Literal["summarized", "omitted"] | None = None


class FormatParam(BodyModel):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputParam(BodyModel):
    effort: str | None = Field(None, max_length=32)
    format: FormatParam | None = None


class EditParam(BodyModel):
    model_config = ConfigDict(json_schema_extra=needing("type"))

    type: Annotated[str, listed(CLEAR_THINKING)]
    keep: Annotated[Any, WithJsonSchema(KEPT)] = None


class ContextParam(BodyModel):
    """Parts of the conversation to leave out of the prompt."""

    edits: Annotated[list[EditParam], Field(fail_fast=True, max_length=MAX_EDITS)] | None = None


class CountTokensRequest(BodyModel):
    """Fields of a request that make its prompt."""

    model_config = ConfigDict(allow_inf_nan=False)

    model: str = Field(max_length=4096)
    messages: Annotated[list[MessageParam], Field(fail_fast=True, min_length=1)]
    system: TextContent | None = None
    tools: Annotated[list[AnthropicTool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoiceParam | None = None
    thinking: ThinkingParam | None = None
    output_config: OutputParam | None = None
    output_format: FormatParam | None = None  # the name in earlier clients
    context_management: ContextParam | None = None


class MessagesRequest(CountTokensRequest):
    max_tokens: int = Field(ge=1, le=INT32)
    stop_sequences: Annotated[list[StopString], Field(fail_fast=True, max_length=MAX_STOP_STRINGS)] | None = None
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0, le=INT32)
    priority: int | None = Field(None, ge=-INT32 - 1, le=INT32)  # a field of the other endpoints
