"""The table of docs/reference/errors.md: each error of a request, with status, type and code, from its class."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from neuronserve.server.errors import RequestError

# Modules that define errors of requests.
MODULES = (
    *("neuronserve.server.errors", "neuronserve.server.api.errors", "neuronserve.server.api.pipeline.journal"),
    "neuronserve.server.route.exchange",
)


def table() -> str:
    """A row for each class of error, by status and code."""
    public = [kind for kind in error_classes() if not kind.__name__.startswith("_")]
    rows = sorted((kind.status, kind.code or "", kind.kind, _meaning(kind)) for kind in public)
    lines = [f"| {status} | {_code(code)} | `{name}` | {meaning} |" for status, code, name, meaning in rows]
    return "\n".join(["| status | `code` | `type` | meaning |", "|---|---|---|---|", *lines])


def error_classes() -> frozenset[type[RequestError]]:
    """Every error of the server that refuses or ends one request."""
    for module in MODULES:
        importlib.import_module(module)
    return frozenset(kind for kind in _below(RequestError) if kind.__module__ in MODULES)


def _below(kind: type[RequestError]) -> Iterator[type[RequestError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


def _code(code: str) -> str:
    return f"`{code}`" if code else "-"


def _meaning(kind: type[RequestError]) -> str:
    """The first paragraph of the docstring."""
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())
