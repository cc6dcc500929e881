"""GET /v1/usage: usage of API keys since the start; a key sees its own usage, an operator all."""

from dataclasses import asdict
from typing import Literal

from fastapi import APIRouter

from ...clock import NS
from ..http.openapi import errors_of
from ..http.origin import CallerOf
from ..keys.use import UsageRow
from ..service import ServedModel, ServiceOf
from ..wire.model import WireModel

router = APIRouter()


class UsageLimits(WireModel):
    """Limits of a key; null = no limit."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    max_concurrent: int | None


class UsageOfKey(WireModel):
    """Sums of one key. Device time and dollars are those of the modelled accelerator."""

    object: Literal["usage"] = "usage"
    api_key: str  # its name; `none` where no key is sent
    requests: int  # generated or encoded; each line of a batch is one
    prompt_tokens: int
    cached_tokens: int  # tokens of prompts found in the prefix cache
    completion_tokens: int
    total_tokens: int
    rate_limited: int  # requests refused for a limit of the key
    device_seconds: float
    cost_usd: float | None  # null when no price is known
    limits: UsageLimits


class UsageList(WireModel):
    object: Literal["list"] = "list"
    since: int  # Unix seconds: the model was ready
    data: list[UsageOfKey]


@router.get("/v1/usage", responses=errors_of(401, 403, 503))
async def usage(service: ServiceOf, caller: CallerOf) -> UsageList:
    """Requests, tokens, modelled device time and dollars by API key."""
    model = service.model
    usage_of_keys = service.accounts.usage(None if caller.is_admin else caller.use.label)
    return UsageList(since=usage_of_keys.since, data=[_shown(row, model) for row in usage_of_keys.rows])


def _shown(row: UsageRow, model: ServedModel) -> UsageOfKey:
    totals, device_ns = row.totals, row.device_ns
    return UsageOfKey(
        api_key=row.label,
        **asdict(totals),
        total_tokens=totals.prompt_tokens + totals.completion_tokens,
        device_seconds=device_ns / NS,
        cost_usd=model.rate.usd(device_ns),
        limits=UsageLimits(**asdict(row.limits)),
    )
