"""OpenAI error objects of all errors. Handlers raise; this file writes the error bodies."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match

from ..errors import (
    InvalidRequest,
    PayloadTooLarge,
    QueueFull,
    RequestError,
    RequestTimeout,
    Unauthorized,
)
from .anthropic_error import anthropic_error_bytes

log = logging.getLogger("neuronserve.api")
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
RETRY_AFTER_S = 1
NOT_OFFERED = {
    "/v1/audio/speech": "speech",
    "/v1/images": "images",
    "/v1/videos": "video",
    "/v1/moderations": "moderations",
}
OLLAMA_PATH = "/api/"
ANTHROPIC_PATH, ANTHROPIC_HEADER = "/v1/messages", "anthropic-version"  # paths and header of Anthropic's clients
_FIELD = re.compile(r"[a-z][a-z0-9_]*")
_TYPE_NAMES = frozenset({"str", "int", "float", "bool", "nullable"})  # in pydantic's paths: a branch of a union


class _InternalError(RequestError, status=500, kind="server_error", code="internal_error"):
    """A defect of the server."""


class _WrongRoute(RequestError):
    """No such path, or not with this method."""


def unsupported(param: str, why: str = " is not supported by this server.") -> InvalidRequest:
    """Return the refusal of a field or a value that this server knows and does not support; `why` follows its name."""
    return InvalidRequest(f"{param}{why}", param, "unsupported_parameter")


def refuse_given(given: Mapping[str, Any] | None, *names: str, before: str = "") -> None:
    """Raise InvalidRequest for the first of these fields that has a value; `before` is the path of its object."""
    for name in names:
        if (given or {}).get(name):
            raise unsupported(f"{before}{name}")


def required(value: T | None, param: str) -> T:
    """Return `value`. Raises InvalidRequest if it is None."""
    if value is None:
        raise InvalidRequest(f"{param} is required.", param)
    return value


def error_object(error: RequestError) -> dict[str, Any]:
    """Return the OpenAI error object: exactly message, type, param and code."""
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


def error_bytes(error: RequestError) -> bytes:
    """Return `error_object` as JSON; characters that UTF-8 cannot hold are escaped."""
    return json.dumps(error_object(error)).encode()


def ollama_error_bytes(error: RequestError) -> bytes:
    """Return the error as Ollama's clients read it: its message alone."""
    return json.dumps({"error": error.message}).encode()


def _error_bytes_of(path: str) -> Callable[[RequestError], bytes]:
    if path.startswith(OLLAMA_PATH):
        return ollama_error_bytes
    return anthropic_error_bytes if path.startswith(ANTHROPIC_PATH) else error_bytes


def error_response(error: RequestError, path: str = "") -> Response:
    """Return the HTTP answer of an error, in the format of the API that has `path`."""
    headers = {}
    if isinstance(error, QueueFull):
        headers["Retry-After"] = str(error.retry_after_s)
    elif error.status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if isinstance(error, RequestTimeout):
        headers["x-should-retry"] = "false"  # otherwise the clients of OpenAI and Anthropic retry
    if isinstance(error, PayloadTooLarge):
        headers["Connection"] = "close"  # the rest of the body is not read
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return Response(_error_bytes_of(path)(error), error.status, headers, media_type="application/json")


def as_request_error(error: Exception) -> RequestError:
    """Convert any error to one that may be shown. An unexpected one is logged here, and its details are not shown."""
    if isinstance(error, RequestError):
        return error
    log.error("unexpected error while answering", exc_info=error)
    return _InternalError("The server met an unexpected error; it has been logged.")


def invalid_body(error: ValidationError | RequestValidationError) -> InvalidRequest:
    """Return the first validation error of a body, with the path of its field, such as `messages[0].content`.

    For a field of several types, the error comes from the branch that got furthest and has no other `type`.
    """
    items = error.errors()
    if isinstance(error, RequestValidationError):
        items = [{**item, "loc": item["loc"][1:]} for item in items]  # without FastAPI's place: query, path
    others = {tuple(item["loc"][:-1]) for item in items if _is_other_type(item)}
    meant = [item for item in items if not any(tuple(item["loc"][: len(other)]) == other for other in others)]
    found = [(_path(item["loc"]), item) for item in meant or items]
    deepest = max(len(path) for path, _ in found)
    path = next(path for path, _ in found if len(path) == deepest)
    messages = dict.fromkeys(_message(item) for other, item in found if other == path)
    param = _written(path)
    text = " or ".join(messages)
    return InvalidRequest(f"{param}: {text}" if param else text, param)


