"""Checks finished outputs against JSON schemas in a limited process: clients' patterns may take endless time."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import msgspec

from .fair_threads import FairThreads, text_threads
from .grammar import MAX_REASON_CHARS, GrammarError
from .limited_pool import CallQueue
from .limited_process import Handler, Refusal, Work
from .schema_tree import Schema, python_pattern, rewritten

TIMEOUT_S = 1.0  # of one output; real ones take about a millisecond
PREPARE_TIMEOUT_S = 60.0
MEMORY_BYTES = 2**30  # address space
MAX_WAITING = 64  # outputs that are not checked yet
UNCHECKED = "it could not be checked"  # begins a finding without a verdict
MAX_CACHED = 64  # validators that the process keeps


class _Call(msgspec.Struct, frozen=True):
    schema: str  # JSON
    text: str  # JSON


class SchemaChecks:
    """Checks outputs against the schemas of their requests. To be used by one thread, such as an event loop's."""

    def __init__(self, threads: FairThreads | None = None, timeout_s: float = TIMEOUT_S) -> None:
        work = Work("the schema check", _prepare, timeout_s, PREPARE_TIMEOUT_S, MEMORY_BYTES)
        threads = threads or text_threads("schema-check")
        self._queue = CallQueue(work, threads, MAX_WAITING, "outputs wait to be checked", _refused)

    def submit(self, schema: str, text: str) -> Future[str]:
        """Return a future of the fault in `text`, "" if there is none. Raises QueueFull when too many outputs wait."""
        return self._queue.submit(msgspec.msgpack.encode(_Call(schema, text)))

    def close(self) -> None:
        """End the processes and cancel the outputs that wait."""
        self._queue.close()


def _refused(error: Refusal) -> str:
    return f"{UNCHECKED}: {error}"


def import_validator() -> None:
    """Import the library before any work is timed. The API process must not wait for it at its start."""
    import jsonschema  # noqa: F401


def require_schema(schema: Schema) -> None:
    """Raise GrammarError, naming keyword and place, for a `schema` that is no JSON schema of draft 2020-12."""
    from jsonschema import Draft202012Validator, FormatChecker, SchemaError

    try:
        Draft202012Validator.check_schema(schema, format_checker=FormatChecker(formats=()))
    except SchemaError as error:
        raise GrammarError(f"the schema is not valid at {_described(error)}") from None


def fault_in(schema: str, value: Any) -> str:
    """Return the fault of a value by a schema (JSON text), and its place; "" = none."""
    from jsonschema.exceptions import best_match
    from referencing.exceptions import Unresolvable

    try:
        error = best_match(_validator(schema).iter_errors(value))
    except (Unresolvable, RecursionError) as unchecked:
        return f"{UNCHECKED}: {unchecked}"[:MAX_REASON_CHARS]
    return "" if error is None else _described(error)


def _prepare() -> Handler:
    import_validator()
    return _check


def _check(call: bytes) -> str:
    request = msgspec.msgpack.decode(call, type=_Call)
    try:
        value = json.loads(request.text)
    except (ValueError, RecursionError):
        return "it is not JSON"
    return fault_in(request.schema, value)


@functools.lru_cache(MAX_CACHED)
def _validator(schema: str) -> Any:
    """Return a validator that fetches nothing."""
    from jsonschema import Draft202012Validator
    from referencing import Registry

    return Draft202012Validator(rewritten(json.loads(schema), _readable), registry=Registry())


def _readable(schema: Schema) -> Schema:
    """Return the schema with patterns in Python's form, without patterns that Python cannot read."""
    made = dict(schema)
    if "pattern" in made:
        pattern = python_pattern(made.pop("pattern"))
        made |= {} if pattern is None else {"pattern": pattern.pattern}
    if isinstance(named := made.get("patternProperties"), Mapping):
        read = {python_pattern(name): value for name, value in named.items()}
        if None in read:
            made.pop("additionalProperties", None)
        made["patternProperties"] = {name.pattern: value for name, value in read.items() if name is not None}
    return made


def _described(error: Any) -> str:
    """Return an error as one line, `$.place (keyword): message`."""
    text = f"{error.json_path} ({error.validator}): {error.message}".replace("\n", " ")
    return text if len(text) <= MAX_REASON_CHARS else text[:MAX_REASON_CHARS] + "..."
