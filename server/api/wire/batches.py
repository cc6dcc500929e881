"""/v1/files and /v1/batches on the wire, in OpenAI's shapes."""

from typing import Literal

from pydantic import Field

from .model import BodyModel, WireModel
from .responses import Metadata
from .usage import optional

Endpoint = Literal[  # url of a line
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages"
]
MIN_LIFETIME_S, MAX_LIFETIME_S = 3600, 30 * 86400  # OpenAI's


class ExpiresAfter(BodyModel):
    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_LIFETIME_S, le=MAX_LIFETIME_S)


class BatchRequest(BodyModel):
    input_file_id: str = Field(max_length=256)
    endpoint: Endpoint
    completion_window: str = Field(pattern=r"^[1-9][0-9]{0,6}[smhd]$")
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None


class FileObject(WireModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None = optional()
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class FileList(WireModel):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None = optional()
    last_id: str | None = optional()
    has_more: bool


class DeletedFile(WireModel):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class RequestCounts(WireModel):
    total: int
    completed: int
    failed: int


class CachedTokens(WireModel):
    cached_tokens: int


class ReasoningTokens(WireModel):
    reasoning_tokens: int


class ModelledCost(WireModel):
    """Modelled device time of all lines that were answered."""

    device_seconds: float
    cost_usd: float | None = optional()  # absent where no price is known


class BatchUsage(WireModel):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int
    neuronserve: ModelledCost


class BatchError(WireModel):
    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(WireModel):
    object: Literal["list"] = "list"
    data: list[BatchError]


class Batch(WireModel):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


class BatchList(WireModel):
    object: Literal["list"] = "list"
    data: list[Batch]
    first_id: str | None = optional()
    last_id: str | None = optional()
    has_more: bool
