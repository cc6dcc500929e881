"""Records of requests, and their file: one JSON line a request, written as soon as it has ended.

All times are seconds from the start of the run (by the generator's monotonic clock).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from .errors import DatasetError

FailureKind = Literal[
    "connect",  # no connection could be made
    "timeout",  # not complete in time
    "disconnected",  # the connection ended inside the response
    "http_4xx",  # refused
    "http_429",  # refused: the queue is full
    "http_5xx",  # the server failed before the stream
    "stream_error",  # an error event inside the stream
    "malformed",  # not HTTP, not SSE, or not the JSON of this API
    "truncated",  # the stream ended without a finish reason and without [DONE]
    "empty",  # ended properly, without a token
    "token_count",  # complete, but with another number of tokens than requested or than its ids are
    "cancelled",  # the run was interrupted while it was open
]
TokenSource = Literal["usage", "token_ids", "chunks"]  # source of the number of generated tokens
Phase = Literal["warmup", "measured"]


class RequestRecord(msgspec.Struct, omit_defaults=True):
    """Record of one request, completed or failed."""

    request_id: str
    session: int
    turn: int
    intended_s: float  # time of the arrival process
    sent_s: float  # time at which its bytes went to the socket
    phase: Phase = "measured"
    end_s: float = 0.0  # last token, else the failure
    ttft_s: float | None = None  # first chunk that carries output, from `sent_s`
    itls_s: list[float] = []  # gaps between chunks that carry output
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    requested_output_tokens: int | None = None
    token_source: TokenSource | None = None
    finish_reason: str | None = None
    device_seconds: float | None = None  # modelled, as reported by the server; None without a report
    failure: FailureKind | None = None
    error: str | None = None
    http_status: int | None = None

    @property
    def is_ok(self) -> bool:
        return self.failure is None

    @property
    def latency_s(self) -> float:
        """Seconds from sent to the last token (not to [DONE])."""
        return self.end_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """(latency - TTFT) / (n - 1); None for outputs of fewer than two tokens."""
        if self.ttft_s is None or self.output_tokens < 2:
            return None
        return (self.latency_s - self.ttft_s) / (self.output_tokens - 1)

    @property
    def delay_s(self) -> float:
        """Seconds of late sending, which coordinated omission would hide."""
        return self.sent_s - self.intended_s


class RecordFile:
    """Appends records to a JSONL file, without buffering."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise DatasetError(f"cannot write the records to {str(path)!r}: {error.strerror}") from error
        self.path = path
        self._encoder = msgspec.json.Encoder()

    def add(self, record: RequestRecord) -> None:
        self._file.write(self._encoder.encode(record) + b"\n")

    def close(self) -> None:
        self._file.close()


def read_records(path: Path) -> Iterator[RequestRecord]:
    """Yield the records of a file; a half-written last line is skipped. Raises DatasetError on another bad line."""
    decoder = msgspec.json.Decoder(RequestRecord)
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            yield decoder.decode(line)
        except msgspec.MsgspecError as error:
            if number == len(lines):
                return
            raise DatasetError(f"{path}: line {number} is not a request record: {error}") from error
