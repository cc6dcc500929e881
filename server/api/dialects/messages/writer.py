"""Output as a message of Anthropic's API: content blocks, whole or as a stream of events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...pipeline.chunks import TextChunks
from ...pipeline.deltas import Delta
from ...pipeline.generation import Generation
from ...tools.message import MessagePart, arguments_of
from ...wire.message import (
    AnyBlock,
    BlockDelta,
    BlockPiece,
    BlockStart,
    BlockStop,
    Event,
    MessageAnswer,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessagesUsage,
    Ping,
    Stop,
    StopDetails,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from ...wire.messages import MessagesRequest
from ...wire.tools import ToolCallDelta
from ..sealed import seal


def event(made: Event) -> bytes:
    """Encode one event of a stream."""
    return f"event: {made.type}\ndata: {made.model_dump_json()}\n\n".encode()


class MessageWriter:
    """Puts the deltas of one choice into Anthropic's shapes."""

    def __init__(
        self, generation: Generation, body: MessagesRequest, answer_id: str, cached_in: int | None = None
    ) -> None:
        """`cached_in`: tokens in a block of the prefix cache, if the client marks parts of the prompt for caching."""
        self.generation = generation
        self._max_tokens = body.max_tokens
        self._is_hidden = body.thinking is not None and body.thinking.display == "omitted"
        self._hidden = ""  # thinking of the open block that is not displayed
        self._cached_in = cached_in
        self._id, self._model = answer_id, generation.request.model_name
        self._reader = generation.request.plan.reader(generation.prompts[0].text)
        self._stop: Stop | None = None
        self._index = -1  # number of the open block
        self._open: tuple[str, int] | None = None  # type of the block, and number of the call
        self._is_begun = False
        self._texts = TextChunks(lambda index, text: _delta_event(index, "text", text=text))

    def whole(self, deltas: list[Delta]) -> MessageAnswer:
        """Return the answer to a client that does not stream."""
        part = self._reader.read(deltas[0].text, is_last=True)
        return self._answer(list(_blocks(part, self._is_hidden)), self._stop_of(deltas[0]))

    def frames(self, deltas: list[Delta]) -> Iterable[bytes]:
        """Yield events for the next deltas."""
        if not self._is_begun:
            self._is_begun = True
            yield event(MessageStart(message=self._answer([], None, has_output=False)))
            yield event(Ping())
        for delta in deltas:
            part = self._reader.read(delta.text, is_last=delta.finish_reason is not None)
            yield from self._pieces(part)
            if delta.finish_reason is not None:
                self._stop = self._stop_of(delta)

    def last_frames(self) -> Iterable[bytes]:
        """Yield the events that end the message."""
        yield from self._close()
        assert self._stop is not None, "a choice ends with a reason"
        yield event(MessageDelta(delta=self._stop, usage=self._usage()))
        yield event(MessageStop())

    def _pieces(self, part: MessagePart) -> Iterable[bytes]:
        if part.reasoning:
            shown = "" if self._is_hidden else part.reasoning
            yield from self._piece(("thinking", 0), ThinkingBlock(), thinking=shown)
            self._hidden += part.reasoning if self._is_hidden else ""
        if part.content:
            yield from self._piece(("text", 0), TextBlock(), text=part.content)
        for call in part.calls:
            yield from self._piece(
                ("input_json", call.index), _tool_use(call, {}), partial_json=call.function.arguments
            )

    def _piece(self, kind: tuple[str, int], block: AnyBlock, **fields: str) -> Iterable[bytes]:
        """Yield a piece of the open block, or of a new block if that is of another kind."""
        if self._open != kind:
            yield from self._close()
            self._open, self._index = kind, self._index + 1
            yield event(BlockStart(index=self._index, content_block=block))
        if kind[0] == "text":
            yield self._texts.event(self._index, fields["text"])
        elif any(fields.values()):
            yield _delta_event(self._index, kind[0], **fields)

    def _close(self) -> Iterable[bytes]:
        if self._hidden:
            yield _delta_event(self._index, "signature", signature=seal(self._hidden))
            self._hidden = ""
        if self._open is not None:
            self._open = None
            yield event(BlockStop(index=self._index))

    def _stop_of(self, delta: Delta) -> Stop:
        """Return why the message has ended. The delta's text must have been read."""
        text = delta.stop_reason if isinstance(delta.stop_reason, str) and delta.finish_reason == "stop" else None
        if delta.fault is not None:
            return Stop(stop_reason="refusal", stop_sequence=None, stop_details=StopDetails(explanation=delta.fault))
        return Stop(stop_reason=self._reason(delta, text), stop_sequence=text)

    def _reason(self, delta: Delta, stop_text: str | None) -> StopReason:
        if delta.finish_reason == "length":
            is_full = self.generation.usage().completion_tokens < self._max_tokens
            return "model_context_window_exceeded" if is_full else "max_tokens"
        if stop_text is not None:
            return "stop_sequence"
        return "tool_use" if self._reader.num_calls else "end_turn"

    def _answer(self, content: list[AnyBlock], stop: Stop | None, has_output: bool = True) -> MessageAnswer:
        return MessageAnswer(
            id=self._id,
            model=self._model,
            content=content,
            stop_reason=stop.stop_reason if stop else None,
            stop_sequence=stop.stop_sequence if stop else None,
            stop_details=stop.stop_details if stop else None,
            usage=self._usage(has_output),
        )

    def _usage(self, has_output: bool = True) -> MessagesUsage:
        usage = self.generation.usage(has_output)
        total, cached = usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens
        created = 0 if self._cached_in is None else max(0, total // self._cached_in * self._cached_in - cached)
        return MessagesUsage(
            input_tokens=total - cached - created,
            cache_creation_input_tokens=created,
            cache_read_input_tokens=cached,
            output_tokens=usage.completion_tokens,
            neuronserve=usage.neuronserve,
        )


def _delta_event(index: int, kind: str, **fields: str) -> bytes:
    piece = BlockPiece.model_validate({"type": f"{kind}_delta", **fields})
    return event(BlockDelta(index=index, delta=piece))


def _blocks(part: MessagePart, is_hidden: bool) -> Iterable[AnyBlock]:
    if part.reasoning:
        yield (ThinkingBlock(signature=seal(part.reasoning)) if is_hidden else ThinkingBlock(thinking=part.reasoning))
    if part.content:
        yield TextBlock(text=part.content)
    for call in part.calls:
        yield _tool_use(call, arguments_of(call.function.arguments))


def _tool_use(call: ToolCallDelta, arguments: dict[str, Any]) -> ToolUseBlock:
    """Return the block of a call; only its first piece has an id and a name."""
    return ToolUseBlock(id=(call.id or "").replace("call_", "toolu_"), name=call.function.name or "", input=arguments)
