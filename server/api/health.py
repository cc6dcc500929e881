"""Liveness, readiness and version. Open to all, with no key, so that probes need none."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import BaseModel

from server import __version__
from server.api.service import Phase, ServiceOf

router = APIRouter()


class Health(BaseModel):
    status: Phase


class Version(BaseModel):
    version: str


@router.get("/health/live")
async def live(service: ServiceOf, response: Response) -> Health:
    """200 as long as this process can still serve one day; 503 when an engine has ended and only a restart helps."""
    phase = service.phase
    response.status_code = 503 if phase in {"dead", "degraded"} else 200
    return Health(status=phase)


@router.get("/health/ready")
@router.get("/health")
async def ready(service: ServiceOf, response: Response) -> Health:
    """200 when every engine takes requests; 503 while loading, while draining and after the end of an engine."""
    phase = service.phase
    response.status_code = 200 if phase == "ready" else 503
    return Health(status=phase)


@router.get("/version")
async def version() -> Version:
    """The server's version."""
    return Version(version=__version__)
