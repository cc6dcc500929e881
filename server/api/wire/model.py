"""The base of bodies and answers: what checks and writes them is built when they are first used, not at import.

Modules that declare them, routes or settings evaluate their annotations themselves, without `from __future__ import
annotations`: pydantic and FastAPI would compile each from its text, which takes a thirtieth of a start's imports.
"""

import asyncio
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema

MAX_ITEMS = 4096  # of a list or a map of a body whose field states no other limit


class WireModel(BaseModel):
    """A body, an answer, or a part of one.

    A body's model is strict, and each of its lists and maps is bounded, by `MAX_ITEMS` where its field says nothing.
    """

    model_config = ConfigDict(defer_build=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        if cls.model_config.get("strict"):
            _bound(schema)
        return schema


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
    """Build those that nobody has used yet, so that no request waits for it; others have their turn between any two."""
    left = [WireModel]
    while left:
        kind = left.pop(0)
        left += kind.__subclasses__()
        kind.model_rebuild()
        await asyncio.sleep(0)
