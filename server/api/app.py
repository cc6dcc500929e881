"""The ASGI application, put together of routes, error table and middleware."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema
from starlette.middleware.cors import CORSMiddleware

from server import __version__
from server.api import errors
from server.api.dialects import chat, completions
from server.api.endpoints import admin, inventory, models, status, tokenize
from server.api.endpoints.tokenize import DetokenizeRequest, TokenizeRequest
from server.api.http.middleware import ApiKeys, BodyLimit, CloseWhileDraining, HeadAsGet, RequestIds
from server.api.service import Service
from server.api.telemetry.http_metrics import HttpObserver
from server.api.wire.chat import ChatRequest
from server.api.wire.completions import CompletionRequest

MODULES = (chat, completions, models, tokenize, status, admin, inventory)
BODIES = (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)


class _Application(FastAPI):
    """FastAPI whose OpenAPI page has the schemas of the bodies that `body_of` reads."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            page = super().openapi()
            _, bodies = models_json_schema(
                [(model, "validation") for model in BODIES], ref_template="#/components/schemas/{model}"
            )
            page["components"]["schemas"] |= bodies["$defs"]
        return super().openapi()


def build_app(service: Service) -> FastAPI:
    """Build the ASGI application of one service."""
    app = _Application(title="neuronserve", version=__version__, redoc_url=None)
    app.state.service = service
    for module in MODULES:
        app.include_router(module.router)
    errors.install(app)
    config = service.config
    # The last one added is the outermost: even a refusal has its request id, and CORS headers a browser can read.
    app.add_middleware(HeadAsGet)
    app.add_middleware(BodyLimit, max_bytes=config.max_body_bytes)
    if config.api_keys:
        app.add_middleware(ApiKeys, keys=config.api_keys)
    if config.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.allowed_origins),
            allow_methods=["GET", "POST", "OPTIONS"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id"],
        )
    app.add_middleware(CloseWhileDraining, is_draining=lambda: service.is_draining)
    app.add_middleware(RequestIds)
    app.add_middleware(HttpObserver, metrics=service.telemetry.http, paths=_fixed_paths())
    return app


def _fixed_paths() -> frozenset[str]:
    """Paths of the routes that have no parameters."""
    paths = {str(getattr(route, "path", "")) for module in MODULES for route in module.router.routes}
    return frozenset(path for path in paths if "{" not in path)
