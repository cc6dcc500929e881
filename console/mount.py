"""The console as a part of a server: its pages, its stream of live records, and the planner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter

from neuronserve.console.live import LiveStream
from neuronserve.console.pages import pages_router
from neuronserve.console.plan_routes import PlanPage, plan_router
from neuronserve.console.question import Defaults, InForce
from neuronserve.console.snapshot import Recorder
from neuronserve.server.api.http.event_stream import EventStream


@dataclass(frozen=True, slots=True)
class Console:
    """Implements neuronserve.server.api.addition.Addition."""

    in_force: InForce

    def mount(self, app: Any, service: Any) -> None:
        """Add the routes; plans are made for the served model unless another is named."""
        recorder = Recorder(service)
        defaults = Defaults(str(service.config.model_path), service.config.model_names[0])
        app.include_router(pages_router())
        app.include_router(events_router(LiveStream(recorder)))
        app.include_router(plan_router(PlanPage(self.in_force, defaults, recorder.requests.traffic)))

    def describe(self) -> dict[str, object]:
        """Return no fields: the inventory does not mention the console."""
        return {}

    def offer(self, hub: Any) -> None:
        """Answer nothing: the console runs only in a server of one API process."""


def events_router(stream: LiveStream) -> APIRouter:
    """GET /console/events."""
    router = APIRouter(include_in_schema=False)

    @router.get("/console/events")
    async def events() -> EventStream:
        """Live records for the console: what the server is, then what is new each second."""
        return EventStream(stream.frames())

    return router
