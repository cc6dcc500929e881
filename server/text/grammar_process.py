"""Fits and compiles clients' grammars for the API in limited processes: a hostile schema can take any time and memory.

Results are cached, so that an application's own schema is compiled once. Clients take turns, and there is a process
more than one client may use, so that hostile grammars delay only their own client's.
"""

from __future__ import annotations

import functools
import json
from collections import OrderedDict
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

import msgspec

from neuronserve.server.errors import QueueFull
from neuronserve.server.text.fair_threads import FairThreads, text_threads
from neuronserve.server.text.grammar import (
    MAX_GRAMMAR_CHARS,
    GrammarError,
    Kind,
    bounded,
    compile_grammar,
    grammar_text,
    load_grammar_tokenizer,
)
from neuronserve.server.text.limited_process import Handler, LimitedPool, Refusal, Work
from neuronserve.server.text.schema_check import import_validator
from neuronserve.server.text.schema_fit import fit_schema

TIMEOUT_S = 3.0  # of one grammar; real ones take milliseconds, the largest allowed about half a second
PREPARE_TIMEOUT_S = 60.0  # for reading the tokenizer
MEMORY_BYTES = 4 * 2**30  # address space; the tokenizer of a large vocabulary takes several hundred MiB
MAX_CACHED_CHARS = 16 * MAX_GRAMMAR_CHARS  # of all cached requests together; a grammar's text is about as long
MAX_WAITING = 64  # grammars that are not compiled yet


class _Call(msgspec.Struct, frozen=True):
    kind: Kind | Literal["fit"]  # "fit": the schema that a grammar of `spec` can have
    spec: str  # JSON, which has integers of any size
    before: str  # rules of what comes before it


class GrammarProcess:
    """Compiles the output formats of requests to grammars. To be used by one thread, such as an event loop's."""

    def __init__(
        self,
        tokenizer_path: Path,
        model_path: Path,
        timeout_s: float = TIMEOUT_S,
        threads: FairThreads | None = None,
    ) -> None:
        self._threads = threads or text_threads("grammar")
        prepare = functools.partial(_load, tokenizer_path, model_path)
        work = Work("the grammar", prepare, timeout_s, PREPARE_TIMEOUT_S, MEMORY_BYTES)
        self._process = LimitedPool(work, self._threads.most_each + 1)
        self._checks: OrderedDict[bytes, Future[str]] = OrderedDict()

    def submit(self, kind: Kind, spec: Any, before: str = "") -> Future[str]:
        """A future of the grammar's text, done when it has compiled; it raises GrammarError when it has not.

        Raises GrammarError at once when the grammar is too long, and QueueFull when too many others wait.
        """
        return self._submit(_Call(kind, bounded(json.dumps(spec)), before))

    def fit(self, schema: Any) -> Future[str]:
        """A future of the `Fit` of a JSON schema, encoded. Raises as `submit` does."""
        return self._submit(_Call("fit", bounded(json.dumps(schema)), ""))

    def _submit(self, request: _Call) -> Future[str]:
        call = msgspec.msgpack.encode(request)
        known = self._checks.get(call)
        if known is not None and known.done() and not known.cancelled() and known.exception() is None:
            self._checks.move_to_end(call)
            return known
        self._evict()
        num_waiting = sum(not check.done() for check in self._checks.values())
        if num_waiting >= MAX_WAITING:
            raise QueueFull(f"{num_waiting} new grammars wait to be compiled, the most that may. Try again later.")
        check = self._threads.submit(functools.partial(self._run, call))
        self._checks[call] = check
        return check

    def forget(self) -> None:
        """Drop what has been compiled, and the process that did it, which the next new grammar starts again."""
        self._checks = OrderedDict((call, check) for call, check in self._checks.items() if not check.done())
        self._threads.submit(self._process.close)

    def close(self) -> None:
        """End the process and cancel what waits for it."""
        self._threads.close()
        self._process.close()

    def _run(self, call: bytes) -> str:
        try:
            return self._process.call(call)
        except Refusal as error:
            raise GrammarError(str(error)) from error

    def _evict(self) -> None:
        """Drop failed compilations from the cache, and the oldest ones beyond its size."""
        for call, check in list(self._checks.items()):
            if check.cancelled() or (check.done() and check.exception() is not None):
                del self._checks[call]
        while sum(map(len, self._checks)) > MAX_CACHED_CHARS and next(iter(self._checks.values())).done():
            self._checks.popitem(last=False)


def _load(tokenizer_path: Path, model_path: Path) -> Handler:
    import_validator()
    try:
        return functools.partial(_check, load_grammar_tokenizer(tokenizer_path, model_path))
    except GrammarError as error:
        raise Refusal(str(error)) from error


def _check(tokenizer: Any, call: bytes) -> str:
    request = msgspec.msgpack.decode(call, type=_Call)
    try:
        spec = json.loads(request.spec)
        if request.kind == "fit":
            return fit_schema(spec, lambda schema: _compiled(tokenizer, "json", schema)).encode()
        return _compiled(tokenizer, request.kind, spec, request.before)
    except GrammarError as error:
        raise Refusal(str(error)) from error


def _compiled(tokenizer: Any, kind: Kind, spec: Any, before: str = "") -> str:
    text = grammar_text(kind, spec, before)
    compile_grammar(tokenizer, text)
    return text
