"""The checkpoint's tokenizer: text to ids, ids to text, ids to their exact bytes, and the special tokens by name.

`tokenizers` reads tokenizer.json. transformers is imported only to convert the older formats of a checkpoint without
that file. Code of the checkpoint never runs. Stream decoding is in `detokenizer.py`.
"""

from __future__ import annotations

import codecs
import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tokenizers

from ..errors import CheckpointError, TokenizerFailed
from ..host.regular_file import read_regular, why_unreadable
from ..typed_json import JsonError, read
from .token_bound import TokenBound

MAX_TOKENIZER_BYTES = 128 * 2**20  # the largest published tokenizer.json files are near 35 MB
MAX_CONFIG_BYTES = 8 * 2**20
OLDER_FILES = ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model")

BROKEN = "\ufffd"  # replaces bytes that are no character
MAX_CHAR_BYTES = 4

T = TypeVar("T")


class AddedToken(msgspec.Struct):
    """A special token as an object; its other properties are in tokenizer.json."""

    content: str


class SpecialTokens(msgspec.Struct):
    """The special tokens that special_tokens_map.json and tokenizer_config.json name."""

    bos_token: str | AddedToken | None = None
    eos_token: str | AddedToken | None = None
    unk_token: str | AddedToken | None = None
    sep_token: str | AddedToken | None = None
    pad_token: str | AddedToken | None = None
    cls_token: str | AddedToken | None = None
    mask_token: str | AddedToken | None = None


class Tokenizer:
    """One loaded tokenizer. `special` maps names such as `eos_token` to the token's text."""

    def __init__(self, backend: tokenizers.Tokenizer, special: dict[str, str] | None = None) -> None:
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self.special = special or {}
        self.has_failed = False  # on some text: other texts may take long too
        added = backend.get_added_tokens_decoder()
        self._added: dict[int, str] = {i: token.content for i, token in added.items()}
        self._special_ids = {i for i, token in added.items() if token.special}
        self._pieces: dict[int, str] = {}  # cache: each generated token is read several times
        self._is_byte_level = "ByteLevel" in repr(backend.decoder)
        self._adds_bytes = isinstance(backend.decoder, tokenizers.decoders.ByteLevel)  # regardless of neighbouring ids
        self._whole_texts: dict[int, str | None] = {}  # cache
        self.vocab_size: int = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        self._ids = tuple(range(self.vocab_size))  # prompts share these objects, of 32 bytes each

    @property
    def eos_token_id(self) -> int | None:
        """Id of the tokenizer's own end token; None if it names none."""
        return self.token_id(self.special["eos_token"]) if "eos_token" in self.special else None

    @property
    def marks(self) -> dict[int, str]:
        """The added tokens that are not special, such as `<think>`. A grammar's literal text does not match them."""
        return {token: text for token, text in self._added.items() if text and token not in self._special_ids}

    def to_json(self) -> str:
        """Return the tokenizer in the form of tokenizer.json."""
        text: str = self._backend.to_str()
        return text

    def token_id(self, token: str) -> int | None:
        """Return the id of the vocabulary entry `token`; None if there is none."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`. Releases the GIL, so a long prompt can be encoded in a thread.

        Raises TokenizerFailed when the checkpoint's tokenizer cannot encode it.
        """
        with self._watched():
            ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return list(map(self._ids.__getitem__, ids))

    def fewest_tokens(self, text: str) -> int:
        """Return a lower bound of the number of tokens of `text`, in a fraction of the time of encoding it."""
        return self._bound.of(text)

    @cached_property
    def _bound(self) -> TokenBound:
        return TokenBound(self.to_json(), _BYTE_OF)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if is_panic(error):
                self.has_failed = True
                raise TokenizerFailed(f"The tokenizer of this model failed on the text: {error}.") from None
            raise

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of `token_ids`. Ids outside the vocabulary are left out, broken UTF-8 becomes U+FFFD."""
        with self._watched():
            text: str = self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def decode_whole(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Decode `token_ids` without an unfinished character at the end, such as one that a limit has cut."""
        shown = [i for i in token_ids if not self.is_silent(i, skip_special_tokens)]
        count = self.num_unfinished(shown)
        if count and self.is_byte(shown[-1]):  # each byte of a run would be U+FFFD
            return self.decode(shown[:-count], skip_special_tokens)
        text = self.decode(shown, skip_special_tokens)
        return text.removesuffix(BROKEN) if count else text

    def num_unfinished(self, token_ids: Sequence[int]) -> int:
        """Return the number of bytes of an unfinished character at the end of ids, none of which is silent."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(b"".join([self.token_bytes(i) for i in token_ids[-MAX_CHAR_BYTES:]]))
        return len(decoder.getstate()[0])

    def whole_text(self, token_id: int) -> str | None:
        """Return the text that an id, which is not silent, adds to a sequence.

        None if the text depends on neighbouring ids: it may be a fragment of a character, or the decoder uses them.
        """
        try:
            return self._whole_texts[token_id]
        except KeyError:
            text = self.decode([token_id], skip_special_tokens=False) if self._adds_bytes else BROKEN
            self._whole_texts[token_id] = whole = None if BROKEN in text else text
            return whole

    def piece(self, token_id: int) -> str:
        """Return the raw vocabulary entry of an id; empty if there is none."""
        piece = self._pieces.get(token_id)
        if piece is None:
            piece = self._backend.id_to_token(token_id) or ""
            if piece:
                self._pieces[token_id] = piece
        return piece

    def is_silent(self, token_id: int, skip_special_tokens: bool = True) -> bool:
        """Return whether `decode` leaves out this id: a special token, or one without a vocabulary entry."""
        return (skip_special_tokens and token_id in self._special_ids) or not self.piece(token_id)

    def is_byte(self, token_id: int) -> bool:
        """Return whether the id is one byte of a character that the vocabulary lacks (byte fallback, `<0xE2>`)."""
        if self._is_byte_level:
            return False
        piece = self.piece(token_id)
        return len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that this id adds to the text. The bytes of a sequence concatenate to its UTF-8."""
        if token_id in self._added:
            return self._added[token_id].encode()
        piece = self.piece(token_id)
        if self._is_byte_level:
            return b"".join(_BYTE_OF.get(char, char.encode()) for char in piece)
        if self.is_byte(token_id):
            return bytes([int(piece[3:5], 16)])
        return piece.replace("▁", " ").encode()

    def token_text(self, token_id: int) -> str:
        """Return `token_bytes` as text; a fragment of a character is U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")


def is_panic(error: BaseException) -> bool:
    """Return whether a Rust library has panicked, for example on a pattern that needs too many steps."""
    return type(error).__name__ == "PanicException"


def _byte_level_alphabet() -> dict[str, int]:
    """Return the byte of each character of byte-level BPE (GPT-2): printable Latin-1 as it is, others from U+0100."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    moved = [byte for byte in range(256) if byte not in set(kept)]
    return {chr(byte): byte for byte in kept} | {chr(256 + i): byte for i, byte in enumerate(moved)}


