"""Middleware that refuses requests that pages of other sites send, and host names that are not this server's.

A page may send some requests to any server without asking first, and its site may have a name that resolves to this
host (DNS rebinding). So the Host of a request must be one of the server's names, where those are known. A request that
may change something must come from a page of the server itself, from an allowed origin, or not from a browser. The
order of the checks is that of Go's net/http.CrossOriginProtection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from ...errors import CrossOrigin, HostNotAllowed, InvalidRequest, RequestError
from ..errors import error_response
from .host_names import ANY, is_own
from .middleware import header

SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_HOST = re.compile(rb"(?P<name>\[[0-9A-Fa-f:.]+\]|[^\s/@?#\\:\[\]]+)(?::[0-9]*)?")


class CrossSite:
    """Answers 403 itself and passes all other requests."""

    def __init__(
        self,
        app: ASGIApp,
        names: Sequence[str] | None,
        origins: Sequence[str] = (),
        is_operators: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`names`: see `names_of`. `*` among `origins` does not open the paths that `is_operators` finds."""
        self._app, self._names, self._origins, self._is_operators = app, names, frozenset(origins), is_operators

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check_host(scope)
                self._check_origin(scope)
            except RequestError as error:
                await error_response(error, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check_host(self, scope: Scope) -> None:
        host = header(scope, b"host")
        found = None if host is None else _HOST.fullmatch(host)
        if host is None or found is None:
            if host:
                raise InvalidRequest(f"Host is {host[:80]!r}: it must be a name, and a port if any.", "Host")
            return  # HTTP/1.0
        name = found["name"].decode("latin-1").lower()
        if self._names is None or name in self._names or is_own(name):
            return
        raise HostNotAllowed(
            f"Host is {name[:200]!r}, and this server answers to localhost and IP addresses alone: start it with "
            f"--allowed-hosts {name[:200]} to have it answer to that name too.",
            "Host",
        )

    def _check_origin(self, scope: Scope) -> None:
        is_preflight = scope["method"] == "OPTIONS" and header(scope, b"access-control-request-method") is not None
        if scope["method"] in SAFE and not is_preflight:
            return
        origin = (header(scope, b"origin") or b"").decode("latin-1")
        site = header(scope, b"sec-fetch-site")
        if self._allows(origin, scope["path"]) or (site is None and not origin):
            return
        is_same = site in (b"same-origin", b"none") if site is not None else _is_same(origin, header(scope, b"host"))
        if not is_same:
            page, named = origin[:200] or "another site", origin[:200] or "ORIGIN"
            raise CrossOrigin(
                f"A page of {page} may not send this: start the server with --allowed-origins {named} to let its "
                "pages call.",
                "Origin",
            )

    def _allows(self, origin: str, path: str) -> bool:
        if origin in self._origins:
            return True
        return ANY in self._origins and bool(origin) and not self._is_operators(path)


def _is_same(origin: str, host: bytes | None) -> bool:
    """Return whether an Origin equals the Host that the request names; a proxy may have changed the scheme."""
    scheme, _, authority = origin.partition("://")
    expected = (host or b"").decode("latin-1").lower()
    default = {"http": ":80", "https": ":443"}.get(scheme, "")
    return bool(expected) and authority.lower().removesuffix(default) == expected.removesuffix(default)
