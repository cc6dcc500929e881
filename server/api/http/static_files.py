"""Files of a folder of the package: read once, and sent with a content security policy."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request
from starlette.responses import Response

from ...errors import NotFound

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
NOTHING_ELSE = {  # only files of the server itself are loaded or run, and no inline scripts
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    headers: dict[str, str]


class StaticFiles:
    """All files below `folder`, by their relative paths."""

    def __init__(self, folder: Path, policy: Mapping[str, str] = NOTHING_ELSE) -> None:
        headers = {
            "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cache-Control": "no-cache",  # revalidated each time, and answered by 304
        }
        paths = [path for path in sorted(folder.rglob("*")) if path.suffix in TYPES]
        self._files = {path.relative_to(folder).as_posix(): _read(path, headers) for path in paths}

    def answer(self, request: Request, name: str) -> Response:
        """Return the file, or 304 when the client has it. Raises NotFound."""
        file = self._files.get(name)
        if file is None:
            raise NotFound(f"There is no file {name[:200]!r}.")
        if request.headers.get("if-none-match") == file.headers["ETag"]:
            return Response(status_code=304, headers=file.headers)
        return Response(file.content, headers=file.headers)


def _read(path: Path, headers: Mapping[str, str]) -> _File:
    content = path.read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return _File(content, {**headers, "Content-Type": TYPES[path.suffix], "ETag": tag})
