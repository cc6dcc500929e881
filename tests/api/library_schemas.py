"""Schemas as people's libraries make them: pydantic's own, Zod's as its packages wrote them, and each keyword alone."""

from __future__ import annotations

import dataclasses
import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, TypeVar, Union
from uuid import UUID

from pydantic import AnyUrl, BaseModel, ConfigDict, Field, SecretStr, StringConstraints, TypeAdapter, conlist
from typing_extensions import TypedDict

from tests.api.schemas import Schema

Text = Annotated[str, StringConstraints(max_length=8)]
T = TypeVar("T")


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"  # not required, so that both branches may hold
    good: bool


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    a: bool
    b: Text | None = None


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    a: bool


class Node(BaseModel):
    value: int
    children: Annotated[list[Node], Field(max_length=1)] = []


class Pair(NamedTuple):
    a: bool
    b: int


class Movie(TypedDict):
    title: Text
    year: int


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Box(BaseModel, Generic[T]):
    inside: T


class Login(BaseModel):
    model_config = ConfigDict(regex_engine="python-re")

    password: Annotated[str, StringConstraints(pattern=r"^(?=.*[0-9])[a-z0-9]{2,8}$")]


PYDANTIC: dict[str, Any] = {
    "set": set[int],
    "frozenset": frozenset[Text],
    "set of an enum": set[Colour],
    "dict by an enum": dict[Colour, int],
    "dict by a literal": dict[Literal["a", "b"], bool],
    "dict by a text of a length": dict[Text, bool],
    "dict by an integer": dict[int, bool],
    "dict": dict[str, int],
    "path": Path,
    "bytes": bytes,
    "secret": SecretStr,
    "date and time": datetime,
    "date": date,
    "time": time,
    "duration": timedelta,
    "decimal": Decimal,
    "decimal of digits": Annotated[Decimal, Field(max_digits=5, decimal_places=2)],
    "uuid": UUID,
    "ipv4": IPv4Address,
    "ipv6": IPv6Address,
    "url": AnyUrl,
    "list of a length": conlist(bool, min_length=2, max_length=3),
    "look-ahead": Login,
    "discriminated union": Annotated[Union[Cat, Dog], Field(discriminator="kind")],  # noqa: UP007
    "union": Union[Cat, Strict, int],  # noqa: UP007
    "recursive": Node,
    "literal": Literal["a", 1, True],
    "optional": Optional[Text],  # noqa: UP045
    "tuple": tuple[bool, int, Text],
    "tuple of any length": tuple[bool, ...],
    "empty tuple": tuple[()],
    "named tuple": Pair,
    "typed dict": Movie,
    "dataclass": Point,
    "generic": Box[set[bool]],
    "extra forbidden": Strict,
    "extra allowed": Open,
    "factor": Annotated[float, Field(multiple_of=0.01, ge=0, le=1)],
    "any": Any,
}

INTEGER: Schema = {"type": "integer"}
OBJECT: Schema = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": INTEGER}, "required": ["a"]}
KEYWORDS: dict[str, Schema] = {
    "if, then, else": {**OBJECT, "if": {"properties": {"a": {"const": True}}}, "then": {"required": ["b"]}, "else": {}},
    "not": {"type": ["integer", "null"], "not": {"type": "null"}},
    "dependentRequired": {**OBJECT, "dependentRequired": {"b": ["a"]}},
    "dependentSchemas": {**OBJECT, "dependentSchemas": {"b": {"required": ["a"]}}},
    "dependencies": {**OBJECT, "dependencies": {"b": ["a"], "a": {"minProperties": 1}}},
    "contains": {"type": "array", "items": {"type": "boolean"}, "contains": {"const": True}, "maxItems": 4},
    "minContains": {"type": "array", "contains": {"type": "integer"}, "minContains": 0, "maxItems": 3},
    "maxContains": {"type": "array", "items": INTEGER, "contains": {"minimum": 1}, "maxContains": 2, "maxItems": 3},
    "unevaluatedProperties": {"allOf": [OBJECT], "unevaluatedProperties": False},
    "unevaluatedItems": {"prefixItems": [INTEGER], "type": "array", "unevaluatedItems": False},
    "patternProperties": {"type": "object", "patternProperties": {"^x": INTEGER}, "additionalProperties": False},
    "patternProperties with look-ahead": {"type": "object", "patternProperties": {"^(?!y)": {}}, "maxProperties": 2},
    "propertyNames": {"type": "object", "propertyNames": {"maxLength": 40}, "maxProperties": 1},
    "uniqueItems": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 2},
    "multipleOf": {"type": "number", "multipleOf": 0.05, "minimum": 0, "maximum": 1},
    "multipleOf with many digits": {"type": "number", "multipleOf": 0.3333, "minimum": 0, "maximum": 1},
    "counts that are floats": {"type": "array", "items": INTEGER, "minItems": 1.0, "maxItems": 2.0},
    "huge counts": {"type": "string", "maxLength": 10**20},
    "$ref in a circle": {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}}},
    "$anchor": {"$ref": "#n", "$defs": {"x": {"$anchor": "n", "type": "integer"}}},
    "$dynamicRef": {"$dynamicRef": "#n", "$defs": {"x": {"$dynamicAnchor": "n", "type": "integer"}}},
    "$id": {"$id": "https://example.com/a", "$ref": "b", "$defs": {"b": {"$id": "b", "type": "integer"}}},
    "const": {"const": {"a": [1, None]}},
    "oneOf that overlaps": {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 5}]},
    "prefixItems": {"type": "array", "prefixItems": [INTEGER, {"type": "boolean"}], "items": False},
    "additionalItems": {"type": "array", "items": [INTEGER], "additionalItems": False},
    "additionalProperties": {"type": "object", "additionalProperties": INTEGER, "maxProperties": 2},
    "exclusive bounds of draft 4": {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "maximum": 9},
    "nullable": {"type": "boolean", "nullable": True},
    "annotations": {
        "type": "boolean",
        "deprecated": True,
        "examples": [True],
        "title": "x",
        "readOnly": True,
        "x-own": {"minItems": -1},
    },
    "contentEncoding": {"type": "string", "contentEncoding": "base64", "contentMediaType": "text/plain"},
    "unknown format": {"type": "string", "format": "phone"},
    "pattern that nobody reads": {"type": "string", "pattern": "^(?=\\p{L})("},
    "look-behind": {"type": "string", "pattern": "(?<!x)$"},
    "unknown $schema": {"$schema": "https://example.com/own", "type": "integer"},
}


def library_schemas() -> dict[str, Schema]:
    """All of them by name."""
    found = {f"pydantic {name}": TypeAdapter(kind).json_schema() for name, kind in PYDANTIC.items()}
    found |= json.loads((Path(__file__).parent / "zod" / "zod_schemas.json").read_text())["schemas"]
    return found | {f"keyword {name}": schema for name, schema in KEYWORDS.items()}
