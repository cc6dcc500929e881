"""OpenAI's own schema of every answer, chunk and error: the models of the `openai` package, strict, and no stray null.

`validated_answers` holds to it whatever any httpx client in this process gets from a server, and the `openai` client,
which has httpx2 since its version 3.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pydantic
import pytest
from openai.types import Batch, Completion, FileObject, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.conversations import Conversation
from openai.types.responses import (
    InputTokenCountResponse,
    Response,
    ResponseItem,
    ResponseStreamEvent,
    ResponseUsage,
)

WHOLE: dict[str, type[pydantic.BaseModel]] = {
    "chat.completion": ChatCompletion,
    "chat.completion.chunk": ChatCompletionChunk,
    "text_completion": Completion,
    "model": Model,
    "response": Response,
    "file": FileObject,
    "batch": Batch,
    "conversation": Conversation,
    "response.input_tokens": InputTokenCountResponse,
}
ITEM: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(ResponseItem)  # of the input of a response
EVENT: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(ResponseStreamEvent)
# OpenAI has whatever is not set as null in these.
WITH_NULLS = frozenset({"response", "batch"})
# The fields that OpenAI's API reference has as nullable; the package's models take null for whatever is optional.
NULLABLE = frozenset({"content", "refusal", "logprobs", "finish_reason", "param", "code"})
# vLLM has these as null in answers that are no streams.
NULLABLE |= {"stop_reason", "token_ids", "prompt_token_ids", "prompt_logprobs", "reasoning"}
# What this server adds, under vLLM's names.
EXTRA = frozenset(
    {"stop_reason", "token_ids", "prompt_token_ids", "max_model_len", "parent", "neuronserve", "system_fingerprint"}
    | {"reasoning_content", "prompt_logprobs", "metrics", "tasks", "dimensions", "notice", "store", "refusal"}
    | {"root", "reasoning", "max_embedding_len"}
)
# What events had in the package's types when they were new: its releases up to 3.5 demand it, 3.10 lacks it.
EARLIER = {"response.function_call_arguments.done": {"name"}}
TRANSPORTS = [importlib.import_module(name) for name in ("httpx", "httpx2") if importlib.util.find_spec(name)]
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/invocations", "/v1/responses")
PATHS += ("/v1/files", "/v1/batches", "/v1/conversations")


def check_payload(payload: Any) -> None:
    """Raises AssertionError or pydantic.ValidationError where `payload` is not what OpenAI would send."""
    if "error" in payload and "object" not in payload:
        check_error(payload)
    elif "object" not in payload:
        check_item(payload)
    elif payload["object"] == "list":
        for item in payload["data"]:
            check_payload(item)
    elif payload.get("deleted"):
        assert set(payload) == {"id", "object", "deleted"}, payload
    elif payload["object"] == "response.compaction":  # whose messages of the user its own type does not know
        assert set(payload) == {"id", "object", "created_at", "output", "usage"}, payload
        ResponseUsage.model_validate_json(json.dumps(payload["usage"]), strict=True)
        for item in payload["output"]:
            check_item(item)
    else:
        check_whole(payload)


def check_whole(payload: Any) -> None:
    """An object of OpenAI's that has a type in its package."""
    if payload["object"] == "text_completion":
        payload = {**payload, "choices": [_predicted(choice) for choice in payload["choices"]]}
    if payload["object"] not in WITH_NULLS:
        _check_nulls(_predicted(payload))
    if payload["object"] == "chat.completion.chunk":
        payload = {**payload, "choices": [_of_functions(choice) for choice in payload["choices"]]}
    if payload["object"] == "text_completion":
        # OpenAI's own text chunks have null here until the last one; its package's type knows none.
        payload = {**payload, "choices": [_finished(choice) for choice in payload["choices"]]}
    made = WHOLE[payload["object"]].model_validate_json(json.dumps(payload), strict=True)
    assert unknown_fields(made) <= EXTRA, payload


def check_item(item: Any) -> None:
    """An item of a response's input."""
    made = ITEM.validate_json(json.dumps(item), strict=True)
    assert unknown_fields(made) == set(), item


def check_event(payload: Any) -> None:
    """An event of a response's stream, and the response in it."""
    made = EVENT.validate_json(json.dumps(payload), strict=True)
    assert type(made).__name__.startswith("Response"), payload
    assert unknown_fields(made) <= EXTRA | EARLIER.get(payload["type"], set()), payload


def check_error(payload: Any) -> None:
    """An OpenAI error object and nothing else."""
    assert set(payload) == {"error"}, payload
    error = payload["error"]
    assert set(error) == {"message", "type", "param", "code"}, payload
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert error["param"] is None or isinstance(error["param"], str)
    assert error["code"] is None or isinstance(error["code"], str)


