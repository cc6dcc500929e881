"""Token ids of random prompts, and their text for endpoints without ids.

Without a tokenizer, ids come from a small range that every vocabulary has, and each id has one word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from .errors import SpecError
from .prompts import Ids

# Below 256, byte-level vocabularies have bytes, and others start with special tokens: from 16 on none is special.
FIRST_ID, END_ID = 16, 256
# How byte-level and SentencePiece vocabularies write a word with a space before it.
_SPACED_WORD = re.compile(r"[\u0120\u2581][A-Za-z]{2,}")
_FEW_WORDS = 200
_SYLLABLES = ("ba", "de", "fi", "go", "lu", "ma", "ne", "pi", "ro", "su", "ta", "ve", "wi", "yo", "za", "ke")


class Vocabulary:
    """Ids of `[first, end)`; each has a word of two syllables."""

    def __init__(self, first: int = FIRST_ID, end: int = END_ID) -> None:
        if not 0 <= first < end:
            raise SpecError(f"token ids from {first} to {end}: the range must hold at least one id")
        self.first, self.end = first, end

    def draw(self, generator: np.random.Generator, length: int) -> Ids:
        """Return `length` random ids."""
        return tuple(generator.integers(self.first, self.end, length).tolist())

    def text(self, ids: Sequence[int]) -> str:
        """Return a text of about `len(ids)` tokens; equal beginnings of ids give equal beginnings of text."""
        return " ".join(_word(token) for token in ids)


class TokenizerVocabulary(Vocabulary):
    """Whole words of a model's vocabulary, each with the space before it: their text encodes to the same ids.

    If the vocabulary has few such words, plain letters are used, whose text may encode to another length.
    """

    def __init__(self, path: Path) -> None:
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises a bare Exception
            raise SpecError(f"tokenizer {str(file)!r} cannot be read: {error}") from error
        special = {i for i, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        tokens = {i: token for token, i in self._tokenizer.get_vocab().items() if i not in special}
        words = sorted(i for i, token in tokens.items() if _SPACED_WORD.fullmatch(token))
        letters = sorted(i for i, token in tokens.items() if token.isascii() and token.isalpha())
        ids = words if len(words) >= _FEW_WORDS else letters or sorted(tokens)
        self._ids = np.array(ids, dtype=np.int64)
        super().__init__(0, self._tokenizer.get_vocab_size())

    def draw(self, generator: np.random.Generator, length: int) -> Ids:
        return tuple(generator.choice(self._ids, length).tolist())

    def text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


def _word(token: int) -> str:
    high, low = divmod(token, len(_SYLLABLES))
    return _SYLLABLES[high % len(_SYLLABLES)] + _SYLLABLES[low]
