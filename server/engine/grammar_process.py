"""Checks grammars for the API in a small process of its own: a schema of a client can be a bomb, as a template can.

What passed is remembered, so that an application's own schema is checked once.
"""

from __future__ import annotations

import functools
import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import msgspec

from server.engine.grammar import (
    MAX_GRAMMAR_CHARS,
    GrammarError,
    Kind,
    bounded,
    compile_grammar,
    grammar_text,
    load_grammar_tokenizer,
)
from server.engine.limited_process import Answer, LimitedProcess, Refusal, Work

TIMEOUT_S = 3.0  # of one grammar; real ones take milliseconds, the largest allowed about half a second
PREPARE_TIMEOUT_S = 60.0  # for reading the tokenizer
MEMORY_BYTES = 4 * 2**30  # address space; the tokenizer of a large vocabulary takes several hundred MiB
MAX_REMEMBERED_CHARS = 16 * MAX_GRAMMAR_CHARS  # of all remembered texts together


class _Call(msgspec.Struct, frozen=True):
    kind: Kind
    spec: str  # JSON, which has integers of any size


class GrammarProcess:
    """Turns what clients ask for into grammars. Blocking and safe to call from several threads."""

    def __init__(self, tokenizer_path: Path, model_path: Path, timeout_s: float = TIMEOUT_S) -> None:
        prepare = functools.partial(_load, tokenizer_path, model_path)
        self._process = LimitedProcess(Work("the grammar", prepare, timeout_s, PREPARE_TIMEOUT_S, MEMORY_BYTES))
        self._known: OrderedDict[bytes, str] = OrderedDict()

    def compile(self, kind: Kind, spec: Any) -> str:
        """The grammar's text, once it has been compiled without fault. Raises GrammarError."""
        call = msgspec.msgpack.encode(_Call(kind, bounded(json.dumps(spec))))
        text = self._known.get(call)
        if text is None:
            try:
                text = self._process.ask(call)
            except Refusal as error:
                raise GrammarError(str(error)) from error
            self._remember(call, text)
        return text

    def close(self) -> None:
        """End the process. A later grammar would start it again."""
        self._process.close()

    def _remember(self, call: bytes, text: str) -> None:
        """Several threads may be here; the worst that comes of it is that a grammar is forgotten too early."""
        self._known[call] = text
        while sum(map(len, self._known.copy().values())) > MAX_REMEMBERED_CHARS:
            self._known.popitem(last=False)


def _load(tokenizer_path: Path, model_path: Path) -> Answer:
    try:
        return functools.partial(_check, load_grammar_tokenizer(tokenizer_path, model_path))
    except GrammarError as error:
        raise Refusal(str(error)) from error


def _check(tokenizer: Any, call: bytes) -> str:
    asked = msgspec.msgpack.decode(call, type=_Call)
    try:
        text = grammar_text(asked.kind, json.loads(asked.spec))
        compile_grammar(tokenizer, text)
    except GrammarError as error:
        raise Refusal(str(error)) from error
    return text
