"""A real `neuronserve pick` process, and a gateway's side of the protocol: its messages, written one by one."""

from __future__ import annotations

import contextlib
import queue
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from neuronserve.server.route.picker.envoy import (
    FULL_DUPLEX_STREAMED,
    OVERWRITE_IF_EXISTS_OR_ADD,
    ProcessingRequest,
    ProcessingResponse,
)
from tests.api.serving import PATIENCE_S, Server, command, environment, running

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
DESTINATION = "x-gateway-destination-endpoint"
DUPLEX = FULL_DUPLEX_STREAMED


@dataclass
class Picker:
    """A running picker."""

    server: Server
    metrics_url: str

    @property
    def address(self) -> str:
        return self.server.url.partition("//")[2]

    def channel(self) -> Any:
        return grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])


@contextlib.contextmanager
def running_picker(*args: str, is_secure: bool = False) -> Iterator[Picker]:
    """Start a picker on free ports, wait until a replica is up, and end it afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = ["--host", "127.0.0.1", "--port", "0", "--metrics-port", str(port), *args]
    argv += [] if is_secure else ["--no-secure-serving"]
    with running(command("pick", *argv, program="neuronserve"), environment()) as server:
        yield Picker(server, f"http://127.0.0.1:{port}")


class Gateway:
    """One HTTP request through a gateway."""

    def __init__(self, channel: Any) -> None:
        self._asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        call = channel.stream_stream(
            f"/{SERVICE}/Process", ProcessingRequest.SerializeToString, ProcessingResponse.FromString
        )
        self.answers = call(iter(self._asked.get, None), timeout=PATIENCE_S)

    def request(
        self,
        *body: bytes,
        is_end: bool = True,
        subset: Any = None,
        modes: tuple[int, int] = (DUPLEX, DUPLEX),
        **headers: str,
    ) -> None:
        """Send the headers of a request, and its body in parts; without any, the headers are its end."""
        message = ProcessingRequest()
        headers = {":method": "POST" if body else "GET", ":path": "/v1/chat/completions", **headers}
        self._fill(message.request_headers, headers.items(), not body)
        message.protocol_config.request_body_mode, message.protocol_config.response_body_mode = modes
        if subset is not None:
            hint = {f"{DESTINATION}-subset": subset}
            message.metadata_context.filter_metadata.add(key="envoy.lb.subset_hint").value.update(hint)
        self._asked.put(message)
        for number, part in enumerate(body, 1):
            self.send("request_body", body=part, end_of_stream=is_end and number == len(body))

    def respond(
        self, status: int = 200, kind: str = "application/json", served: str = "", is_end: bool = False
    ) -> None:
        """Send the headers of the answer."""
        message = ProcessingRequest()
        self._fill(message.response_headers, [(":status", str(status)), ("content-type", kind)], is_end)
        if served:
            message.metadata_context.filter_metadata.add(key="envoy.lb").value.update({f"{DESTINATION}-served": served})
        self._asked.put(message)

    def send(self, kind: str, **fields: Any) -> None:
        """Send a part of a body, or trailers."""
        message = ProcessingRequest()
        getattr(message, kind).SetInParent()
        for name, value in fields.items():
            setattr(getattr(message, kind), name, value)
        self._asked.put(message)

    def next(self) -> Any:
        return next(self.answers)

    def chosen(self) -> list[str]:
        """Addresses that the picker has chosen, which its header and its metadata must both name."""
        answer = self.next()
        assert answer.WhichOneof("response") == "request_headers", answer
        (option,) = answer.request_headers.response.header_mutation.set_headers
        assert (option.header.key, option.append_action) == (DESTINATION, OVERWRITE_IF_EXISTS_OR_ADD)
        assert answer.request_headers.response.clear_route_cache
        named = answer.dynamic_metadata["envoy.lb"][DESTINATION]
        assert option.header.raw_value == named.encode()
        return str(named).split(",")

    def refused(self) -> tuple[int, dict[str, str], str]:
        """The answer that the client gets at once, after which the picker ends the exchange."""
        answer = self.next().immediate_response
        assert not list(self.answers)
        headers = {each.header.key: each.header.raw_value.decode() for each in answer.headers.set_headers}
        return answer.status.code, headers, answer.body.decode()

    def close(self) -> None:
        """Go away, as when the client has."""
        self.answers.cancel()
        self._asked.put(None)

    @staticmethod
    def _fill(message: Any, headers: Iterable[tuple[str, str]], is_end: bool) -> None:
        for name, value in headers:
            message.headers.headers.add(key=name.replace("_", "-"), raw_value=value.encode())
        message.end_of_stream = is_end
