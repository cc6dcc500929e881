"""GET /docs: Swagger UI over /openapi.json, from files of the package, so that it works without a network."""

from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..http.static_files import NOTHING_ELSE, StaticFiles

FOLDER = Path(__file__).parent.parent / "docs_page"
FILES = StaticFiles(FOLDER, {**NOTHING_ELSE, "img-src": "'self' data:"})
router = APIRouter(include_in_schema=False)


@router.get("/docs")
async def page(request: Request) -> Response:
    """The page."""
    return FILES.answer(request, "index.html")


@router.get("/docs/{name}")
async def file(request: Request, name: str) -> Response:
    """A file that the page loads."""
    return FILES.answer(request, name)
