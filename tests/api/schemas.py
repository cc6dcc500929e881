"""Fifty JSON schemas as users write them: of every type and keyword that is followed, small and large, flat and nested.

All of their texts and lists are bounded, so that even a toy model comes to an end.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def obj(required: str = "*", /, **properties: Any) -> Schema:
    """An object of these properties alone; `required` are names between blanks, "*" for all."""
    names = list(properties) if required == "*" else required.split()
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def text(most: int = 12, **more: Any) -> Schema:
    return {"type": "string", "maxLength": most, **more}


def like(pattern: str) -> Schema:
    return {"type": "string", "pattern": f"^{pattern}$"}


def a(form: str) -> Schema:
    return {"type": "string", "format": form, "maxLength": 36}  # fractions of a second have any number of digits


def whole(low: int = 0, high: int = 99) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def real(low: float = 0, high: float = 1) -> Schema:
    """Number with at most two decimals: a toy model would write digits without end."""
    return {"type": "number", "minimum": low, "maximum": high, "multipleOf": 0.25}


def some(items: Schema, most: int = 3, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def one_of(*values: Any) -> Schema:
    return {"enum": list(values)}


def either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


YES: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}
POINT = obj(x=real(-10, 10), y=real(-10, 10))
MONEY = obj(amount=real(0, 10_000), currency=one_of("EUR", "USD", "JPY"))
ADDRESS = obj("city", street=text(16), city=text(), zip=like("[0-9]{5}"))
TREE = {
    "$defs": {"node": obj("value", value=whole(0, 9), children=some({"$ref": "#/$defs/node"}, 1))},
    "$ref": "#/$defs/node",
}
CHAIN = {
    "$defs": {"link": either(NULL, obj(next={"$ref": "#/$defs/stop"})), "stop": either(NULL, whole(0, 3))},
    **obj(link={"$ref": "#/$defs/link"}),
}

SCHEMAS: dict[str, Schema] = {
    "boolean": YES,
    "null": NULL,
    "integer": whole(-5, 5),
    "large integer": whole(1_000_000, 9_999_999),
    "exclusive integer": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10},
    "multiple": {"type": "integer", "minimum": 0, "maximum": 100, "multipleOf": 5},
    "number": real(),
    "negative number": real(-2.5, -0.5),
    "text": text(20),
    "text of a length": text(8, minLength=8),
    "empty text": text(0),
    "pattern": like("[A-Z]{2}-[0-9]{4}"),
    "alternatives in a pattern": like("(cat|dog|bird)s?"),
    "date": a("date"),
    "time": a("time"),
    "date and time": a("date-time"),
    "uuid": a("uuid"),
    "ipv4": a("ipv4"),
    "enum of texts": one_of("red", "green", "blue"),
    "enum of all types": one_of("x", 1, 2.5, None, True, [1], {"k": "v"}),
    "const": {"const": {"version": 2, "tags": ["a"]}},
    "several types": {"type": ["integer", "boolean", "null"], "minimum": 0, "maximum": 9},
    "list of integers": some(whole(), 5),
    "list of a length": some(YES, 4, 4),
    "list of lists": some(some(whole(0, 9), 2), 2, 1),
    "tuple": {"type": "array", "prefixItems": [text(5), whole(), YES], "items": False, "minItems": 3},
    "list of objects": some(POINT, 2, 1),
    "empty object": obj(),
    "person": obj(name=text(), age=whole(0, 120)),
    "optional fields": obj("id", id=whole(), note=text(), done=YES),
    "no required field": obj("", a=YES, b=whole(0, 9)),
    "names with blanks": obj(**{"first name": text(), "é": YES, 'quo"te': NULL}),
    "map": {
        "type": "object",
        "patternProperties": {"^[a-c]$": whole(0, 9)},
        "additionalProperties": False,
        "maxProperties": 3,
    },
    "nested": obj(user=obj(name=text(), address=ADDRESS), active=YES),
    "deeply nested": obj(a=obj(b=obj(c=obj(d=obj(e=one_of(1, 2)))))),
    "nullable field": obj(name=either(text(), NULL), age=either(whole(), NULL)),
    "anyOf": either(whole(), text(6), POINT),
    "oneOf by a const": {"oneOf": [obj(kind={"const": "a"}, n=whole()), obj(kind={"const": "b"}, s=text(6))]},
    "allOf": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 12}]},
    "reference": {"$defs": {"point": POINT}, **obj(start={"$ref": "#/$defs/point"}, end={"$ref": "#/$defs/point"})},
    "recursion": TREE,
    "references in turn": CHAIN,
    "weather call": obj(city=text(), unit=one_of("celsius", "fahrenheit"), days=whole(1, 7)),
    "invoice": obj(
        number=like("INV-[0-9]{3}"), date=a("date"), items=some(obj(what=text(8), price=MONEY), 2, 1), paid=YES
    ),
    "review": obj(stars=whole(1, 5), title=text(16), tags=some(one_of("good", "bad", "odd"), 3)),
    "classification": obj(label=one_of("spam", "ham"), confidence=real(), reasons=some(text(10), 2)),
    "steps": obj(steps=some(obj(thought=text(16), result=text(8)), 3, 1), answer=whole()),
    "calendar": obj(
        title=text(), start=a("date-time"), guests=some(like("[a-z]{2,6}@example\\.com"), 2), kind=one_of(1, 2)
    ),
    "geometry": either(obj(type={"const": "Point"}, at=POINT), obj(type={"const": "Line"}, points=some(POINT, 2, 2))),
    "many fields": obj(**{f"field_{i}": (YES, whole(), one_of("a", "b"))[i % 3] for i in range(24)}),
}
