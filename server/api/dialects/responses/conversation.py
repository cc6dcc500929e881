"""A request of /v1/responses as a chat request: items become messages, and errors name the client's own fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ....errors import InvalidRequest
from ...errors import as_body, required, unsupported
from ...wire.chat import ChatRequest
from ...wire.responses import (
    IMAGE,
    ITEM_TYPES,
    REFUSAL,
    TEXT_PARTS,
    CompactRequest,
    InputItem,
    ItemContent,
    ItemPart,
    PlainFormat,
    ResponsesRequest,
)
from ..sealed import unseal
from ..terms import Terms
from .tools import ChatTools, chat_name

ItemsBody = ResponsesRequest | CompactRequest
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
ELSEWHERE = {  # fields of chat -> what responses have instead
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
NAMES = (  # patterns of chat's fields -> fields of responses
    (r"max_(completion_)?tokens", "max_output_tokens"),
    (r"response_format\.json_schema", "text.format"),
    (r"response_format", "text.format"),
    (r"tool_choice\.allowed_tools\.tools\[(\d+)\]\.(function|custom)", r"tool_choice.tools[\1]"),
    (r"tool_choice\.allowed_tools", "tool_choice"),
    (r"tool_choice\.(function|custom)", "tool_choice"),
    (r"reasoning_effort", "reasoning.effort"),
    (r"verbosity", "text.verbosity"),
    (r"messages", "input"),
)
TOOL_NAMES = ((r"\.custom\.format\.grammar", ".format"), (r"\.(function|custom)", ""))
SUMMARY = "The conversation before this, in short:\n"


@dataclass(slots=True)
class Messages:
    """Chat messages, each with the field of the request that it was made from."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    params: list[str] = field(default_factory=list)
    _reasoning: str = ""  # reasoning of the next message of the assistant

    def add(self, item: InputItem, param: str) -> None:
        """Add one item. Raises InvalidRequest for an item that is neither text nor a call."""
        match item.type:
            case "message":
                self._add_message(item, param)
            case "reasoning":
                self._reasoning = _reasoning(item)
            case "function_call" | "custom_tool_call":
                self._add_call(item, param)
            case "function_call_output" | "custom_tool_call_output":
                content = _content(item.output, f"{param}.output")
                call_id = _required(item, "call_id", param)
                self._append({"role": "tool", "tool_call_id": call_id, "content": content}, param)
            case "compaction":
                summary = unseal(_required(item, "encrypted_content", param))
                self._append({"role": "user", "content": SUMMARY + summary}, param)
            case _:
                raise unsupported(
                    f"{param}.type", f" is {item.type[:80]!r}; this server takes {', '.join(ITEM_TYPES)}."
                )

    def _add_message(self, item: InputItem, param: str) -> None:
        role = _required(item, "role", param)
        message: dict[str, Any] = {"role": role, "content": _content(item.content, f"{param}.content")}
        self._append(self._with_reasoning(message) if role == "assistant" else message, param)

    def _add_call(self, item: InputItem, param: str) -> None:
        kind, value = ("custom", "input") if item.type == "custom_tool_call" else ("function", "arguments")
        name = chat_name(item.namespace, _required(item, "name", param))
        called = {"name": name, value: _required(item, value, param)}
        call = {"id": _required(item, "call_id", param), "type": kind, kind: called}
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
        """Return the messages without the oldest, and without answers to calls that are gone; instructions stay."""
        kept = [
            (message, param)
            for index, (message, param) in enumerate(zip(self.messages, self.params, strict=True))
            if index >= num_oldest or message["role"] in {"system", "developer"}
        ]
        calls = {call["id"] for message, _ in kept for call in message.get("tool_calls", ())}
        kept = [(message, param) for message, param in kept if message.get("tool_call_id", None) in {None, *calls}]
        return Messages([message for message, _ in kept], [param for _, param in kept])


def messages_of(body: ItemsBody, before: Sequence[InputItem], items: Sequence[InputItem]) -> Messages:
    """Return the instructions, the items `before` this request, and its own, as messages. Raises InvalidRequest."""
    found = Messages()
    if body.instructions:
        found.add(InputItem(role="system", content=body.instructions), "instructions")
    for item in before:
        found.add(item, "previous_response_id" if body.previous_response_id else "conversation")
    for index, item in enumerate(items):
        found.add(item, "input" if isinstance(body.input, str) else f"input[{index}]")
    if all(message["role"] == "system" for message in found.messages):
        raise InvalidRequest("input is required.", "input")
    return found


def chat_request(body: ResponsesRequest, messages: Messages, tools: ChatTools) -> tuple[ChatRequest, Terms]:
    """Return the chat request of `body`, and the terms that name the fields of `body` in its errors.

    Fields that only chat has are passed on. Raises InvalidRequest.
    """
    extra = body.model_extra or {}
    for name, here in ELSEWHERE.items():
        if extra.get(name) is not None:
            raise unsupported(name, f" is a parameter of chat; responses have {here}.")
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
        "tools": tools.chat or None,
        "tool_choice": tools.choice(body.tool_choice),
        "reasoning_effort": options.effort if options else None,
        "verbosity": text.verbosity if text else None,
        "response_format": _response_format(body),
        "stream": body.stream,
        "service_tier": body.service_tier,
    }
    terms = Terms(NAMES, TOOL_NAMES, messages.params, tools.params)
    with terms.applied():
        return as_body(ChatRequest, fields), terms


def _reasoning(item: InputItem) -> str:
    """Return the text of a reasoning item; it is sealed if the client wanted it encrypted."""
    parts = item.content if isinstance(item.content, list) else []
    text = "\n".join(part.text or "" for part in parts) or unseal(item.encrypted_content)
    return text or "\n".join(part.text or "" for part in item.summary or ())


def _required(item: InputItem, name: str, param: str) -> str:
    value: str | None = getattr(item, name)
    if value is None:
        raise InvalidRequest(f"{param}.{name} is required for the type {item.type!r}.", f"{param}.{name}")
    return value


def _content(content: ItemContent | None, param: str) -> str | list[dict[str, Any]]:
    """Return text, or the parts of a chat message if one of them is a picture. Raises InvalidRequest."""
    if content is None:
        raise InvalidRequest(f"{param} is required.", param)
    if isinstance(content, str):
        return content
    if all(part.type != IMAGE for part in content):
        return "\n".join(_text(part, f"{param}[{index}]") for index, part in enumerate(content))
    return [_part(part, f"{param}[{index}]") for index, part in enumerate(content)]


def _part(part: ItemPart, param: str) -> dict[str, Any]:
    if part.type != IMAGE:
        return {"type": "text", "text": _text(part, param)}
    if part.file_id is not None:
        raise unsupported(f"{param}.file_id", " is not supported; send image_url.")
    return {"type": "image_url", "image_url": part.image_url}


def _text(part: ItemPart, param: str) -> str:
    if part.type not in (*TEXT_PARTS, REFUSAL):
        raise unsupported(f"{param}.type", f" is {part.type[:40]!r}; this server takes only text here.")
    return required(part.refusal if part.type == REFUSAL else part.text, f"{param}.text")


def _response_format(body: ResponsesRequest) -> dict[str, Any] | None:
    given = body.text.format if body.text else None
    if given is None:
        return None
    if isinstance(given, PlainFormat):
        return {"type": given.type}
    return {"type": given.type, "json_schema": {"name": given.name, "schema": given.schema_, "strict": given.strict}}
