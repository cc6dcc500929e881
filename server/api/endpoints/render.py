"""POST /v1/chat/completions/render and /v1/completions/render: the prompts of a request, without generation.

The formats are vLLM's (`GenerateRequest`): token ids of a prompt, and the sampling of its continuation.
"""

from typing import Any

from fastapi import APIRouter, Request
from pydantic import ConfigDict

from ...types import SamplingParams
from ..dialects import completions
from ..http.body import BodyOf
from ..http.openapi import OF_BODIES, documented, errors_of
from ..http.origin import origin_of
from ..pipeline.generation import Generation
from ..pipeline.start import chat_generation
from ..service import ServiceOf
from ..wire.chat import ChatRequest
from ..wire.completions import CompletionRequest
from ..wire.generation import GenerationRequest
from ..wire.model import WireModel

RESPONSES = errors_of(401, 403, 429, *OF_BODIES)
router = APIRouter()


class RenderedSampling(WireModel):
    """Sampling of each choice, with the checkpoint's defaults for absent fields."""

    n: int
    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int  # 0 = all
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    seed: int | None  # null: one would be drawn
    stop: list[str]
    stop_token_ids: list[int]
    ignore_eos: bool
    logprobs: int | None
    prompt_logprobs: int | None
    logit_bias: dict[int, float] | None
    skip_special_tokens: bool
    include_stop_str_in_output: bool


class RenderedRequest(WireModel):
    """One prompt as the engine would get it."""

    model_config = ConfigDict(protected_namespaces=())

    request_id: str
    token_ids: list[int]
    sampling_params: RenderedSampling
    model: str
    stream: bool
    cache_salt: str | None
    priority: int
    features: None = None  # pictures are shown as their placeholders alone


@router.post("/v1/chat/completions/render", responses=RESPONSES, openapi_extra=documented(ChatRequest))
async def render_chat(request: Request, body: BodyOf[ChatRequest], service: ServiceOf) -> RenderedRequest:
    """The prompt of a conversation."""
    return _rendered(await chat_generation(origin_of(request), body, service), body)[0]


@router.post("/v1/completions/render", responses=RESPONSES, openapi_extra=documented(CompletionRequest))
async def render_completion(
    request: Request, body: BodyOf[CompletionRequest], service: ServiceOf
) -> list[RenderedRequest]:
    """The prompts of a request, in their order."""
    return _rendered((await completions.prepare(origin_of(request), body, service)).generation, body)


def _rendered(generation: Generation, body: GenerationRequest) -> list[RenderedRequest]:
    origin = generation.request.origin
    shared: dict[str, Any] = {
        "request_id": origin.request_id,
        "model": generation.request.model_name,
        "stream": bool(body.stream),
        "cache_salt": body.cache_salt,
        "priority": origin.caller.priority(body.priority),
    }
    return [
        RenderedRequest(
            token_ids=list(each.prompt.token_ids),
            sampling_params=_sampling(body, each.sampling),
            **shared,
        )
        for each in generation.planned
    ]


def _sampling(body: GenerationRequest, params: SamplingParams) -> RenderedSampling:
    same = {name: getattr(params, name) for name in RenderedSampling.model_fields if hasattr(params, name)}
    others: dict[str, Any] = {
        "n": body.n or 1,
        "max_tokens": 0 if body.max_tokens == 0 else params.max_tokens,
        "seed": body.seed,
        "stop": list(body.stop_strings),
        "logit_bias": dict(params.logit_bias) or None,
        "skip_special_tokens": body.skip_special_tokens is not False,
        "include_stop_str_in_output": bool(body.include_stop_str_in_output),
    }
    return RenderedSampling(**same | others)
