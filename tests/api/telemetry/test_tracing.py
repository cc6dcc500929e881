"""One span for each request, as a collector receives it; and a clear word when it cannot be made."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from neuronserve.server.api.config import ApiConfig, OtlpProtocol
from neuronserve.server.api.listener import address, bind
from neuronserve.server.api.server import ApiServer
from neuronserve.server.link.groups import EngineGroups
from neuronserve.server.link.handle import EngineHandle
from tests.api.serving import PATIENCE_S, ROOT, environment, run_command, run_fake, running_server
from tests.link.test_client import config, until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
Collector = tuple[str, list[Any]]  # where it listens, and what it has received


@pytest.fixture
def http_collector() -> Iterator[Collector]:
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    received: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append(service.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", received
        server.shutdown()
        thread.join(10)


@pytest.fixture
def grpc_collector() -> Iterator[Collector]:
    grpc = pytest.importorskip("grpc")
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    received: list[Any] = []

    def export(request: Any, _: Any) -> Any:
        received.append(request)
        return service.ExportTraceServiceResponse()

    handler = grpc.unary_unary_rpc_method_handler(
        export,
        request_deserializer=service.ExportTraceServiceRequest.FromString,
        response_serializer=service.ExportTraceServiceResponse.SerializeToString,
    )
    server = grpc.server(ThreadPoolExecutor(1))
    name = "opentelemetry.proto.collector.trace.v1.TraceService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Export": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}", received
    server.stop(0).wait(10)


async def spans(collector: Collector, protocol: OtlpProtocol, checkpoint: Path, ask: Callable[..., Any]) -> list[Any]:
    """The spans of a server that `ask` has spoken with and that has ended."""
    api_config = ApiConfig(
        ("fake",), checkpoint, checkpoint, otlp_traces_endpoint=collector[0], otlp_traces_protocol=protocol
    )
    listener = bind("127.0.0.1", 0)
    api = ApiServer(api_config, EngineGroups([EngineHandle(config(), run_fake)]), listener)
    running = asyncio.create_task(api.run())
    await until(lambda: api.service.phase == "ready")
    async with httpx.AsyncClient(base_url=address(listener), timeout=30) as http:
        await ask(http)
    api.shutdown()
    await asyncio.wait_for(running, PATIENCE_S)
    return [
        (resource.resource, span)
        for request in collector[1]
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def values(attributes: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
async def test_a_request_is_one_span_below_the_callers(
    protocol: OtlpProtocol, checkpoint: Path, request: pytest.FixtureRequest
) -> None:
    collector: Collector = request.getfixturevalue("grpc_collector" if protocol == "grpc" else "http_collector")

    async def ask(http: httpx.AsyncClient) -> None:
        body = {"prompt": "hello", "max_tokens": 6, "ignore_eos": True, "n": 2, "temperature": 0.5, "top_p": 0.9}
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"}
        assert (await http.post("/v1/completions", json=body, headers=headers)).status_code == 200

    ((resource, span),) = await spans(collector, protocol, checkpoint, ask)
    assert (span.name, span.kind) == ("llm_request", 2)  # SERVER
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert values(resource.attributes)["service.name"] == "neuronserve"
    told = values(span.attributes)
    times = {key: told.pop(key) for key in tuple(told) if key.startswith("gen_ai.latency.")}
    reasons = told.pop("gen_ai.response.finish_reasons").values
    assert [reason.string_value for reason in reasons] == ["length", "length"]
    assert told == {
        "gen_ai.request.id": "mine",
        "gen_ai.request.n": 2,
        "gen_ai.request.max_tokens": 6,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.response.model": "fake",
        "gen_ai.usage.prompt_tokens": 5,
        "gen_ai.usage.completion_tokens": 12,
    }
    phases = ("time_in_queue", "time_in_model_prefill", "time_in_model_decode")
    assert set(times) == {
        f"gen_ai.latency.{name}" for name in (*phases, "time_in_model_inference", "time_to_first_token", "e2e")
    }
    total = sum(times[f"gen_ai.latency.{phase}"] for phase in phases)
    assert 0 < total <= times["gen_ai.latency.e2e"]
    lasted = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
    assert lasted == pytest.approx(times["gen_ai.latency.e2e"], abs=1e-3)


async def test_requests_without_a_parent_are_roots_and_refused_ones_are_none(
    checkpoint: Path, http_collector: Collector
) -> None:
    async def ask(http: httpx.AsyncClient) -> None:
        for body in ({"prompt": "a", "max_tokens": 1}, {"prompt": "a", "max_tokens": -1}):
            await http.post("/v1/completions", json=body, headers={"traceparent": "nonsense"})

    ((_, span),) = await spans(http_collector, "http/protobuf", checkpoint, ask)
    assert span.parent_span_id == b""


@pytest.mark.slow
def test_a_collector_that_never_answers_keeps_neither_answers_nor_the_end(checkpoint: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces"
        options = ("--otlp-traces-endpoint", endpoint, "--otlp-traces-protocol", "http/protobuf")
        with running_server(checkpoint, *options, env=environment(PYTHONPATH=os.pathsep.join(sys.path))) as server:
            response = httpx.post(server.url + "/v1/completions", json={"prompt": "a", "max_tokens": 1})
            assert response.status_code == 200
            server.signal(signal.SIGTERM)
            assert server.wait() == 0


@pytest.mark.slow
def test_a_server_that_cannot_make_traces_says_what_to_install(checkpoint: Path, tmp_path: Path) -> None:
    hide = 'import sys; sys.modules["opentelemetry.sdk"] = None'
    (tmp_path / "sitecustomize.py").write_text(hide)  # read by every Python that has it on its path
    env = environment(PYTHONPATH=f"{tmp_path}:{ROOT}")
    done = run_command("serve", str(checkpoint), "--port", "0", "--otlp-traces-endpoint", "http://x:4317", env=env)
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if " INFO " not in line)
    assert "--otlp-traces-endpoint needs OpenTelemetry" in line
    assert "install neuronserve[otel]" in line
