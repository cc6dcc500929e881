"""Tools, their calls, and structured output on the wire, in OpenAI's shapes and, for `structured_outputs`, vLLM's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from server.api.schemas_response import optional

MAX_TOOLS = 128
MAX_CHOICES = 1024

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]

Choices = Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MAX_CHOICES)]


class FunctionTool(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["function"]
    function: FunctionTool


class NamedFunction(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    name: str


class NamedToolChoice(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["function"]
    function: NamedFunction


Tools = Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice


class JsonSchemaFormat(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())

    name: str | None = None
    schema_: Any = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(BaseModel):
    """Exactly one of these is given."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())

    json_: dict[str, Any] | str | bool | None = Field(None, alias="json")
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None


class CalledFunction(BaseModel):
    """In a message from the client the arguments are its own copy of what the model wrote."""

    model_config = ConfigDict(strict=True, extra="allow")

    name: str
    arguments: str


class ToolCall(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class FunctionDelta(BaseModel):
    name: str | None = optional()
    arguments: str


class ToolCallDelta(BaseModel):
    """A piece of one call in a stream; only the first has id, type and name."""

    index: int
    id: str | None = optional()
    type: Literal["function"] | None = optional()
    function: FunctionDelta
