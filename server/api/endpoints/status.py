"""Liveness, readiness, version, metrics and load, for probes, monitoring and load balancers. Open: no key is needed."""

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder
from starlette.responses import PlainTextResponse

from ... import __version__
from ..http.openapi import TEXT, Responses
from ..phase import Phase
from ..service import ServiceOf
from ..wire.model import WireModel

router = APIRouter()


class Health(WireModel):
    status: Phase


NOT_NOW: Responses = {503: {"model": Health, "description": "Not in this phase, which `status` names"}}
METRICS: Responses = {200: {"content": {"text/plain": TEXT, "application/openmetrics-text": TEXT}}}


class Version(WireModel):
    version: str


class Load(WireModel):
    server_load: int


@router.get("/health/live", responses=NOT_NOW)
async def live(service: ServiceOf, response: Response) -> Health:
    """200 while this process can serve; 503 when an engine has ended and only a restart helps."""
    phase = service.phase
    response.status_code = 503 if phase in {"dead", "degraded"} else 200
    return Health(status=phase)


@router.get("/health/ready", responses=NOT_NOW)
@router.get("/health", responses=NOT_NOW)
@router.get("/ping", responses=NOT_NOW)  # SageMaker's name
async def ready(service: ServiceOf, response: Response) -> Health:
    """200 when every engine takes requests; 503 while loading, while draining and after the end of an engine."""
    phase = service.phase
    response.status_code = 200 if phase == "ready" else 503
    return Health(status=phase)


@router.get("/version")
async def version() -> Version:
    """The server's version."""
    return Version(version=__version__)


@router.get("/metrics", response_class=PlainTextResponse, responses=METRICS)
async def metrics(request: Request, service: ServiceOf) -> Response:
    """All metrics in Prometheus's text format, or OpenMetrics where the scraper accepts it."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(service.telemetry.registry), headers={"Content-Type": content_type})


@router.get("/load")
async def load(service: ServiceOf) -> Load:
    """Number of HTTP requests being answered now, probes and this one excluded."""
    return Load(server_load=service.telemetry.http.in_flight)
