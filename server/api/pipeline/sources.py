"""Prompts of a model with an encoder: the encoder reads the prompt, and the decoder begins a text of its own."""

from __future__ import annotations

from ...errors import InvalidRequest
from ...link.messages import EngineInfo
from ..service import ServedModel
from ..wire.generation import GenerationRequest
from .prompts import Prompt

_OF_PROMPTS = ("echo", "suffix", "prompt_logprobs")  # fields that a prompt in the decoder alone can answer


def require_no_prompt_output(info: EngineInfo, body: GenerationRequest) -> None:
    """Raise InvalidRequest for a field that needs the decoder to have read the prompt, where the encoder reads it."""
    named = (name for name in _OF_PROMPTS if info.max_source_len and getattr(body, name, None) not in (None, False, ""))
    if (name := next(named, None)) is not None:
        raise InvalidRequest(
            f"{name} is not supported for {info.facts.architecture}: its encoder reads the prompt, and no token of it "
            "is predicted.",
            name,
            "unsupported_parameter",
        )


def first_tokens(model: ServedModel, prompt: Prompt) -> tuple[int, ...]:
    """Return the tokens with which the decoder begins: the prompt, or the model's own where an encoder reads that.

    Raises InvalidRequest for a prompt that is longer than the encoder reads.
    """
    most, begin = model.info.max_source_len, model.defaults.decoder_prompt
    if not most:
        return prompt.token_ids
    if len(prompt.token_ids) > most:
        raise InvalidRequest(
            f"This model's maximum context length is {most} tokens for the text that its encoder reads, and this one "
            f"has {len(prompt.token_ids)}.",
            prompt.param,
            "context_length_exceeded",
        )
    if not begin:
        raise InvalidRequest("The model's files name no decoder_start_token_id, with which its text begins.", "model")
    return begin
