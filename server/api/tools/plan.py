"""The tools of a chat request: checks that the model can use them, and the grammar of an answer that calls them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import InvalidRequest
from ...text.grammar import GrammarError, json_schema
from ...text.parsers.call_formats import CALLS, ToolParserName
from ...text.parsers.formats import ReasoningParserName, parsers_for
from ...text.parsers.lark import Function, Lead, Marks, call_rules, text_rule
from ...text.parsers.property_rules import is_held
from ..config import ApiConfig
from ..errors import unsupported
from ..pipeline.output_format import (
    Constraint,
    OutputFormat,
    compile_format,
    fitted,
)
from ..pipeline.prompts import template_source
from ..service import ServedModel
from ..wire.chat import ChatRequest, Message
from ..wire.tools import (
    AllowedToolChoice,
    CustomTool,
    GrammarFormat,
    NamedCustomChoice,
    NamedToolChoice,
    Tool,
    ToolChoice,
    functions_of,
)

Mode = Literal["none", "auto", "required", "named"]
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
NO_LEAD = Lead()
_TOOLS = re.compile(r"\btools\b")


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """Use of the tools of one request. Mode "none": the tools are ignored."""

    mode: Mode = "none"
    tools: tuple[Tool, ...] = ()  # tools that may be called
    offered: tuple[Tool, ...] = ()  # tools in the prompt
    is_parallel: bool = True
    parser: ToolParserName = "none"  # parser of the calls
    custom: frozenset[str] = frozenset()  # names of custom tools, which take one text; the model sees functions

    @property
    def max_calls(self) -> int | None:
        return None if self.is_parallel else 1

    @property
    def is_forced(self) -> bool:
        return self.mode in {"required", "named"}

    def finish_reason(self, reason: str, num_calls: int) -> str:
        """Return OpenAI's finish_reason; it stays "stop" after a call of the function that the client has named."""
        return "tool_calls" if reason == "stop" and num_calls and self.mode != "named" else reason


def chosen_parsers(config: ApiConfig, template: str | None) -> tuple[ToolParserName, ReasoningParserName]:
    """Return the parsers of calls and reasoning that the settings name, else those of the chat template."""
    tools, reasoning = parsers_for(template)
    return (
        tools if config.tool_call_parser == "auto" else config.tool_call_parser,
        reasoning if config.reasoning_parser == "auto" else config.reasoning_parser,
    )


