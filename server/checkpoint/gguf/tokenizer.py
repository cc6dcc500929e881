"""Tokenizer of a GGUF file, made from its vocabulary.

Read are byte-level BPE ("gpt2"), SentencePiece's BPE ("llama"), and the kinds of more_tokenizers.py. The merges of the
second follow from its pieces and their scores: the pair whose piece has the highest score is merged first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, processors

from ...errors import CheckpointError
from ...typed_json import shown
from . import more_tokenizers
from .files import GgufFiles
from .pre_tokenizers import PRE_TOKENIZERS

PREFIX = "tokenizer.ggml."
UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 2, 3, 4, 5, 6  # types of a token
UNNAMED = (UNKNOWN, UNUSED)  # types of ids that may have no token
SPACE = "▁"  # of SentencePiece
MAX_TOKENS = 1 << 20
MAX_PIECE = 256  # characters of a piece that is merged from others: SentencePiece makes at most 16
MAX_PIECES = 1 << 24  # characters of all these pieces: Gemma's 262,144 pieces have 2 million
NAMES = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
    "sep_token": "seperator",  # as llama.cpp spells it
    "cls_token": "cls",
    "mask_token": "mask",
}
# Tokens of Phi 3, by its architecture's name, that leave the white space after them; its other tokens take it in.
KEEP_SPACE = {"phi3": ("<unk>", "<s>", "<|endoftext|>")}
# Ids of special tokens that a file of this kind may leave out.
IMPLIED: Mapping[object, Mapping[str, int]] = {
    "llama": {"unknown": 0, "bos": 1, "eos": 2},
    "bert": {"padding": 0, "unknown": 100, "cls": 101, "seperator": 102, "mask": 103},
    "t5": {"padding": 0, "eos": 1, "unknown": 2},
}
# Special tokens around a text, where no switch says otherwise.
BEGINS: Mapping[object, str] = {"bert": "cls"}
ENDS: Mapping[object, str] = {"bert": "seperator", "t5": "eos"}


class GgufVocabulary:
    """Tokens of a file with their types. Raises CheckpointError for a malformed vocabulary."""

    def __init__(self, files: GgufFiles) -> None:
        self._files, self._metadata = files, files.metadata
        self.kind = self._metadata.get(f"{PREFIX}model")
        if self.kind not in _BUILDERS:
            raise files.error(f"{PREFIX}model is {shown(self.kind)}: read are {', '.join(_BUILDERS)}")
        tokens = self._metadata.get(f"{PREFIX}tokens")
        if not isinstance(tokens, list) or not 0 < len(tokens) <= MAX_TOKENS:
            raise files.error(f"{PREFIX}tokens must be 1 to {MAX_TOKENS} texts")
        if again := next((token for token, count in Counter(tokens).items() if token and count > 1), None):
            raise files.error(f"{PREFIX}tokens has {shown(again)} more than once")
        types = self._metadata.get(f"{PREFIX}token_type", np.ones(len(tokens), np.int32))
        if not isinstance(types, np.ndarray) or len(types) != len(tokens):
            raise files.error(f"{PREFIX}token_type must have the type of each of {len(tokens)} tokens")
        self.tokens, self.types = tokens, types

    def special(self) -> dict[str, str]:
        """Return the texts of the special tokens by their names in tokenizer_config.json."""
        ids = {name: self.token_id(key) for name, key in NAMES.items()}
        return {name: self.tokens[token_id] for name, token_id in ids.items() if token_id is not None}

    def token_id(self, key: str) -> int | None:
        """Return the id of `bos`, `eos`..., None where there is none. Raises CheckpointError for one out of range."""
        value = self._metadata.get(f"{PREFIX}{key}_token_id")
        if value is None:
            implied = IMPLIED.get(self.kind, {}).get(key)
            return implied if implied is not None and implied < len(self.tokens) else None
        if value == -1 or value == 0xFFFFFFFF:  # noqa: PLR1714 - both stand for none
            return None
        if not isinstance(value, int) or not 0 <= value < len(self.tokens):
            raise self._files.error(f"{PREFIX}{key}_token_id is {shown(value)}: there are {len(self.tokens)} tokens")
        return value

    def takes_space(self, token: str) -> bool:
        """Return whether an added token takes in the white space after it."""
        keep_space = KEEP_SPACE.get(str(self._metadata.get("general.architecture")))
        return self.kind == "llama" and keep_space is not None and token not in keep_space

    def is_set(self, key: str, default: bool) -> bool:
        """Return an on/off option of the tokenizer."""
        return bool(self._metadata.get(f"{PREFIX}{key}", default))

    def merges(self) -> list[tuple[str, str]]:
        """Return the file's list of merges as pairs."""
        lines = self._metadata.get(f"{PREFIX}merges")
        if not isinstance(lines, list):
            raise self._files.error(f"{PREFIX}merges must be a list of texts")
        pairs = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
        if bad := next((line for line, (_, right) in zip(lines, pairs, strict=True) if not right), None):
            raise self._files.error(f"{PREFIX}merges has {shown(bad)}, which is not two texts")
        return pairs

    def scores(self) -> list[float]:
        """Return the score of each token. Raises CheckpointError where one has none."""
        scores = self._metadata.get(f"{PREFIX}scores")
        if not isinstance(scores, np.ndarray) or len(scores) != len(self.tokens) or not np.isfinite(scores).all():
            raise self._files.error(f"{PREFIX}scores must have a finite number for each of {len(self.tokens)} tokens")
        found: list[float] = scores.tolist()
        return found

    def charsmap(self) -> bytes:
        """Return the file's table of characters that are replaced; empty for none."""
        table = self._metadata.get(f"{PREFIX}precompiled_charsmap", np.zeros(0, np.uint8))
        if not isinstance(table, np.ndarray) or table.itemsize != 1:
            raise self._files.error(f"{PREFIX}precompiled_charsmap must be bytes")
        return table.tobytes()

    def vocab(self) -> dict[str, int]:
        """Return ids by token. Ids without a token are left out: their text is empty, or made of the id."""
        tokens = enumerate(zip(self.tokens, self.types.tolist(), strict=True))
        return {token: i for i, (token, kind) in tokens if token and not (kind in UNNAMED and token == f"[PAD{i}]")}

    def pieces(self) -> dict[str, int]:
        """Return ids of tokens that merges can make. Raises CheckpointError where these are too long."""
        vocab = {token: i for token, i in self.vocab().items() if self.types[i] != BYTE}
        if (longest := max(map(len, vocab), default=0)) > MAX_PIECE:
            raise self._files.error(f"{PREFIX}tokens has one of {longest} characters: {MAX_PIECE} are allowed")
        if (characters := sum(map(len, vocab))) > MAX_PIECES:
            raise self._files.error(f"{PREFIX}tokens have {characters} characters: {MAX_PIECES} are allowed")
        return vocab

    def split_name(self) -> str:
        """Return the name of the pre-tokenizer. Raises CheckpointError for one without a row."""
        name = self._metadata.get(f"{PREFIX}pre")
        if name not in PRE_TOKENIZERS:
            raise self._files.error(f"{PREFIX}pre is {shown(name)}: read are {', '.join(PRE_TOKENIZERS)}")
        return str(name)


