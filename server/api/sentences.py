"""Texts to encode in the checkpoint's format: after its prompts, with its special tokens, within its length."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from ..checkpoint.sentence import SentenceModel, read_sentence_model
from ..errors import InvalidRequest
from ..link.messages import EngineInfo
from ..text.encoder_tokenizer import EncoderTokenizer
from ..text.tokenizer import Tokenizer


class Sentences:
    """Prompts and tokenizer of one served model. Threads may tokenize."""

    def __init__(self, directory: Path, tokenizer: Tokenizer, info: EngineInfo) -> None:
        """Raises CheckpointError. A model that generates has no such prompts: its files are not read."""
        self._tokenizer, self._facts = tokenizer, info.pooling
        self._files = SentenceModel() if info.generates else read_sentence_model(directory)

    @cached_property
    def tokenizer(self) -> EncoderTokenizer:
        """Built at the first use, which takes a second for a large vocabulary."""
        assert self._facts is not None
        return EncoderTokenizer(self._tokenizer, self._facts.max_length, self._files.is_lower_case, self._files.frame)

    @property
    def prompt_names(self) -> list[str]:
        """Names of the checkpoint's prompts."""
        return list(self._files.prompts)

    def prompt(self, name: str | None) -> str:
        """Return the text before a text to encode: the prompt of that name, or the default. Raises InvalidRequest."""
        name = self._files.default_prompt_name if name is None else name
        if name is not None and name not in self._files.prompts:
            known = ", ".join(self._files.prompts) or "none"
            raise InvalidRequest(f"prompt_name is {name[:80]!r}: the model's prompts are {known}.", "prompt_name")
        return "" if name is None else self._files.prompts[name]
