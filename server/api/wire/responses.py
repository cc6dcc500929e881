"""Requests of /v1/responses on the wire, in OpenAI's shapes. Other fields are passed on to chat."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from .chat import ROLES
from .generation import INT32, listed, needing
from .model import BodyModel
from .tools import MAX_TOOLS, FunctionName

MAX_METADATA = 16
TEXT_PARTS = ("input_text", "output_text", "text")
IMAGE = "input_image"
REFUSAL = "refusal"
FUNCTION, CUSTOM, NAMESPACE, WEB_SEARCH, ALLOWED_TOOLS = (
    "function",
    "custom",
    "namespace",
    "web_search",
    "allowed_tools",
)
REFERENCE = "item_reference"
ITEM_TYPES = (
    *("message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
    *("compaction", REFERENCE),
)
MAX_ADDED = 20  # items that one request may add to a conversation
NotOffered = Annotated[Any, WithJsonSchema({"type": "null"})]
Summary = Literal["auto", "concise", "detailed"]  # ignored: items have the reasoning itself
Includable = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=MAX_METADATA)
]


class ItemPart(BodyModel):
    """A part of a message's content."""

    type: Annotated[str, listed(*TEXT_PARTS, IMAGE, REFUSAL)]
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_id: str | None = None


ItemContent = str | Annotated[list[ItemPart], Field(fail_fast=True)]


class InputItem(BodyModel):
    """An item of the input; its type decides which fields it must have."""

    type: Annotated[str, listed(*ITEM_TYPES)] = "message"
    id: str | None = Field(None, max_length=256)
    role: Annotated[str, listed(*ROLES)] | None = None
    content: ItemContent | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    encrypted_content: str | None = None
    output: ItemContent | None = None
    summary: list[ItemPart] | None = None


class ToolFormat(BodyModel):
    """Texts that a custom tool takes: any text, or the texts of a grammar."""

    type: Literal["text", "grammar"]
    syntax: Annotated[Literal["regex", "lark"], listed("regex")] | None = None
    definition: str | None = None


class InnerTool(BodyModel):
    """A tool that the client runs."""

    model_config = ConfigDict(json_schema_extra=needing("type", "name"))

    type: Annotated[str, listed(FUNCTION, CUSTOM)]
    name: FunctionName | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: ToolFormat | None = None


class ResponseTool(InnerTool):
    """A function or a custom tool, or a namespace of them. Tools that a server would run have another `type`."""

    model_config = ConfigDict(json_schema_extra=needing("type", "name"))

    type: Annotated[str, listed(FUNCTION, CUSTOM, NAMESPACE)]
    tools: Annotated[list[InnerTool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    external_web_access: bool | None = None


class NamedTool(BodyModel):
    model_config = ConfigDict(json_schema_extra=needing("type", "name"))

    type: Annotated[str, listed(FUNCTION, CUSTOM)]
    name: str | None = None
    namespace: str | None = None


class ResponseToolChoice(BodyModel):
    """One tool by its name, or several with the type `allowed_tools`."""

    type: Annotated[str, listed(FUNCTION, CUSTOM, ALLOWED_TOOLS)]
    name: str | None = None
    namespace: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[NamedTool], Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS)] | None = None


class PlainFormat(BodyModel):
    type: Literal["text", "json_object"]
    schema_: None = Field(None, alias="schema")


class SchemaFormat(BodyModel):
    type: Literal["json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class TextOptions(BodyModel):
    format: PlainFormat | SchemaFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(BodyModel):
    effort: str | None = Field(None, max_length=32)
    summary: Summary | None = None
    generate_summary: Summary | None = None


class ConversationRef(BodyModel):
    id: str = Field(max_length=256)


class ResponsesRequest(BodyModel):
    """Body of POST /v1/responses. A null field counts as absent; `input` may be absent after a stored response."""

    model_config = ConfigDict(allow_inf_nan=False, json_schema_extra=needing("input"))

    model: str | None = Field(None, max_length=4096)
    input: str | Annotated[list[InputItem], Field(fail_fast=True)] | None = None
    instructions: str | None = None
    previous_response_id: str | None = Field(None, max_length=256)
    conversation: Annotated[str, Field(max_length=256)] | ConversationRef | None = None
    prompt: NotOffered = None
    context_management: NotOffered = None
    moderation: NotOffered = None
    background: bool | None = None
    include: list[Includable] | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=INT32)
    max_tool_calls: int | None = Field(None, ge=1)
    metadata: Metadata | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    service_tier: str | None = Field(None, max_length=32)
    store: bool | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    text: TextOptions | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice | None = None
    tools: Annotated[list[ResponseTool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    top_logprobs: int | None = Field(None, ge=0)
    top_p: float | None = Field(None, ge=0, le=1)
    truncation: Literal["auto", "disabled"] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id if isinstance(self.conversation, ConversationRef) else self.conversation


class CompactRequest(BodyModel):
    """Body of POST /v1/responses/compact."""

    model_config = ConfigDict(json_schema_extra=needing("input"))

    model: str | None = Field(None, max_length=4096)
    input: str | Annotated[list[InputItem], Field(fail_fast=True)] | None = None
    instructions: str | None = None
    previous_response_id: str | None = Field(None, max_length=256)


Items = Annotated[list[InputItem], Field(fail_fast=True, max_length=MAX_ADDED)]


class ConversationRequest(BodyModel):
    """Body of POST /v1/conversations."""

    metadata: Metadata | None = None
    items: Items | None = None


class MetadataRequest(BodyModel):
    """Body of POST /v1/conversations/{id}."""

    metadata: Metadata | None


class ItemsRequest(BodyModel):
    """Body of POST /v1/conversations/{id}/items."""

    items: Items
