"""Texts of a body as the tokens that an encoder reads. A refusal names the field of the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from ...errors import InvalidRequest
from ...link.messages import PoolingFacts
from ...text.encoder_tokenizer import Side, TextOrPair
from ...types import TokenizedText
from ..service import ServedModel
from ..wire.pooling import TextsOrIds
from .prompts import MAX_CHARS_PER_TOKEN, check_ids

TRUNCATE = "truncate_prompt_tokens"
TOO_LONG = "context_length_exceeded"


@dataclass(frozen=True, slots=True)
class Given:
    """One text, a pair of texts, or token ids, which are taken as they are, with the name of the field."""

    param: str
    text: TextOrPair | None = None
    token_ids: tuple[int, ...] = ()

    @property
    def num_chars(self) -> int:
        if self.text is None:
            return 0
        return len(self.text) if isinstance(self.text, str) else sum(map(len, self.text))


def given_texts(inputs: TextsOrIds, prefix: str = "") -> list[Given]:
    """Return each text of `input` behind `prefix`, a prompt of the model's."""
    items = cast(Sequence[Any], inputs)
    if isinstance(inputs, str) or isinstance(items[0], int):
        return [_given("input", inputs, prefix)]
    return [_given(f"input[{i}]", item, prefix) for i, item in enumerate(items)]


def _given(param: str, item: Any, prefix: str) -> Given:
    return Given(param, prefix + item) if isinstance(item, str) else Given(param, token_ids=tuple(item))


async def tokenized(
    model: ServedModel, given: Sequence[Given], truncate: int | None, side: Side | None = None
) -> list[TokenizedText]:
    """Return the tokens of each text, at most `truncate` of them; -1 is the model's own limit.

    A text loses its end, or its beginning when `side` is left. Raises InvalidRequest for a text that is too long or has
    no token.
    """
    facts = model.info.pooling
    assert facts is not None
    if truncate is None:
        for each in given:
            if each.num_chars > facts.max_length * MAX_CHARS_PER_TOKEN:
                raise _too_long(each, f"{each.num_chars} characters", facts)
    texts = await model.threads.run(partial(_encode, model, given, truncate, side or "right"))
    return [_checked(model, each, text) for each, text in zip(given, texts, strict=True)]


def _encode(model: ServedModel, given: Sequence[Given], truncate: int | None, side: Side) -> list[TokenizedText]:
    """Encode in a thread: the first use of a tokenizer builds it, and a long text takes long."""
    tokenizer = model.sentences.tokenizer
    if truncate is None:
        _require_short(model, given)
    limit = _limit(truncate, tokenizer.num_special, tokenizer.max_length)
    texts = [each.text for each in given if each.text is not None]
    encoded = iter(tokenizer.whole(texts) if limit is None else tokenizer.encode(texts, limit, side))
    kept = slice(None, limit) if side == "right" or limit is None else slice(-limit, None)
    return [TokenizedText(each.token_ids[kept]) if each.text is None else next(encoded) for each in given]


def _require_short(model: ServedModel, given: Sequence[Given]) -> None:
    """Raise InvalidRequest for a text that has too many tokens however it is split."""
    facts = model.info.pooling
    assert facts is not None
    for each in given:
        if each.text is not None and each.num_chars > facts.max_length:
            fewest = model.sentences.tokenizer.fewest_tokens(each.text)
            if fewest > facts.max_length:
                raise _too_long(each, f"at least {fewest} tokens", facts)


def _limit(truncate: int | None, num_special: int, max_length: int) -> int | None:
    if truncate is None or truncate == -1:
        return None if truncate is None else max_length
    if not num_special < truncate <= max_length:
        raise InvalidRequest(
            f"{TRUNCATE} is {truncate}; it must be -1, or from {num_special + 1} to the {max_length} of the model.",
            TRUNCATE,
        )
    return truncate


def _checked(model: ServedModel, given: Given, text: TokenizedText) -> TokenizedText:
    facts, num_tokens = model.info.pooling, len(text.token_ids)
    assert facts is not None
    if num_tokens > facts.max_length:
        raise _too_long(given, f"{num_tokens} tokens", facts)
    if not num_tokens:
        raise InvalidRequest(f"{given.param} has no token.", given.param)
    check_ids(text.token_ids, model.vocab_size if given.text is None else model.info.vocab_size, given.param)
    return text


def _too_long(given: Given, what: str, facts: PoolingFacts) -> InvalidRequest:
    return InvalidRequest(
        f"{given.param} has {what}; this server encodes texts of up to {facts.max_length} tokens. "
        f"{TRUNCATE}: -1 leaves out the end.",
        given.param,
        TOO_LONG,
    )
