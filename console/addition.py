"""The console as an addition to a server's API: its pages, its stream of live records, and the planner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter

from ..server.api.http.event_stream import EventStream
from .live import LiveStream
from .pages import pages_router
from .plan_routes import PlanPage, plan_router
from .question import Defaults, InForce
from .snapshot import Recorder


@dataclass(frozen=True, slots=True)
class ConsolePages:
    """Implements neuronserve.server.api.addition.Addition.

    Plans are made with `in_force`, for the served model unless another is named.
    """

    in_force: InForce

    def mount(self, app: Any, service: Any) -> None:
        """Add the routes."""
        recorder = Recorder(service)
        defaults = Defaults(str(service.config.model_path), service.config.model_names[0])
        app.include_router(pages_router())
        app.include_router(events_router(LiveStream(recorder)))
        app.include_router(plan_router(PlanPage(self.in_force, defaults, recorder.requests.traffic)))

    def describe(self) -> dict[str, object]:
        """Return nothing: the pages change no answer."""
        return {}


def events_router(stream: LiveStream) -> APIRouter:
    """GET /console/events."""
    router = APIRouter(include_in_schema=False)

    @router.get("/console/events")
    async def events() -> EventStream:
        """Live records for the console: what the server is, then what is new each second."""
        return EventStream(stream.frames())

    return router
