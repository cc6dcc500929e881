"""Base classes of bodies and answers. Their validators and serializers are built at first use, not at import.

Modules that declare models, routes or settings have no `from __future__ import annotations`: pydantic and FastAPI would
compile each annotation from its text, which takes a thirtieth of the time that a start spends in imports.
"""

import asyncio
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema

MAX_ITEMS = 4096  # in a list or a map of a body whose field states no other limit


class WireModel(BaseModel):
    """A body, an answer, or a part of one."""

    model_config = ConfigDict(defer_build=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        if cls.model_config.get("strict"):
            _bound(schema)
        return schema


class BodyModel(WireModel):
    """A body or a part of one: strict, with unknown fields kept.

    Each of its lists and maps is bounded, by `MAX_ITEMS` unless its field has another limit.
    """

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())


def _bound(schema: Any) -> None:
    """Bound each list and map of a core schema that has no limit yet."""
    if isinstance(schema, dict):
        if schema.get("type") in ("list", "dict"):
            schema.setdefault("max_length", MAX_ITEMS)
        for part in schema.values():
            _bound(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            _bound(part)


async def build_models() -> None:
    """Build all models that are not in use yet, so that no request waits for it; other tasks run between any two."""
    left = [WireModel]
    while left:
        kind = left.pop(0)
        left += kind.__subclasses__()
        kind.model_rebuild()
        await asyncio.sleep(0)
