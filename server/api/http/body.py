"""Request bodies: read, parsed and validated in one step, with the same errors for every endpoint."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from server.api.errors import UnsupportedMediaType, invalid_body

M = TypeVar("M", bound=BaseModel)


def body_of(model: type[M]) -> Callable[[Request], Awaitable[M]]:
    """A FastAPI dependency that reads the body as `model`. Raises RequestError."""

    async def read(request: Request) -> M:
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if kind != "application/json":
            raise UnsupportedMediaType(f"The content type must be application/json, not {kind[:80]!r}.")
        return parse(model, await request.body())

    return read


def parse(model: type[M], data: bytes) -> M:
    """Parse `data` as `model`. Raises InvalidRequest with the offending field in `param`."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise invalid_body(error) from error