def tool_plan(model: ServedModel, config: ApiConfig, body: ChatRequest) -> ToolPlan:
    """Check the fields of a request that are about tools. Raises InvalidRequest."""
    choice = body.tool_choice
    tools = () if choice == "none" else tuple(functions_of(body.tools))
    custom = _custom(body)
    template = template_source(model, body)
    require_template(template, body.messages, tools)
    if not tools:
        if choice not in (None, "none"):
            raise InvalidRequest("tool_choice is allowed only when tools are given.", "tool_choice")
        return ToolPlan()
    parser = _parser(template, config)
    names = [tool.function.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            param = f"tools[{index}].{_kind(custom, name)}.name"
            raise InvalidRequest(f"{param}: two functions are named {name!r}.", param)
    mode, callable_tools = _chosen(choice, tools)
    if mode == "auto" and not config.enable_auto_tool_choice:
        raise InvalidRequest(
            "tool_choice 'auto' is switched off on this server (--no-enable-auto-tool-choice); "
            "'none', 'required' and named functions are not.",
            "tool_choice",
        )
    is_parallel = body.parallel_tool_calls is not False and mode != "named"
    return ToolPlan(mode, callable_tools, tools, is_parallel, parser, custom)


def _chosen(choice: ToolChoice | None, tools: tuple[Tool, ...]) -> tuple[Mode, tuple[Tool, ...]]:
    """Return the mode and the tools that may be called. Raises InvalidRequest for a name that `tools` does not have."""
    if isinstance(choice, NamedToolChoice | NamedCustomChoice):
        return "named", (_named(tools, *_name_in(choice, "tool_choice")),)
    if isinstance(choice, AllowedToolChoice):
        allowed = choice.allowed_tools
        named = [
            _named(tools, *_name_in(each, f"tool_choice.allowed_tools.tools[{i}]"))
            for i, each in enumerate(allowed.tools)
        ]
        return allowed.mode, tuple(tool for tool in tools if tool in named)
    return ("required" if choice == "required" else "auto"), tools


def _name_in(choice: NamedToolChoice | NamedCustomChoice, param: str) -> tuple[str, str]:
    """Return the name of a tool, and its field."""
    if isinstance(choice, NamedToolChoice):
        return choice.function.name, f"{param}.function.name"
    return choice.custom.name, f"{param}.custom.name"


def _custom(body: ChatRequest) -> frozenset[str]:
    """Return the names of custom tools. Raises InvalidRequest for a format that no grammar of calls can force."""
    for index, tool in enumerate(body.tools or ()):
        given = tool.custom.format if isinstance(tool, CustomTool) else None
        if isinstance(given, GrammarFormat) and given.grammar.syntax == "lark":
            param = f"tools[{index}].custom.format.grammar.syntax"
            raise unsupported(
                param, ": 'lark' is not supported, because calls have their text inside JSON; 'regex' is."
            )
    return frozenset(tool.custom.name for tool in body.tools or () if isinstance(tool, CustomTool))


def _kind(custom: frozenset[str], name: str) -> str:
    """Return the field that describes a tool of this name."""
    return "custom" if name in custom else "function"


async def compile_plan(
    model: ServedModel, plan: ToolPlan, output_format: OutputFormat | None, lead: Lead = NO_LEAD
) -> Constraint:
    """Compile the constraint of an answer that may be, or must be, calls; `lead` precedes it. Raises InvalidRequest."""
    if not plan.is_forced and not (plan.mode == "auto" and (output_format or _is_bound(plan))):
        return (
            Constraint() if output_format is None else await compile_format(model, output_format, lead.before_answer())
        )
    if (
        output_format is not None
        and output_format.kind != "json"
        and (not plan.is_forced or output_format.kind == "lark")
    ):
        raise InvalidRequest(
            f"{output_format.param} and tools exclude each other unless the format is JSON.", output_format.param
        )
    has_grammar = bool(_grammar(model, plan, (), "" if output_format else None))
    # Without a mark, text that no grammar constrains may also be read as a call.
    is_forced = has_grammar and (plan.is_forced or not CALLS[plan.parser].shape.lead)
    functions, checks = await _functions(model, plan, is_forced)
    if not has_grammar:
        return Constraint(calls=checks)
    answer = None if output_format is None or plan.is_forced else await fitted(model, output_format)
    start = None if answer is None else f"{lead.answer} %json {json_schema(answer.schema)}"
    grammar = _grammar(model, plan, functions, start)
    made = await compile_format(model, OutputFormat("tools", "lark", grammar), lead.before_calls())
    return Constraint(made.grammar, answer.checked if answer else "", checks)


async def _functions(model: ServedModel, plan: ToolPlan, is_forced: bool) -> tuple[list[Function], dict[str, str]]:
    """Return the functions with schemas that a grammar can force, and the schemas to check their arguments by.

    If the grammar does not force every call (`is_forced` False), the arguments of all functions are checked.
    """
    shape, functions, checks = CALLS[plan.parser].shape, [], {}
    for tool in plan.tools:
        name = tool.function.name
        where = "custom.format.grammar.definition" if name in plan.custom else "function.parameters"
        param = f"tools[{plan.offered.index(tool)}].{where}"
        if _is_free(plan, tool):
            functions.append(Function(name, {"type": "object"}))
            continue
        schema = _parameters(tool)
        fit = await fitted(model, OutputFormat(param, "json", schema))
        if fit.checked and name in plan.custom:
            raise InvalidRequest(f"{param} cannot be used: {fit.why}.", param, "invalid_grammar")
        functions.append(Function(name, fit.schema))
        if fit.checked or not (is_forced and is_held(shape.arguments, fit.schema)):
            checks[name] = fit.checked or json.dumps(schema)
        await _require_form(model, plan, functions[-1], param)
    return functions, checks


async def _require_form(model: ServedModel, plan: ToolPlan, function: Function, param: str) -> None:
    """Raise InvalidRequest for `param` if this model's form of calls cannot have such arguments."""
    try:
        _grammar(model, ToolPlan("named", parser=plan.parser), [function], None)
    except GrammarError as error:
        raise InvalidRequest(f"{param} cannot be used: {error}.", param, "invalid_grammar") from error


def require_template(template: str | None, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
    """Raise InvalidRequest if the chat template would leave out tools, their calls or their results."""
    if template is None or _TOOLS.search(template):
        return
    fields = ["tools"] if tools else []
    for index, message in enumerate(messages):
        fields += [f"messages[{index}].role"] if message.role == "tool" else []
        fields += [f"messages[{index}].tool_calls"] if message.tool_calls else []
    for field in fields:
        raise unsupported(
            field,
            ": the chat template of this model knows no tools; start the server with a --chat-template that does.",
        )


def _parser(template: str | None, config: ApiConfig) -> ToolParserName:
    """Return the parser of calls for this template. Raises InvalidRequest if there is none."""
    parser, _ = chosen_parsers(config, template)
    if parser == "none":
        why = (
            "this server reads no calls (--tool-call-parser none)"
            if config.tool_call_parser == "none"
            else "the chat template of this model writes calls in no form that this server knows"
        )
        raise unsupported("tools", f": {why}; --tool-call-parser sets one of {', '.join(CALLS)}.")
    return parser


def _named(tools: Sequence[Tool], name: str, param: str) -> Tool:
    for tool in tools:
        if tool.function.name == name:
            return tool
    known = ", ".join(tool.function.name for tool in tools)
    raise InvalidRequest(f"tool_choice names the function {name[:128]!r}; tools has {known[:400]}.", param)


def _is_bound(plan: ToolPlan) -> bool:
    """Whether calls that the model decides on are restricted."""
    return plan.tools != plan.offered or any(tool.function.strict for tool in plan.tools)


def _parameters(tool: Tool) -> dict[str, Any]:
    given = tool.function.parameters
    return NO_PARAMETERS if given is None else {"type": "object", **given}


def _grammar(model: ServedModel, plan: ToolPlan, functions: Sequence[Function], answer: str | None) -> str:
    """Return a grammar in llguidance's Lark; "" if no grammar can tell the beginning of a call from text.

    `answer` is the rule of an answer that is no call; None = text.
    """
    row = CALLS[plan.parser]
    marks = Marks(row.tags, model.tokenizer.token_id)
    text = text_rule(row.shape, marks)
    if plan.is_forced:
        start = ["start: calls"]
    elif answer is not None:
        start = ["start: calls | answer", f"answer: {answer}"]
    elif text is None:
        return ""
    elif row.shape.lead:
        start = ["start: calls | text", text]
    else:
        start = [f"start: text (calls text){'*' if plan.is_parallel else '?'}", text]
    return "\n".join([*start, *call_rules(row.shape, marks, functions, plan.is_parallel)])


def _is_free(plan: ToolPlan, tool: Tool) -> bool:
    """Whether the tool may have any arguments."""
    return plan.mode == "auto" and not tool.function.strict
