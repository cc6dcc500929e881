"""Descriptions of bodies and answers on the page /openapi.json beyond FastAPI's own: one line for each status."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ..wire.model import WireModel

Responses = dict[int | str, dict[str, Any]]
Refusals = Callable[[str, str], tuple[int, ...]]  # by path and method

STATUSES = {
    400: "The request is malformed, out of range or not supported; `param` names the field",
    401: "No valid API key, where the server has keys",
    403: "The server does not offer this, or the API key does not open it",
    404: "No such model, or nothing stored under this id",
    408: "The request's own timeout has passed and there is no output",
    409: "Not possible in the present state",
    413: "The body is larger than --max-body-bytes",
    415: "The body is not declared as application/json",
    429: "The queue is full, or a limit of the API key is reached; try again after Retry-After seconds",
    431: "Request line and headers are too large",
    500: "The model failed on this request, or the server has a bug, which is logged",
    507: "The disk is full, or a limit of what is stored is reached",
    503: "Loading, draining or dead; try again after Retry-After seconds",
}
EVERYWHERE = (413, 431, 500)
OF_BODIES = (400, 404, 415, 503)
TEXT = {"schema": {"type": "string"}}
TYPE_AND_DATA = {"event": {"type": "string"}, "data": {"type": "string"}}
EVENT = {"schema": {"type": "object", "properties": TYPE_AND_DATA, "required": ["data"]}}  # of one event in a stream
STREAM: Responses = {200: {"content": {"text/event-stream": EVENT}}}


LINES: Responses = {200: {"content": {"application/x-ndjson": {"schema": {"type": "object"}}}}}


class ErrorObject(WireModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(WireModel):
    """Body of every error."""

    error: ErrorObject


def errors_of(*statuses: int) -> Responses:
    """Return the `responses` of a route that may answer with these errors."""
    return _answers(ErrorAnswer, statuses)


class AnthropicErrorObject(WireModel):
    type: str
    message: str


class AnthropicErrorAnswer(WireModel):
    """Body of every error of Anthropic's API."""

    type: Literal["error"]
    error: AnthropicErrorObject


def anthropic_errors_of(*statuses: int) -> Responses:
    """Return the `responses` of a route of Anthropic's API: these errors and those that all routes have."""
    return _answers(AnthropicErrorAnswer, (*statuses, *EVERYWHERE))


class OllamaErrorAnswer(WireModel):
    """Body of every error of Ollama's API."""

    error: str


def ollama_errors_of(*statuses: int) -> Responses:
    """Return the `responses` of a route of Ollama's API: these errors and those that all routes have."""
    return _answers(OllamaErrorAnswer, (*statuses, *EVERYWHERE))


def _answers(model: type[BaseModel], statuses: Iterable[int]) -> Responses:
    """Refer to the schema, as FastAPI would build a validator of a `model` for each status of each route."""
    content = _content(model)
    return {status: {"description": STATUSES[status], "content": content} for status in statuses}


def _content(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": _reference(model)}}


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def documented(model: type[BaseModel], answer: type[BaseModel] | None = None) -> dict[str, Any]:
    """Return the description of a body that is read with `body_of`, and of the answer when the route writes it itself.

    `Application` adds the schemas that the description refers to.
    """
    body = {"requestBody": {"required": True, "content": _content(model)}}
    return body if answer is None else body | answered_with(answer)


def answered_with(*models: type[BaseModel]) -> dict[str, Any]:
    """Return the description of an answer of any of `models`, for a route that writes it itself.

    From a `response_model` FastAPI would build a validator.
    """
    schema = _reference(models[0]) if len(models) == 1 else {"anyOf": [_reference(model) for model in models]}
    return {"responses": {"200": {"content": {"application/json": {"schema": schema}}}}}


ERRORS: tuple[type[BaseModel], ...] = (ErrorAnswer, AnthropicErrorAnswer, OllamaErrorAnswer)


def _add_refusals(responses: dict[str, Any], statuses: tuple[int, ...]) -> None:
    """Document statuses in the format of the route's other errors."""
    shape = next(answer["content"] for status, answer in responses.items() if status.startswith(("4", "5")))
    for status in statuses:
        responses.setdefault(str(status), {"description": STATUSES[status], "content": shape})


class Application(FastAPI):
    """FastAPI whose OpenAPI page has the schemas that `documented` refers to, and only statuses that occur."""

    bodies: tuple[type[BaseModel], ...] = ()
    answers: tuple[type[BaseModel], ...] = ()
    refusals: Refusals | None = None  # of the middleware before all routes

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            page = super().openapi()
            written, read = _schemas(self.answers, "serialization"), _schemas((*self.bodies, *ERRORS), "validation")
            page["components"]["schemas"] |= written | read
            for path, operations in page["paths"].items():
                for method, operation in operations.items():
                    operation["responses"].pop("422", None)  # FastAPI's for parameters: `errors.py` makes it 400
                    if self.refusals is not None:
                        _add_refusals(operation["responses"], self.refusals(path, method.upper()))
                    for status, response in operation["responses"].items():
                        _is_json_where_it_fails(int(status), response.get("content", {}))
        return super().openapi()


def _schemas(models: Iterable[type[BaseModel]], mode: Literal["validation", "serialization"]) -> dict[str, Any]:
    """Return the schemas of the models and of their fields, by name."""
    _, found = models_json_schema([(model, mode) for model in models], ref_template="#/components/schemas/{model}")
    schemas: dict[str, Any] = found.get("$defs", {})
    return schemas


def _is_json_where_it_fails(status: int, content: dict[str, Any]) -> None:
    """Declare errors as JSON, also where FastAPI uses the content type of a route that answers in plain text."""
    if status >= 400 and "text/plain" in content:
        content["application/json"] = content.pop("text/plain")
