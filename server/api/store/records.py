"""Records of the store: one frozen record for each table. Times are Unix seconds."""

from __future__ import annotations

from dataclasses import dataclass

from .database import Table


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response of /v1/responses, with its own input items."""

    id: str
    created_at: float
    used_at: float  # last use, by itself or by a response that follows it
    previous_id: str | None
    status: str
    num_bytes: int  # of `body` and `input_items`
    body: bytes  # JSON, as in answers
    input_items: bytes  # JSON list
    owner: str = ""  # name of the API key that created it


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation of /v1/conversations, to which responses add items."""

    id: str
    created_at: float
    used_at: float
    num_bytes: int  # of `metadata` and `items`
    metadata: bytes  # JSON
    items: bytes  # JSON list
    num_made: int = 0  # number of item ids given out
    owner: str = ""  # name of the API key that created it


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file; its content is in the data directory under its id."""

    id: str
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    num_bytes: int
    owner: str = ""  # name of the API key that created it


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch. `total` is 0 until its input has been checked; results count its progress."""

    id: str
    created_at: int
    expires_at: int
    status: str
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: str | None = None  # JSON
    output_lifetime_s: int | None = None
    api_key: str = ""  # name of the API key that created it
    total: int = 0
    errors: str | None = None  # JSON list, for an invalid input
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    tally: str | None = None  # JSON, once the batch has ended and its results are in files


@dataclass(frozen=True, slots=True)
class LineResult:
    """Result of one line of a batch's input. Its key makes it unique."""

    batch_id: str
    line: int  # from 1
    is_error: bool
    data: bytes  # the line of the output or error file, with its line end
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    device_seconds: float = 0.0
    cost_usd: float | None = None
    is_given_up: bool = False  # an error because the batch was cancelled or expired


RESPONSES = Table("responses", StoredResponse)
CONVERSATIONS = Table("conversations", StoredConversation)
FILES = Table("files", StoredFile)
BATCHES = Table("batches", StoredBatch)
RESULTS = Table("results", LineResult, num_keys=2)
TABLES = (RESPONSES, CONVERSATIONS, FILES, BATCHES, RESULTS)
