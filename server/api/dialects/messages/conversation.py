"""Anthropic's request as a chat request of the same meaning; fields that chat cannot express are refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from ....errors import InvalidRequest
from ...anthropic_error import THREAD_UNSUPPORTED
from ...errors import as_body, refuse_given, required, unsupported
from ...wire import messages
from ...wire.chat import ChatRequest
from ...wire.messages import (
    AnthropicTool,
    Block,
    ClientToolParam,
    CountTokensRequest,
    MessageParam,
    MessagesRequest,
    ToolChoiceParam,
)
from ..terms import Terms
from .blocks import content_of, part_of, text_of, thought_of
from .client_tools import function_of

REFUSED = ("container", "mcp_servers", "compaction")
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
SAME = ("temperature", "top_p", "top_k", "stream", "max_tokens", "priority")  # fields of both
DIRECT = "direct"  # the caller of every tool here: the model
NAMES = (
    (r"max_completion_tokens", "max_tokens"),
    (r"stop", "stop_sequences"),
    (r"response_format\.json_schema", "output_config.format"),
    (r"response_format", "output_config.format"),
    (r"reasoning_effort", "output_config.effort"),
    (r"thinking_token_budget", "thinking.budget_tokens"),
    (r"tool_choice\.function", "tool_choice"),
    (r"parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
)
TOOL_NAMES = ((r"\.function\.parameters", ".input_schema"), (r"\.function", ""))


def chat_request(body: CountTokensRequest) -> tuple[ChatRequest, Terms]:
    """Return the chat request of `body`, and the terms that name the fields of `body` in its errors.

    Fields of the output are set only for a MessagesRequest. Raises InvalidRequest.
    """
    _refuse(body.model_extra or {})
    terms = Terms(NAMES, TOOL_NAMES)
    fields: dict[str, Any] = {"model": body.model, "messages": _messages(body, terms), **_tools(body, terms)}
    fields |= _output(body)
    if isinstance(body, MessagesRequest):
        fields |= {name: getattr(body, name) for name in SAME}
        fields["stop"] = body.stop_sequences or None
    if body.messages[-1].role == "assistant":  # the answer continues it
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    with terms.applied():
        return as_body(ChatRequest, fields), terms


def _refuse(extra: dict[str, Any]) -> None:
    """Raise InvalidRequest for fields of Anthropic's API that would change the answer and are not supported."""
    refuse_given(extra, *REFUSED)
    if extra.get("thread"):
        raise InvalidRequest(
            "thread: this server holds no conversations; send all messages without it.", "thread", THREAD_UNSUPPORTED
        )


def _messages(body: CountTokensRequest, terms: Terms) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    if body.system is not None:
        made.append({"role": "system", "content": text_of(body.system, "system")})
        terms.messages.append("system")
    thoughtless = _thoughtless(body)
    for index, message in enumerate(body.messages):
        param = f"messages[{index}]"
        turn = _turn(message, f"{param}.content", index in thoughtless)
        made += turn
        terms.messages += [param] * len(turn)
    return made


def _thoughtless(body: CountTokensRequest) -> set[int]:
    """Return the indexes of messages whose thinking `context_management` removes. Raises InvalidRequest."""
    edits = body.context_management.edits if body.context_management else None
    thinking = [
        index
        for index, message in enumerate(body.messages)
        if not isinstance(message.content, str) and any(block.type == messages.THINKING for block in message.content)
    ]
    kept: int | None = None
    for index, edit in enumerate(edits or ()):
        param = f"context_management.edits[{index}]"
        if edit.type != messages.CLEAR_THINKING:
            raise unsupported(
                f"{param}.type", f" is {edit.type[:60]!r}; this server has {messages.CLEAR_THINKING!r} alone."
            )
        kept = _num_kept(edit.keep, f"{param}.keep")
    return set() if kept is None else set(thinking[: max(0, len(thinking) - kept)])


def _num_kept(keep: Any, param: str) -> int | None:
    """Return how many of the last turns keep their thinking, by default 1; None = all. Raises InvalidRequest."""
    if keep is None:
        return 1
    if keep == "all" or (isinstance(keep, dict) and keep.get("type") == "all"):
        return None
    value = keep.get("value") if isinstance(keep, dict) and keep.get("type") == "thinking_turns" else None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidRequest(f"{param}: must be 'all', or of the type 'thinking_turns' with a value from 1.", param)
    return value


