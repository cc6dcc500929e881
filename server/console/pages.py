"""The console's files: read once, sent with a policy under which nothing but them runs or is loaded."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.errors import RequestError

FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked for again each time, and answered by 304
}


class NoSuchFile(RequestError):
    """The console has no such file."""

    status = 404
    code = "not_found"


@dataclass(frozen=True, slots=True)
class File:
    """One file as it is sent."""

    content: bytes
    headers: dict[str, str]


def read_files(folder: Path = FOLDER) -> dict[str, File]:
    """Every file of the console by its path below `folder`."""
    return {path.relative_to(folder).as_posix(): _file(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def _file(path: Path) -> File:
    content = path.read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return File(content, {**HEADERS, "Content-Type": TYPES[path.suffix], "ETag": tag})


def pages_router(page: str = "index.html") -> APIRouter:
    """Routes of the files, with `page` at /."""
    files = read_files()
    router = APIRouter(include_in_schema=False)

    def answer(request: Request, name: str) -> Response:
        file = files.get(name)
        if file is None:
            raise NoSuchFile(f"The console has no file {name[:200]!r}.")
        if request.headers.get("if-none-match") == file.headers["ETag"]:
            return Response(status_code=304, headers=file.headers)
        return Response(file.content, headers=file.headers)

    @router.get("/")
    async def root(request: Request) -> Response:
        return answer(request, page)

    @router.get("/static/{name:path}")
    async def static(request: Request, name: str) -> Response:
        return answer(request, name)

    return router
