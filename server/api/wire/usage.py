"""Parts of every generation answer on the wire: token counts and device time, times, and logprobs of prompts."""

from typing import Any

from pydantic import Field

from .model import WireModel


def optional() -> Any:
    """Return a field that the answer leaves out when it is None: OpenAI's shape does not have it as null."""
    return Field(None, exclude_if=lambda value: value is None)


class RequestTimes(WireModel):
    """Times of a request with one choice, in vLLM's shape (`--enable-per-request-metrics`)."""

    time_to_first_token_ms: float | None = optional()  # from its first step
    generation_time_ms: float | None = optional()  # after the first token
    queue_time_ms: float | None = optional()  # before its first step
    mean_itl_ms: float | None = optional()  # between tokens
    tokens_per_second: float | None = optional()  # from its first step to its last token


class PromptLogprob(WireModel):
    """Log-probability of one token of the vocabulary at one place of the prompt, in vLLM's shape."""

    logprob: float
    rank: int  # from 1, the most probable token
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]  # by token id; None for the first token


class PromptTokensDetails(WireModel):
    cached_tokens: int
    image_tokens: int | None = optional()  # of a prompt with pictures


class DeviceUsage(WireModel):
    """Modelled device time of a request with all its choices."""

    device_seconds: float
    prefill_device_seconds: float  # up to each choice's first token
    decode_device_seconds: float  # after it, including recomputation after preemptions
    cost_usd: float | None = optional()  # absent where no price is known
    is_extrapolated: bool  # some of these seconds have no measurement behind them
    draft_tokens: int | None = optional()  # verified by speculative decoding
    accepted_draft_tokens: int | None = optional()  # of these


class Usage(WireModel):
    """Token counts; a prompt counts once however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    neuronserve: DeviceUsage | None = optional()  # when requested by a header


class PoolingUsage(WireModel):
    """Token counts of texts that were encoded."""

    prompt_tokens: int
    total_tokens: int
    neuronserve: DeviceUsage | None = optional()  # when requested by a header
