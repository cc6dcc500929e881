"""Conversations on their way to a generation: the first two stages of a chat request, whichever dialect it came in."""

from __future__ import annotations

from neuronserve.server.api.http.origin import Origin
from neuronserve.server.api.pipeline.generation import Generation
from neuronserve.server.api.pipeline.prompts import Prompt, chat_prompt, check_ids
from neuronserve.server.api.pipeline.start import start
from neuronserve.server.api.pipeline.validate import check_fields, validated
from neuronserve.server.api.service import ServedModel, Service
from neuronserve.server.api.tools.plan import tool_plan
from neuronserve.server.api.wire.chat import ChatRequest, TransferParams
from neuronserve.server.errors import InvalidRequest


async def chat_generation(origin: Origin, body: ChatRequest, service: Service, clips: bool = False) -> Generation:
    """Take a conversation through all stages, before the engine gets anything. Raises RequestError."""
    request = validated(origin, body, service, clips=clips)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true.", "top_logprobs")
    prompt = _given_prompt(service.model, body.kv_transfer_params) or await chat_prompt(
        service.model, body, request.plan.tools.offered, most=request.max_prompt_tokens
    )
    _, max_tokens = body.token_limit
    return await start(request, [prompt], max_tokens)


async def prompt_of(service: Service, body: ChatRequest) -> Prompt:
    """Return the prompt of a conversation that is only counted. Raises RequestError."""
    check_fields(service, body)
    return await chat_prompt(service.model, body, tool_plan(service.model, service.config, body).offered)


def _given_prompt(model: ServedModel, given: TransferParams | None) -> Prompt | None:
    """Return the prompt of `kv_transfer_params.prompt_token_ids`, which another server has made of the messages."""
    if given is None:
        return None
    refused = next((name for name, value in (given.model_extra or {}).items() if value), None)
    if refused is not None:
        field = f"kv_transfer_params.{refused[:40]}"
        raise InvalidRequest(f"{field} is not supported by this server.", field, "unsupported_parameter")
    if given.prompt_token_ids is None:
        return None
    param = "kv_transfer_params.prompt_token_ids"
    ids = check_ids(given.prompt_token_ids, model.vocab_size, param)
    return Prompt(ids, model.tokenizer.decode(ids, skip_special_tokens=False), param)
