"""Routes of the console's files."""

from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..server.api.http.static_files import StaticFiles

FOLDER = Path(__file__).parent / "static"


def pages_router(page: str = "index.html") -> APIRouter:
    """Return the routes of the files, with `page` at /."""
    files = StaticFiles(FOLDER)
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def root(request: Request) -> Response:
        return files.answer(request, page)

    @router.get("/static/{name:path}")
    async def static(request: Request, name: str) -> Response:
        return files.answer(request, name)

    return router
