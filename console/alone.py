"""`neuronserve plan --serve`: the planner's page by itself, without a model or an engine."""

from __future__ import annotations

import sys

import uvicorn
from fastapi import FastAPI

from ..server import __version__
from ..server.api import errors
from ..server.api.http.cross_site import CrossSite
from ..server.api.http.host_names import names_of
from ..server.api.http.middleware import HeadAsGet, RequestIds
from ..server.api.listener import address, bind
from .pages import pages_router
from .plan_routes import PlanPage, plan_router
from .question import Defaults, InForce


def planner_app(in_force: InForce, model: str, host: str) -> FastAPI:
    """Return the application on `host`; plans are made for `model` unless another is named."""
    app = FastAPI(title="neuronserve plan", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(pages_router("planner.html"))
    app.include_router(plan_router(PlanPage(in_force, Defaults(model, model))))
    errors.install(app, ())
    app.add_middleware(HeadAsGet)
    app.add_middleware(CrossSite, names=names_of(host))
    app.add_middleware(RequestIds)
    return app


def run_planner(in_force: InForce, model: str, host: str, port: int) -> None:
    """Serve the page until interrupted. Raises StartError when nothing can listen there."""
    listener = bind(host, port)
    print(f"planner: {address(listener)}", file=sys.stderr, flush=True)
    config = uvicorn.Config(planner_app(in_force, model, host), log_level="warning", ws="none", lifespan="off")
    uvicorn.Server(config).run(sockets=[listener])
