"""Prompts around a gap that the output fills, for tokenizers with fill-in-the-middle tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...errors import InvalidRequest
from ...text.tokenizer import Tokenizer
from ..errors import unsupported
from ..service import ServedModel
from .prompts import Prompt, encode


class FillIn(NamedTuple):
    """Marks before the beginning of a text, before its end, and before its middle, if the middle has a mark."""

    prefix: str
    suffix: str
    middle: str | None
    is_suffix_first: bool = False


# Source: the card of each model.
FORMS = (
    FillIn("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen 2.5 Coder and later, CodeGemma
    FillIn("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite Code
    FillIn("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    FillIn("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
    FillIn("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    FillIn("[PREFIX]", "[SUFFIX]", None, is_suffix_first=True),  # Codestral
)


def form_of(tokenizer: Tokenizer) -> FillIn | None:
    """Return the form whose marks the vocabulary has."""
    for form in FORMS:
        if all(tokenizer.token_id(mark) is not None for mark in (form.prefix, form.suffix, form.middle) if mark):
            return form
    return None


async def fill_in_prompts(
    model: ServedModel, given: Sequence[tuple[str, str | list[int]]], suffix: str, add_special_tokens: bool
) -> list[Prompt]:
    """Return each of the `given` prompts with `suffix` behind its gap. Raises InvalidRequest without a form."""
    form = form_of(model.tokenizer)
    if form is None:
        raise unsupported("suffix", " is not supported by this model: its tokenizer has no fill-in-the-middle tokens.")
    before = model.tokenizer.encode("", True) if add_special_tokens else []
    after = await _marked(model, form.suffix, suffix, "suffix")
    middle = _mark(model, form.middle)
    prompts = []
    for param, item in given:
        if not isinstance(item, str):
            raise InvalidRequest(f"suffix needs {param} as a text, not as token ids.", "suffix")
        begin = await _marked(model, form.prefix, item, param)
        parts = (before, after, begin, middle) if form.is_suffix_first else (before, begin, after, middle)
        prompts.append(Prompt(tuple(token for part in parts for token in part), item, param))
    return prompts


async def _marked(model: ServedModel, mark: str, text: str, param: str) -> list[int]:
    return [*_mark(model, mark), *(await encode(model, text, False, param) if text else ())]


def _mark(model: ServedModel, mark: str | None) -> list[int]:
    token = None if mark is None else model.tokenizer.token_id(mark)
    return [] if token is None else [token]
