"""Rows of float32 in the forms that answers have. Views of memory, not numpy's arrays: no other request needs numpy."""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Callable, Sequence
from math import hypot
from operator import mul
from typing import Any, TypeAlias

from pydantic import BaseModel
from starlette.responses import Response

from neuronserve.server.api.wire.pooling import EncodingFormat
from neuronserve.server.link.messages import PoolingFacts

Float32: TypeAlias = "memoryview[float]"  # one row, or one for each token of a text
NOTICE_HEADER = "X-Neuronserve-Notice"
FLOAT32_BYTES = 4
MANY = 1 << 15  # values whose writing others should not wait for


def row_of(content: bytes) -> Float32:
    """The row of these float32, which are little-endian as every host is."""
    return memoryview(content).cast("f")


def rows_of(row: Float32, count: int) -> Float32:
    """As `count` rows of equal length."""
    return row.cast("B").cast("f", (count, len(row) // count))


def shown(row: Float32, encoding: EncodingFormat | None) -> list[Any] | str:
    """Values as JSON has them, or the bytes of float32, little-endian, in base64."""
    if encoding == "base64":
        return base64.b64encode(row).decode("ascii")
    values: list[Any] = row.tolist()
    return values


def cosine(a: Float32, b: Float32) -> float:
    """Of two embeddings; 0 where one has no length."""
    x, y = a.tolist(), b.tolist()
    length = hypot(*x) * hypot(*y)
    return sum(map(mul, x, y)) / length if length else 0.0


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


async def answered(make: Callable[[], BaseModel], rows: Sequence[Float32], facts: PoolingFacts) -> Response:
    """The response of the answer that `make` makes of `rows`, with what a user should know of them in a header."""

    def write() -> str:
        return make().model_dump_json()

    is_large = sum(row.nbytes for row in rows) > MANY * FLOAT32_BYTES
    body = await asyncio.to_thread(write) if is_large else write()
    headers = {NOTICE_HEADER: facts.notice} if facts.notice else None
    return Response(body, headers=headers, media_type="application/json")
