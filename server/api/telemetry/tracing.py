"""OpenTelemetry: one SERVER span for each request, made when it has ended. The packages are an optional extra.

Attribute names are vLLM's. The SDK reads its own OTEL_* environment for sampling, batching, headers and certificates.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from ...errors import SettingsError
from ..config import OtlpProtocol
from .lifecycle import RequestLife

SPAN = "llm_request"
FLUSH_TIMEOUT_S = 3.0


class SpanExporter:
    """Sends spans to an OTLP collector in the background; a missing or slow collector delays no request."""

    def __init__(self, endpoint: str, protocol: OtlpProtocol, model_name: str) -> None:
        """Raises SettingsError when the packages are not installed."""
        self._model_name = model_name
        try:
            self._provider = _provider(endpoint, protocol)
            from opentelemetry.trace import SpanKind, StatusCode
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise SettingsError(
                f"--otlp-traces-endpoint needs OpenTelemetry, and {error.name} is not installed: "
                "install neuronserve[otel]"
            ) from error
        self._tracer = self._provider.get_tracer("neuronserve")
        self._server_kind, self._error_status = SpanKind.SERVER, StatusCode.ERROR
        self._propagator = TraceContextTextMapPropagator()

    def record(self, request: RequestLife) -> None:
        """Make the span of a request that has ended, below the client's span if it sent a `traceparent`."""
        end_ns = time.time_ns()
        span = self._tracer.start_span(
            SPAN,
            context=self._propagator.extract(request.origin.trace_headers),
            kind=self._server_kind,
            start_time=end_ns - int((request.e2e_s or 0.0) * 1e9),
        )
        if span.is_recording():
            span.set_attributes(attributes(request, self._model_name))
            if any(life.finish_reason == "error" for life in request.sequences.values()):
                span.set_status(self._error_status)
        span.end(end_ns)

    async def close(self) -> None:
        """Send the remaining spans, for at most `FLUSH_TIMEOUT_S`: the SDK would retry for longer."""
        flushing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        flushing.start()
        await asyncio.to_thread(flushing.join, FLUSH_TIMEOUT_S)


def attributes(request: RequestLife, model_name: str) -> dict[str, Any]:
    """The span's attributes; times in seconds, of several sequences from the first scheduled to the last token."""
    whole = request.whole
    values = {
        "gen_ai.request.id": request.origin.request_id,
        "gen_ai.request.n": request.n,
        "gen_ai.request.max_tokens": request.sampling.max_tokens,
        "gen_ai.request.temperature": request.sampling.temperature,
        "gen_ai.request.top_p": request.sampling.top_p,
        "gen_ai.response.model": model_name,
        "gen_ai.response.finish_reasons": [str(life.finish_reason) for life in request.sequences.values()],
        "gen_ai.usage.prompt_tokens": whole.num_prompt_tokens,
        "gen_ai.usage.completion_tokens": whole.num_tokens,
        "gen_ai.latency.time_to_first_token": request.ttft_s,
        "gen_ai.latency.e2e": request.e2e_s,
        "gen_ai.latency.time_in_queue": whole.queue_s,
        "gen_ai.latency.time_in_model_prefill": whole.prefill_s,
        "gen_ai.latency.time_in_model_decode": whole.decode_s,
        "gen_ai.latency.time_in_model_inference": whole.inference_s,
    }
    return {name: value for name, value in values.items() if value is not None}


def _provider(endpoint: str, protocol: OtlpProtocol) -> Any:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "neuronserve"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_exporter(endpoint, protocol)))
    return provider


def _exporter(endpoint: str, protocol: OtlpProtocol) -> Any:
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(endpoint=endpoint, insecure=not endpoint.startswith("https://"))
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter(endpoint=endpoint)