def as_body(kind: type[M], fields: Mapping[str, Any], is_strict: bool | None = None) -> M:
    """Return the body that a dialect has made of another one's fields. Raises InvalidRequest that names the field."""
    try:
        return kind.model_validate(fields, strict=is_strict)
    except ValidationError as error:
        raise invalid_body(error) from error


def install(app: FastAPI, offered: Sequence[str], routes: Sequence[BaseRoute] = ()) -> None:
    """Register handlers that answer every error of `app` with an OpenAI error object.

    A 404 lists `offered`, the paths under /v1. A 405 lists the methods of all `routes` with its path.
    """

    def path_of(request: Request) -> str:
        return ANTHROPIC_PATH if ANTHROPIC_HEADER in request.headers else request.url.path

    async def refused(request: Request, error: Exception) -> Response:
        return error_response(as_request_error(error), path_of(request))

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return error_response(invalid_body(error), path_of(request))

    async def no_route(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        wrong = _wrong_route(error, request, offered)
        response = error_response(wrong, path_of(request))
        response.headers.update(error.headers or {})
        if error.status_code == 405 and (methods := _methods(routes, request)):
            response.headers["Allow"] = ", ".join(methods)
        return response

    async def gone(_: Request, __: Exception) -> Response:
        return Response(status_code=499)  # only the access log reads it

    app.add_exception_handler(RequestError, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, no_route)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(Exception, refused)


def _methods(routes: Sequence[BaseRoute], request: Request) -> list[str]:
    """Return the methods of all routes that match, preferably without parameters;

    Starlette has only the first route's.
    """
    found = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    exact = [route for route in found if getattr(route, "path", None) == request.url.path]
    return sorted({method for route in exact or found for method in getattr(route, "methods", None) or ()})


def _wrong_route(error: HTTPException, request: Request, offered: Sequence[str]) -> _WrongRoute:
    path = request.url.path
    text, code = f"{error.detail}: {request.method} {path[:200]}", "not_found"
    if error.status_code == 404 and (closest := _closest(path, offered)):
        text = f"{text}. The path is {closest}."
    elif error.status_code == 404 and path.startswith("/v1/"):
        kind = next((kind for prefix, kind in NOT_OFFERED.items() if path.startswith(prefix)), None)
        if kind is not None:
            text, code = f"This server generates text and has no {kind}: {request.method} {path[:200]}", "not_supported"
        text = f"{text}. It offers {', '.join(offered)}."
    wrong = _WrongRoute(text, code=code)
    wrong.status = error.status_code
    return wrong


def _closest(path: str, offered: Sequence[str]) -> str | None:
    """Return the longest offered path that ends like `path`, for clients whose base URL has a wrong prefix."""
    wanted = "/" + "/".join(part for part in path.split("/") if part)
    found = [each for each in offered if wanted.endswith(each.removeprefix("/v1"))]
    closest = max(found, key=len, default=None)
    if closest is not None and re.match("/v1/(?!v1/)", wanted + "/") and wanted != closest:
        return None  # another path of OpenAI, as /v1/threads/{id}/messages
    return closest


def _path(loc: Sequence[int | str]) -> list[int | str]:
    """Return the part of pydantic's path that exists in the body: no type names, no keys that the client made up."""
    kept: list[int | str] = []
    for part in loc:
        if isinstance(part, str) and (not _FIELD.fullmatch(part) or part in _TYPE_NAMES):
            continue
        kept.append(part)
    return kept


def _is_other_type(item: Any) -> bool:
    """Return whether the error says that a branch of a union has another `type` than the value."""
    loc = [str(part) for part in item["loc"]]
    return item["type"] == "literal_error" and loc[1:][-1:] == ["type"] and not _FIELD.fullmatch(loc[-2])


def _written(path: Sequence[int | str]) -> str | None:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or None


def _message(item: Any) -> str:
    if item["type"] == "json_invalid":
        return f"The body is not valid JSON: {item['ctx']['error']}"
    if item["type"] == "none_required":
        return "belongs to another type"  # the only fields that must be null are those of the union's other types
    text = str(item["msg"]).replace("Input should be", "must be").replace("Field required", "is required")
    value = item.get("input")
    if isinstance(value, str | int | float) and item["type"] != "missing":
        return f"{text}, not {_shown(value)}"
    return text


def _shown(value: str | float) -> str:
    """Return the value as the client wrote it, at most 80 characters; a huge integer is not converted."""
    if isinstance(value, int) and value.bit_length() > 256:
        return "a number of more than 77 digits"
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
