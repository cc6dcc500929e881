"""The tokenizer of a GGUF file, from its vocabulary, as the tokenizer.json that the model had.

Two kinds are read: byte-level BPE ("gpt2") and SentencePiece's BPE ("llama"), whose merges follow from its pieces and
their scores: of all pairs that make a piece, the one whose piece has the highest score is merged first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, processors

from neuronserve.server.checkpoint.gguf.files import GgufFiles
from neuronserve.server.checkpoint.gguf.pre_tokenizers import PRE_TOKENIZERS
from neuronserve.server.errors import CheckpointError
from neuronserve.server.typed_json import shown

PREFIX = "tokenizer.ggml."
UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 2, 3, 4, 5, 6  # types of a token
UNNAMED = (UNKNOWN, UNUSED)  # types of ids that have no token
SPACE = "▁"  # SentencePiece's
MAX_TOKENS = 1 << 20
MAX_PIECE = 256  # characters of a piece that is merged of others: SentencePiece makes them no longer than 16
MAX_PIECES = 1 << 24  # characters of all these pieces: Gemma's 262,144 have 2 million
NAMES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
# Tokens of Phi 3, by its architecture's name, that leave the white space behind them; the others take it in.
KEEP_SPACE = {"phi3": ("<unk>", "<s>", "<|endoftext|>")}
# Ids of special tokens that a file of the kind need not name.
IMPLIED: Mapping[object, Mapping[str, int]] = {"llama": {"unknown": 0, "bos": 1, "eos": 2}}


class GgufVocabulary:
    """The tokens of a file with their types. Raises CheckpointError for a vocabulary that is none."""

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
        """Texts of the special tokens by their names in tokenizer_config.json."""
        ids = {name: self.token_id(key) for name, key in NAMES.items()}
        return {name: self.tokens[token_id] for name, token_id in ids.items() if token_id is not None}

    def token_id(self, key: str) -> int | None:
        """The id of `bos`, `eos`..., None where there is none. Raises CheckpointError for one beyond the tokens."""
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
        """Whether an added token takes in the white space behind it."""
        keep_space = KEEP_SPACE.get(str(self._metadata.get("general.architecture")))
        return self.kind == "llama" and keep_space is not None and token not in keep_space

    def is_set(self, key: str, default: bool) -> bool:
        """A switch of the tokenizer."""
        return bool(self._metadata.get(f"{PREFIX}{key}", default))

    def merges(self) -> list[tuple[str, str]]:
        """The file's list of merges, as pairs."""
        lines = self._metadata.get(f"{PREFIX}merges")
        if not isinstance(lines, list):
            raise self._files.error(f"{PREFIX}merges must be a list of texts")
        pairs = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
        if bad := next((line for line, (_, right) in zip(lines, pairs, strict=True) if not right), None):
            raise self._files.error(f"{PREFIX}merges has {shown(bad)}, which is not two texts")
        return pairs

    def scores(self) -> list[float]:
        """The score of each token. Raises CheckpointError where one has none."""
        scores = self._metadata.get(f"{PREFIX}scores")
        if not isinstance(scores, np.ndarray) or len(scores) != len(self.tokens) or not np.isfinite(scores).all():
            raise self._files.error(f"{PREFIX}scores must have a finite number for each of {len(self.tokens)} tokens")
        found: list[float] = scores.tolist()
        return found

    def vocab(self) -> dict[str, int]:
        """Ids of tokens by text. Ids without a token are left out: their text is empty, or made of the id."""
        tokens = enumerate(zip(self.tokens, self.types.tolist(), strict=True))
        return {token: i for i, (token, kind) in tokens if token and not (kind in UNNAMED and token == f"[PAD{i}]")}

    def pieces(self) -> dict[str, int]:
        """Ids of the tokens that text is merged to. Raises CheckpointError where these are too long."""
        vocab = {token: i for token, i in self.vocab().items() if self.types[i] != BYTE}
        if (longest := max(map(len, vocab), default=0)) > MAX_PIECE:
            raise self._files.error(f"{PREFIX}tokens has one of {longest} characters: {MAX_PIECE} are allowed")
        if (characters := sum(map(len, vocab))) > MAX_PIECES:
            raise self._files.error(f"{PREFIX}tokens have {characters} characters: {MAX_PIECES} are allowed")
        return vocab

    def split_name(self) -> str:
        """Name of the way that text is split. Raises CheckpointError for one without a row."""
        name = self._metadata.get(f"{PREFIX}pre")
        if name not in PRE_TOKENIZERS:
            raise self._files.error(f"{PREFIX}pre is {shown(name)}: read are {', '.join(PRE_TOKENIZERS)}")
        return str(name)


def tokenizer_of(vocabulary: GgufVocabulary, files: GgufFiles) -> tokenizers.Tokenizer:
    """The whole tokenizer. Raises CheckpointError for one that cannot be built."""
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
    """GPT-2's kind."""
    row = PRE_TOKENIZERS[vocabulary.split_name()]
    model = models.BPE(vocabulary.vocab(), vocabulary.merges(), ignore_merges=row.ignores_merges)
    tokenizer = tokenizers.Tokenizer(model)
    if row.is_composed:
        tokenizer.normalizer = row.normalizer()
    tokenizer.pre_tokenizer = row.splitter()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, row.adds_bos


def _sentencepiece(vocabulary: GgufVocabulary) -> tuple[tokenizers.Tokenizer, bool]:
    """SentencePiece's BPE: a space is a letter, and a character without a piece is bytes."""
    merges = _merges(vocabulary.pieces(), vocabulary.scores())
    unknown = vocabulary.special().get("unk_token")
    model = models.BPE(vocabulary.vocab(), merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = tokenizers.Tokenizer(model)
    has_prefix, spaces = vocabulary.is_set("add_space_prefix", True), normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if has_prefix else spaces
    text = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*text, decoders.Strip(" ", 1, 0)] if has_prefix else text)
    return tokenizer, True


_BUILDERS: Mapping[Any, Any] = {"gpt2": _byte_level, "llama": _sentencepiece}


def _merges(pieces: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """All pairs of pieces that make a piece, that with the highest score first.

    Of equal scores the leftmost pair is merged first, which a list cannot say. Longer pieces first is the same for
    pieces that repeat one character, as Llama's runs of spaces do, whose scores are all -1e9.
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
    """Tokens that are found in text before it is split, and never cut."""
    kinds = vocabulary.types
    for i in np.flatnonzero((kinds == CONTROL) | (kinds == USER_DEFINED) | (kinds == UNKNOWN)).tolist():
        token = vocabulary.tokens[i]
        if token and tokenizer.token_to_id(token) == i:
            is_special, strips = bool(kinds[i] != USER_DEFINED), vocabulary.takes_space(token)
            yield AddedToken(token, normalized=False, special=is_special, rstrip=strips)


def _add_ends(tokenizer: tokenizers.Tokenizer, vocabulary: GgufVocabulary, adds_bos: bool) -> None:
    """Tokens before and after each text, where the tokenizer adds some."""
    bos, eos = (vocabulary.token_id(key) for key in ("bos", "eos"))
    begin = [bos] if bos is not None and vocabulary.is_set("add_bos_token", adds_bos) else []
    end = [eos] if eos is not None and vocabulary.is_set("add_eos_token", False) else []
    if not begin and not end:
        return
    around = [(vocabulary.tokens[i], i) for i in dict.fromkeys((*begin, *end))]
    before, after = ([vocabulary.tokens[i] for i in each] for each in (begin, end))
    second = [f"{piece}:1" for piece in (*before, "$B", *after)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after], pair=[*before, "$A", *after, *second], special_tokens=around
    )
