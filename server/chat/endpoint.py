"""Client of an OpenAI endpoint for chats: its models, and streamed answers."""

from __future__ import annotations

import json
from collections.abc import Generator
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request

import msgspec

from ..errors import StartError
from ..monitor.scrape import Endpoint, Unreachable
from ..typed_json import JsonError, decode

MAX_ERROR_BYTES = 1 << 20
HEADERS = {"Content-Type": "application/json", "X-Neuronserve-Usage": "true"}  # other servers ignore the latter


class ChatError(StartError):
    """The endpoint refused a request, or its answer cannot be read."""

    exit_code = 1


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Error(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Error


class Delta(msgspec.Struct):
    """Text that one event adds to the answer. The name of reasoning depends on the server."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: Delta = msgspec.field(default_factory=Delta)
    finish_reason: str | None = None


class ModelledCost(msgspec.Struct):
    """Time and dollars of an answer on the modelled accelerator, from a neuronserve server."""

    device_seconds: float
    cost_usd: float | None = None


class Usage(msgspec.Struct):
    """Tokens of an answer."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    neuronserve: ModelledCost | None = None


class Event(msgspec.Struct):
    """One event of the stream."""

    choices: list[_Choice] = []
    usage: Usage | None = None
    error: _Error | None = None

    @property
    def delta(self) -> Delta:
        return self.choices[0].delta if self.choices else Delta()


class ChatEndpoint:
    """An endpoint at `url`, with or without /v1. `key` is sent as a bearer token."""

    def __init__(self, url: str, key: str | None, timeout_s: float) -> None:
        """Raise SettingsError for an impossible `url`."""
        self._endpoint = Endpoint(url.rstrip("/").removesuffix("/v1"))
        self._headers = HEADERS | ({"Authorization": f"Bearer {key}"} if key else {})
        self._timeout_s = timeout_s  # without any data

    @property
    def url(self) -> str:
        return self._endpoint.url

    def models(self) -> list[str]:
        """Return the names of the models, at least one. Raises Unreachable or ChatError."""
        with self._open("/v1/models", None) as answer:
            text = answer.read()
        try:
            names = [model.id for model in decode(text, _Models).data]
        except JsonError as error:
            raise ChatError(f"{self.url}/v1/models is no list of models: {error}") from error
        if not names:
            raise ChatError(f"{self.url}/v1/models lists no model")
        return names

    def answer(self, body: dict[str, Any]) -> Generator[Event, None, None]:
        """Yield the events of the answer as they arrive. Raises Unreachable or ChatError, also in the middle."""
        with self._open("/v1/chat/completions", json.dumps(body).encode()) as answer:
            try:
                for line in answer:
                    if not line.startswith(b"data:"):
                        continue
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return
                    yield _event(data)
            except (OSError, HTTPException) as error:
                raise ChatError(f"the answer broke off: {error}") from error
        raise ChatError("the answer broke off: the stream ended without [DONE]")

    def _open(self, path: str, body: bytes | None) -> HTTPResponse:
        request = Request(self.url + path, body, self._headers)
        try:
            answer: HTTPResponse = self._endpoint.opener.open(request, timeout=self._timeout_s)
            return answer
        except HTTPError as error:
            raise ChatError(f"{self.url} answers {error.code}: {_reason(error)}") from error
        except (URLError, OSError, HTTPException, ValueError) as error:
            raise Unreachable(f"no server answers at {self.url}: {getattr(error, 'reason', error)}") from error


def _event(data: bytes) -> Event:
    """Read an event. Raises ChatError for an invalid event, and for one with an error."""
    try:
        event = decode(data, Event)
    except JsonError as error:
        raise ChatError(f"an event of the answer cannot be read: {error}") from error
    if event.error is not None:
        raise ChatError(event.error.message)
    return event


def _reason(error: HTTPError) -> str:
    """Return the message of a refusal, in OpenAI's form or in any other."""
    text = error.read(MAX_ERROR_BYTES)
    try:
        return decode(text, _Refusal).error.message
    except JsonError:
        return text.decode("utf-8", "replace").strip()[:500] or str(error.reason)
