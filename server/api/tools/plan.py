"""The tools of a chat request: checks that the model can use them, and the grammar of an answer that calls them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from server.api.config import ApiConfig
from server.api.pipeline.output_format import OutputFormat, compile_format
from server.api.pipeline.prompts import template_source
from server.api.service import ServedModel
from server.api.tools.hermes import CLOSE, OPEN, ToolText
from server.api.wire.chat import ChatRequest, Message
from server.api.wire.tools import NamedToolChoice, Tool
from server.errors import InvalidRequest
from server.text.grammar import GrammarError, json_schema, quoted

Mode = Literal["none", "auto", "required", "named"]
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_TOOLS = re.compile(r"\btools\b")


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """Use of the tools of one request. With mode "none" there might as well be no tools."""

    mode: Mode = "none"
    tools: tuple[Tool, ...] = ()  # those that may be called
    offered: tuple[Tool, ...] = ()  # those that are in the prompt
    is_parallel: bool = True

    @property
    def max_calls(self) -> int | None:
        return None if self.is_parallel else 1

    @property
    def is_forced(self) -> bool:
        return self.mode in {"required", "named"}

    def parser(self) -> ToolText | None:
        """Parser of the calls in the text of one choice; None when there can be none."""
        return None if self.mode == "none" else ToolText(self.max_calls)

    def finish_reason(self, reason: str, num_calls: int) -> str:
        """OpenAI's finish_reason, which is "stop" after a call of the function that the client itself named."""
        return "tool_calls" if reason == "stop" and num_calls and self.mode != "named" else reason


