"""Texts, and pairs of texts, to the tokens that an encoder reads: special tokens, token types, and the length held to.

A pair that is too long loses tokens of the longer text first, as in transformers' `longest_first`; special tokens stay.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import tokenizers

from neuronserve.server.errors import CheckpointError, TokenizerFailed
from neuronserve.server.text.tokenizer import Tokenizer, is_panic, read_json
from neuronserve.server.types import TokenizedText

TextOrPair = str | tuple[str, str]
Side = Literal["left", "right"]
PART_CHARS = 2**17  # of the texts that are encoded at a time, before those of other requests have their turn


class _Lengths(msgspec.Struct):
    """transformers writes an absurd number for "no limit"."""

    model_max_length: int | float | None = None


def stated_length(directory: Path) -> int | None:
    """The longest input by tokenizer_config.json, None where it states none. Raises CheckpointError."""
    length = read_json(directory / "tokenizer_config.json", _Lengths).model_max_length
    return None if length is None or not 1 <= length < 1 << 27 else int(length)


class EncoderTokenizer:
    """A tokenizer of texts that are held to `max_length` tokens, special ones included. Threads may share it."""

    def __init__(self, tokenizer: Tokenizer, max_length: int, is_lower_case: bool = False) -> None:
        """Raises CheckpointError where the special tokens alone are longer than `max_length`."""
        self._backend = tokenizers.Tokenizer.from_str(tokenizer.to_json())
        self._tokenizer = tokenizer
        self._is_lower_case = is_lower_case
        self.num_special: int = self._backend.num_special_tokens_to_add(is_pair=True)  # of a pair, which has most
        if max_length <= self.num_special:
            raise CheckpointError(
                "tokenizer.json", f"adds {self.num_special} special tokens: the limit is {max_length}"
            )
        self.max_length = max_length
        self._lock = threading.Lock()  # the limit is the backend's state

    def encode(
        self, texts: Sequence[TextOrPair], max_length: int | None = None, side: Side = "right"
    ) -> list[TokenizedText]:
        """Return the tokens of each text, or of each pair, held to `max_length`, or to the tokenizer's own.

        `side` is the one that loses tokens. Releases the GIL, and works on several texts at once. Raises
        TokenizerFailed where it cannot encode one.
        """
        return self._encode(texts, max_length or self.max_length, side)

    def beginnings(self, texts: Sequence[str], num_tokens: int) -> list[str]:
        """Return each text up to the end of its first `num_tokens` tokens, special ones not counted."""
        if self._is_lower_case:
            texts = [text.lower() for text in texts]
        with self._lock:
            self._backend.no_truncation()
            found = self._backend.encode_batch(list(texts), add_special_tokens=False)
        ends = [each.offsets[num_tokens - 1][1] if len(each.ids) > num_tokens else None for each in found]
        return [text[:end] for text, end in zip(texts, ends, strict=True)]

    def fewest_tokens(self, text: TextOrPair) -> int:
        """A lower bound of the tokens of a text, or of both texts of a pair, found without encoding them."""
        parts = [text] if isinstance(text, str) else text
        return sum(self._tokenizer.fewest_tokens(part.lower() if self._is_lower_case else part) for part in parts)

    def whole(self, texts: Sequence[TextOrPair]) -> list[TokenizedText]:
        """As `encode`, all tokens however many there are."""
        return self._encode(texts, None)

    def _encode(self, texts: Sequence[TextOrPair], limit: int | None, side: Side = "right") -> list[TokenizedText]:
        if self._is_lower_case:
            texts = [text.lower() if isinstance(text, str) else (text[0].lower(), text[1].lower()) for text in texts]
        return [each for part in _parts(texts) for each in self._encode_part(part, limit, side)]

    def _encode_part(self, texts: Sequence[TextOrPair], limit: int | None, side: Side) -> list[TokenizedText]:
        with self._lock:
            if limit is None:
                self._backend.no_truncation()
            else:
                self._backend.enable_truncation(limit, strategy="longest_first", direction=side)
            try:
                found = self._backend.encode_batch(list(texts))
            except BaseException as error:
                if is_panic(error):
                    raise TokenizerFailed(f"The tokenizer of this model failed on a text: {error}.") from None
                raise
        return [TokenizedText(tuple(each.ids), tuple(each.type_ids) if any(each.type_ids) else ()) for each in found]


def _parts(texts: Sequence[TextOrPair]) -> Iterator[list[TextOrPair]]:
    """Texts that are encoded together."""
    part, num_chars = list[TextOrPair](), 0
    for text in texts:
        part.append(text)
        num_chars += len(text) if isinstance(text, str) else len(text[0]) + len(text[1])
        if num_chars >= PART_CHARS:
            yield part
            part, num_chars = [], 0
    if part:
        yield part
