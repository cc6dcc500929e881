"""The tokenizer of a GGUF file, from its vocabulary, as the tokenizer.json that the model had.

Two kinds are read: byte-level BPE ("gpt2") and SentencePiece's BPE ("llama"), whose merges follow from its pieces,
which lie in the order in which they were learned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, processors

from server.checkpoint.gguf.files import GgufFiles
from server.checkpoint.gguf.pre_tokenizers import PRE_TOKENIZERS
from server.errors import CheckpointError
from server.typed_json import shown

PREFIX = "tokenizer.ggml."
UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 2, 3, 4, 5  # types of a token
SPACE = "▁"  # SentencePiece's
MAX_TOKENS = 1 << 20
MAX_PIECE = 64  # characters of a piece that is merged of others: SentencePiece makes them no longer than 16
NAMES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


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
        if value is None or value == -1 or value == 0xFFFFFFFF:  # noqa: PLR1714 - both stand for none
            return None
        if not isinstance(value, int) or not 0 <= value < len(self.tokens):
            raise self._files.error(f"{PREFIX}{key}_token_id is {shown(value)}: there are {len(self.tokens)} tokens")
        return value

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
    """GPT-2's kind. Ids without a token have one in the file that is called for its id; they are left out."""
    row = PRE_TOKENIZERS[vocabulary.split_name()]
    tokens = enumerate(zip(vocabulary.tokens, vocabulary.types.tolist(), strict=True))
    vocab = {token: i for i, (token, kind) in tokens if kind != UNUSED or token != f"[PAD{i}]"}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, vocabulary.merges(), ignore_merges=row.ignores_merges))
    if row.is_composed:
        tokenizer.normalizer = row.normalizer()
    tokenizer.pre_tokenizer = row.splitter()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, row.adds_bos


def _sentencepiece(vocabulary: GgufVocabulary) -> tuple[tokenizers.Tokenizer, bool]:
    """SentencePiece's BPE: spaces are a letter, what has no piece is bytes."""
    texts = (SPACE * len(token) if token.strip(" ") == "" else token for token in vocabulary.tokens)
    vocab = {token: i for i, token in enumerate(texts)}
    unknown = vocabulary.special().get("unk_token")
    model = models.BPE(vocab, list(_merges(vocab)), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = tokenizers.Tokenizer(model)
    has_prefix, spaces = vocabulary.is_set("add_space_prefix", True), normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if has_prefix else spaces
    text = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*text, decoders.Strip(" ", 1, 0)] if has_prefix else text)
    return tokenizer, True


_BUILDERS: Mapping[Any, Any] = {"gpt2": _byte_level, "llama": _sentencepiece}


def _merges(vocab: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """All pairs of pieces that make a piece: earlier pieces first, then those with the longer left half."""
    for piece in vocab:
        for cut in range(min(len(piece), MAX_PIECE + 1) - 1, 0, -1) if len(piece) <= MAX_PIECE else ():
            if piece[:cut] in vocab and piece[cut:] in vocab:
                yield piece[:cut], piece[cut:]


def _added(vocabulary: GgufVocabulary, tokenizer: tokenizers.Tokenizer) -> Iterator[AddedToken]:
    """Tokens that are found in text before it is split, and never cut."""
    kinds = vocabulary.types
    for i in np.flatnonzero((kinds == CONTROL) | (kinds == USER_DEFINED) | (kinds == UNKNOWN)).tolist():
        token = vocabulary.tokens[i]
        if token and tokenizer.token_to_id(token) == i:
            yield AddedToken(token, normalized=False, special=bool(kinds[i] != USER_DEFINED))


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