_BYTE_OF = {char: bytes([byte]) for char, byte in _byte_level_alphabet().items()}


def read_json(path: Path, record: type[T]) -> T:
    """Read `path` as a `record`; without the file, all fields have their defaults. Raises CheckpointError."""
    if not os.path.lexists(path):
        return record()
    try:
        return read(path, MAX_CONFIG_BYTES, record)
    except JsonError as error:
        raise CheckpointError(path.name, str(error)) from error


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[Any] = msgspec.field(default_factory=dict)  # a list has one token for each id


class _Token(msgspec.Struct):
    id: int


class _TokenizerFile(msgspec.Struct):
    """Ids in tokenizer.json."""

    model: _Model
    added_tokens: list[_Token] = []


def num_token_ids(directory: Path) -> int | None:
    """Return the `vocab_size` of the tokenizer in `directory`, read from tokenizer.json without making the tokenizer.

    None if there is no readable tokenizer.
    """
    path = directory / "tokenizer.json"
    try:
        if not path.is_file() or path.stat().st_size > MAX_TOKENIZER_BYTES:
            return load_tokenizer(directory).vocab_size
        file = msgspec.json.decode(path.read_bytes(), type=_TokenizerFile)
    except (CheckpointError, msgspec.DecodeError, OSError):
        return None
    vocab = file.model.vocab
    ids = vocab.values() if isinstance(vocab, dict) else range(len(vocab))
    return max([*ids, *(token.id for token in file.added_tokens)], default=-1) + 1 or None


def load_tokenizer(directory: Path) -> Tokenizer:
    """Load the tokenizer of a checkpoint directory. Raises CheckpointError, naming the file and the reason."""
    path = directory / "tokenizer.json"
    special = _special_tokens(directory)
    if not os.path.lexists(path):
        return _convert(directory, special)
    text = _read(path)
    try:
        return Tokenizer(tokenizers.Tokenizer.from_buffer(text), special)
    except Exception as error:  # the Rust side raises bare Exception
        raise CheckpointError(path.name, f"cannot be read: {error}") from error


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, MAX_TOKENIZER_BYTES)
    except OSError as error:
        raise CheckpointError(path.name, why_unreadable(error)) from None


def _special_tokens(directory: Path) -> dict[str, str]:
    """Return the texts of the named special tokens. tokenizer_config.json beats special_tokens_map.json."""
    named: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        for key, token in msgspec.structs.asdict(read_json(directory / name, SpecialTokens)).items():
            if token is not None:
                named[key] = token.content if isinstance(token, AddedToken) else token
    return named


def _convert(directory: Path, special: dict[str, str]) -> Tokenizer:
    """Convert an older tokenizer format (sentencepiece, vocab.json + merges.txt) with transformers."""
    if not any((directory / name).is_file() for name in OLDER_FILES):
        names = ", ".join(OLDER_FILES)
        raise CheckpointError("tokenizer.json", f"is missing in {directory}, and so is any of {names}")
    try:
        from transformers import AutoTokenizer

        converted = AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
        backend = getattr(converted, "backend_tokenizer", None)
    except Exception as error:  # converters of transformers raise any exception
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            "tokenizer.json", f"is missing, and converting another format failed: {reason}"
        ) from error
    if backend is None:
        raise CheckpointError("tokenizer.json", "is missing, and this tokenizer has no form that could be converted")
    found = {key: getattr(converted, key, None) for key in SpecialTokens.__struct_fields__}
    return Tokenizer(backend, {key: value for key, value in found.items() if isinstance(value, str)} | special)
