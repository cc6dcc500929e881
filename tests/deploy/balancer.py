"""Between clients and pods: endpoints that change a moment after the pods do, and clients that take them in turn.

Half of the clients open a connection for each request, as behind kube-proxy; half keep one open to each endpoint, as
gateways do, and let go of it when the endpoint goes.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from tests.deploy.kubelet import Pod

LAG_S = 1.0  # until every proxy has heard of a change


class Endpoints:
    """Ready pods, as clients see them."""

    def __init__(self) -> None:
        self._history: list[tuple[float, tuple[str, ...]]] = []
        self._lock = threading.Lock()

    def set(self, pods: Sequence[Pod]) -> None:
        with self._lock:
            self._history.append((time.monotonic(), tuple(pod.url for pod in pods)))

    def seen(self) -> tuple[str, ...]:
        """The newest list that is at least LAG_S old; at first, the first."""
        with self._lock:
            old = [urls for at, urls in self._history if at <= time.monotonic() - LAG_S]
            return old[-1] if old else self._history[0][1]


@dataclass
class Load:
    """Clients that ask without a pause until told to stop; every answer is complete or a failure."""

    endpoints: Endpoints
    headers: dict[str, str]
    num_ok: int = 0
    failures: list[str] = field(default_factory=list)
    _turn: itertools.count[int] = field(default_factory=itertools.count)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, num_clients: int) -> None:
        for i in range(num_clients):
            thread = threading.Thread(target=self._ask_on, args=(i % 2 == 0,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)

    def _ask_on(self, keeps_connections: bool) -> None:
        clients: dict[str, httpx.Client] = {}
        while not self._stopping.is_set():
            urls = self.endpoints.seen()
            for gone in clients.keys() - set(urls):
                clients.pop(gone).close()
            turn = next(self._turn)
            url = urls[turn % len(urls)]
            client = clients.setdefault(url, httpx.Client(base_url=url, timeout=60))
            failure = ask(client, self.headers, num_tokens=200 if turn % 5 == 0 else 10)
            with self._lock:
                if failure is None:
                    self.num_ok += 1
                else:
                    self.failures.append(f"{url}: {failure}")
            if not keeps_connections:
                clients.pop(url).close()
        for client in clients.values():
            client.close()


def ask(client: httpx.Client, headers: dict[str, str], num_tokens: int) -> str | None:
    """Ask for a streamed text; None, or what was wrong with the answer."""
    body = {"prompt": "a", "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
    try:
        with client.stream("POST", "/v1/completions", json=body, headers=headers) as response:
            lines = [line for line in response.iter_lines() if line]
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"
    if response.status_code != 200:
        return f"{response.status_code}: {lines}"
    return None if lines[-1] == "data: [DONE]" and '"finish_reason":"length"' in lines[-2] else f"{lines[-2:]}"
