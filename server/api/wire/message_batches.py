"""/v1/messages/batches on the wire, in Anthropic's shapes."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from .model import BodyModel, WireModel

MAX_REQUESTS = 50_000


class BatchItem(BodyModel):
    """One request of a batch; its `params` are the body of a message, checked when it runs."""

    custom_id: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    params: dict[str, Any]


class MessageBatchRequest(BodyModel):
    model_config = ConfigDict(allow_inf_nan=False)

    requests: Annotated[list[BatchItem], Field(fail_fast=True, min_length=1, max_length=MAX_REQUESTS)]


class MessageBatchCounts(WireModel):
    """Requests by outcome; all are processing until the batch has ended."""

    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class MessageBatch(WireModel):
    id: str
    type: Literal["message_batch"] = "message_batch"
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageBatchCounts
    created_at: str  # RFC 3339, like all times of this API
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    archived_at: None = None
    results_url: str | None


class MessageBatchList(WireModel):
    data: list[MessageBatch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedMessageBatch(WireModel):
    id: str
    type: Literal["message_batch_deleted"] = "message_batch_deleted"
