"""The compiled grammars of one engine. A thread compiles them, so that no step waits for a large grammar."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from ..text.grammar import MAX_GRAMMAR_CHARS, GrammarError, compile_grammar, load_grammar_tokenizer
from ..text.tokenizer import num_token_ids

MAX_KEPT_CHARS = 8 * MAX_GRAMMAR_CHARS  # of all kept texts; a compiled grammar takes about 200 bytes a character


class GrammarStore:
    """Compiled grammars by their text; the least recently used are dropped. One engine loop owns it."""

    def __init__(self, tokenizer_path: Path, model_path: Path, max_kept_chars: int = MAX_KEPT_CHARS) -> None:
        self._max_kept_chars = max_kept_chars
        self._paths = tokenizer_path, model_path
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")

    @cached_property
    def num_ids(self) -> int | None:
        """Number of ids of the tokenizer, known before any grammar; None when no tokenizer can be read."""
        return num_token_ids(self._paths[0])

    @property
    def vocab_size(self) -> int:
        """Number of ids of the tokenizer; 0 before the first grammar."""
        return self._tokenizer.vocab_size if self._tokenizer is not None else 0

    def is_ready(self, text: str) -> bool:
        """True when `matcher` returns at once; otherwise compilation has begun."""
        return self._future(text).done()

    def matcher(self, text: str) -> LLMatcher:
        """Return a new matcher at the beginning of an output. Raises GrammarError."""
        return self._future(text).result().deep_copy()

    def forget(self) -> None:
        """Drop all compiled grammars; running sequences keep their matchers."""
        self._forget(self._max_kept_chars + 1)

    def _future(self, text: str) -> Future[LLMatcher]:
        future = self._compiled.get(text)
        if future is None:
            self._forget(len(text))
            future = self._compiled[text] = self._executor.submit(self._compile, text)
        self._compiled.move_to_end(text)
        return future

    def _forget(self, num_chars: int) -> None:
        """Make room for `num_chars`. Grammars that are still being compiled stay: requests wait for them."""
        total = sum(map(len, self._compiled)) + num_chars
        for text, future in list(self._compiled.items()):
            if total > self._max_kept_chars and future.done():
                del self._compiled[text]
                total -= len(text)

    def _compile(self, text: str) -> LLMatcher:
        """Compile one grammar. Any failure is a GrammarError, which ends its requests and not the engine."""
        try:
            if self._tokenizer is None:
                self._tokenizer = load_grammar_tokenizer(*self._paths)
            return compile_grammar(self._tokenizer, text)
        except (OSError, MemoryError, RuntimeError) as error:
            raise GrammarError(f"it cannot be compiled: {type(error).__name__}") from error
