"""The compiled grammars of one engine. Compiles in a thread, so that no step of others waits for a large one."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from neuronserve.server.text.grammar import MAX_GRAMMAR_CHARS, GrammarError, compile_grammar, load_grammar_tokenizer
from neuronserve.server.text.tokenizer import num_token_ids

MAX_KEPT_CHARS = 8 * MAX_GRAMMAR_CHARS  # of all kept texts together; a compiled one takes about 200 bytes a character


class GrammarStore:
    """Compiled grammars by their text, least recently used ones dropped. One engine loop owns it."""

    def __init__(self, tokenizer_path: Path, model_path: Path, max_kept_chars: int = MAX_KEPT_CHARS) -> None:
        self._max_kept_chars = max_kept_chars
        self._paths = tokenizer_path, model_path
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")

    @cached_property
    def num_ids(self) -> int | None:
        """Number of ids of the tokenizer, known without any grammar; None where no tokenizer can be read."""
        return num_token_ids(self._paths[0])

    @property
    def vocab_size(self) -> int:
        """Number of ids of the tokenizer; 0 before the first grammar."""
        return self._tokenizer.vocab_size if self._tokenizer is not None else 0

    def is_ready(self, text: str) -> bool:
        """True when `matcher` returns at once; otherwise compilation has begun."""
        return self._future(text).done()

    def matcher(self, text: str) -> LLMatcher:
        """A matcher at the beginning of an output, the caller's own. Raises GrammarError."""
        return self._future(text).result().deep_copy()

    def forget(self) -> None:
        """Drop what has been compiled; whoever follows a grammar has a copy, and may have it compiled again."""
        self._forget(self._max_kept_chars + 1)

    def _future(self, text: str) -> Future[LLMatcher]:
        future = self._compiled.get(text)
        if future is None:
            self._forget(len(text))
            future = self._compiled[text] = self._executor.submit(self._compile, text)
        self._compiled.move_to_end(text)
        return future

    def _forget(self, num_chars: int) -> None:
        """Make room for a text of that length. Grammars that are still being compiled stay: requests wait for them."""
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
