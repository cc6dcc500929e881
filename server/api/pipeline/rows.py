"""Rows of float32 in the forms that answers have. They are views of memory: the API needs numpy for nothing else."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from math import hypot
from operator import mul
from typing import Any, TypeAlias

from pydantic import BaseModel
from starlette.responses import Response

from ...link.messages import PoolingFacts
from ..http.chance import hex_digits
from ..wire.pooling import EncodingFormat

Float32: TypeAlias = "memoryview[float]"  # one row, or one for each token of a text
NOTICE_HEADER = "X-Neuronserve-Notice"
FLOAT32_BYTES = 4
MANY = 1 << 15  # values; longer answers are written in a thread


def row_of(content: bytes) -> Float32:
    """Return the row that these little-endian float32 are."""
    return memoryview(content).cast("f")


def rows_of(row: Float32, count: int) -> Float32:
    """Split a row into `count` rows of equal length."""
    return row.cast("B").cast("f", (count, len(row) // count))


def encoded(row: Float32, encoding: EncodingFormat | None) -> list[Any] | str:
    """Return the values as JSON has them, or the bytes of float32, little-endian, in base64."""
    if encoding == "base64":
        return base64.b64encode(row).decode("ascii")
    values: list[Any] = row.tolist()
    return values


def cosine(a: Float32, b: Float32) -> float:
    """Cosine of the angle of two embeddings; 0 if one has no length."""
    x, y = a.tolist(), b.tolist()
    length = hypot(*x) * hypot(*y)
    return sum(map(mul, x, y)) / length if length else 0.0


def new_id(prefix: str) -> str:
    return f"{prefix}-{hex_digits()}"


async def row_response(make: Callable[[], BaseModel], rows: Sequence[Float32], facts: PoolingFacts) -> Response:
    """Return the response with the answer that `make` makes of `rows`, and the model's notice in a header."""

    def write() -> str:
        return make().model_dump_json()

    is_large = sum(row.nbytes for row in rows) > MANY * FLOAT32_BYTES
    body = await asyncio.to_thread(write) if is_large else write()
    headers = {NOTICE_HEADER: facts.notice} if facts.notice else None
    return Response(body, headers=headers, media_type="application/json")
