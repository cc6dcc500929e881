"""Between clients and pods: endpoints that proxies hear of some time after the pods change, and clients that take them
in turn.

Half of the clients open a connection for each request, as behind kube-proxy; half keep one open to each endpoint, as
gateways do, and let go of it when the endpoint goes. Nothing here is a matter of seconds: proxies have heard of a
change when `Load.hear` says so.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx

from tests.api.serving import PATIENCE_S, until
from tests.deploy.kubelet import Pod


class Endpoints:
    """Ready pods, as clients see them."""

    def __init__(self, pods: Sequence[Pod]) -> None:
        self._seen = self._newest = tuple(pod.url for pod in pods)
        self._on_the_way: dict[int, str] = {}  # by client: where a request goes that is not accepted yet
        self._lock = threading.Lock()

    def set(self, pods: Sequence[Pod]) -> None:
        """Set the API server's endpoints; clients see them after `hear`."""
        with self._lock:
            self._newest = tuple(pod.url for pod in pods)

    def choose(self, client: int, turn: int) -> tuple[str, tuple[str, ...]]:
        """Return the endpoint of a client's next request, and all endpoints that the client sees."""
        with self._lock:
            self._on_the_way[client] = self._seen[turn % len(self._seen)]
            return self._on_the_way[client], self._seen

    def accepted(self, client: int) -> None:
        with self._lock:
            self._on_the_way.pop(client, None)

    def hear(self) -> None:
        """Let every client see the newest pods; returns when no request is on its way to one that is gone."""
        with self._lock:
            self._seen = self._newest
        until(lambda: set(self._on_the_way.copy().values()) <= set(self._seen))


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
            thread = threading.Thread(target=self._ask_on, args=(i,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def hear(self) -> None:
        """The event that preStop's sleep waits for, after the pod has served some more of what still comes."""
        before = self.num_ok
        until(lambda: self.num_ok > before)
        self.endpoints.hear()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _ask_on(self, number: int) -> None:
        clients: dict[str, httpx.Client] = {}
        while not self._stopping.is_set():
            turn = next(self._turn)
            url, urls = self.endpoints.choose(number, turn)
            for gone in clients.keys() - set(urls):
                clients.pop(gone).close()
            client = clients.setdefault(url, httpx.Client(base_url=url, timeout=PATIENCE_S))
            num_tokens = 200 if turn % 5 == 0 else 10
            failure = ask(client, self.headers, num_tokens, lambda: self.endpoints.accepted(number))
            self.endpoints.accepted(number)
            with self._lock:
                if failure is None:
                    self.num_ok += 1
                else:
                    self.failures.append(f"{url}: {failure}")
            if number % 2:
                clients.pop(url).close()
        for client in clients.values():
            client.close()


def ask(
    client: httpx.Client, headers: dict[str, str], num_tokens: int, accepted: Callable[[], object] = lambda: None
) -> str | None:
    """Ask for a streamed text; None, or what was wrong with the answer. `accepted` is called when the answer begins."""
    body = {"prompt": "a", "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
    try:
        with client.stream("POST", "/v1/completions", json=body, headers=headers) as response:
            accepted()
            lines = [line for line in response.iter_lines() if line]
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"
    if response.status_code != 200:
        return f"{response.status_code}: {lines}"
    return None if lines[-1] == "data: [DONE]" and '"finish_reason":"length"' in lines[-2] else f"{lines[-2:]}"
