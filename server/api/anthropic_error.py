"""Error objects of Anthropic's API, for /v1/messages and the paths below it."""

from __future__ import annotations

import json
from typing import Any

from ..errors import RequestError

THREAD_UNSUPPORTED = "thread_unsupported_request"  # upon this code Anthropic's client sends all messages
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_error(status: int, message: str, code: str | None = None) -> dict[str, Any]:
    """Return the error of an HTTP status; its code is shown where clients act on it."""
    error: dict[str, Any] = {"type": KINDS.get(status, "api_error"), "message": message}
    if code == THREAD_UNSUPPORTED:
        error["details"] = {"error_code": code}
    return {"type": "error", "error": error}


def anthropic_error_bytes(error: RequestError) -> bytes:
    """Return the error as JSON; characters that UTF-8 cannot hold are escaped."""
    return json.dumps(anthropic_error(error.status, error.message, error.code)).encode()
