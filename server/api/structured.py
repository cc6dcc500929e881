"""What a request asks its output to be: JSON of a schema, a regex, a choice, a grammar. Turns it into a grammar."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from server.api.schemas_request import GenerationRequest
from server.api.schemas_tools import ResponseFormat, StructuredOutputs
from server.api.service import ServedModel
from server.errors import InvalidRequest
from server.text.grammar import GrammarError, Kind

ANY_OBJECT = {"type": "object"}
CODE = "invalid_grammar"
_LEGACY: tuple[tuple[str, Kind], ...] = (
    ("guided_json", "json"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "grammar"),
)


@dataclass(frozen=True, slots=True)
class Format:
    """One wish; `param` is the request's field it came from."""

    param: str
    kind: Kind
    spec: Any  # a schema, a regex, a list of texts, or a grammar


def asked_format(body: GenerationRequest) -> Format | None:
    """What the request's fields ask for. Raises InvalidRequest when they ask for two things, or for none rightly."""
    wishes = [
        *_response_format(body.response_format),
        *_structured_outputs(body.structured_outputs),
        *(Format(name, kind, value) for name, kind in _LEGACY if (value := getattr(body, name)) is not None),
    ]
    if len(wishes) > 1:
        raise InvalidRequest(f"{wishes[0].param} and {wishes[1].param} exclude each other.", wishes[1].param)
    return wishes[0] if wishes else None


async def compile_format(model: ServedModel, wish: Format) -> str:
    """The grammar of `wish`, known to be usable. Raises InvalidRequest with what is wrong with it."""
    try:
        return await asyncio.wrap_future(model.grammars.submit(wish.kind, wish.spec))
    except GrammarError as error:
        raise InvalidRequest(f"{wish.param} cannot be used: {error}.", wish.param, CODE) from error


def _response_format(given: ResponseFormat | None) -> list[Format]:
    if given is None or given.type == "text":
        return []
    if given.type == "json_object":
        return [Format("response_format", "json", ANY_OBJECT)]
    param = "response_format.json_schema"
    if given.json_schema is None or given.json_schema.schema_ is None:
        raise InvalidRequest(f"{param}.schema is required for the type 'json_schema'.", f"{param}.schema")
    return [Format(f"{param}.schema", "json", given.json_schema.schema_)]


def _structured_outputs(given: StructuredOutputs | None) -> list[Format]:
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
    wishes = [Format(f"structured_outputs.{name}", kind, spec) for name, kind, spec in kinds if spec is not None]
    if len(wishes) != 1:
        names = ", ".join(name for name, *_ in kinds)
        raise InvalidRequest(
            f"structured_outputs needs exactly one of {names}, not {len(wishes)}.", "structured_outputs"
        )
    return wishes
