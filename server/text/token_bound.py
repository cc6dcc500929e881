"""A lower bound of the number of tokens of a text, found without encoding it.

Let L(c) be the length of the longest token that contains the character c. A token of n characters covers n characters
of the text, each with 1 / L(c) <= 1 / n. So a text has at least as many tokens as the sum of 1 / L(c) over its
characters. This holds if the bytes of all tokens together are the text: byte-level BPE, and BPE with byte fallback.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

CHUNK = 2**16  # characters that are counted together, while no other thread can run
KEEPING_NORMALIZERS = {"NFC", "Prepend", "Replace", "Sequence"}
KEEPING_PRE_TOKENIZERS = {"ByteLevel", "Digits", "Metaspace", "Punctuation", "Sequence", "Split"}
Shares = dict[int, float]  # of a byte, or of a code point
SPACE = "\u2581"  # stands for a space in vocabularies that are not byte-level


class _AddedToken(msgspec.Struct):
    content: str
    lstrip: bool = False
    rstrip: bool = False


class _Model(msgspec.Struct):
    type: str | None = None
    vocab: Any = None
    byte_fallback: bool = False


class _Tokenizer(msgspec.Struct):
    """The fields of a tokenizer.json that determine what happens to a text's characters."""

    model: _Model
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    added_tokens: list[_AddedToken] = []


class TokenBound:
    """The bound for one tokenizer; 0 for a tokenizer of another type."""

    def __init__(self, tokenizer_json: str, byte_of: Mapping[str, bytes]) -> None:
        """`byte_of` maps characters of byte-level vocabularies to the bytes that they stand for."""
        facts = msgspec.json.decode(tokenizer_json, type=_Tokenizer)
        steps = [*_steps(facts.normalizer, "normalizers"), *_steps(facts.pre_tokenizer, "pretokenizers")]
        kinds = {str(step.get("type")) for step in steps}
        self._is_byte_level = any(step.get("type") == "ByteLevel" for step in steps)
        self._composes = "NFC" in kinds
        self._counts: Shares | None = None
        if _keeps_characters(facts, steps) and (self._is_byte_level or facts.model.byte_fallback):
            tokens = [*facts.model.vocab, *(token.content for token in facts.added_tokens)]
            self._counts = _byte_shares(tokens, byte_of) if self._is_byte_level else _character_shares(tokens)
            if any(token.lstrip or token.rstrip for token in facts.added_tokens):  # these take any white space
                spaces = "".join(char for char in map(chr, range(0x10000)) if char.isspace())
                self._counts |= dict.fromkeys(spaces.encode() if self._is_byte_level else map(ord, spaces), 0.0)

    def of(self, text: str) -> int:
        """Return the fewest tokens that `text` can have."""
        if self._counts is None:
            return 0
        if self._composes:
            text = unicodedata.normalize("NFC", text)
        units: bytes | str = text.encode("utf-8", "surrogatepass") if self._is_byte_level else text
        total = 0.0
        for begin in range(0, len(units), CHUNK):
            for unit, count in Counter(units[begin : begin + CHUNK]).items():
                total += count * self._share(unit if isinstance(unit, int) else ord(str(unit)))
        return int(total * (1 - 1e-9))  # minus what rounding may have added

    def _share(self, unit: int) -> float:
        """Return 1 / L of a unit. A byte without a token counts 0, a code point without a token 1."""
        assert self._counts is not None
        return self._counts.get(unit, 0.0 if self._is_byte_level else 1.0)


def _byte_shares(tokens: Sequence[str], byte_of: Mapping[str, bytes]) -> Shares:
    """Return 1 / L of each byte that a token contains; a text loses other bytes.

    Tokens of the vocabulary are written in the characters of `byte_of`, added tokens as they are.
    """
    char_of = {byte: char for char, byte in byte_of.items()}
    known = set(byte_of)
    plain = [token for token in tokens if not token.isascii() or not known.issuperset(token)]
    encoded = ("".join(char_of[bytes([byte])] for byte in token.encode("utf-8", "surrogatepass")) for token in plain)
    longest = _longest([*(token for token in tokens if known.issuperset(token)), *encoded])
    return {byte_of[char][0]: 1 / length for char, length in longest.items()}


def _character_shares(tokens: Iterable[str]) -> Shares:
    """Return 1 / L of each code point that a token contains; others become tokens of their bytes."""
    longest = _longest(tokens)
    longest |= dict.fromkeys((" ", SPACE), max(longest.get(" ", 1), longest.get(SPACE, 1)))
    return {ord(char): 1 / length for char, length in longest.items()}


def _steps(step: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    """Return a step and all steps inside it."""
    if step is None:
        return []
    return [step, *(deeper for each in step.get(inner) or () for deeper in _steps(each, inner))]


def _keeps_characters(facts: _Tokenizer, steps: Iterable[dict[str, Any]]) -> bool:
    """Return whether no step leaves out a character of the text, or replaces several by fewer."""
    if facts.model.type != "BPE" or not isinstance(facts.model.vocab, dict):
        return False
    for step in steps:
        kind = step.get("type")
        if kind not in KEEPING_NORMALIZERS | KEEPING_PRE_TOKENIZERS or step.get("behavior") == "Removed":
            return False
        if kind == "Replace" and (step.get("pattern"), step.get("content")) != ({"String": " "}, SPACE):
            return False
    return True


def _longest(tokens: Iterable[str]) -> dict[str, int]:
    """Return the length of the longest token with each character."""
    by_length: dict[int, list[str]] = {}
    for token in tokens:
        by_length.setdefault(len(token), []).append(token)
    longest: dict[str, int] = {}
    for length in sorted(by_length, reverse=True):
        for char in set("".join(by_length[length])):
            longest.setdefault(char, length)
    return longest
