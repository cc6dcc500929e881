"""POST /invocations of SageMaker's container contract: a chat or completions body, or JSON lines of them in a batch."""

import asyncio
from dataclasses import replace

from fastapi import APIRouter, Request, Response
from pydantic_core import from_json

from ...errors import InvalidRequest
from ..http.body import JSON, content_type, parse
from ..http.event_stream import until_disconnect
from ..http.openapi import OF_BODIES, STREAM, TEXT, answered_with, errors_of
from ..http.origin import Origin, origin_of
from ..pipeline.respond import AnswerWriter, respond, whole_answer
from ..pipeline.room import require_room
from ..service import Service, ServiceOf
from ..wire.chat import ChatCompletion, ChatRequest
from ..wire.completions import Completion, CompletionRequest
from . import chat, completions

LINES = "application/jsonlines"
MAX_LINES = 1024  # in one body; a batch transform sends at most 6 MiB by default
router = APIRouter()
_SCHEMAS = [{"$ref": f"#/components/schemas/{model.__name__}"} for model in (ChatRequest, CompletionRequest)]
_BODY = {"required": True, "content": {JSON: {"schema": {"anyOf": _SCHEMAS}}, LINES: TEXT}}
RESPONSES = {200: {"content": {**STREAM[200]["content"], LINES: TEXT}}} | errors_of(401, 408, 429, *OF_BODIES)


@router.post(
    "/invocations",
    responses=RESPONSES,
    openapi_extra={"requestBody": _BODY, **answered_with(ChatCompletion, Completion)},
)
async def invoke(request: Request, service: ServiceOf) -> Response:
    """Answer a body as its own endpoint does; answer JSON lines with one line each, in their order."""
    kind = content_type(request, JSON, LINES)
    data = await request.body()
    if kind == JSON:
        writer, is_stream = await _prepare(origin_of(request), data, service)
        return await respond(request.receive, writer, is_stream)
    return await until_disconnect(request.receive, _answer_lines(request, data, service))


async def _prepare(origin: Origin, data: bytes, service: Service) -> tuple[AnswerWriter, bool]:
    """Return the writer of the dialect that a body is in, and whether the answer is streamed."""
    try:
        given = from_json(data)
    except ValueError:
        given = {"prompt": None}  # it is parsed again below, for the error message
    if isinstance(given, dict) and "messages" in given:
        conversation = parse(ChatRequest, data)
        return await chat.prepare(origin, conversation, service), bool(conversation.stream)
    if isinstance(given, dict) and "prompt" not in given:
        raise InvalidRequest("The body needs messages, for chat, or a prompt, for text.", "messages")
    body = parse(CompletionRequest, data)
    return await completions.prepare(origin, body, service), bool(body.stream)


async def _answer_lines(request: Request, data: bytes, service: Service) -> Response:
    """Answer each line. Nothing starts before every line has been checked."""
    lines = [line for line in data.split(b"\n") if line.strip()]
    if not 1 <= len(lines) <= MAX_LINES:
        raise InvalidRequest(f"The body has {len(lines)} lines; from 1 to {MAX_LINES} are taken.")
    require_room(service, len(lines))
    origin = origin_of(request)
    writers = [await _prepare_line(origin, number, line, service) for number, line in enumerate(lines, 1)]
    require_room(service, sum(len(writer.generation.prompts) for writer in writers))
    try:
        async with asyncio.TaskGroup() as group:
            answers = [group.create_task(whole_answer(writer)) for writer in writers]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed  # the others have been cancelled
    text = "".join(answer.result().model_dump_json() + "\n" for answer in answers)
    return Response(text, media_type=LINES)


async def _prepare_line(origin: Origin, number: int, line: bytes, service: Service) -> AnswerWriter:
    try:
        writer, is_stream = await _prepare(replace(origin, request_id=f"{origin.request_id}-{number}"), line, service)
    except InvalidRequest as error:
        raise InvalidRequest(f"line {number}: {error.message}", error.param, error.code) from error
    if is_stream:
        raise InvalidRequest(f"line {number}: stream is not possible for lines.", "stream")
    return writer
