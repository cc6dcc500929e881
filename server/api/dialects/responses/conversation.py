"""A request of /v1/responses as one of chat: items become messages, and errors name what the client wrote."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from server.api.errors import invalid_body
from server.api.wire.chat import ChatRequest
from server.api.wire.responses import (
    ALLOWED_TOOLS,
    FUNCTION,
    ITEM_TYPES,
    REFUSAL,
    TEXT_PARTS,
    Content,
    InputItem,
    NamedTool,
    PlainFormat,
    ResponsesRequest,
    ResponseTool,
    ResponseToolChoice,
)
from server.errors import InvalidRequest

UNSUPPORTED = "unsupported_parameter"
LOGPROBS = "message.output_text.logprobs"
ELSEWHERE = {  # chat's names of what has another here
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "logprobs": f"include with {LOGPROBS!r}",
    "n": "one output",
    "echo": "no echo",
    "return_token_ids": "no token ids",
}
_PARAMS = (  # of chat, and what it is here
    (r"max_(completion_)?tokens", "max_output_tokens"),
    (r"response_format\.json_schema", "text.format"),
    (r"response_format", "text.format"),
    (r"tools\[(\d+)\]\.function", r"tools[\1]"),
    (r"tool_choice\.allowed_tools\.tools\[(\d+)\]\.function", r"tool_choice.tools[\1]"),
    (r"tool_choice\.allowed_tools", "tool_choice"),
    (r"tool_choice\.function", "tool_choice"),
    (r"reasoning_effort", "reasoning.effort"),
    (r"verbosity", "text.verbosity"),
    (r"messages", "input"),
)


@dataclass(slots=True)
class Messages:
    """Chat's messages, and for each the field of the request that it is from."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    params: list[str] = field(default_factory=list)
    _reasoning: str = ""  # which the next message of the assistant comes from

    def add(self, item: InputItem, param: str) -> None:
        """Add one item. Raises InvalidRequest for what is no text and no call."""
        if item.type == "message":
            self._add_message(item, param)
        elif item.type == "reasoning":
            parts = item.content if isinstance(item.content, list) else item.summary or []
            self._reasoning = "\n".join(part.text or "" for part in parts)
        elif item.type == "function_call":
            self._add_call(item, param)
        elif item.type == "function_call_output":
            content = _text(item.output, f"{param}.output")
            self._append({"role": "tool", "tool_call_id": _required(item, "call_id", param), "content": content}, param)
        else:
            raise InvalidRequest(
                f"{param}.type is {item.type[:80]!r}; this server takes {', '.join(ITEM_TYPES)}.",
                f"{param}.type",
                UNSUPPORTED,
            )

    def _add_message(self, item: InputItem, param: str) -> None:
        role = _required(item, "role", param)
        message: dict[str, Any] = {"role": role, "content": _text(item.content, f"{param}.content")}
        self._append(self._with_reasoning(message) if role == "assistant" else message, param)

    def _add_call(self, item: InputItem, param: str) -> None:
        function = {"name": _required(item, "name", param), "arguments": _required(item, "arguments", param)}
        call = {"id": _required(item, "call_id", param), "type": "function", "function": function}
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages[-1].setdefault("tool_calls", []).append(call)
        else:
            self._append(self._with_reasoning({"role": "assistant", "content": None, "tool_calls": [call]}), param)

    def _with_reasoning(self, message: dict[str, Any]) -> dict[str, Any]:
        reasoning, self._reasoning = self._reasoning, ""
        return {**message, "reasoning_content": reasoning} if reasoning else message

    def _append(self, message: dict[str, Any], param: str) -> None:
        self.messages.append(message)
        self.params.append(param)

    def without(self, num_oldest: int) -> Messages:
        """As if the oldest messages had not been, but for the instructions and what answers a call that is gone."""
        kept = [
            (message, param)
            for index, (message, param) in enumerate(zip(self.messages, self.params, strict=True))
            if index >= num_oldest or message["role"] in {"system", "developer"}
        ]
        calls = {call["id"] for message, _ in kept for call in message.get("tool_calls", ())}
        kept = [(message, param) for message, param in kept if message.get("tool_call_id", None) in {None, *calls}]
        return Messages([message for message, _ in kept], [param for _, param in kept])


