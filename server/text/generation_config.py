"""End tokens and default sampling parameters, read from a checkpoint's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from .tokenizer import Tokenizer, read_json


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Values for fields that a request leaves out. None = the checkpoint states none."""

    eos_token_ids: tuple[int, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None
    decoder_prompt: tuple[int, ...] = ()  # tokens with which the decoder beside an encoder begins


TokenId = Annotated[int, Meta(ge=0)]


class _EndTokens(Struct):
    """Special tokens in config.json."""

    eos_token_id: TokenId | list[TokenId] | None = None
    decoder_start_token_id: TokenId | None = None
    forced_bos_token_id: TokenId | None = None

    @property
    def ids(self) -> list[int]:
        ids = self.eos_token_id
        return [] if ids is None else ids if isinstance(ids, list) else [ids]


class _GenerationConfig(_EndTokens):
    """Values of generation_config.json, in the ranges of a request's."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    max_new_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


def load_generation_defaults(directory: Path, tokenizer: Tokenizer) -> GenerationDefaults:
    """Read generation_config.json and config.json. Raises CheckpointError when a value cannot be used.

    End tokens that the tokenizer does not have are left out, since no output has them.
    """
    config = read_json(directory / "generation_config.json", _GenerationConfig)
    model = read_json(directory / "config.json", _EndTokens)
    eos = [*config.ids, *model.ids]
    if tokenizer.eos_token_id is not None:
        eos.append(tokenizer.eos_token_id)
    return GenerationDefaults(
        eos_token_ids=tuple(token_id for token_id in dict.fromkeys(eos) if token_id < tokenizer.vocab_size),
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=0 if config.top_k == -1 else config.top_k,
        min_p=config.min_p,
        repetition_penalty=config.repetition_penalty,
        max_new_tokens=config.max_new_tokens,
        decoder_prompt=_decoder_prompt(config, model),
    )


def _decoder_prompt(config: _EndTokens, model: _EndTokens) -> tuple[int, ...]:
    """Return the first token of the decoder's text, and the one that must follow it, as BART and mBART have it."""
    start = model.decoder_start_token_id if config.decoder_start_token_id is None else config.decoder_start_token_id
    forced = model.forced_bos_token_id if config.forced_bos_token_id is None else config.forced_bos_token_id
    return tuple(token for token in (start, forced) if token is not None) if start is not None else ()
