"""Rows of float32 in the forms that answers have."""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel
from starlette.responses import Response

from server.api.wire.pooling import EncodingFormat
from server.link.messages import PoolingFacts

Float32 = npt.NDArray[np.float32]
NOTICE_HEADER = "X-Neuronserve-Notice"
MANY = 1 << 15  # values whose writing others should not wait for


def shown(row: Float32, encoding: EncodingFormat | None) -> list[Any] | str:
    """Values as JSON has them, or the bytes of float32, little-endian, in base64."""
    if encoding == "base64":
        return base64.b64encode(row.astype("<f4", copy=False).tobytes()).decode("ascii")
    values: list[Any] = row.tolist()
    return values


def cosine(a: Float32, b: Float32) -> float:
    """Of two embeddings; 0 where one has no length."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    length = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / length if length else 0.0


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


async def answered(make: Callable[[], BaseModel], rows: Sequence[Float32], facts: PoolingFacts) -> Response:
    """The response of the answer that `make` makes of `rows`, with what a user should know of them in a header."""

    def write() -> str:
        return make().model_dump_json()

    is_large = sum(row.size for row in rows) > MANY
    body = await asyncio.to_thread(write) if is_large else write()
    headers = {NOTICE_HEADER: facts.notice} if facts.notice else None
    return Response(body, headers=headers, media_type="application/json")
