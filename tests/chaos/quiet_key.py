"""Service for a client with a key of its own: latency of short chats and of liveness, and pauses of streams."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.api.serving import PATIENCE_S

PERIOD_S = 0.05
BODY = json.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1, "temperature": 0})
STREAM = json.dumps({"prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True, "temperature": 0})


@dataclass
class Noticed:
    """Seconds that each request took, and pauses between chunks of streams."""

    chats: list[float] = field(default_factory=list)
    live: list[float] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rows = ("chat", self.chats), ("live", self.live), ("pause", self.pauses)
        return ", ".join(
            f"{name} p50 {at(s, 0.5) * 1e3:.0f} p99 {at(s, 0.99) * 1e3:.0f} ms ({len(s)})" for name, s in rows
        )


def at(seconds: list[float], share: float) -> float:
    """A quantile, by the nearest rank; 0 of nothing."""
    return sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * share))] if seconds else 0.0


class QuietKey:
    """Send requests from three threads until `close`."""

    def __init__(self, url: str, key: str, live_url: str | None = None) -> None:
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self._url, self._live_url = url, live_url or url
        self._is_over = threading.Event()
        self.noticed = Noticed()

    @contextlib.contextmanager
    def asking(self) -> Iterator[Noticed]:
        """While the block runs."""
        threads = [
            threading.Thread(target=self._repeat, args=each)
            for each in ((self._chat, self._url), (self._live, self._live_url), (self._stream, self._url))
        ]
        for thread in threads:
            thread.start()
        try:
            yield self.noticed
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join()

    def _repeat(self, ask: Callable[[http.client.HTTPConnection], None], url: str) -> None:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
        while not self._is_over.is_set():
            try:
                ask(connection)
            except (OSError, http.client.HTTPException) as error:
                self.noticed.wrong.append(repr(error))
                connection.close()
            time.sleep(PERIOD_S)
        connection.close()

    def _chat(self, connection: http.client.HTTPConnection) -> None:
        self._timed(connection, "POST", "/v1/chat/completions", BODY, self.noticed.chats)

    def _live(self, connection: http.client.HTTPConnection) -> None:
        self._timed(connection, "GET", "/health/live", None, self.noticed.live)

    def _timed(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: str | None, into: list[float]
    ) -> None:
        begin = time.perf_counter()
        connection.request(method, path, body, self._headers)
        answer = connection.getresponse()
        text = answer.read()
        into.append(time.perf_counter() - begin)
        if answer.status != 200:
            self.noticed.wrong.append(f"{path}: {answer.status} {text[:200]!r}")

    def _stream(self, connection: http.client.HTTPConnection) -> None:
        connection.request("POST", "/v1/completions", STREAM, self._headers)
        answer, last = connection.getresponse(), time.perf_counter()
        while answer.readline():
            now = time.perf_counter()
            self.noticed.pauses.append(now - last)
            last = now
