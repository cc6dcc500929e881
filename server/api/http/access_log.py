"""The access log is for requests of users: what machines poll every second is not in it."""

from __future__ import annotations

import logging

from server.api.telemetry.http_metrics import UNCOUNTED


def leave_out_probes() -> None:
    """Keep probes, scrapes and their like out of uvicorn's access log from now on."""
    log = logging.getLogger("uvicorn.access")
    if _is_of_a_user not in log.filters:
        log.addFilter(_is_of_a_user)


def _is_of_a_user(record: logging.LogRecord) -> bool:
    """Uvicorn's records have client, method, path with query, HTTP version and status as arguments."""
    match record.args:
        case (_, _, str(path), _, _):
            return path.partition("?")[0] not in UNCOUNTED
    return True