def tool_plan(model: ServedModel, config: ApiConfig, body: ChatRequest) -> ToolPlan:
    """Check the fields of a request that are about tools. Raises InvalidRequest."""
    choice = body.tool_choice
    tools = () if choice == "none" else tuple(body.tools or ())
    template = template_source(model, body)
    require_template(template, body.messages, tools)
    if not tools:
        if choice not in (None, "none"):
            raise InvalidRequest("tool_choice is allowed only when tools are given.", "tool_choice")
        return ToolPlan()
    _require_parser(template, config)
    names = [tool.function.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            param = f"tools[{index}].function.name"
            raise InvalidRequest(f"{param}: two functions are named {name!r}.", param)
    is_parallel = body.parallel_tool_calls is not False
    if isinstance(choice, NamedToolChoice):
        return ToolPlan("named", (_named(tools, choice),), tools, is_parallel=False)
    if choice == "required":
        return ToolPlan("required", tools, tools, is_parallel)
    if not config.enable_auto_tool_choice:
        raise InvalidRequest(
            "tool_choice 'auto' is switched off on this server (--no-enable-auto-tool-choice); "
            "'none', 'required' and named functions are not.",
            "tool_choice",
        )
    return ToolPlan("auto", tools, tools, is_parallel)


async def compile_plan(model: ServedModel, plan: ToolPlan, output_format: OutputFormat | None) -> str:
    """The grammar of an answer that may be, or must be, calls; "" when anything goes. Raises InvalidRequest."""
    if not plan.is_forced and not (plan.mode == "auto" and (output_format or _is_strict(plan))):
        return "" if output_format is None else await compile_format(model, output_format)
    if (
        output_format is not None
        and output_format.kind != "json"
        and (not plan.is_forced or output_format.kind == "lark")
    ):
        raise InvalidRequest(
            f"{output_format.param} and tools exclude each other unless the format is JSON.", output_format.param
        )
    tags = model.tokenizer.token_id(OPEN), model.tokenizer.token_id(CLOSE)
    if output_format is None and not plan.is_forced and None in tags:
        return ""  # without tags that are tokens, a grammar cannot recognize the beginning of a call
    try:
        grammar = _grammar(plan, output_format, *tags)
        return await compile_format(model, OutputFormat("tools", "lark", grammar))
    except (InvalidRequest, GrammarError) as error:
        for index, tool in enumerate(plan.offered):  # which of them it was
            await compile_format(model, OutputFormat(f"tools[{index}].function.parameters", "json", _parameters(tool)))
        if output_format is not None and not plan.is_forced:
            await compile_format(model, output_format)
        raise InvalidRequest(str(error), "tools", "invalid_grammar") from error


def keep_tags(model: ServedModel, plan: ToolPlan, body: ChatRequest) -> ChatRequest:
    """The request with special tokens left in its text, where the tags of calls are such tokens."""
    tags = [model.tokenizer.token_id(tag) for tag in (OPEN, CLOSE)]
    if plan.mode == "none" or not any(tag is not None and model.tokenizer.is_silent(tag) for tag in tags):
        return body
    return body.model_copy(update={"skip_special_tokens": False})


def require_template(template: str | None, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
    """Raise InvalidRequest where the chat template would leave out tools, their calls or their results."""
    if template is None or _TOOLS.search(template):
        return
    fields = ["tools"] if tools else []
    for index, message in enumerate(messages):
        fields += [f"messages[{index}].role"] if message.role == "tool" else []
        fields += [f"messages[{index}].tool_calls"] if message.tool_calls else []
    for field in fields:
        raise InvalidRequest(
            f"{field}: the chat template of this model knows no tools; start the server with a --chat-template "
            "that does.",
            field,
            "unsupported_parameter",
        )


def _require_parser(template: str | None, config: ApiConfig) -> None:
    if config.tool_call_parser == "auto" and OPEN not in (template or ""):
        raise InvalidRequest(
            f"tools: the chat template of this model does not write calls as {OPEN}, the one form this server "
            "reads; --tool-call-parser hermes takes it for that form all the same.",
            "tools",
            "unsupported_parameter",
        )


def _named(tools: Sequence[Tool], choice: NamedToolChoice) -> Tool:
    for tool in tools:
        if tool.function.name == choice.function.name:
            return tool
    known = ", ".join(tool.function.name for tool in tools)
    raise InvalidRequest(
        f"tool_choice names the function {choice.function.name[:128]!r}; tools has {known[:400]}.",
        "tool_choice.function.name",
    )


def _is_strict(plan: ToolPlan) -> bool:
    return any(tool.function.strict for tool in plan.tools)


def _parameters(tool: Tool) -> dict[str, Any]:
    given = tool.function.parameters
    return NO_PARAMETERS if given is None else {"type": "object", **given}


def _grammar(plan: ToolPlan, output_format: OutputFormat | None, open_id: int | None, close_id: int | None) -> str:
    """A grammar in llguidance's Lark. The tags are tokens where the vocabulary has them, else text."""
    begin = f"<[{open_id}]>" if open_id is not None else quoted(OPEN)
    end = f"<[{close_id}]>" if close_id is not None else quoted(CLOSE)
    rules = [f"call: {begin} {quoted(chr(10))} ({' | '.join(f'f{i}' for i in range(len(plan.tools)))}) "]
    rules[0] += f"{quoted(chr(10))} {end}"
    for index, tool in enumerate(plan.tools):
        is_free = plan.mode == "auto" and not tool.function.strict
        schema = json_schema({"type": "object"} if is_free else _parameters(tool))
        head = f'{{"name": {json.dumps(tool.function.name)}, "arguments": '
        rules.append(f"f{index}: {quoted(head)} %json {schema} {quoted('}')}")
    calls = "call" if not plan.is_parallel else f"call ({quoted(chr(10))} call)*"
    if plan.is_forced:
        start = [f"start: {calls}"]
    elif output_format is not None:
        start = ["start: calls | answer", f"calls: {calls}", f"answer: %json {json_schema(output_format.spec)}"]
    else:
        start = [f"start: TEXT (call TEXT){'*' if plan.is_parallel else '?'}", r"TEXT: /(?s:.*)/"]
    return "\n".join([*start, *rules])
