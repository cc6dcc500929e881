"""Usage and the model list on the wire: what answers of several endpoints share."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


def optional() -> Any:
    """A field that is left out of the answer when it is None, where OpenAI's shape does not have it as null."""
    return Field(None, exclude_if=lambda value: value is None)


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class DeviceUsage(BaseModel):
    """What the request took of the modelled part, all its choices together."""

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
    neuronserve: DeviceUsage | None = optional()  # when asked for


class ModelCard(BaseModel):
    model_config = ConfigDict(protected_namespaces=())

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "neuronserve"
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeResponse(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = optional()


class DetokenizeResponse(BaseModel):
    prompt: str