def check_stream(data: bytes) -> None:
    """Each whole event of a stream: a chunk with one choice, the usage of the request, an error, or a response's."""
    for event in data.decode().split("\n\n")[:-1]:
        if event.startswith(":") or event == "data: [DONE]":
            continue
        if event.startswith("event: response."):
            name, _, text = event.partition("\n")
            payload = json.loads(text.removeprefix("data: "))
            assert name == f"event: {payload['type']}"
            check_event(payload)
            continue
        assert event.startswith("data: {"), event
        payload = json.loads(event.removeprefix("data: "))
        check_payload(payload)
        assert len(payload.get("choices", ())) <= 1, event


def unknown_fields(made: pydantic.BaseModel) -> set[str]:
    """Names of all fields, at any depth, that OpenAI's types do not have."""
    found = set(made.model_extra or ())
    for name in type(made).model_fields:
        value = getattr(made, name)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, pydantic.BaseModel):
                found |= unknown_fields(item)
    return found


def _check_nulls(value: Any, name: str = "") -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_nulls(inner, key)
    elif isinstance(value, list):
        for inner in value:
            _check_nulls(inner, name)
    assert value is not None or name in NULLABLE, f"{name} is null"


def _predicted(choice: dict[str, Any]) -> dict[str, Any]:
    """The choice without the nulls of a prompt's first token, which nothing predicts."""
    shown = choice.get("logprobs")
    if shown and shown["token_logprobs"][:1] == [None] == shown["top_logprobs"][:1]:
        shown = {**shown, "token_logprobs": [0.0, *shown["token_logprobs"][1:]]}
        choice = {**choice, "logprobs": {**shown, "top_logprobs": [{}, *shown["top_logprobs"][1:]]}}
    return {**choice, "prompt_logprobs": choice["prompt_logprobs"][1:]} if choice.get("prompt_logprobs") else choice


def _of_functions(choice: dict[str, Any]) -> dict[str, Any]:
    """The choice without calls of custom tools, which OpenAI streams and its package's type does not know."""
    calls = choice["delta"].get("tool_calls")
    for call in calls or ():
        if call.get("type") == "custom":
            assert set(call) == {"index", "id", "type", "custom"}
            assert set(call["custom"]) == {"name", "input"}
    kept = {"tool_calls": [call for call in calls if call.get("type") != "custom"]} if calls else {}
    return {**choice, "delta": {**choice["delta"], **kept}}


def _finished(choice: dict[str, Any]) -> dict[str, Any]:
    return {**choice, "finish_reason": choice["finish_reason"] or "stop"}


def _check(request: Any, response: Any, data: bytes, is_whole: bool) -> None:
    path = request.url.path
    if not path.startswith(PATHS) or path.endswith(("/content", "/render")) or request.method in {"HEAD", "OPTIONS"}:
        return
    if "anthropic-version" in request.headers:
        return
    kind = response.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        check_stream(data)
    elif is_whole:
        for item in data.splitlines() if kind.startswith("application/jsonlines") else [data]:
            check_payload(json.loads(item))


def _checked_type(module: Any) -> type[Any]:
    """A stream of `module`, which is httpx or httpx2: the bytes of an answer, checked when its client has read them or
    closes."""

    class Checked(module.SyncByteStream, module.AsyncByteStream):  # type: ignore[misc]
        def __init__(self, request: Any, response: Any) -> None:
            self._request, self._response, self._inner = request, response, response.stream
            self._data = b""
            self._is_whole = False

        def __iter__(self) -> Iterator[bytes]:
            for part in self._inner:
                self._data += part
                yield part
            self._is_whole = True

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for part in self._inner:
                self._data += part
                yield part
            self._is_whole = True

        def close(self) -> None:
            self._inner.close()
            _check(self._request, self._response, self._data, self._is_whole)

        async def aclose(self) -> None:
            await self._inner.aclose()
            _check(self._request, self._response, self._data, self._is_whole)

    return Checked


def _patch(patch: pytest.MonkeyPatch, module: Any) -> None:
    """Have the transports of `module` check what they read."""
    made = _checked_type(module)
    handle, handle_async = module.HTTPTransport.handle_request, module.AsyncHTTPTransport.handle_async_request

    def checked(self: Any, request: Any) -> Any:
        response = handle(self, request)
        response.stream = made(request, response)
        return response

    async def checked_async(self: Any, request: Any) -> Any:
        response = await handle_async(self, request)
        response.stream = made(request, response)
        return response

    patch.setattr(module.HTTPTransport, "handle_request", checked)
    patch.setattr(module.AsyncHTTPTransport, "handle_async_request", checked_async)


@contextlib.contextmanager
def validated_answers() -> Iterator[None]:
    """While it is open, an answer that OpenAI's schema does not have is an error in the client that gets it."""
    with pytest.MonkeyPatch.context() as patch:
        for module in TRANSPORTS:
            _patch(patch, module)
        yield
