"""The format that a request requires of its output (schema, regex, choice, grammar, words, tokens), and its grammar."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neuronserve.server.api.pipeline.prompts import check_ids
from neuronserve.server.api.service import ServedModel
from neuronserve.server.api.wire.generation import (
    GenerationRequest,
    JsonObjectResponse,
    JsonSchemaResponse,
    ResponseFormat,
    StructuredOutputs,
    TextResponse,
)
from neuronserve.server.errors import InvalidRequest
from neuronserve.server.text.grammar import GrammarError, Kind, quoted
from neuronserve.server.text.schema_fit import Fit

ANY_OBJECT = {"type": "object"}
CODE = "invalid_grammar"
_FIELDS: tuple[tuple[str, Kind], ...] = (  # vLLM's earlier ones, and llama.cpp's
    ("guided_json", "json"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "grammar"),
    ("json_schema", "json"),
    ("grammar", "grammar"),
)


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """One required format; `param` is the field of the request that has it."""

    param: str
    kind: Kind
    spec: Any  # a schema, a regex, a list of texts, or a grammar
    is_whole: bool = False  # holds for the reasoning too, not for the answer alone


@dataclass(frozen=True, slots=True)
class Constraint:
    """What holds an output to its format: a grammar ("" = anything goes), and schemas that are checked at its end.

    The schemas are JSON text, of the answer ("" = none) and of the arguments of functions, by name. They are those
    that no grammar can force in full.
    """

    grammar: str = ""
    answer: str = ""
    calls: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_checked(self) -> bool:
        return bool(self.answer or self.calls)


def requested_format(model: ServedModel, body: GenerationRequest) -> OutputFormat | None:
    """The format that the request's fields require. Raises InvalidRequest when there are two, or one is not usable."""
    formats = [
        *_response_format(body.response_format),
        *_structured_outputs(body.structured_outputs),
        *(
            OutputFormat(name, kind, value)
            for name, kind in _FIELDS
            if (value := getattr(body, name)) not in (None, "")
        ),
        *_allowed_tokens(model, body.allowed_token_ids),
        *_bad_words(model, body.bad_words),
    ]
    if len(formats) > 1:
        raise InvalidRequest(f"{formats[0].param} and {formats[1].param} exclude each other.", formats[1].param)
    return formats[0] if formats else None


async def compile_format(model: ServedModel, required: OutputFormat, before: str = "") -> Constraint:
    """The grammar of `required`, which the engine can use, behind what the rules `before` allow.

    Raises InvalidRequest with the reason when there is none.
    """
    spec, checked = required.spec, ""
    if required.kind == "json":
        fit = await fitted(model, required)
        spec, checked = fit.schema, fit.checked
    with _named(required.param):
        grammar = await asyncio.wrap_future(model.grammars.submit(required.kind, spec, before))
    return Constraint(grammar, checked)


async def fitted(model: ServedModel, required: OutputFormat) -> Fit:
    """The schema of `required` as a grammar can have it. Raises InvalidRequest where it is no usable schema."""
    with _named(required.param):
        return Fit.decode(await asyncio.wrap_future(model.grammars.fit(required.spec)))


@contextlib.contextmanager
def _named(param: str) -> Iterator[None]:
    """Turn a GrammarError into an InvalidRequest that names the field."""
    try:
        yield
    except GrammarError as error:
        raise InvalidRequest(f"{param} cannot be used: {error}.", param, CODE) from error


def _response_format(given: ResponseFormat | None) -> list[OutputFormat]:
    if given is None:
        return []
    match given:
        case TextResponse():
            return []
        case JsonObjectResponse(schema_=None):
            return [OutputFormat("response_format", "json", ANY_OBJECT)]
        case JsonObjectResponse():
            return [OutputFormat("response_format.schema", "json", given.schema_)]
        case JsonSchemaResponse():
            return [OutputFormat("response_format.json_schema.schema", "json", given.json_schema.schema_)]


def _structured_outputs(given: StructuredOutputs | None) -> list[OutputFormat]:
    if given is None:
        return []
    for name, value in (given.model_extra or {}).items():
        if value and name != "disable_fallback":  # there is no other way here to fall back to
            field = f"structured_outputs.{name[:40]}"
            raise InvalidRequest(f"{field} is not supported by this server.", field, "unsupported_parameter")
    kinds: tuple[tuple[str, Kind, Any], ...] = (
        ("json", "json", given.json_),
        ("regex", "regex", given.regex),
        ("choice", "choice", given.choice),
        ("grammar", "grammar", given.grammar),
        ("json_object", "json", ANY_OBJECT if given.json_object else None),
    )
    formats = [OutputFormat(f"structured_outputs.{name}", kind, spec) for name, kind, spec in kinds if spec is not None]
    if len(formats) != 1:
        names = ", ".join(name for name, *_ in kinds)
        raise InvalidRequest(
            f"structured_outputs needs exactly one of {names}, not {len(formats)}.", "structured_outputs"
        )
    return formats


def _allowed_tokens(model: ServedModel, given: Sequence[int] | None) -> list[OutputFormat]:
    """Nothing but these tokens; an output without an end token among them has no end but the length."""
    if given is None:
        return []
    ids = set(check_ids(given, model.vocab_size, "allowed_token_ids"))
    ends = ids & set(model.defaults.eos_token_ids)
    tokens = f"<[{','.join(map(str, sorted(ids - ends)))}]>" if ids - ends else quoted("")
    times = "*" if ends else f"{{{model.info.max_model_len}}}"
    return [OutputFormat("allowed_token_ids", "lark", f"start: {tokens}{times}", is_whole=True)]


def _bad_words(model: ServedModel, given: Sequence[str] | None) -> list[OutputFormat]:
    """Any text with none of the words inside, however they are cut into tokens, and marks that are no part of one."""
    if not given:
        return []
    words = " | ".join(map(quoted, dict.fromkeys(given)))
    # A complement alone has bytes that are no UTF-8 too, after which any word might follow.
    marks = [
        token
        for token, mark in model.tokenizer.marks.items()
        if not any(word in mark or mark[0] in word or mark[-1] in word for word in given)
    ]
    more = f" (<[{','.join(map(str, marks))}]> TEXT)*" if marks else ""
    text = f"start: TEXT{more}\nTEXT: ANY & ~(ANY WORD ANY)\nANY: /(?s:.*)/\nWORD: {words}"
    return [OutputFormat("bad_words", "lark", text, is_whole=True)]
