"""Prompts of a model with an encoder: the encoder reads the prompt, and the decoder begins a text of its own."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256

from ...errors import InvalidRequest
from ...link.messages import EngineInfo
from ...types import MediaItem
from ..errors import unsupported
from ..service import ServedModel
from ..wire.generation import GenerationRequest
from .prompts import Prompt

_OF_PROMPTS = ("echo", "suffix", "prompt_logprobs")  # fields that a prompt in the decoder alone can answer


def require_no_prompt_output(info: EngineInfo, body: GenerationRequest) -> None:
    """Raise InvalidRequest for a field that needs the decoder to have read the prompt, where the encoder reads it."""
    named = (name for name in _OF_PROMPTS if info.max_source_len and getattr(body, name, None) not in (None, False, ""))
    if (name := next(named, None)) is not None:
        raise unsupported(
            name,
            f" is not supported for {info.facts.architecture}: its encoder reads the prompt, and no token of it "
            "is predicted.",
        )


def first_tokens(model: ServedModel, prompt: Prompt) -> tuple[int, ...]:
    """Return the tokens with which the decoder begins: the prompt, or the model's own where an encoder reads that.

    Raises InvalidRequest for a prompt that is longer than the encoder reads.
    """
    most, begin = model.info.max_source_len, model.defaults.decoder_prompt
    if not most or prompt.media:  # sound is what the encoder reads
        return prompt.token_ids
    if model.info.sound_shape:
        raise InvalidRequest(
            f"{model.info.facts.architecture} writes what it hears: use /v1/audio/transcriptions.",
            prompt.param,
            "unsupported_endpoint",
        )
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


def media_of(model: ServedModel, prompt: Prompt) -> tuple[MediaItem, ...]:
    """Return what the encoder reads: the pictures or the sound of a prompt, or the prompt itself.

    Raises InvalidRequest.
    """
    if not model.info.max_source_len:
        return prompt.media
    if any(item.shape != model.info.sound_shape for item in prompt.media):
        shapes = ", ".join(str(item.shape) for item in prompt.media)
        raise InvalidRequest(f"features of shape {shapes} are not {model.info.sound_shape}.", prompt.param)
    return prompt.media or (text_item(prompt.token_ids),)


def text_item(token_ids: Sequence[int]) -> MediaItem:
    """Return a text for an encoder."""
    ids, count = array("i", token_ids).tobytes(), len(token_ids)
    return MediaItem(sha256(b"text" + ids).digest(), 0, count, ids, (count,), "int32")
