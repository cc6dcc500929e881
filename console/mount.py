"""The console as a part of a server: its pages, its stream of live records, and the planner."""

from fastapi import APIRouter, FastAPI

from neuronserve.console.live import LiveStream
from neuronserve.console.pages import pages_router
from neuronserve.console.plan_routes import PlanPage, plan_router
from neuronserve.console.question import Defaults, InForce
from neuronserve.console.snapshot import Recorder
from neuronserve.server.api.http.event_stream import EventStream
from neuronserve.server.api.server import Mount
from neuronserve.server.api.service import Service


def console(in_force: InForce, model: str) -> Mount:
    """What adds the console to an application; plans are made for `model` unless another is named."""

    def mount(app: FastAPI, service: Service) -> None:
        recorder = Recorder(service)
        defaults = Defaults(model, service.config.model_names[0])
        app.include_router(pages_router())
        app.include_router(events_router(LiveStream(recorder)))
        app.include_router(plan_router(PlanPage(in_force, defaults, recorder.requests.traffic)))

    return mount


def events_router(stream: LiveStream) -> APIRouter:
    """GET /console/events."""
    router = APIRouter(include_in_schema=False)

    @router.get("/console/events")
    async def events() -> EventStream:
        """Live records for the console: what the server is, then what is new each second."""
        return EventStream(stream.frames())

    return router
