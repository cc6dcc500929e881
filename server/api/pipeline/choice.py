"""One choice of a generation: its text and its counts, from the events of its sequence."""

from __future__ import annotations

from ...errors import GenerationFailed, RequestError, Unavailable
from ...text.detokenizer import Detokenizer, StopStrings, TextStream
from ...text.tokenizer import Tokenizer
from ...types import Charge, TokenEvent
from ..wire.generation import GenerationRequest
from .deltas import Delta
from .stages import PlannedSequence


class Choice:
    """Detokenizer and counts of one sequence while it is generated."""

    def __init__(self, index: int, detokenizer: Detokenizer, keeps_stop: bool, is_mute: bool) -> None:
        self.index = index
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self.has_ended = False
        self.held: Delta | None = None  # the begin of the next delta, not sent yet
        self._num_sent = 0  # tokens in deltas that were sent
        self.charge = Charge()
        self.drafts = (0, 0)  # verified, and accepted
        self.prefill_ns = 0  # part of the charge, up to the first token
        self._detokenizer = detokenizer
        self._keeps_stop = keeps_stop
        self._is_mute = is_mute  # max_tokens is 0: the one token that the engine generates is left out

    def take(self, event: TokenEvent, charge: Charge, delta: Delta) -> None:
        """Add one event, and the charge of its step, to `delta`.

        Raises GenerationFailed or Unavailable when the engine gave the sequence up.
        """
        if (error := failure_of(event)) is not None:
            raise error
        self.num_cached_tokens = max(self.num_cached_tokens, event.num_cached_tokens)
        self.charge, self.drafts = charge, event.drafts
        if event.index == 0:
            self.prefill_ns = charge.device_ns
        delta.row = event.row or delta.row
        delta.prompt_logprobs = event.prompt_logprobs or delta.prompt_logprobs
        if self._is_mute:
            delta.finish_reason = "length"
            return
        if event.token_id is not None:
            self._take_token(event.token_id, event, delta)
        if event.finish_reason is not None and delta.finish_reason is None:
            delta.text += self._detokenizer.finish()
            delta.finish_reason, delta.stop_reason = event.finish_reason, event.stop_reason
            self._check_stop(delta)

    def is_due(self, delta: Delta, interval: int) -> bool:
        """Return whether a delta is sent: the first, the last, and those of `interval` tokens. Others are held."""
        is_due = not self._num_sent or self.num_tokens - self._num_sent >= interval or delta.finish_reason is not None
        if is_due:
            self._num_sent = self.num_tokens
        self.held = None if is_due else delta
        return is_due

    def time_out(self) -> Delta:
        """End the choice because the request has timed out, and return its last delta."""
        delta = self.held or Delta(self.index)
        delta.text += self._detokenizer.finish()
        delta.finish_reason, delta.stop_reason = "length", "timeout"
        return delta

    def _take_token(self, token_id: int, event: TokenEvent, delta: Delta) -> None:
        self.num_tokens += 1
        delta.token_ids.append(token_id)
        if event.logprobs is not None:
            delta.logprobs.append(event.logprobs)
        if event.finish_reason != "stop" or self._keeps_stop:
            delta.text += self._detokenizer.feed(token_id)
            self._check_stop(delta)

    def _check_stop(self, delta: Delta) -> None:
        if self._detokenizer.matched_stop is not None:
            delta.finish_reason, delta.stop_reason = "stop", self._detokenizer.matched_stop


def failure_of(event: TokenEvent) -> RequestError | None:
    """Return the error of a sequence that the engine gave up with this event."""
    if event.finish_reason == "error":
        return GenerationFailed(f"The model failed on this request: {event.error}")
    if event.finish_reason == "abort":
        return Unavailable("The engine has ended this request.", code="aborted")
    return None


def choice_of(tokenizer: Tokenizer, index: int, body: GenerationRequest, sequence: PlannedSequence) -> Choice:
    """Return the choice of a sequence that was planned."""
    keeps_stop = bool(body.include_stop_str_in_output)
    text = TextStream(tokenizer, sequence.prompt.token_ids, body.skip_special_tokens is not False)
    detokenizer = Detokenizer(text, StopStrings(body.stop_strings, keeps_stop), body.min_tokens or 0)
    return Choice(index, detokenizer, keeps_stop, is_mute=body.max_tokens == 0)
