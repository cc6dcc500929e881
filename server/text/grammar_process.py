"""Fits and compiles clients' grammars in limited processes: a hostile schema can take any time and memory.

Results are cached, so that an application's own schema is compiled once.
"""

from __future__ import annotations

import functools
import json
from collections import OrderedDict
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec

from .fair_threads import FairThreads, text_threads
from .grammar import (
    MAX_GRAMMAR_CHARS,
    GrammarError,
    Kind,
    bounded,
    compile_grammar,
    grammar_text,
    load_grammar_tokenizer,
)
from .limited_pool import CallQueue
from .limited_process import Handler, Refusal, Work
from .schema_check import import_validator
from .schema_fit import fit_schema

TIMEOUT_S = 3.0  # of one grammar; real ones take milliseconds, the largest allowed about half a second
PREPARE_TIMEOUT_S = 60.0  # for reading the tokenizer
MEMORY_BYTES = 4 * 2**30  # address space; the tokenizer of a large vocabulary takes several hundred MiB
MAX_CACHED_CHARS = 16 * MAX_GRAMMAR_CHARS  # of all cached requests together; a grammar's text is about as long
MAX_WAITING = 64  # grammars that are not compiled yet


class _Call(msgspec.Struct, frozen=True):
    kind: Kind | Literal["fit"]  # "fit": the schema that a grammar of `spec` can have
    spec: str  # JSON, which has integers of any size
    before: str  # rules of the text before it


class GrammarProcess:
    """Compiles the output formats of requests to grammars. To be used by one thread, such as an event loop's."""

    def __init__(
        self,
        tokenizer_path: Path,
        model_path: Path,
        timeout_s: float = TIMEOUT_S,
        threads: FairThreads | None = None,
    ) -> None:
        prepare = functools.partial(_load, tokenizer_path, model_path)
        work = Work("the grammar", prepare, timeout_s, PREPARE_TIMEOUT_S, MEMORY_BYTES, refusals=(GrammarError,))
        threads = threads or text_threads("grammar")
        self._queue = CallQueue(work, threads, MAX_WAITING, "new grammars wait to be compiled", _refused)
        self._cache: OrderedDict[bytes, Future[str]] = OrderedDict()  # by the encoded call, last used at the end

    def submit(self, kind: Kind, spec: Any, before: str = "") -> Future[str]:
        """Return a future of the grammar's text, done when it has compiled; it raises GrammarError if it has not.

        Raises GrammarError at once when the grammar is too long, and QueueFull when too many grammars wait.
        """
        return self._submit(_Call(kind, bounded(json.dumps(spec)), before))

    def fit(self, schema: Any) -> Future[str]:
        """Return a future of the `Fit` of a JSON schema, encoded. Raises as `submit` does."""
        return self._submit(_Call("fit", bounded(json.dumps(schema)), ""))

    def _submit(self, request: _Call) -> Future[str]:
        call = msgspec.msgpack.encode(request)
        known = self._cache.get(call)
        if known is not None and known.done() and not _has_failed(known):
            self._cache.move_to_end(call)
            return known
        self._evict()
        future = self._cache[call] = self._queue.submit(call)
        return future

    def forget(self) -> None:
        """Drop compiled grammars, and the processes that compiled them. The next new grammar starts one again."""
        self._cache = OrderedDict((call, future) for call, future in self._cache.items() if not future.done())
        self._queue.restart()

    def close(self) -> None:
        """End the processes and cancel the grammars that wait."""
        self._queue.close()

    def _evict(self) -> None:
        """Drop failed compilations from the cache, and the oldest ones beyond its size."""
        for call, future in list(self._cache.items()):
            if future.done() and _has_failed(future):
                del self._cache[call]
        while sum(map(len, self._cache)) > MAX_CACHED_CHARS and next(iter(self._cache.values())).done():
            self._cache.popitem(last=False)


def _has_failed(future: Future[str]) -> bool:
    return future.cancelled() or future.exception() is not None


def _refused(error: Refusal) -> NoReturn:
    raise GrammarError(str(error)) from error


def _load(tokenizer_path: Path, model_path: Path) -> Handler:
    import_validator()
    return functools.partial(_compile, load_grammar_tokenizer(tokenizer_path, model_path))


def _compile(tokenizer: Any, call: bytes) -> str:
    request = msgspec.msgpack.decode(call, type=_Call)
    spec = json.loads(request.spec)
    if request.kind == "fit":
        return fit_schema(spec, lambda schema: _compiled(tokenizer, "json", schema)).encode()
    return _compiled(tokenizer, request.kind, spec, request.before)


def _compiled(tokenizer: Any, kind: Kind, spec: Any, before: str = "") -> str:
    text = grammar_text(kind, spec, before)
    compile_grammar(tokenizer, text)
    return text