def tokenizer_of(vocabulary: GgufVocabulary, files: GgufFiles) -> tokenizers.Tokenizer:
    """Return the whole tokenizer. Raises CheckpointError for one that cannot be built."""
    try:
        tokenizer: tokenizers.Tokenizer
        tokenizer, adds_bos = _BUILDERS[vocabulary.kind](vocabulary)
        tokenizer.add_tokens(list(_added(vocabulary, tokenizer)))
        _add_ends(tokenizer, vocabulary, adds_bos)
    except CheckpointError:
        raise
    except Exception as error:  # the Rust side raises bare Exception
        raise files.error(f"{PREFIX}tokens and merges make no tokenizer: {error}") from None
    return tokenizer


def _byte_level(vocabulary: GgufVocabulary) -> tuple[tokenizers.Tokenizer, bool]:
    """Return a byte-level BPE tokenizer, and whether it adds <bos> by default."""
    row = PRE_TOKENIZERS[vocabulary.split_name()]
    model = models.BPE(vocabulary.vocab(), vocabulary.merges(), ignore_merges=row.ignores_merges)
    tokenizer = tokenizers.Tokenizer(model)
    if row.is_composed:
        tokenizer.normalizer = row.normalizer()
    tokenizer.pre_tokenizer = row.splitter()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, row.adds_bos


