"""The middleware that identifies callers, checks what their keys open, and counts their requests."""

from __future__ import annotations

from ipaddress import ip_address

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...errors import Forbidden, RequestError, Unauthorized
from ...host.peer_user import is_same_user
from ...text.fair_threads import owner
from ..errors import error_response
from ..http.middleware import header
from . import key
from .ring import Caller, KeyRing

# Probes, paths that load balancers poll, and pages of the console and the API, which hold no data of this server.
PUBLIC = frozenset(
    {
        "/",
        "/api/version",
        "/docs",
        "/health",
        "/health/live",
        "/health/ready",
        "/load",
        "/openapi.json",
        "/ping",
        "/version",
    }
)
PUBLIC_BELOW = ("/static/", "/docs/")
# Scopes that open a path; the scope of inference opens all other paths.
ADMIN: frozenset[key.Scope] = frozenset({"admin"})
METRICS: frozenset[key.Scope] = frozenset({"metrics"})
INFERENCE: frozenset[key.Scope] = frozenset({"inference"})
OPENED_BY: dict[str, frozenset[key.Scope]] = {
    "/reset_prefix_cache": ADMIN,
    "/start_profile": ADMIN,
    "/stop_profile": ADMIN,
    "/v1/load_lora_adapter": ADMIN,
    "/v1/unload_lora_adapter": ADMIN,
    "/metrics": METRICS,
    "/inventory": key.SCOPES,
    "/server_info": key.SCOPES,
    "/api/tags": key.SCOPES,
    "/models": key.SCOPES,
    "/v1/models": key.SCOPES,
    "/v1/usage": key.SCOPES,
}
FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-real-ip")  # headers of proxies
OPENED_BELOW = {"/admin/": ADMIN, "/console/": METRICS, "/v1/models/": key.SCOPES}


class Guard:
    """Sets `caller` of each request's state; answers 401, 403 and 429 itself."""

    def __init__(self, app: ASGIApp, ring: KeyRing, public_paths: tuple[str, ...] = ()) -> None:
        """`public_paths` are open beside `PUBLIC`; a path with a slash at its end opens all paths below it."""
        self._app, self._ring = app, ring
        self._public = PUBLIC.union(path for path in public_paths if path == "/" or not path.endswith("/"))
        self._public_below = PUBLIC_BELOW + tuple(path for path in public_paths if path.endswith("/") and path != "/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        caller = self._ring.find(given_key(scope)) if self._ring.has_keys else None
        try:
            if self._ring.has_keys and scope["method"] != "OPTIONS" and not self._is_public(scope["path"]):
                caller = require(caller, scope["path"])
                if _is_counted(scope["path"], scope["method"]):
                    caller.use.let_in()
            if needs_local(self._ring, scope["path"]) and not is_local(scope):
                raise Forbidden(
                    f"Without an operator's key {scope['path'][:200]} is open to this host's own processes of the "
                    "server's user alone: ask from there, or start the server with --admin-api-key."
                )
        except RequestError as error:
            answer = error_response(error, scope["path"])
            await answer(scope, receive, send if caller is None else _counted(send, caller))
            return
        caller = caller or self._ring.anyone
        scope.setdefault("state", {})["caller"] = caller
        owner.set(caller.tenant or _host(scope))
        await self._app(scope, receive, _counted(send, caller))

    def _is_public(self, path: str) -> bool:
        is_open = not self._ring.asks_clients and scopes_of(path) != ADMIN
        return is_open or path in self._public or path.startswith(self._public_below)


def scopes_of(path: str) -> frozenset[key.Scope]:
    """Return the scopes that open a path; a key needs one of them."""
    below = (scopes for prefix, scopes in OPENED_BELOW.items() if path.startswith(prefix))
    return OPENED_BY.get(path) or next(below, INFERENCE)


def needs_local(ring: KeyRing, path: str) -> bool:
    """Return whether a path is for operators and no key guards it."""
    return not ring.has_keys and scopes_of(path) == ADMIN


def refusals(path: str, method: str) -> tuple[int, ...]:
    """Return the statuses of refusals by the guard of a server with keys."""
    if path in PUBLIC or path.startswith(PUBLIC_BELOW):
        return ()
    return (401, 403, 429) if _is_counted(path, method) else (401, 403)


def _is_counted(path: str, method: str) -> bool:
    return method == "POST" and scopes_of(path) == INFERENCE


def _host(scope: Scope) -> str:
    """Return the client's address, which replaces the key on servers without keys."""
    return str((scope.get("client") or ("",))[0])


def require(caller: Caller | None, path: str) -> Caller:
    """Return the caller. Raises Unauthorized or Forbidden."""
    if caller is None or caller.key is None:
        raise Unauthorized("A valid API key is needed: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")
    needed = scopes_of(path)
    if not caller.key.opens(needed):
        scopes = " or ".join(sorted(needed))
        raise Forbidden(f"This API key does not open {path[:200]}: that needs one of scope {scopes}.")
    return caller


def is_local(scope: Scope) -> bool:
    """Return whether a request comes from a process of this host and user, and not through a proxy."""
    if any(header(scope, name) is not None for name in FORWARDED):
        return False
    client, server = scope.get("client"), scope.get("server")
    if client is None or server is None:
        return True
    address = ip_address(client[0].partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped.is_loopback and is_same_user(client[1], server[1])


def given_key(scope: Scope) -> bytes | None:
    """Return the key that a request sends; Anthropic's clients use a header of their own."""
    scheme, _, given = (header(scope, b"authorization") or b"").partition(b" ")
    found = given if scheme.lower() == b"bearer" else header(scope, b"x-api-key")
    return None if found is None else found.strip()


def _counted(send: Send, caller: Caller) -> Send:
    """Add the headers with the caller's remaining limits at the beginning of the answer."""

    async def counted(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *caller.use.headers()]
        await send(message)

    return counted
