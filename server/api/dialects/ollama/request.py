"""Requests of Ollama's API as chats and completions of the shared pipeline."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from ....errors import InvalidRequest
from ...errors import as_body, refuse_given
from ...service import Service
from ...tools.plan import chosen_parsers
from ...wire.chat import ChatRequest
from ...wire.completions import CompletionRequest
from ...wire.generation import GenerationRequest
from ...wire.ollama import (
    CalledFunction,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaRequest,
    Options,
)
from ..terms import Terms

TAG = ":latest"  # which Ollama's clients put behind names
G = TypeVar("G", bound=GenerationRequest)
NAMES = (
    *((name, f"options.{name}") for name in ("temperature", "top_k", "top_p", "min_p", "seed", "stop")),
    *((name, f"options.{name}") for name in ("presence_penalty", "frequency_penalty", "typical_p", "mirostat")),
    ("repetition_penalty", "options.repeat_penalty"),
    ("max_tokens", "options.num_predict"),
    (r"response_format(\.json_schema)?(\.schema)?", "format"),
    ("reasoning_effort|chat_template_kwargs", "think"),
)
_SAME = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "typical_p", "mirostat")


def served_name(service: Service, name: str | None) -> str:
    """Return the name under which the model is served, without Ollama's tag. Raises ModelNotFound."""
    known = (*service.config.model_names, *service.adapters.names)
    return service.require_name(name if name is None or name in known else name.removesuffix(TAG))


def is_load(body: OllamaRequest) -> bool:
    """Return whether the body only asks for the model to be loaded."""
    if isinstance(body, OllamaChatRequest):
        return not body.messages
    return isinstance(body, OllamaGenerateRequest) and not (body.prompt or body.suffix or body.images or body.system)


def chat_request(service: Service, body: OllamaChatRequest) -> tuple[ChatRequest, Terms]:
    """Return a chat of the same meaning, and the terms for its errors. Raises RequestError."""
    turns = _turns(body.messages or [])
    terms = Terms(NAMES, (), [f"messages[{i}]" for i in range(len(turns))])
    terms.tools = [f"tools[{i}]" for i in range(len(body.tools or ()))]
    fields = {"messages": turns, "tools": body.tools, **_common(service, body), **_thinking(body)}
    return _checked(ChatRequest, fields, terms), terms


def instruction_request(service: Service, body: OllamaGenerateRequest) -> tuple[ChatRequest, Terms]:
    """Return a chat with the prompt as the user's message. Raises RequestError."""
    _refuse(body)
    turns = [OllamaMessage(role="user", content=body.prompt, images=body.images)]
    if body.system:
        turns.insert(0, OllamaMessage(role="system", content=body.system))
    terms = Terms(NAMES, (), ["system", "prompt"][-len(turns) :])
    fields = {"messages": _turns(turns), **_common(service, body), **_thinking(body)}
    return _checked(ChatRequest, fields, terms), terms


def completion_request(service: Service, body: OllamaGenerateRequest) -> tuple[CompletionRequest, Terms]:
    """Return a completion of the raw prompt. Raises RequestError."""
    _refuse(body)
    if body.images:
        raise InvalidRequest("images needs a chat template: leave out raw and suffix.", "images")
    terms = Terms(NAMES, ())
    return _checked(CompletionRequest, {"prompt": body.prompt, **_common(service, body)}, terms), terms


def _checked(kind: type[G], fields: dict[str, Any], terms: Terms) -> G:
    with terms.applied():
        return as_body(kind, {name: value for name, value in fields.items() if value is not None})


def _refuse(body: OllamaGenerateRequest) -> None:
    refuse_given(vars(body), "template", "context")


def _common(service: Service, body: OllamaRequest) -> dict[str, Any]:
    options = body.options or Options()
    limit = options.num_predict
    return {
        "model": served_name(service, body.model),
        "max_tokens": limit if limit is not None and limit > 0 else None,
        "repetition_penalty": options.repeat_penalty,
        "seed": None if options.seed == -1 else options.seed,
        "stop": options.stop or None,
        "response_format": _format(body.format),
        **{name: getattr(options, name) for name in _SAME},
    }


def _format(given: Any) -> dict[str, Any] | None:
    if not given:
        return None
    if given == "json":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "format", "schema": given}}


def _thinking(body: OllamaRequest) -> dict[str, Any]:
    if isinstance(body.think, str):
        return {"reasoning_effort": body.think}
    return {} if body.think is None else {"chat_template_kwargs": {"enable_thinking": body.think}}


def require_thinking(service: Service, body: OllamaRequest, template: str | None) -> None:
    """Raise InvalidRequest if the body asks for thinking and the model has none."""
    if body.think and chosen_parsers(service.config, template)[1] == "none":
        raise InvalidRequest(f"think: {body.model[:200]!r} does not support thinking.", "think")


def _turns(messages: list[OllamaMessage]) -> list[dict[str, Any]]:
    """Return chat messages. Results of tools that name no call answer the calls before them in their order."""
    turns: list[dict[str, Any]] = []
    open_calls: list[str] = []
    for i, message in enumerate(messages):
        turn: dict[str, Any] = {"role": message.role, "content": _content(message)}
        if message.thinking:
            turn["reasoning_content"] = message.thinking
        if message.tool_calls:
            open_calls = [call.id or f"call_{i}_{j}" for j, call in enumerate(message.tool_calls)]
            turn["tool_calls"] = [
                _call(name, call.function) for name, call in zip(open_calls, message.tool_calls, strict=True)
            ]
        if message.role == "tool":
            turn["tool_call_id"] = message.tool_call_id or (open_calls.pop(0) if open_calls else f"call_{i}_0")
            turn |= {"name": message.tool_name} if message.tool_name else {}
        turns.append(turn)
    return turns


def _call(name: str, function: CalledFunction) -> dict[str, Any]:
    arguments = json.dumps(function.arguments or {}, ensure_ascii=False)
    return {"id": name, "type": "function", "function": {"name": function.name, "arguments": arguments}}


def _content(message: OllamaMessage) -> Any:
    if not message.images:
        return message.content or ""
    pictures = [{"type": "image_url", "image_url": {"url": f"data:image;base64,{data}"}} for data in message.images]
    return [*pictures, {"type": "text", "text": message.content or ""}]
