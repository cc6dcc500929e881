"""A response while it is written: deltas become items, and events of them in OpenAI's order. No IO.

Items are added, filled by deltas and completed one after the other. Events are numbered from 0.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ...errors import as_request_error
from ...pipeline.deltas import Delta
from ...pipeline.logprobs import TokenNames, chat_logprobs
from ...tools.message import MessagePart, MessageReader
from ...wire.chat import TokenLogprob
from ...wire.response import (
    CustomCallItem,
    FunctionCallItem,
    IncompleteDetails,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Refusal,
    Response,
    ResponseError,
    ResponseUsage,
)
from ...wire.tools import CustomCallDelta, ToolCallDelta
from ...wire.usage import Usage
from ..sealed import seal
from .items import ItemIds


@dataclass(frozen=True, slots=True)
class Writing:
    """Ids and names that the items of a response are written with."""

    ids: ItemIds
    tools: dict[str, tuple[str | None, str]] = field(
        default_factory=dict
    )  # by the name in chat: namespace and own name
    seals_reasoning: bool = False  # the client stores it as `encrypted_content`


class ResponseWriter:
    """Fills `response`. Its methods return the events of each change, as frames of a stream."""

    def __init__(self, response: Response, reader: MessageReader, names: TokenNames | None, how: Writing) -> None:
        """`names`: names of tokens, if the request wants log-probabilities."""
        self.response = response
        self._how = how
        self.reasoning_tokens = 0
        self._reader = reader
        self._names = names
        self._number = 0  # number of the next event
        self._open: OutputItem | None = None
        self._unread_tokens = 0  # tokens whose text is held back
        self._held_logprobs: list[TokenLogprob] = []  # log-probabilities of such tokens
        self._is_cut = False
        self.is_started = False

    def begin(self) -> Iterator[bytes]:
        """Yield the events before the first output."""
        yield self._event("response.created", response=self._snapshot())
        if self.response.status == "queued":
            yield self._event("response.queued", response=self._snapshot())

    def start(self) -> Iterator[bytes]:
        """Yield the event of the first output."""
        self.is_started = True
        self.response.status = "in_progress"
        yield self._event("response.in_progress", response=self._snapshot())

    def write(self, delta: Delta) -> Iterator[bytes]:
        """Yield events for the next part of the output."""
        part = self._reader.read(delta.text, is_last=delta.finish_reason is not None)
        self._count(delta, part)
        self._is_cut = delta.finish_reason == "length"
        if self._names is not None and delta.logprobs:
            self._held_logprobs += chat_logprobs(self._names, delta, self.response.top_logprobs).content
        for call in part.calls:
            if call.id is None:  # the rest of the open call, before the next item
                yield from self._write_arguments(call.function.arguments)
        if part.reasoning:
            yield from self._write_reasoning(part.reasoning)
        has_calls = bool(part.calls or part.custom_calls)
        if part.content:
            is_mixed = bool(part.reasoning or has_calls)
            held = self._held_logprobs
            yield from self._write_text(part.content, _logprobs_of(held, part.content) if is_mixed else held)
        if part.reasoning or part.content or has_calls:
            self._held_logprobs = []
        begun: list[ToolCallDelta | CustomCallDelta] = [call for call in part.calls if call.id is not None]
        begun += part.custom_calls
        for begins in sorted(begun, key=lambda each: each.index):
            yield from self._begin_call(begins)
        if delta.fault is not None:
            yield from self._add(MessageItem(id=self._how.ids.new("message")))
            yield from self._add_part(Refusal(refusal=delta.fault))
            yield self._event("response.refusal.delta", **self._address(0), delta=delta.fault)

    def finish(self, usage: Usage) -> Iterator[bytes]:
        """Yield the events of the end of the output; an empty output is an empty message."""
        if not self.response.output:
            yield from self._write_text("", [])
        yield from self._close("incomplete" if self._is_cut else "completed")
        response = self.response
        response.usage = response_usage(usage, self.reasoning_tokens)
        response.status = "incomplete" if self._is_cut else "completed"
        if self._is_cut:
            response.incomplete_details = IncompleteDetails(reason="max_output_tokens")
        else:
            response.completed_at = int(time.time())

    def fail(self, error: Exception) -> None:
        """End the output with an error."""
        failure = as_request_error(error)
        self.response.error = ResponseError(
            code="rate_limit_exceeded" if failure.status == 429 else "server_error", message=failure.message
        )
        self._end_as("failed")

    def cancel(self) -> None:
        """End the output because the response was cancelled."""
        self._end_as("cancelled")

    def last(self) -> bytes:
        """Return the event of the end: completed, incomplete or failed."""
        return self._event(f"response.{self.response.status}", response=self._snapshot())

    def _end_as(self, status: Any) -> None:
        if self._open is not None:
            self._open.status = "incomplete"
        self.response.status = status

    def _count(self, delta: Delta, part: MessagePart) -> None:
        """Count tokens of reasoning; the delta that ends it is divided in proportion to its text."""
        self._unread_tokens += len(delta.token_ids)
        rest = len(part.content) + sum(len(call.function.arguments) + 1 for call in part.calls)
        rest += sum(len(call.custom.input) + 1 for call in part.custom_calls)
        if part.reasoning:
            self.reasoning_tokens += self._unread_tokens * len(part.reasoning) // (len(part.reasoning) + rest)
        if part.reasoning or rest:
            self._unread_tokens = 0

    def _write_reasoning(self, text: str) -> Iterator[bytes]:
        if not isinstance(self._open, ReasoningItem):
            yield from self._add(ReasoningItem(id=self._how.ids.new("reasoning")))
            yield from self._add_part(ReasoningText())
        assert isinstance(self._open, ReasoningItem)
        self._open.content[-1].text += text
        yield self._event("response.reasoning_text.delta", **self._address(0), delta=text)

    def _write_text(self, text: str, logprobs: list[TokenLogprob]) -> Iterator[bytes]:
        if not isinstance(self._open, MessageItem):
            yield from self._add(MessageItem(id=self._how.ids.new("message")))
            yield from self._add_part(OutputText())
        assert isinstance(self._open, MessageItem)
        part = self._open.content[-1]
        assert isinstance(part, OutputText), "nothing follows a refusal"
        part.text += text
        part.logprobs += logprobs if self._names is not None else []
        if text:
            without_bytes = _without_bytes(logprobs)
            yield self._event("response.output_text.delta", **self._address(0), delta=text, logprobs=without_bytes)

    def _begin_call(self, call: ToolCallDelta | CustomCallDelta) -> Iterator[bytes]:
        """Begin a call; the call of a custom tool is whole, the arguments of a function may go on."""
        called = call.custom if isinstance(call, CustomCallDelta) else call.function
        namespace, name = self._how.tools.get(called.name or "", (None, called.name or ""))
        shared = {"call_id": call.id or "", "name": name, "namespace": namespace}
        if isinstance(call, ToolCallDelta):
            yield from self._add(FunctionCallItem(id=self._how.ids.new("function_call"), **shared))
            yield from self._write_arguments(call.function.arguments)
            return
        item = CustomCallItem(id=self._how.ids.new("custom_tool_call"), **shared)
        yield from self._add(item)
        item.input = call.custom.input
        if item.input:
            yield self._event("response.custom_tool_call_input.delta", **self._address(), delta=item.input)

    def _write_arguments(self, text: str) -> Iterator[bytes]:
        assert isinstance(self._open, FunctionCallItem)
        self._open.arguments += text
        if text:
            yield self._event("response.function_call_arguments.delta", **self._address(), delta=text)

    def _add(self, item: OutputItem) -> Iterator[bytes]:
        yield from self._close("completed")
        self._open = item
        self.response.output.append(item)
        yield self._event("response.output_item.added", output_index=self._index, item=item.model_dump(mode="json"))

    def _add_part(self, part: OutputText | Refusal | ReasoningText) -> Iterator[bytes]:
        assert isinstance(self._open, MessageItem | ReasoningItem)
        self._open.content.append(part)  # type: ignore[arg-type]
        yield self._event("response.content_part.added", **self._address(0), part=part.model_dump(mode="json"))

    def _close(self, status: ItemStatus) -> Iterator[bytes]:
        item, self._open = self._open, None
        if item is None:
            return
        item.status = status
        address = {"item_id": item.id, "output_index": self._index}
        if isinstance(item, FunctionCallItem):
            called = {"name": item.name, "arguments": item.arguments}
            yield self._event("response.function_call_arguments.done", **address, **called)
        elif isinstance(item, CustomCallItem):
            yield self._event("response.custom_tool_call_input.done", **address, input=item.input)
        else:
            yield from self._close_part(item, {**address, "content_index": 0})
        dumped = item.model_dump(mode="json")
        yield self._event("response.output_item.done", output_index=address["output_index"], item=dumped)

    def _close_part(self, item: MessageItem | ReasoningItem, address: dict[str, Any]) -> Iterator[bytes]:
        part = item.content[-1]
        if isinstance(part, OutputText):
            without_bytes = _without_bytes(part.logprobs)
            yield self._event("response.output_text.done", **address, text=part.text, logprobs=without_bytes)
        elif isinstance(part, Refusal):
            yield self._event("response.refusal.done", **address, refusal=part.refusal)
        else:
            yield self._event("response.reasoning_text.done", **address, text=part.text)
        yield self._event("response.content_part.done", **address, part=part.model_dump(mode="json"))
        if isinstance(item, ReasoningItem) and self._how.seals_reasoning:
            item.encrypted_content = seal(item.content[-1].text)

    @property
    def _index(self) -> int:
        return len(self.response.output) - 1

    def _address(self, content_index: int | None = None) -> dict[str, Any]:
        assert self._open is not None
        address: dict[str, Any] = {"item_id": self._open.id, "output_index": self._index}
        return address if content_index is None else {**address, "content_index": content_index}

    def _snapshot(self) -> dict[str, Any]:
        return self.response.model_dump(mode="json")

    def _event(self, kind: str, **fields: Any) -> bytes:
        payload = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return f"event: {kind}\ndata: {json.dumps(payload, ensure_ascii=False)}\n\n".encode()


def _logprobs_of(logprobs: list[TokenLogprob], text: str) -> list[TokenLogprob]:
    """Return the log-probabilities of the tokens that contain the text; all of them if it is not found."""
    data, wanted = b"".join(bytes(each.bytes) for each in logprobs), text.encode()
    start = data.rfind(wanted)
    if start < 0:
        return logprobs
    kept, at = [], 0
    for each in logprobs:
        if at < start + len(wanted) and at + len(each.bytes) > start:
            kept.append(each)
        at += len(each.bytes)
    return kept


def _without_bytes(logprobs: list[TokenLogprob]) -> list[dict[str, Any]]:
    """Return log-probabilities in the shape of events, which have no bytes."""
    return [
        {
            "token": each.token,
            "logprob": each.logprob,
            "top_logprobs": [{"token": top.token, "logprob": top.logprob} for top in each.top_logprobs],
        }
        for each in logprobs
    ]


def response_usage(usage: Usage, reasoning_tokens: int) -> ResponseUsage:
    """Return the usage of a request in the shape of responses."""
    return ResponseUsage.model_validate(
        {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
            "total_tokens": usage.total_tokens,
            "neuronserve": usage.neuronserve,
        }
    )