def _turn(message: MessageParam, param: str, is_thoughtless: bool) -> list[dict[str, Any]]:
    """Return the chat messages of one message: in chats each result of a tool is a message of its own."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    if message.role == "assistant":
        return [_answer(message.content, param, is_thoughtless)]
    turns: list[dict[str, Any]] = []
    for i, block in enumerate(message.content):
        if block.type == messages.TOOL_RESULT:
            turns.append(_result(block, f"{param}[{i}]"))
        elif turns and turns[-1]["role"] == message.role:
            turns[-1]["content"].append(part_of(block, f"{param}[{i}]"))
        else:
            turns.append({"role": message.role, "content": [part_of(block, f"{param}[{i}]")]})
    return turns or [{"role": message.role, "content": ""}]


def _answer(blocks: Sequence[Block], param: str, is_thoughtless: bool) -> dict[str, Any]:
    """Return a message of the assistant: its text, its thinking, and its calls."""
    parts, calls, thoughts = [], [], []
    for i, block in enumerate(blocks):
        match block.type:
            case messages.TOOL_USE:
                calls.append(_call(block, f"{param}[{i}]"))
            case messages.THINKING:
                thoughts.append(thought_of(block))
            case messages.REDACTED:
                pass  # another server has encrypted it
            case _:
                parts.append(part_of(block, f"{param}[{i}]"))
    message: dict[str, Any] = {"role": "assistant", "content": parts or ""}
    if any(thoughts) and not is_thoughtless:
        message["reasoning_content"] = "\n".join(thoughts)
    return message | ({"tool_calls": calls} if calls else {})


def _call(block: Block, param: str) -> dict[str, Any]:
    arguments = json.dumps(required(block.input, f"{param}.input"), ensure_ascii=False)
    function = {"name": required(block.name, f"{param}.name"), "arguments": arguments}
    return {"id": required(block.id, f"{param}.id"), "type": "function", "function": function}


def _result(block: Block, param: str) -> dict[str, Any]:
    content = content_of(block.content or "", f"{param}.content")
    call_id = required(block.tool_use_id, f"{param}.tool_use_id")
    if block.is_error:
        content = f"Error: {content}" if isinstance(content, str) else [{"type": "text", "text": "Error:"}, *content]
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _tools(body: CountTokensRequest, terms: Terms) -> dict[str, Any]:
    referred = {block.tool_name for block in _blocks(body) if block.type == messages.TOOL_REFERENCE}
    referred.add(body.tool_choice.name if body.tool_choice else None)
    tools = []
    for i, tool in enumerate(body.tools or ()):
        function = _function(tool, f"tools[{i}]")
        if not tool.defer_loading or tool.name in referred:
            tools.append({"type": "function", "function": {k: v for k, v in function.items() if v is not None}})
            terms.tools.append(f"tools[{i}]")
    fields: dict[str, Any] = {"tools": tools} if tools else {}
    return fields if body.tool_choice is None else fields | _choice(body.tool_choice)


def _blocks(body: CountTokensRequest) -> Iterable[Block]:
    """Yield all blocks in results of tools."""
    for message in body.messages:
        for block in message.content if not isinstance(message.content, str) else ():
            if block.type == messages.TOOL_RESULT and not isinstance(block.content, str):
                yield from block.content or ()


def _function(tool: AnthropicTool, param: str) -> dict[str, Any]:
    """Return the chat function of a tool. Raises InvalidRequest for a tool that the server would run."""
    callers = (tool.model_extra or {}).get("allowed_callers")
    if isinstance(callers, list) and callers and DIRECT not in callers:
        field = f"{param}.allowed_callers"
        raise InvalidRequest(f"{field}: the model is the only caller of tools here; the list needs {DIRECT!r}.", field)
    if isinstance(tool, ClientToolParam):
        return {**function_of(tool), "strict": tool.strict}
    if tool.type not in (None, messages.CUSTOM):
        raise unsupported(
            f"{param}.type", f": {tool.type[:60]!r} runs on Anthropic's servers; this server takes only client tools."
        )
    parameters = required(tool.input_schema, f"{param}.input_schema")
    return {"name": tool.name, "description": tool.description, "parameters": parameters, "strict": tool.strict}


def _choice(choice: ToolChoiceParam) -> dict[str, Any]:
    if choice.type == "tool":
        name = required(choice.name, "tool_choice.name")
        return {"tool_choice": {"type": "function", "function": {"name": name}}}
    is_parallel = None if choice.disable_parallel_tool_use is None else not choice.disable_parallel_tool_use
    return {"tool_choice": CHOICES[choice.type], "parallel_tool_calls": is_parallel}


def _output(body: CountTokensRequest) -> dict[str, Any]:
    """Return the fields of the output: its format, and the thinking before it."""
    fields: dict[str, Any] = {}
    thinking, output = body.thinking, body.output_config
    if thinking is not None and thinking.type != "adaptive":
        fields["chat_template_kwargs"] = {"enable_thinking": thinking.type == "enabled"}
    if thinking is not None and thinking.type == "enabled":
        budget = required(thinking.budget_tokens, "thinking.budget_tokens")
        if isinstance(body, MessagesRequest) and budget >= body.max_tokens:
            raise InvalidRequest(
                f"thinking.budget_tokens is {budget}; it must be less than max_tokens, which is {body.max_tokens}.",
                "thinking.budget_tokens",
            )
        fields["thinking_token_budget"] = budget
    if output is not None and output.effort:
        fields["reasoning_effort"] = output.effort
    wanted = (output.format if output else None) or body.output_format
    if wanted is not None:
        schema = {"name": "output", "schema": wanted.schema_}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields
