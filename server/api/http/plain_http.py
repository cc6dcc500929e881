"""HTTP that uvicorn's httptools protocol does not handle: offers of another protocol, and HTTP/1.0 clients."""

from __future__ import annotations

from array import array
from typing import Any, cast

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle


class PlainHttpProtocol(HttpToolsProtocol):
    """Ignores offers of another protocol (h2c, WebSocket), and sends no chunks to HTTP/1.0 clients."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser = _Parser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does

    @property
    def is_offering(self) -> bool:
        """Return whether the current request offers another protocol; it is then read again without the offer."""
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    def head_without_offer(self) -> bytes:
        """Return request line and headers of the current request without the offer."""
        line = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        headers = [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        return b"".join([line, *headers, b"\r\n"])

    def on_headers_complete(self) -> None:
        if not self.is_offering:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.is_offering:
            super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: only CONNECT is left, which is answered like any other unknown method."""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        is_old = cycle.scope["http_version"] == "1.0"
        super()._start_asgi_task(
            cycle, cast(ASGI3Application, _until_close(cycle, cast(ASGIApp, app))) if is_old else app
        )


class _Parser(httptools.HttpRequestParser):
    """Continues as HTTP after a head that offers another protocol; httptools stops there with the body unread."""

    def __init__(self, protocol: PlainHttpProtocol) -> None:
        super().__init__(protocol)
        self._protocol = protocol

    def feed_data(self, data: bytes | bytearray | memoryview[int] | array[int]) -> None:
        rest = memoryview(data)
        while rest:
            try:
                super().feed_data(rest)
            except httptools.HttpParserUpgrade as stop:
                if not self._protocol.is_offering:
                    raise
                rest = rest[stop.args[0] :]
                super().feed_data(self._protocol.head_without_offer())
            else:
                return


def _until_close(cycle: RequestResponseCycle, app: ASGIApp) -> ASGIApp:
    """Return an application whose answers end with the connection."""

    async def unframed(scope: Scope, receive: Receive, send: Send) -> None:
        async def bare(message: Message) -> None:
            cycle.chunked_encoding, cycle.expected_content_length = False, len(message.get("body", b""))
            await send(message)

        await app(scope, receive, bare)

    return unframed
