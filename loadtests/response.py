"""Reader of one streamed response: it turns bytes with their times into a request record. No sockets, no clock."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from .openai_api import Chunk, Usage, decode_chunk, error_text
from .records import FailureKind, RequestRecord, TokenSource
from .sse import SseError, SseParser

_DONE = b"[DONE]"


class BadResponse(Exception):
    """A response that cannot be used; it is counted as `kind`."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind


class StreamedResponse:
    """A response so far. Times are of the reader's clock, in seconds."""

    def __init__(self) -> None:
        self.token_times: list[float] = []  # of chunks that carry output
        self.token_ids: list[int] = []
        self.texts: list[str] = []
        self.finish_reason: str | None = None
        self.finish_time: float | None = None
        self.usage: Usage | None = None
        self._sse = SseParser()
        self._is_done = False
        self._raw: list[bytes] = []  # of a response that is no stream
        self._all_chunks_have_ids = True

    def feed(self, data: bytes, now: float) -> None:
        """Take a chunk of the stream. Raises BadResponse."""
        try:
            for event in self._sse.feed(data):
                if event == _DONE:
                    self._is_done = True
                else:
                    self._take(decode_chunk(event), event, now)
        except SseError as error:
            raise BadResponse("malformed", f"malformed SSE: {error}") from error
        except msgspec.MsgspecError as error:
            raise BadResponse("malformed", f"malformed SSE: an event is not a chunk of this API: {error}") from error

    def feed_plain(self, data: bytes) -> None:
        """Take a chunk of a response that is no stream by its status or type."""
        if sum(map(len, self._raw)) < 65536:
            self._raw.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def check_status(self, status: int, content_type: str) -> None:
        """Raise BadResponse unless it is 200 and an event stream."""
        body = b"".join(self._raw)
        if status == 429:
            raise BadResponse("http_429", f"429: {error_text(body)}")
        if status != 200:
            raise BadResponse("http_5xx" if status >= 500 else "http_4xx", f"{status}: {error_text(body)}")
        if not content_type.startswith("text/event-stream"):
            raise BadResponse("malformed", f"the answer is {content_type or 'of no type'!r}, not 'text/event-stream'")

    def check_end(self) -> None:
        """Raise BadResponse if the stream ended too soon or without a token."""
        if self._sse.is_inside_event:
            raise BadResponse("malformed", "malformed SSE: the stream ended inside an event")
        if not self._is_done and self.finish_reason is None:
            raise BadResponse("truncated", "the stream ended with neither a finish reason nor [DONE]")
        if not self._times():
            raise BadResponse("empty", "the stream carried no token")

    def check_count(self, record: RequestRecord, is_exact: bool) -> None:
        """Raise BadResponse for another number of tokens than requested (`is_exact`), or if ids and usage disagree."""
        if self.usage is not None and self.token_ids and self._all_chunks_have_ids:
            reported, received = self.usage.completion_tokens, len(self.token_ids)
            if reported != received:
                raise BadResponse("token_count", f"usage says {reported} tokens, but {received} token ids came")
        requested = record.requested_output_tokens
        if is_exact and requested is not None and record.token_source != "chunks" and record.output_tokens != requested:
            raise BadResponse("token_count", f"requested exactly {requested} tokens, got {record.output_tokens}")

    def fill(self, record: RequestRecord, origin: float) -> None:
        """Write the known fields into `record`; `origin` is the run's start on the reader's clock."""
        record.finish_reason = self.finish_reason
        record.output_tokens, record.token_source = self._count()
        if times := self._times():
            record.ttft_s = times[0] - origin - record.sent_s
            record.end_s = times[-1] - origin
            record.itls_s = [round(b - a, 7) for a, b in pairwise(times)]
            if self.finish_time is not None and len(times) < record.output_tokens:
                # The last token is visible only by its finish reason (an end token has no text).
                record.end_s = self.finish_time - origin
        if self.usage is not None:
            record.prompt_tokens = self.usage.prompt_tokens
            details, ours = self.usage.prompt_tokens_details, self.usage.neuronserve
            record.cached_tokens = (details.cached_tokens or 0) if details else 0
            record.device_seconds = ours.device_seconds if ours else None

    def _times(self) -> list[float]:
        """Return the times of output; for a single end token, the time of its finish."""
        if not self.token_times and self.finish_time is not None and self.usage and self.usage.completion_tokens:
            return [self.finish_time]
        return self.token_times

    def _count(self) -> tuple[int, TokenSource]:
        if self.usage is not None and self.usage.completion_tokens:
            return self.usage.completion_tokens, "usage"
        if self.token_ids and self._all_chunks_have_ids:
            return len(self.token_ids), "token_ids"
        return len(self.token_times), "chunks"

    def _take(self, chunk: Chunk, event: bytes, now: float) -> None:
        if chunk.error is not None:
            raise BadResponse("stream_error", f"error in the stream: {error_text(event)}")
        if chunk.usage is not None:
            self.usage = chunk.usage
        for choice in chunk.choices:
            if choice.finish_reason is not None:
                self.finish_reason, self.finish_time = choice.finish_reason, now
            if not choice.carries_output:
                continue
            self.token_times.append(now)
            if choice.token_ids:
                self.token_ids.extend(choice.token_ids)
            else:
                self._all_chunks_have_ids = False
            text = choice.text if choice.delta is None else choice.delta.content
            if text:
                self.texts.append(text)
