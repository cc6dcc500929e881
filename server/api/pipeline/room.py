"""Room in the queue for more sequences, and the count of requests that were refused for lack of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ...errors import QueueFull, RateLimited
from ...scheduler.admission import check_queue
from ..service import Service


def require_room(service: Service, count: int) -> None:
    """Raise QueueFull unless `count` more sequences may be opened, and Overloaded while the host's memory is short."""
    model = service.model
    with counted_refusals(service):
        check_queue(service.engine.num_open, count, model.info.max_num_queued_reqs)
        service.memory.check()


@contextlib.contextmanager
def counted_refusals(service: Service) -> Iterator[None]:
    """Count a request that is refused by a limit of the server."""
    try:
        yield
    except RateLimited:
        raise  # it is counted with its key
    except QueueFull as error:
        service.served.requests.rejected(error.limit)
        raise
