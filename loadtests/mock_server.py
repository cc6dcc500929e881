"""A server with a script instead of a model: tokens at known times, and all kinds of failures.

Tests and the self-check of the generator use it. It records the time of each sent token, on the host's monotonic clock.
`python -m neuronserve.loadtests.mock_server` prints its address, writes it to `--ready-file`, and serves until it is
ended.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import httptools
import msgspec

MODEL = "mock"
Fault = Literal[
    "refuse",  # 429 before the stream
    "crash",  # 500 before the stream
    "disconnect",  # closes after the first half of the tokens
    "stream_error",  # an error event after the first half
    "not_json",  # an event that is no JSON
    "no_stream",  # an HTML page
    "not_http",
    "truncate",  # ends well, but with neither finish reason nor [DONE]
    "too_few",  # one token fewer than requested, and reports so
    "miscount",  # usage has one token too many
    "no_token",
    "silent",  # never answers
]


@dataclass(frozen=True, slots=True)
class Script:
    """Script of the responses. `fault(n)` is the fault of the n-th generation request, from 0."""

    ttft_s: float = 0.005
    itl_s: float = 0.002
    output_len: int = 16  # if the request has none
    max_model_len: int = 8192
    device_seconds_per_token: float | None = None
    hold_until: int = 0  # number of requests that must arrive before the first token is sent
    fault: Callable[[int], Fault | None] = lambda _: None


@dataclass(slots=True)
class ServedRequest:
    """A served request, and the times of its tokens (time.monotonic)."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    received: float
    token_times: list[float] = field(default_factory=list)


class MockServer:
    """An HTTP server on 127.0.0.1, for `async with`."""

    def __init__(self, script: Script | None = None, port: int = 0) -> None:
        """Create the server; `port` 0 is any free one."""
        self.script, self._port = script or Script(), port
        self.served: list[ServedRequest] = []
        self.url = ""
        self._server: asyncio.Server | None = None
        self.connections: set[_Connection] = set()
        self.num_connections = 0  # ever made

    async def __aenter__(self) -> MockServer:
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self), "127.0.0.1", self._port
        )
        self.url = "http://{}:{}".format(*self._server.sockets[0].getsockname()[:2])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.die()

    async def die(self) -> None:
        """Stop listening and cut all connections, as the end of a process does."""
        if self._server is not None:
            self._server.close()
            for connection in list(self.connections):
                connection.cut()
            self._server = None
            await asyncio.sleep(0)


class _Connection(asyncio.Protocol):
    """Parses requests, one at a time, and follows the script."""

    def __init__(self, server: MockServer) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._path, self._body = "", b""
        self._headers: dict[str, str] = {}
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._server.connections.add(self)
        self._server.num_connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._server.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        with contextlib.suppress(httptools.HttpParserError):
            self._parser.feed_data(data)

    @property
    def num_requests_of_server(self) -> int:
        return len(self._server.served)

    def cut(self) -> None:
        self._transport.abort()

    def on_url(self, url: bytes) -> None:
        self._path, self._body, self._headers = url.decode(), b"", {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._path.endswith("/models"):
            model = {"id": MODEL, "object": "model", "max_model_len": self._server.script.max_model_len}
            self._whole(200, {"object": "list", "data": [model]})
        elif self._path.endswith("/version"):
            self._whole(200, {"version": "mock-1"})
        elif self._path == "/health":
            self._whole(200, {"status": "ready"})
        elif not self._path.endswith("/completions"):
            self._whole(404, {"error": {"message": "no such path"}})
        else:
            self._generate()

    def _whole(self, status: int, content: Any, content_type: str = "application/json") -> None:
        body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)

    def _generate(self) -> None:
        body = msgspec.json.decode(self._body, type=dict[str, Any])
        served = ServedRequest(self._path, body, self._headers, time.monotonic())
        fault = self._server.script.fault(len(self._server.served))
        self._server.served.append(served)
        if fault == "refuse":
            self._whole(429, {"error": {"message": "the queue is full"}})
        elif fault == "crash":
            self._whole(500, {"error": {"message": "out of memory"}})
        elif fault == "no_stream":
            self._whole(200, "<html>hello</html>", "text/html")
        elif fault == "not_http":
            self._transport.write(b"220 mail.example ready\r\n")
        elif fault != "silent":
            _Stream(self, self._transport, served, self._server.script, fault).start()

    def later(self, deadline: float, action: Callable[[], None]) -> None:
        """Run `action` at `deadline` (time.monotonic), unless the connection ends first."""
        self._timer = asyncio.get_running_loop().call_later(max(0.0, deadline - time.monotonic()), action)


