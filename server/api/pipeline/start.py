"""Stages 2 to 4 of a generation request: its prompts, its sequences, and the generation of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neuronserve.server.api.pipeline.checked import CheckedGeneration
from neuronserve.server.api.pipeline.generation import Generation
from neuronserve.server.api.pipeline.prompts import Prompt
from neuronserve.server.api.pipeline.sampling import sampled
from neuronserve.server.api.pipeline.stages import Rendered, Validated
from neuronserve.server.api.tools.reasoning import compile_output
from neuronserve.server.errors import InvalidRequest


async def start(request: Validated, prompts: Sequence[Prompt], max_tokens: int | None) -> Generation:
    """Return the generation of at most `max_tokens` for each prompt. Raises RequestError; nothing runs yet."""
    planned = sampled(await rendered(request, prompts, max_tokens))
    return CheckedGeneration(planned) if planned.constraint.is_checked else Generation(planned)


async def rendered(request: Validated, prompts: Sequence[Prompt], max_tokens: int | None) -> Rendered:
    """Compile the constraint of the output, and truncate the prompts where the request says so."""
    constraint = await compile_output(request.service.model, request.plan, prompts[0].text or "")
    return Rendered(request, [_truncated(request, each, max_tokens or 1) for each in prompts], max_tokens, constraint)


def _truncated(request: Validated, prompt: Prompt, num_new: int) -> Prompt:
    """Return what `truncate_prompt_tokens` leaves of a prompt; -1 leaves room for `num_new` tokens.

    The end is kept, or the beginning when `truncation_side` is right.
    """
    body, max_model_len = request.body, request.service.model.info.max_model_len
    most = body.truncate_prompt_tokens
    if most is None:
        return prompt
    if most == 0 or most > max_model_len:
        raise InvalidRequest(
            f"truncate_prompt_tokens is {most}; it must be -1, or from 1 to the context of {max_model_len}.",
            "truncate_prompt_tokens",
        )
    kept = max(1, max_model_len - num_new) if most == -1 else most
    if len(prompt.token_ids) <= kept:
        return prompt
    ids = prompt.token_ids[:kept] if body.truncation_side == "right" else prompt.token_ids[-kept:]
    return replace(prompt, token_ids=ids, text=None)
