"""Request bodies: read, parsed and validated in one step, with the same errors for every endpoint."""

from __future__ import annotations

from codecs import BOM_UTF8  # what programs of Windows begin files with, and so bodies
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError

from ...errors import UnsupportedMediaType
from ...text.fair_threads import FairThreads, is_large
from ..errors import invalid_body

JSON = "application/json"
M = TypeVar("M", bound=BaseModel)

# Pause after parsing a large body, as a multiple of the parsing time: a parser holds the interpreter lock.
PARSING_REST = 4.0


def body_of(model: type[M]) -> Callable[[Request], Awaitable[M]]:
    """Return a FastAPI dependency that reads the body as `model`. Raises RequestError."""

    async def read(request: Request) -> M:
        content_type(request, JSON)
        data = await request.body()
        if not is_large.get():
            return parse(model, data)
        parsing: FairThreads = request.app.state.service.parsing
        return await parsing.run(partial(parse, model, data))

    return read


if TYPE_CHECKING:
    BodyOf: TypeAlias = Annotated[M, "a body"]
else:

    class BodyOf:
        """The annotation `BodyOf[Model]` of a route's argument: the request's body, read as that model."""

        def __class_getitem__(cls, model: type[M]) -> object:
            return Annotated[model, Depends(body_of(model))]


def parsing_thread() -> FairThreads:
    """Return the thread that parses large bodies, of each client in turn."""
    return FairThreads("parsing", 1, 1, PARSING_REST)


def content_type(request: Request, *known: str) -> str:
    """Return the declared type of the body. Raises UnsupportedMediaType for unknown types and compressed bodies."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind not in known:
        raise UnsupportedMediaType(f"The content type must be {' or '.join(known)}, not {kind[:80]!r}.")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise UnsupportedMediaType(f"Compressed bodies are not read: the content encoding is {coding[:80]!r}.")
    return kind


def parse(model: type[M], data: bytes) -> M:
    """Parse `data` as `model`. Raises InvalidRequest with the offending field in `param`."""
    try:
        return model.model_validate_json(data.removeprefix(BOM_UTF8))
    except ValidationError as error:
        raise invalid_body(error) from error
