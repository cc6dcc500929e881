"""The stages of a generation request, in their order: from its body, or from its prompts, to the generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...errors import InvalidRequest
from ..errors import unsupported
from ..http.origin import Origin
from ..service import ServedModel, Service
from ..tools.output import compile_output
from ..tools.plan import tool_plan
from ..wire.chat import ChatRequest
from .checked import CheckedGeneration
from .generation import Generation
from .pictures import has_pictures
from .prompts import Prompt, chat_prompt, check_ids
from .sampling import sampled
from .scripted_output import scripted_output
from .stages import Rendered, Validated
from .validate import check_fields, validated


async def chat_generation(origin: Origin, body: ChatRequest, service: Service, clips: bool = False) -> Generation:
    """Take a conversation through all stages, before the engine gets anything. Raises RequestError."""
    request = validated(origin, body, service, clips=clips)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true.", "top_logprobs")
    prompt = _given_prompt(service.model, body) or await chat_prompt(
        service.model, body, request.plan.tools.offered, most=request.max_prompt_tokens
    )
    _, max_tokens = body.token_limit
    return await start(request, [prompt], max_tokens)


async def prompt_of(service: Service, body: ChatRequest) -> Prompt:
    """Return the prompt of a conversation whose tokens are only counted. Raises RequestError."""
    check_fields(service, body)
    return await chat_prompt(service.model, body, tool_plan(service.model, service.config, body).offered)


def _given_prompt(model: ServedModel, body: ChatRequest) -> Prompt | None:
    """Return the prompt of `kv_transfer_params.prompt_token_ids`, which another server has made of the messages."""
    given = body.kv_transfer_params
    if given is None:
        return None
    for refused in (name for name, value in (given.model_extra or {}).items() if value):
        raise unsupported(f"kv_transfer_params.{refused[:40]}")
    if given.prompt_token_ids is None:
        return None
    param = "kv_transfer_params.prompt_token_ids"
    if any(has_pictures(message) for message in body.messages):
        raise InvalidRequest(f"{param} has no pictures, but messages have.", param)
    ids = check_ids(given.prompt_token_ids, model.vocab_size, param)
    return Prompt(ids, model.tokenizer.decode(ids, skip_special_tokens=False), param)


async def start(request: Validated, prompts: Sequence[Prompt], max_tokens: int | None) -> Generation:
    """Return the generation of at most `max_tokens` for each prompt. Raises RequestError; nothing runs yet."""
    planned = sampled(await rendered(request, prompts, max_tokens))
    return CheckedGeneration(planned) if planned.constraint.is_checked else Generation(planned)


async def rendered(request: Validated, prompts: Sequence[Prompt], max_tokens: int | None) -> Rendered:
    """Compile the constraint of the output, and truncate the prompts where the request says so."""
    prompt, scripted = prompts[0].text or "", request.origin.scripted
    if scripted is None:
        constraint = await compile_output(request.service.model, request.plan, prompt)
    else:
        constraint = await scripted_output(request, scripted, prompt)
    return Rendered(request, [_truncated(request, each, max_tokens or 1) for each in prompts], max_tokens, constraint)


def _truncated(request: Validated, prompt: Prompt, num_new: int) -> Prompt:
    """Return what `truncate_prompt_tokens` leaves of a prompt; -1 leaves room for `num_new` tokens.

    The end is kept, or the beginning when `truncation_side` is right.
    """
    body, info = request.body, request.service.model.info
    max_model_len = info.max_prompt_len
    most = body.truncate_prompt_tokens
    if most is None:
        return prompt
    if prompt.media:
        raise InvalidRequest("truncate_prompt_tokens would cut pictures of the prompt.", "truncate_prompt_tokens")
    if most == 0 or most > max_model_len:
        raise InvalidRequest(
            f"truncate_prompt_tokens is {most}; it must be -1, or from 1 to the context of {max_model_len}.",
            "truncate_prompt_tokens",
        )
    room = 0 if info.max_source_len else num_new
    kept = max(1, max_model_len - room) if most == -1 else most
    if len(prompt.token_ids) <= kept:
        return prompt
    ids = prompt.token_ids[:kept] if body.truncation_side == "right" else prompt.token_ids[-kept:]
    return replace(prompt, token_ids=ids, text=None)
