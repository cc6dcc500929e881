"""Token counts and device time on the wire, in the `usage` object that every generation endpoint sends."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


def optional() -> Any:
    """A field that is left out of the answer when it is None, where OpenAI's shape does not have it as null."""
    return Field(None, exclude_if=lambda value: value is None)


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class DeviceUsage(BaseModel):
    """Modelled device time that a request used, all its choices together."""

    device_seconds: float
    prefill_device_seconds: float  # up to each choice's first token
    decode_device_seconds: float  # after it, with what was computed again after a preemption
    cost_usd: float | None = optional()  # absent where no price is known
    is_extrapolated: bool  # no measurement stands behind some of these seconds


class Usage(BaseModel):
    """Token counts; a prompt counts once however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    neuronserve: DeviceUsage | None = optional()  # when requested by a header


class PoolingUsage(BaseModel):
    """Token counts of texts that were encoded."""

    prompt_tokens: int
    total_tokens: int
    neuronserve: DeviceUsage | None = optional()  # when requested by a header