class _Stream:
    """A streamed response."""

    def __init__(
        self,
        connection: _Connection,
        transport: asyncio.Transport,
        served: ServedRequest,
        script: Script,
        fault: Fault | None,
    ) -> None:
        self._connection, self._transport = connection, transport
        self._served, self._script, self._fault = served, script, fault
        self._asked: int = served.body.get("max_tokens") or script.output_len
        self._count = {"too_few": self._asked - 1, "no_token": 0}.get(fault or "", self._asked)

    def start(self) -> None:
        self._connection.later(self._served.received + self._script.ttft_s, self._first)

    def _is_held(self) -> bool:
        return self._connection.num_requests_of_server < self._script.hold_until

    def _first(self) -> None:
        if self._is_held():
            self._connection.later(time.monotonic() + 0.01, self._first)
            return
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        self._next()

    def _next(self) -> None:
        sent = len(self._served.token_times)
        if sent >= self._asked // 2 and self._fails_here():
            return
        if sent >= self._count:
            self._end()
            return
        self._served.token_times.append(time.monotonic())
        self._event(self._choice(f"t{sent} ", sent, None))
        if sent + 1 == self._count == self._asked and self._fault is None:
            self._end()
            return
        due = self._served.received + self._script.ttft_s + (sent + 1) * self._script.itl_s
        self._connection.later(due, self._next)

    def _fails_here(self) -> bool:
        if self._fault == "disconnect":
            self._connection.cut()
        elif self._fault == "stream_error":
            self._event({"error": {"message": "the engine has ended", "code": "engine_dead"}})
            self._chunk(b"data: [DONE]\n\n", is_last=True)
        elif self._fault == "not_json":
            self._chunk(b"data: {oops\n\n", is_last=True)
        elif self._fault == "truncate":
            self._chunk(b"", is_last=True)
        else:
            return False
        return True

    def _end(self) -> None:
        if self._fault != "no_token":
            self._event(self._choice("", None, "length"))
        self._event({"choices": [], "usage": self._usage()})
        self._chunk(b"data: [DONE]\n\n", is_last=True)

    def _usage(self) -> dict[str, Any]:
        prompt = self._served.body.get("prompt", "")
        length = len(prompt) if isinstance(prompt, list) else len(str(prompt).split()) or 7
        count = self._count + (self._fault == "miscount")
        usage: dict[str, Any] = {"prompt_tokens": length, "completion_tokens": count, "total_tokens": length + count}
        if self._script.device_seconds_per_token is not None:
            seconds = self._script.device_seconds_per_token * (length + count)
            usage["neuronserve"] = {"device_seconds": seconds}
        return usage

    def _choice(self, text: str, token_id: int | None, finish_reason: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish_reason}
        if self._served.path.endswith("/chat/completions"):
            choice["delta"] = {"content": text} if text else {}
        else:
            choice["text"] = text
        if token_id is not None and self._served.body.get("return_token_ids"):
            choice["token_ids"] = [token_id]
        return {"id": "mock", "object": "chunk", "choices": [choice]}

    def _event(self, content: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(content).encode() + b"\n\n")

    def _chunk(self, data: bytes, is_last: bool = False) -> None:
        framed = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        self._transport.write(framed + (b"0\r\n\r\n" if is_last else b""))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m neuronserve.loadtests.mock_server", description=__doc__)
    parser.add_argument("--ttft-ms", type=float, default=5.0)
    parser.add_argument("--itl-ms", type=float, default=2.0)
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ready-file", type=Path)
    arguments = parser.parse_args(argv)
    with contextlib.suppress(KeyboardInterrupt):
        script = Script(arguments.ttft_ms / 1e3, arguments.itl_ms / 1e3, max_model_len=arguments.max_model_len)
        asyncio.run(_serve(script, arguments.port, arguments.ready_file))
    return 0


async def _serve(script: Script, port: int, ready_file: Path | None) -> None:
    async with MockServer(script, port) as server:
        print(f"ready: {server.url}", file=sys.stderr, flush=True)
        if ready_file is not None:
            partial = ready_file.with_suffix(".partial")  # the file is there whole or not at all
            partial.write_text(json.dumps({"url": server.url, "model": MODEL, "pid": os.getpid()}))
            partial.replace(ready_file)
        await asyncio.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
