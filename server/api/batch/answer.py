"""One line of a batch, answered by the dialect of its url as over HTTP, and tried again while it must wait."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel

from ...errors import EngineLost, InvalidRequest
from ..dialects import chat, completions, embeddings
from ..dialects.messages import routes as messages
from ..dialects.responses import prepare as responses
from ..errors import as_request_error, error_object
from ..http.body import parse
from ..http.origin import Origin
from ..keys.ring import Caller
from ..pipeline.respond import AnswerWriter, whole_answer
from ..service import Service
from ..store.records import LineResult
from ..wire.batches import Endpoint
from ..wire.chat import ChatRequest
from ..wire.completions import CompletionRequest
from ..wire.generation import INT32
from ..wire.message import MessagesUsage
from ..wire.messages import MessagesRequest
from ..wire.pooling import EmbeddingRequest
from ..wire.response import ResponseUsage
from ..wire.responses import ResponsesRequest
from ..wire.usage import PoolingUsage, Usage
from .lines import BatchLine

PRIORITY = INT32  # behind all requests of waiting clients
LATER = (429, 503)  # tried again: the queue is full, or an engine restarts
RETRY_S = 0.5
NOT_HERE = ("stream", "background")  # fields that a line may not set: no client listens

Answer = Callable[[Origin, Any, Service], Awaitable[BaseModel]]


def _written(prepare: Callable[[Origin, Any, Service], Awaitable[AnswerWriter]]) -> Answer:
    """Answer in the dialect whose `prepare` checks a body and returns a writer."""

    async def answer(origin: Origin, body: BaseModel, service: Service) -> BaseModel:
        return await whole_answer(await prepare(origin, body, service))

    return answer


async def _response(origin: Origin, body: ResponsesRequest, service: Service) -> BaseModel:
    return await (await responses.prepare(origin, body, service)).finished()


async def _embeddings(origin: Origin, body: EmbeddingRequest, service: Service) -> BaseModel:
    return await asyncio.to_thread((await embeddings.embedded(origin, body, service)).make)


ENDPOINTS: dict[Endpoint, tuple[type[BaseModel], Answer]] = {
    "/v1/chat/completions": (ChatRequest, _written(chat.prepare)),
    "/v1/completions": (CompletionRequest, _written(completions.prepare)),
    "/v1/responses": (ResponsesRequest, _response),
    "/v1/embeddings": (EmbeddingRequest, _embeddings),
    "/v1/messages": (MessagesRequest, _written(messages.prepare)),
}


@dataclass(frozen=True, slots=True)
class Worker:
    """Answers lines of one batch, or of a file."""

    service: Service
    batch_id: str
    caller: Caller

    async def answer(self, line: BatchLine) -> LineResult:
        """Return the result of a line, an answer or a refusal. Raises EngineLost when no engine is left."""
        request_id = _request_id()
        while True:
            try:
                answer = await self._ask(line, request_id)
            except Exception as failure:
                error = as_request_error(failure)
                if self.service.phase == "dead":
                    raise EngineLost(error.message) from failure
                if error.status not in LATER:
                    return self._failed(line, request_id, error.status, error_object(error))
                await asyncio.sleep(RETRY_S)
            else:
                return await asyncio.to_thread(
                    self._answered, line, request_id, answer
                )  # embeddings take long to encode

    def given_up(self, line: BatchLine, code: str, message: str) -> LineResult:
        """Return the result of a line that will not be answered."""
        record = {
            "id": _request_id(),
            "custom_id": line.custom_id,
            "response": None,
            "error": {"code": code, "message": message},
        }
        return LineResult(self.batch_id, line.number, True, _encoded(record), is_given_up=True)

    async def _ask(self, line: BatchLine, request_id: str) -> BaseModel:
        model, answer = ENDPOINTS[cast(Endpoint, line.url)]  # `LineRules` has checked the url
        body = parse(model, line.body)
        for name in NOT_HERE:
            if getattr(body, name, None):
                raise InvalidRequest(f"{name} is not possible in a batch.", name)
        arrival = self.service.clock.now()
        origin = Origin(request_id, arrival, caller=self.caller, has_device_usage=True)
        return await answer(origin, body.model_copy(update={"priority": PRIORITY}), self.service)

    def _answered(self, line: BatchLine, request_id: str, answer: BaseModel) -> LineResult:
        data = _encoded(_record(line, request_id, 200, answer.model_dump(mode="json")))
        return LineResult(self.batch_id, line.number, False, data, **_counts(getattr(answer, "usage", None)))

    def _failed(self, line: BatchLine, request_id: str, status: int, body: dict[str, Any]) -> LineResult:
        return LineResult(self.batch_id, line.number, True, _encoded(_record(line, request_id, status, body)))


def _request_id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"


def _record(line: BatchLine, request_id: str, status: int, body: dict[str, Any]) -> dict[str, Any]:
    response = {"status_code": status, "request_id": request_id, "body": body}
    return {"id": request_id, "custom_id": line.custom_id, "response": response, "error": None}


def _encoded(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"  # in ASCII: some readers take U+2028 for the end of a line


def _counts(usage: Usage | ResponseUsage | PoolingUsage | MessagesUsage | None) -> dict[str, Any]:
    """Return the token counts and the cost of a result."""
    if usage is None:
        return {}
    if isinstance(usage, ResponseUsage):
        counts: dict[str, Any] = {
            "input_tokens": usage.input_tokens,
            "cached_tokens": usage.input_tokens_details.cached_tokens,
            "output_tokens": usage.output_tokens,
            "reasoning_tokens": usage.output_tokens_details.reasoning_tokens,
        }
    elif isinstance(usage, MessagesUsage):
        cached = usage.cache_read_input_tokens
        counts = {
            "input_tokens": usage.input_tokens + usage.cache_creation_input_tokens + cached,
            "cached_tokens": cached,
            "output_tokens": usage.output_tokens,
        }
    elif isinstance(usage, PoolingUsage):
        counts = {"input_tokens": usage.prompt_tokens}
    else:
        counts = {
            "input_tokens": usage.prompt_tokens,
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
            "output_tokens": usage.completion_tokens,
        }
    device = usage.neuronserve
    return (
        counts if device is None else {**counts, "device_seconds": device.device_seconds, "cost_usd": device.cost_usd}
    )
