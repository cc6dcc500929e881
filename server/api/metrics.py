"""GET /metrics and /load: what monitoring and load balancers read. Open to all, with no key."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder
from pydantic import BaseModel

from server.api.service import ServiceOf

router = APIRouter()


class Load(BaseModel):
    server_load: int


@router.get("/metrics")
async def metrics(request: Request, service: ServiceOf) -> Response:
    """All metrics in Prometheus's text format, or OpenMetrics where the scraper asks for it."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(service.telemetry.registry), headers={"Content-Type": content_type})


@router.get("/load")
async def load(service: ServiceOf) -> Load:
    """HTTP requests being answered now, probes and this one aside."""
    return Load(server_load=service.telemetry.http.in_flight)
