"""Limit on header bytes, counted as they arrive by a subclass of uvicorn's httptools protocol.

httptools itself keeps an unfinished header of any size in memory, and uvicorn's h11 limits do nothing when it is used.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.api.config import MAX_HEADER_BYTES
from server.api.errors import HeadersTooLarge, error_bytes


class LimitedHttpProtocol(HttpToolsProtocol):
    """Answers 431 and closes as soon as request line and headers together pass `MAX_HEADER_BYTES`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._raw_bytes = 0  # received since the last request's end while headers are unfinished
        self._parsed_bytes = 0  # of the request line and the headers that are complete
        self._is_in_body = False
        self._is_refused = False

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._raw_bytes += len(data)
        super().data_received(data)
        if self._is_in_body:
            self._raw_bytes = 0
        elif self._raw_bytes > MAX_HEADER_BYTES:
            self._refuse()

    def on_message_begin(self) -> None:
        self._parsed_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_body = True
        if not self._is_refused:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_body = False
        self._raw_bytes = 0
        if not self._is_refused:
            super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: an upgrade (h2c, WebSocket) may be ignored by HTTP's rules, and is answered as plain HTTP."""

    def _count(self, size: int) -> None:
        self._parsed_bytes += size
        if self._parsed_bytes > MAX_HEADER_BYTES:
            self._refuse()

    def _refuse(self) -> None:
        if self._is_refused:
            return
        self._is_refused = True
        error = HeadersTooLarge(
            f"Request line and headers are larger than the {MAX_HEADER_BYTES} bytes this server reads."
        )
        body = error_bytes(error)
        head = (
            "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
