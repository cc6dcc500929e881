"""The access log: one line for each answer to a user, with the request's id, its duration and its tokens.

Paths that machines poll every second are left out (`http_metrics.UNCOUNTED`).
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass

from starlette.types import Scope

log = logging.getLogger("neuronserve.access")


@dataclass(slots=True)
class Served:
    """Result of one HTTP request; zeros and None where it generated nothing."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    ttft_s: float | None = None


def write_access(scope: Scope, status: int, seconds: float) -> None:
    """Write the line of an answer that is complete or whose client has left; the fields are added as `extra`."""
    if not log.isEnabledFor(logging.INFO):
        return
    state = scope["state"]
    served: Served = state["served"]
    client = ":".join(map(str, scope.get("client") or ("?",)))
    fields = {
        "client": client,
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "seconds": round(seconds, 6),
        "request_id": state.get("request_id", ""),
        **asdict(served),
    }
    tokens = ""
    if served.prompt_tokens:
        first = "" if served.ttft_s is None else f", first after {1e3 * served.ttft_s:.0f} ms"
        cached = f" ({served.cached_tokens} cached)" if served.cached_tokens else ""
        tokens = f", {served.prompt_tokens}{cached} + {served.output_tokens} tokens{first}"
    line = "%s %s %s %d in %.0f ms%s, id %s"
    path = scope["path"].encode("unicode_escape").decode()  # a path with a line break is one line
    words = (client, fields["method"], path, status, 1e3 * seconds, tokens, fields["request_id"])
    log.info(line, *words, extra=fields)
