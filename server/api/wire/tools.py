"""Tools and their calls on the wire, in OpenAI's shapes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from server.api.wire.usage import optional

MAX_TOOLS = 128

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]


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


class AllowedTools(BaseModel):
    """Those of `tools` that may be called, or of which one must be."""

    model_config = ConfigDict(strict=True, extra="allow")

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedToolChoice], Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS)]


class AllowedToolChoice(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


Tools = Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice | AllowedToolChoice


class CalledFunction(BaseModel):
    """A function's name with the JSON text of its arguments, as the model wrote it."""

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
