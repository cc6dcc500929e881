"""OpenAI's API for a client: request bodies and stream chunks. No sockets.

Unknown fields of responses are ignored. Fields of requests beyond OpenAI's (`ignore_eos`, `min_tokens`,
`return_token_ids`) are vLLM's, which llama.cpp and this server implement or ignore.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

Backend = Literal["openai", "openai-chat"]
PATHS: dict[Backend, str] = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}


class NeuronserveUsage(msgspec.Struct):
    """Fields that neuronserve adds to usage: seconds of the emulated device that its cost model charges the request."""

    device_seconds: float | None = None


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None
    neuronserve: NeuronserveUsage | None = None


class Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class Choice(msgspec.Struct):
    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None

    @property
    def carries_output(self) -> bool:
        """Whether the chunk has a token. A completion's chunk with neither text nor end is a held-back token."""
        if self.text or self.token_ids:
            return True
        if self.delta is None:
            return self.text is not None and self.finish_reason is None
        delta = self.delta
        return bool(delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)


class Chunk(msgspec.Struct):
    """An event of a stream, with the fields of both endpoints."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(Chunk)


def decode_chunk(data: bytes) -> Chunk:
    """Decode a chunk. Raises msgspec.MsgspecError: DecodeError, or ValidationError with the field."""
    return _decoder.decode(data)


@dataclass(frozen=True, slots=True)
class BodyOptions:
    """Options that all requests of a run share."""

    model: str
    ignore_eos: bool = True
    temperature: float | None = 0.0
    return_token_ids: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def encode(self, prompt: dict[str, Any], output_len: int | None) -> bytes:
        """Return the body of one request; `prompt` is {"prompt": ...} or {"messages": ...}."""
        body: dict[str, Any] = {"model": self.model, **prompt, "stream": True}
        body["stream_options"] = {"include_usage": True}
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if output_len is not None:
            body["max_tokens"] = output_len
            if self.ignore_eos:
                body |= {"ignore_eos": True, "min_tokens": output_len}
        if self.return_token_ids:
            body["return_token_ids"] = True
        return msgspec.json.encode(body | self.extra)


def error_text(body: bytes) -> str:
    """Return the message of an error response of any shape, at most 300 characters."""
    try:
        content = msgspec.json.decode(body)
        inner = content.get("error", content)
        message = inner.get("message", inner) if isinstance(inner, dict) else inner
    except (msgspec.MsgspecError, AttributeError):
        message = body.decode("utf-8", "replace")
    return str(message)[:300]


def user_message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant_message(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}
