"""Tokenization for encoders: texts, or pairs of texts, to tokens with special tokens and token types, cut to a length.

A pair that is too long loses tokens of the longer text first, as with transformers' `longest_first`. Special tokens
stay.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import tokenizers
import tokenizers.processors

from ..errors import CheckpointError, TokenizerFailed
from ..models.heads import PairFrame
from ..types import TokenizedText
from .tokenizer import Tokenizer, is_panic, read_json

TextOrPair = str | tuple[str, str]
Side = Literal["left", "right"]
BATCH_CHARS = 2**17  # characters that are encoded at a time; then other requests have their turn


class _Lengths(msgspec.Struct):
    """The length limit in tokenizer_config.json; transformers writes an absurd number for no limit."""

    model_max_length: int | float | None = None


def stated_length(directory: Path) -> int | None:
    """Return the longest input by tokenizer_config.json; None if it states none. Raises CheckpointError."""
    length = read_json(directory / "tokenizer_config.json", _Lengths).model_max_length
    return None if length is None or not 1 <= length < 1 << 27 else int(length)


class EncoderTokenizer:
    """A tokenizer that cuts texts to `max_length` tokens, special tokens included. Threads may share it."""

    def __init__(
        self, tokenizer: Tokenizer, max_length: int, is_lower_case: bool = False, frame: PairFrame | None = None
    ) -> None:
        """Raise CheckpointError if the special tokens alone, or the frame of pairs, are longer than `max_length`."""
        self._backend, self._frame = tokenizers.Tokenizer.from_str(tokenizer.to_json()), frame
        if frame is not None:
            self._backend.post_processor = _around_pairs(self._backend, frame)
        self._tokenizer = tokenizer
        self._is_lower_case = is_lower_case
        self.num_special: int = self._backend.num_special_tokens_to_add(is_pair=True)  # of a pair, which has the most
        if max_length <= self.num_special:
            raise CheckpointError(
                "tokenizer.json", f"adds {self.num_special} special tokens: the limit is {max_length}"
            )
        self.max_length = max_length
        self._lock = threading.Lock()  # the limit is the backend's state

    def encode(
        self, texts: Sequence[TextOrPair], max_length: int | None = None, side: Side = "right"
    ) -> list[TokenizedText]:
        """Return the tokens of each text or pair, cut to `max_length`, or to the tokenizer's own.

        `side` loses the tokens. Releases the GIL, and works on several texts at once. Raises TokenizerFailed if a text
        cannot be encoded.
        """
        return self._encode(texts, max_length or self.max_length, side)

    def beginnings(self, texts: Sequence[str], num_tokens: int) -> list[str]:
        """Return each text up to the end of its first `num_tokens` tokens, without special tokens."""
        if self._is_lower_case:
            texts = [text.lower() for text in texts]
        with self._lock:
            self._backend.no_truncation()
            found = self._backend.encode_batch(list(texts), add_special_tokens=False)
        ends = [each.offsets[num_tokens - 1][1] if len(each.ids) > num_tokens else None for each in found]
        return [text[:end] for text, end in zip(texts, ends, strict=True)]

    def fewest_tokens(self, text: TextOrPair) -> int:
        """Return a lower bound of the tokens of a text or pair, found without encoding it."""
        texts = [text] if isinstance(text, str) else text
        return sum(self._tokenizer.fewest_tokens(each.lower() if self._is_lower_case else each) for each in texts)

    def whole(self, texts: Sequence[TextOrPair]) -> list[TokenizedText]:
        """Return the tokens of each text or pair, without a limit. Raises as `encode`."""
        return self._encode(texts, None)

    def _encode(self, texts: Sequence[TextOrPair], limit: int | None, side: Side = "right") -> list[TokenizedText]:
        if self._is_lower_case:
            texts = [text.lower() if isinstance(text, str) else (text[0].lower(), text[1].lower()) for text in texts]
        if self._frame is not None:
            texts = [text if isinstance(text, str) else (self._frame.text.format(*text), "") for text in texts]
        return [each for batch in _batches(texts) for each in self._encode_batch(batch, limit, side)]

    def _encode_batch(self, texts: Sequence[TextOrPair], limit: int | None, side: Side) -> list[TokenizedText]:
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


def _around_pairs(backend: tokenizers.Tokenizer, frame: PairFrame) -> tokenizers.processors.TemplateProcessing:
    """Return the step that puts the frame's tokens around a pair: its whole text, and an empty one."""
    around = {"before": frame.before, "after": frame.after}
    found = {name: backend.encode(text, add_special_tokens=False) for name, text in around.items()}
    special = [{"id": name, "ids": each.ids, "tokens": each.tokens} for name, each in found.items()]
    return tokenizers.processors.TemplateProcessing(single="$A", pair="before $A $B after", special_tokens=special)


def _batches(texts: Sequence[TextOrPair]) -> Iterator[list[TextOrPair]]:
    """Yield texts that are encoded together."""
    batch, num_chars = list[TextOrPair](), 0
    for text in texts:
        batch.append(text)
        num_chars += len(text) if isinstance(text, str) else len(text[0]) + len(text[1])
        if num_chars >= BATCH_CHARS:
            yield batch
            batch, num_chars = [], 0
    if batch:
        yield batch
