"""The base of bodies and answers: what checks and writes them is built when they are first used, not at import.

Modules that declare them, routes or settings evaluate their annotations themselves, without `from __future__ import
annotations`: pydantic and FastAPI would compile each from its text, which takes a thirtieth of a start's imports.
"""

import asyncio

from pydantic import BaseModel, ConfigDict


class WireModel(BaseModel):
    """A body, an answer, or a part of one."""

    model_config = ConfigDict(defer_build=True)


async def build_models() -> None:
    """Build those that nobody has used yet, so that no request waits for it; others have their turn between any two."""
    left = [WireModel]
    while left:
        kind = left.pop(0)
        left += kind.__subclasses__()
        kind.model_rebuild()
        await asyncio.sleep(0)
