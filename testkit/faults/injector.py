"""Middleware that injects faults into answers, and its addition to a server's API."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...server.api.errors import error_response
from ...server.api.http.connection_end import end_connection, without_direct_writer
from ...server.errors import InvalidRequest, QueueFull, RequestError
from .disturbance import disturbed
from .rule_file import FAULT_HEADER, header_rule
from .rules import (
    BY_HEADER,
    FaultConfig,
    Injection,
    Injections,
    RateLimit,
    Reset,
    Rule,
    ServerError,
    Unavailable,
)
from .script import Scripts

log = logging.getLogger("neuronserve.faults")
HEADER_LABEL = "header"  # label of faults by a request's header
Count = Callable[[str, str], None]


class InjectedError(RequestError):
    """An injected error."""

    kind = "server_error"
    code = "injected_fault"

    def __init__(self, status: int) -> None:
        super().__init__("This fault was injected on purpose; the server is well.")
        self.status = status


class InjectedLimit(QueueFull):
    """An injected rate limit or unavailability."""

    code = "injected_fault"

    def __init__(self, retry_after_s: int, status: int, kind: str) -> None:
        super().__init__("This limit was injected on purpose; the server is not busy.")
        self.retry_after_s, self.status, self.kind = retry_after_s, status, kind


class FaultInjector:
    """Innermost middleware: a disturbed answer is counted and logged as any answer."""

    def __init__(self, app: ASGIApp, config: FaultConfig, count: Count, scripts: Scripts | None = None) -> None:
        """Take the rules, or those of `scripts`. `count` gets the fault and the rule's label of each injection."""
        self._app = app
        self._scripts = scripts or Scripts(config)
        self._by_header = Injections((), config.seed)
        self._seed = config.seed
        self._is_header_allowed = config.is_header_allowed
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            receive, body = await _read_json(headers, receive)
            if (output := self._scripts.answer(scope["path"], headers, body)) is not None:
                scope.setdefault("state", {})["scripted"] = output
            injection = self._choose(scope["path"], headers, body)
        except RequestError as error:
            await error_response(error, scope["path"])(scope, receive, send)
            return
        if injection is None:
            await self._app(scope, receive, send)
            return
        self._count(injection.rule.kind, injection.label)
        log.info(
            "fault %s injected by rule %s into its request %d", injection.rule.kind, injection.label, injection.number
        )
        if isinstance(injection.rule, Reset):
            end_connection(scope, "reset")
            while (await receive())["type"] != "http.disconnect":
                pass
        elif (refusal := _refusal(injection.rule)) is not None:
            await error_response(refusal, scope["path"])(scope, receive, _marking(injection, send))
        else:
            disturbing = disturbed(injection, scope, _marking(injection, send))
            await self._app(without_direct_writer(scope), receive, disturbing)

    def _choose(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> Injection | None:
        """Return the injection for a request, if any. Raises InvalidRequest for an invalid header."""
        text = headers.get(FAULT_HEADER.lower()) if self._is_header_allowed else None
        if text is None:
            return self._scripts.fault(path, headers, body)
        rule = header_rule(text)
        drawn = self._by_header.draw([BY_HEADER]) if rule.accepts(path, headers, body) else None
        return None if drawn is None else Injection(rule, HEADER_LABEL, drawn[1], Random(f"{self._seed}:{drawn[1]}"))


def _refusal(rule: Rule) -> RequestError | None:
    """Return the error that replaces the answer, if the fault is one."""
    match rule:
        case RateLimit():
            return InjectedLimit(rule.retry_after, 429, "rate_limit_error")
        case Unavailable():
            return InjectedLimit(rule.retry_after, 503, "service_unavailable")
        case ServerError():
            return InjectedError(rule.status)
        case _:
            return None


def _marking(injection: Injection, send: Send) -> Send:
    """Add a header with the fault, so that users see that it was injected."""

    async def marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            mark = (b"x-injected-fault", injection.rule.kind.encode())
            message = {**message, "headers": [*message.get("headers", []), mark]}
        await send(message)

    return marked


async def _read_json(headers: dict[str, str], receive: Receive) -> tuple[Receive, dict[str, Any]]:
    """Return a `receive` that repeats the messages, and the JSON body; {} if there is none.

    Raises PayloadTooLarge from the body limit around this middleware.
    """
    if "json" not in headers.get("content-type", ""):
        return receive, {}
    messages: list[Message] = []
    while True:
        message = await receive()
        messages.append(message)
        if message["type"] != "http.request" or not message.get("more_body", False):
            break
    try:
        body = json.loads(b"".join(message.get("body", b"") for message in messages))
    except (ValueError, RecursionError):  # the application reports the error
        body = {}

    async def again() -> Message:
        return messages.pop(0) if messages else await receive()

    return again, body if isinstance(body, dict) else {}


def script_routes(scripts: Scripts) -> list[Route]:
    """Return POST /admin/script, and DELETE /admin/script/{number}."""

    async def add(request: Request) -> Response:
        try:
            content = await request.json()
        except ValueError as error:
            raise InvalidRequest(f"The body is not valid JSON: {error}") from error
        return JSONResponse({"number": scripts.add(content)})

    async def remove(request: Request) -> Response:
        return Response(status_code=204 if scripts.remove(request.path_params["number"]) else 404)

    return [
        Route("/admin/script", add, methods=["POST"]),
        Route("/admin/script/{number:int}", remove, methods=["DELETE"]),
    ]


@dataclass(frozen=True, slots=True)
class FaultInjection:
    """Implements neuronserve.server.api.addition.Addition."""

    config: FaultConfig

    def mount(self, app: Any, service: Any) -> None:
        """Add the middleware, and the paths by which tests add and remove scripts."""
        scripts = Scripts(self.config)
        count = service.telemetry.count_fault
        app.add_middleware(FaultInjector, config=self.config, count=count, scripts=scripts)
        if self.config.is_script_allowed:
            app.router.routes += script_routes(scripts)

    def describe(self) -> dict[str, object]:
        """Return the rules in force."""
        has_script = bool(self.config.answers or self.config.script or self.config.is_script_allowed)
        return {"faults": self.config.as_json()} | ({"script": len(self.config.answers)} if has_script else {})
