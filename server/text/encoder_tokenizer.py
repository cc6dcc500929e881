"""Texts, and pairs of texts, to the tokens that an encoder reads: special tokens, token types, and the length held to.

A pair that is too long loses tokens of the longer text first, as in transformers' `longest_first`; special tokens stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import tokenizers

from server.errors import CheckpointError
from server.text.tokenizer import Tokenizer, read_json
from server.types import TokenizedText

TextOrPair = str | tuple[str, str]


class _Lengths(msgspec.Struct):
    """transformers writes an absurd number for "no limit"."""

    model_max_length: int | float | None = None


def stated_length(directory: Path) -> int | None:
    """The longest input by tokenizer_config.json, None where it states none. Raises CheckpointError."""
    length = read_json(directory / "tokenizer_config.json", _Lengths).model_max_length
    return None if length is None or not 1 <= length < 1 << 27 else int(length)


class EncoderTokenizer:
    """A tokenizer that holds its texts to `max_length` tokens, special ones included."""

    def __init__(self, tokenizer: Tokenizer, max_length: int, is_lower_case: bool = False) -> None:
        """Raises CheckpointError where the special tokens alone are longer than `max_length`."""
        self._backend = tokenizers.Tokenizer.from_str(tokenizer.to_json())
        self._is_lower_case = is_lower_case
        special = self._backend.num_special_tokens_to_add(is_pair=True)
        if max_length <= special:
            raise CheckpointError("tokenizer.json", f"adds {special} special tokens: the limit is {max_length}")
        self._backend.enable_truncation(max_length, strategy="longest_first")
        self.max_length = max_length

    def encode(self, texts: Sequence[TextOrPair]) -> list[TokenizedText]:
        """Tokens of each text, or of each pair. Releases the GIL, and works on all texts at once."""
        if self._is_lower_case:
            texts = [text.lower() if isinstance(text, str) else (text[0].lower(), text[1].lower()) for text in texts]
        found = self._backend.encode_batch(list(texts))
        return [TokenizedText(tuple(each.ids), tuple(each.type_ids) if any(each.type_ids) else ()) for each in found]
