"""Deltas of a generation in the shapes of Ollama's API: one JSON object, or one a line."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from ...pipeline.chunks import TextChunks
from ...pipeline.deltas import Delta
from ...pipeline.generation import Generation
from ...tools.message import MessagePart, arguments_of
from ...wire.ollama import AnsweredCall, AnsweredFunction, AnsweredMessage, OllamaAnswer
from ...wire.tools import ToolCallDelta

NS_OF_MS = 1e6


def now() -> str:
    """Return the time in RFC 3339."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def line(answer: OllamaAnswer) -> bytes:
    """Encode one line of a stream."""
    return answer.model_dump_json().encode() + b"\n"


def shaped(
    model: str, is_chat: bool, part: MessagePart, calls: list[AnsweredCall], created_at: str = "", **end: Any
) -> OllamaAnswer:
    """Return an answer with a part of a message; `end` has the fields of the last one."""
    if is_chat:
        message = AnsweredMessage(content=part.content, thinking=part.reasoning or None, tool_calls=calls or None)
        shown: dict[str, Any] = {"message": message}
    else:
        shown = {"response": part.content, "thinking": part.reasoning or None}
    return OllamaAnswer(model=model, created_at=created_at or now(), done=bool(end), **shown, **end)


NOTHING = MessagePart("", "", [])
TIME = "0001-01-01T00:00:00Z"  # stands for the time of a line that has text alone


class OllamaWriter:
    """Puts the deltas of one choice into Ollama's shapes."""

    def __init__(self, generation: Generation, model: str, is_chat: bool) -> None:
        """`model`: the name as the client has written it."""
        self.generation = generation
        self._model, self._is_chat = model, is_chat
        self._reader = generation.request.plan.reader(generation.prompts[0].text)
        self._calls: dict[int, ToolCallDelta] = {}  # each is sent when it is whole
        self._reason: str | None = None
        self._texts = TextChunks(lambda _, text: line(shaped(model, is_chat, MessagePart(text, "", []), [], TIME)))

    def whole(self, deltas: list[Delta]) -> OllamaAnswer:
        part = self._read(deltas[0])
        return shaped(self._model, self._is_chat, part, self._whole_calls(), **self._end())

    def frames(self, deltas: list[Delta]) -> Iterable[bytes]:
        for delta in deltas:
            part = self._read(delta)
            if part.content and not part.reasoning:
                yield self._texts.event(0, part.content).replace(TIME.encode(), now().encode(), 1)
            elif part.reasoning:
                yield line(shaped(self._model, self._is_chat, part, []))

    def last_frames(self) -> Iterable[bytes]:
        if self._calls:
            yield line(shaped(self._model, self._is_chat, NOTHING, self._whole_calls()))
        yield line(shaped(self._model, self._is_chat, NOTHING, [], **self._end()))

    def _read(self, delta: Delta) -> MessagePart:
        part = self._reader.read(delta.text, is_last=delta.finish_reason is not None)
        for call in part.calls:
            known = self._calls.setdefault(call.index, call)
            if known is not call:
                known.function.arguments += call.function.arguments
        self._reason = delta.finish_reason or self._reason
        return part

    def _whole_calls(self) -> list[AnsweredCall]:
        calls, self._calls = self._calls, {}
        return [
            AnsweredCall(
                id=call.id or "",
                function=AnsweredFunction(
                    index=index, name=call.function.name or "", arguments=arguments_of(call.function.arguments)
                ),
            )
            for index, call in sorted(calls.items())
        ]

    def _end(self) -> dict[str, Any]:
        """Return why the output ended, its counts and durations."""
        times, usage = self.generation.times(is_asked=True), self.generation.usage()
        spans = (times.queue_time_ms, times.time_to_first_token_ms, times.generation_time_ms) if times else ()
        queued, prompt, output = (int((each or 0) * NS_OF_MS) for each in spans or (0, 0, 0))
        return {
            "done_reason": "length" if self._reason == "length" else "stop",
            "total_duration": queued + prompt + output,
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": prompt,
            "eval_count": usage.completion_tokens,
            "eval_duration": output,
        }
