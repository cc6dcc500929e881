"""The format that a request requires of its output (schema, regex, choice, grammar, words, tokens), and its grammar."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import InvalidRequest
from ...text.grammar import GrammarError, Kind, quoted
from ...text.schema_fit import Fit
from ..errors import unsupported
from ..service import ServedModel
from ..wire.generation import (
    GenerationRequest,
    JsonObjectResponse,
    JsonSchemaResponse,
    ResponseFormat,
    StructuredOutputs,
    TextResponse,
)
from .prompts import check_ids

ANY_OBJECT = {"type": "object"}
CODE = "invalid_grammar"
_FIELDS: tuple[tuple[str, Kind], ...] = (  # vLLM's earlier fields, and llama.cpp's
    ("guided_json", "json"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "grammar"),
    ("json_schema", "json"),
    ("grammar", "grammar"),
)


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """Required format of an output; `param` is the field of the request that has it."""

    param: str
    kind: Kind
    spec: Any  # a schema, a regex, a list of texts, or a grammar
    is_whole: bool = False  # holds for the reasoning too


@dataclass(frozen=True, slots=True)
class Constraint:
    """Rules of an output: a grammar ("" = none), and the schemas that no grammar can force in full.

    An output is checked against the schemas when it has ended. They are JSON text: `answer` for the answer ("" = none),
    `calls` for the arguments of each function, by name.
    """

    grammar: str = ""
    answer: str = ""
    calls: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_checked(self) -> bool:
        return bool(self.answer or self.calls)


def requested_format(model: ServedModel, body: GenerationRequest) -> OutputFormat | None:
    """Return the format that the request's fields require. Raises InvalidRequest for two, or an unusable one."""
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
    """Compile `required` to a grammar for the engine; the rules `before` say what may precede it.

    Raises InvalidRequest with the reason when that is not possible.
    """
    spec, checked = required.spec, ""
    if required.kind == "json":
        fit = await fitted(model, required)
        spec, checked = fit.schema, fit.checked
    with _named(required.param):
        grammar = await asyncio.wrap_future(model.grammars.submit(required.kind, spec, before))
    return Constraint(grammar, checked)


async def fitted(model: ServedModel, required: OutputFormat) -> Fit:
    """Return the part of the schema of `required` that a grammar can force. Raises InvalidRequest for a bad schema."""
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
        if value and name != "disable_fallback":  # there is no fallback here
            raise unsupported(f"structured_outputs.{name[:40]}")
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
    """Format of these tokens alone; without an end token among them, an output ends at its length."""
    if given is None:
        return []
    ids = set(check_ids(given, model.vocab_size, "allowed_token_ids"))
    ends = ids & set(model.defaults.eos_token_ids)
    tokens = f"<[{','.join(map(str, sorted(ids - ends)))}]>" if ids - ends else quoted("")
    times = "*" if ends else f"{{{model.info.max_model_len}}}"
    return [OutputFormat("allowed_token_ids", "lark", f"start: {tokens}{times}", is_whole=True)]


def _bad_words(model: ServedModel, given: Sequence[str] | None) -> list[OutputFormat]:
    """Format of any text without these words, however they are split into tokens, and of marks that are not in one."""
    if not given:
        return []
    words = " | ".join(map(quoted, dict.fromkeys(given)))
    # A complement alone would also allow invalid UTF-8, and behind that any word.
    marks = [
        token
        for token, mark in model.tokenizer.marks.items()
        if not any(word in mark or mark[0] in word or mark[-1] in word for word in given)
    ]
    more = f" (<[{','.join(map(str, marks))}]> TEXT)*" if marks else ""
    text = f"start: TEXT{more}\nTEXT: ANY & ~(ANY WORD ANY)\nANY: /(?s:.*)/\nWORD: {words}"
    return [OutputFormat("bad_words", "lark", text, is_whole=True)]
