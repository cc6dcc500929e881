"""Anthropic's request as the chat request that means the same; what no chat request can say is refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ValidationError

from server.api.errors import invalid_body
from server.api.wire import messages
from server.api.wire.chat import ChatRequest
from server.api.wire.messages import Block, CountTokensRequest, MessageParam, MessagesRequest, ToolChoiceParam
from server.errors import InvalidRequest

REFUSED = ("container", "mcp_servers", "context_management")
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
SAME = ("temperature", "top_p", "top_k", "stream", "max_tokens")  # fields that both have


def chat_request(body: CountTokensRequest) -> ChatRequest:
    """The chat request of `body`, which has what is generated only where it is a MessagesRequest.

    Raises InvalidRequest with the field of `body`.
    """
    for name in REFUSED:
        if (body.model_extra or {}).get(name):
            raise InvalidRequest(f"{name} is not supported by this server.", name, "unsupported_parameter")
    fields: dict[str, Any] = {"model": body.model, "messages": _messages(body), **_tools(body), **_output(body)}
    if isinstance(body, MessagesRequest):
        fields |= {name: getattr(body, name) for name in SAME}
        fields["stop"] = body.stop_sequences or None
    if body.messages[-1].role == "assistant":  # the answer goes on with it
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    try:
        return ChatRequest.model_validate(fields)
    except ValidationError as error:
        raise invalid_body(error) from error


def _messages(body: CountTokensRequest) -> list[dict[str, Any]]:
    system = [] if body.system is None else [{"role": "system", "content": _text(body.system, "system")}]
    return [*system, *(made for i, each in enumerate(body.messages) for made in _turn(each, f"messages[{i}].content"))]


def _turn(message: MessageParam, param: str) -> Iterable[dict[str, Any]]:
    """One message, or several where it has results of tools, each of which is a message of its own in chats."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    if message.role == "assistant":
        return [_answer(message.content, param)]
    turns: list[dict[str, Any]] = []
    for i, block in enumerate(message.content):
        if block.type == messages.TOOL_RESULT:
            turns.append(_result(block, f"{param}[{i}]"))
        elif turns and turns[-1]["role"] == message.role:
            turns[-1]["content"].append(_part(block, f"{param}[{i}]"))
        else:
            turns.append({"role": message.role, "content": [_part(block, f"{param}[{i}]")]})
    return turns or [{"role": message.role, "content": ""}]


def _answer(blocks: Sequence[Block], param: str) -> dict[str, Any]:
    """A message of the assistant: its text, what it thought, and its calls."""
    parts, calls, thoughts = [], [], []
    for i, block in enumerate(blocks):
        match block.type:
            case messages.TOOL_USE:
                calls.append(_call(block, f"{param}[{i}]"))
            case messages.THINKING:
                thoughts.append(block.thinking or "")
            case messages.REDACTED:
                pass  # nobody here wrote it, so nobody can read it
            case _:
                parts.append(_part(block, f"{param}[{i}]"))
    message: dict[str, Any] = {"role": "assistant", "content": parts or ""}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    return message | ({"tool_calls": calls} if calls else {})


def _call(block: Block, param: str) -> dict[str, Any]:
    arguments = json.dumps(_given(block.input, f"{param}.input"), ensure_ascii=False)
    function = {"name": _given(block.name, f"{param}.name"), "arguments": arguments}
    return {"id": _given(block.id, f"{param}.id"), "type": "function", "function": function}


def _result(block: Block, param: str) -> dict[str, Any]:
    text = _text(block.content or "", f"{param}.content")
    call_id = _given(block.tool_use_id, f"{param}.tool_use_id")
    return {"role": "tool", "tool_call_id": call_id, "content": f"Error: {text}" if block.is_error else text}


def _part(block: Block, param: str) -> dict[str, Any]:
    """A text part of a chat message. Raises InvalidRequest for blocks of other types."""
    if block.type != messages.TEXT:
        field = f"{param}.type"
        raise InvalidRequest(
            f"{field}: this server takes only text; blocks of type {block.type[:40]!r} are not possible here.",
            field,
            "unsupported_parameter",
        )
    return {"type": "text", "text": _given(block.text, f"{param}.text")}


def _text(content: str | Sequence[Block], param: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_part(block, f"{param}[{i}]")["text"] for i, block in enumerate(content))


def _given(value: Any, param: str) -> Any:
    if value is None:
        raise InvalidRequest(f"{param} is required.", param)
    return value


def _tools(body: CountTokensRequest) -> dict[str, Any]:
    tools = []
    for i, tool in enumerate(body.tools or ()):
        if tool.type not in (None, messages.OF_CLIENTS):
            raise InvalidRequest(
                f"tools[{i}].type: {tool.type[:60]!r} runs on Anthropic's servers; here are only tools of the client.",
                f"tools[{i}].type",
                "unsupported_parameter",
            )
        function = {"name": tool.name, "description": tool.description, "strict": tool.strict}
        function["parameters"] = _given(tool.input_schema, f"tools[{i}].input_schema")
        tools.append({"type": "function", "function": {k: v for k, v in function.items() if v is not None}})
    fields: dict[str, Any] = {"tools": tools} if tools else {}
    return fields if body.tool_choice is None else fields | _choice(body.tool_choice)


def _choice(choice: ToolChoiceParam) -> dict[str, Any]:
    if choice.type == "tool":
        name = _given(choice.name, "tool_choice.name")
        return {"tool_choice": {"type": "function", "function": {"name": name}}}
    is_parallel = None if choice.disable_parallel_tool_use is None else not choice.disable_parallel_tool_use
    return {"tool_choice": CHOICES[choice.type], "parallel_tool_calls": is_parallel}


def _output(body: CountTokensRequest) -> dict[str, Any]:
    """What the answer is to be, and how much is thought before."""
    fields: dict[str, Any] = {}
    thinking, output = body.thinking, body.output_config
    if thinking is not None and thinking.type != "adaptive":
        fields["chat_template_kwargs"] = {"enable_thinking": thinking.type == "enabled"}
    if thinking is not None and thinking.type == "enabled":
        budget = _given(thinking.budget_tokens, "thinking.budget_tokens")
        if isinstance(body, MessagesRequest) and budget >= body.max_tokens:
            raise InvalidRequest(
                f"thinking.budget_tokens is {budget}; it must be less than max_tokens, which is {body.max_tokens}.",
                "thinking.budget_tokens",
            )
        fields["thinking_token_budget"] = budget
    if output is not None and output.effort:
        fields["reasoning_effort"] = output.effort
    if output is not None and output.format is not None:
        schema = {"name": "output", "schema": output.format.schema_}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields
