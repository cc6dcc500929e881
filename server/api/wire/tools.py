"""Tools and their calls on the wire, in OpenAI's shapes."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from .generation import listed
from .model import BodyModel, WireModel
from .usage import optional

MAX_TOOLS = 128
INPUT = "input"  # the argument of a custom tool

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]


class FunctionTool(BodyModel):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BodyModel):
    type: Literal["function"]
    function: FunctionTool


class TextFormat(BodyModel):
    type: Literal["text"]


class Grammar(BodyModel):
    syntax: Annotated[Literal["regex", "lark"], listed("regex")]
    definition: str


class GrammarFormat(BodyModel):
    type: Literal["grammar"]
    grammar: Grammar


class CustomToolSpec(BodyModel):
    name: FunctionName
    description: str | None = None
    format: TextFormat | GrammarFormat | None = None


class CustomTool(BodyModel):
    """OpenAI's custom tool, which takes one text. The model sees a function with one argument."""

    type: Literal["custom"]
    custom: CustomToolSpec

    @property
    def function(self) -> Tool:
        """The tool as a function of one text, which must match the regex if there is one."""
        given, text = self.custom, {"type": "string"}
        if isinstance(given.format, GrammarFormat):
            text["pattern"] = f"^(?:{given.format.grammar.definition})$"
        parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
        known: dict[str, Any] = {"name": given.name, "parameters": parameters}
        if given.description is not None:
            known["description"] = given.description
        if "pattern" in text:
            known["strict"] = True
        return Tool(type="function", function=FunctionTool(**known))


class NamedFunction(BodyModel):
    name: str


class NamedToolChoice(BodyModel):
    type: Literal["function"]
    function: NamedFunction


class NamedCustomChoice(BodyModel):
    type: Literal["custom"]
    custom: NamedFunction


NamedChoice = NamedToolChoice | NamedCustomChoice


class AllowedTools(BodyModel):
    """Subset of `tools` that may be called, or of which one must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedChoice], Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS)]


class AllowedToolChoice(BodyModel):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _kind_of_tool(value: Any) -> str:
    """Return the type that a tool was meant to have, so that validation errors are about that type alone."""
    given = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "a custom tool" if given == "custom" else "a function"


AnyTool = Annotated[
    Annotated[Tool, Tag("a function")] | Annotated[CustomTool, Tag("a custom tool")], Discriminator(_kind_of_tool)
]
Tools = Annotated[list[AnyTool], Field(fail_fast=True, max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice | NamedCustomChoice | AllowedToolChoice


def functions_of(tools: Sequence[Tool | CustomTool] | None) -> list[Tool]:
    """Return the tools as a chat template and a model see them."""
    return [tool.function if isinstance(tool, CustomTool) else tool for tool in tools or ()]


class CalledFunction(BodyModel):
    """A function's name with the JSON text of its arguments, as the model wrote it."""

    name: str
    arguments: str


class ToolCall(BodyModel):
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class CalledCustom(BodyModel):
    name: str
    input: str


class CustomToolCall(BodyModel):
    id: str | None = None
    type: Literal["custom"]
    custom: CalledCustom


AnyToolCall = Annotated[
    Annotated[ToolCall, Tag("a function")] | Annotated[CustomToolCall, Tag("a custom tool")],
    Discriminator(_kind_of_tool),
]


class FunctionDelta(WireModel):
    name: str | None = optional()
    arguments: str


class ToolCallDelta(WireModel):
    """A piece of one call in a stream; only the first has id, type and name."""

    index: int
    id: str | None = optional()
    type: Literal["function"] | None = optional()
    function: FunctionDelta


class CustomCallDelta(WireModel):
    """A whole call of a custom tool in a stream."""

    index: int
    id: str
    type: Literal["custom"] = "custom"
    custom: CalledCustom