def messages_of(body: ResponsesRequest, before: Sequence[InputItem], items: Sequence[InputItem]) -> Messages:
    """The conversation: instructions, the items `before` this request, and its own. Raises InvalidRequest."""
    found = Messages()
    if body.instructions:
        found.add(InputItem(role="system", content=body.instructions), "instructions")
    for item in before:
        found.add(item, "previous_response_id")
    for index, item in enumerate(items):
        found.add(item, "input" if isinstance(body.input, str) else f"input[{index}]")
    if all(message["role"] == "system" for message in found.messages):
        raise InvalidRequest("input is required.", "input")
    return found


def chat_request(body: ResponsesRequest, messages: Messages) -> ChatRequest:
    """The same request to chat; fields that only chat has are passed on. Raises InvalidRequest."""
    extra = body.model_extra or {}
    for name, here in ELSEWHERE.items():
        if extra.get(name) is not None:
            raise InvalidRequest(f"{name} is a parameter of chat; responses have {here}.", name, UNSUPPORTED)
    options, text = body.reasoning, body.text
    fields = {
        **extra,
        "model": body.model,
        "messages": messages.messages,
        "max_completion_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_logprobs": body.top_logprobs if LOGPROBS in (body.include or ()) else None,
        "logprobs": LOGPROBS in (body.include or ()),
        "parallel_tool_calls": body.parallel_tool_calls,
        "tools": [_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or ())] or None,
        "tool_choice": _tool_choice(body.tool_choice),
        "reasoning_effort": options.effort if options else None,
        "verbosity": text.verbosity if text else None,
        "response_format": _response_format(body),
        "stream": body.stream,
        "service_tier": body.service_tier,
    }
    try:
        return ChatRequest.model_validate(fields)
    except ValidationError as error:
        raise own_terms(invalid_body(error), messages) from error


def own_terms(error: InvalidRequest, messages: Messages) -> InvalidRequest:
    """An error about the request to chat as one about the request that the client has sent."""
    if error.param is None:
        return error
    param = error.param
    if found := re.fullmatch(r"messages\[(\d+)\](\.role|\.content.*)?.*", param):
        param = messages.params[int(found[1])] + (found[2] or "")
    else:
        for pattern, here in _PARAMS:
            param = re.sub(rf"^{pattern}(?=[.\[]|$)", here, param)
    return InvalidRequest(error.message.replace(error.param, param), param, error.code)


def _required(item: InputItem, name: str, param: str) -> str:
    value: str | None = getattr(item, name)
    if value is None:
        raise InvalidRequest(f"{param}.{name} is required for the type {item.type!r}.", f"{param}.{name}")
    return value


def _text(content: Content | None, param: str) -> str:
    if content is None:
        raise InvalidRequest(f"{param} is required.", param)
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        value = part.refusal if part.type == REFUSAL else part.text
        if part.type not in (*TEXT_PARTS, REFUSAL):
            where = f"{param}[{index}].type"
            raise InvalidRequest(f"{where} is {part.type[:40]!r}; this server takes only text.", where, UNSUPPORTED)
        if value is None:
            raise InvalidRequest(f"{param}[{index}].text is required.", f"{param}[{index}].text")
        texts.append(value)
    return "\n".join(texts)


def _tool(tool: ResponseTool, param: str) -> dict[str, Any]:
    if tool.type != FUNCTION:
        raise _hosted(tool, f"{param}.type")
    function = {key: getattr(tool, key) for key in ("name", "description", "parameters", "strict")}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def _tool_choice(choice: str | ResponseToolChoice | None) -> Any:
    if choice is None or isinstance(choice, str):
        return choice
    if choice.type == FUNCTION:
        return {"type": "function", "function": {"name": choice.name}}
    if choice.type != ALLOWED_TOOLS:
        raise _hosted(choice, "tool_choice.type")
    for index, tool in enumerate(choice.tools or ()):
        if tool.type != FUNCTION:
            raise _hosted(tool, f"tool_choice.tools[{index}].type")
    named = [{"type": "function", "function": {"name": tool.name}} for tool in choice.tools or ()]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": named}}


def _hosted(tool: ResponseTool | NamedTool | ResponseToolChoice, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"{param} is {tool.type[:80]!r}; this server runs no tools itself and offers functions only.",
        param,
        UNSUPPORTED,
    )


def _response_format(body: ResponsesRequest) -> dict[str, Any] | None:
    given = body.text.format if body.text else None
    if given is None:
        return None
    if isinstance(given, PlainFormat):
        return {"type": given.type}
    return {"type": given.type, "json_schema": {"name": given.name, "schema": given.schema_, "strict": given.strict}}