def _sentencepiece(vocabulary: GgufVocabulary) -> tuple[tokenizers.Tokenizer, bool]:
    """Return SentencePiece's BPE: a space is a letter, and a character without a piece becomes bytes."""
    merges = _merges(vocabulary.pieces(), vocabulary.scores())
    unknown = vocabulary.special().get("unk_token")
    model = models.BPE(vocabulary.vocab(), merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = tokenizers.Tokenizer(model)
    has_prefix, spaces = vocabulary.is_set("add_space_prefix", True), normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if has_prefix else spaces
    text = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*text, decoders.Strip(" ", 1, 0)] if has_prefix else text)
    return tokenizer, True


def _raw_merges(vocabulary: GgufVocabulary) -> tuple[tokenizers.Tokenizer, bool]:
    """Return Gemma 4's BPE: as SentencePiece's, with a list of merges."""
    unknown = vocabulary.special().get("unk_token")
    return more_tokenizers.spaced_bpe(vocabulary.vocab(), vocabulary.merges(), unknown), True


def _word_pieces(vocabulary: GgufVocabulary) -> tuple[tokenizers.Tokenizer, bool]:
    lowers = vocabulary.is_set("normalizer.lowercase", True)
    strips = vocabulary.is_set("normalizer.strip_accents", lowers)
    unknown = vocabulary.special().get("unk_token", "[UNK]")
    return more_tokenizers.word_pieces(vocabulary.vocab(), unknown, lowers, strips), True


def _unigram(vocabulary: GgufVocabulary) -> tuple[tokenizers.Tokenizer, bool]:
    pieces = list(zip(vocabulary.tokens, vocabulary.scores(), strict=True))
    normalizer = more_tokenizers.spaces(vocabulary.charsmap(), vocabulary.is_set("remove_extra_whitespaces", False))
    has_prefix = vocabulary.is_set("add_space_prefix", True)
    return more_tokenizers.unigram(pieces, vocabulary.token_id("unknown"), normalizer, has_prefix), False


_BUILDERS: Mapping[Any, Any] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
    "gemma4": _raw_merges,
    "bert": _word_pieces,
    "t5": _unigram,
}


def _merges(pieces: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return all pairs of pieces that make a piece, the highest score first.

    SentencePiece merges the leftmost of equal scores first, which a list cannot express. Longer pieces first gives the
    same result for pieces that repeat one character, such as Llama's runs of spaces, whose scores are all -1e9.
    """
    pairs = [
        (-scores[token_id], -len(piece), piece[:cut], piece[cut:])
        for piece, token_id in pieces.items()
        for cut in range(len(piece) - 1, 0, -1)
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
    pairs.sort(key=itemgetter(0, 1))
    return [(left, right) for *_, left, right in pairs]


def _added(vocabulary: GgufVocabulary, tokenizer: tokenizers.Tokenizer) -> Iterator[AddedToken]:
    """Yield the tokens that are found in text before it is split."""
    kinds = vocabulary.types
    for i in np.flatnonzero((kinds == CONTROL) | (kinds == USER_DEFINED) | (kinds == UNKNOWN)).tolist():
        token = vocabulary.tokens[i]
        if token and tokenizer.token_to_id(token) == i:
            is_special, strips = bool(kinds[i] != USER_DEFINED), vocabulary.takes_space(token)
            yield AddedToken(token, normalized=False, special=is_special, rstrip=strips)


def _add_ends(tokenizer: tokenizers.Tokenizer, vocabulary: GgufVocabulary, adds_bos: bool) -> None:
    """Add the post-processor for tokens before and after each text, where there are such tokens."""
    bos = vocabulary.token_id(BEGINS.get(vocabulary.kind, "bos"))
    eos = vocabulary.token_id(ENDS.get(vocabulary.kind, "eos"))
    begin = [bos] if bos is not None and vocabulary.is_set("add_bos_token", adds_bos) else []
    end = [eos] if eos is not None and vocabulary.is_set("add_eos_token", vocabulary.kind in ENDS) else []
    if not begin and not end:
        return
    around = [(vocabulary.tokens[i], i) for i in dict.fromkeys((*begin, *end))]
    before, after = ([vocabulary.tokens[i] for i in each] for each in (begin, end))
    second = [f"{piece}:1" for piece in (*before, "$B", *after)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after], pair=[*before, "$A", *after, *second], special_tokens=around
    )
