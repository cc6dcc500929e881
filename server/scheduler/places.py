"""Places of the batch, and the last of them for tenants that have fewer than their share."""

from __future__ import annotations

from collections import Counter

from .queue import OrderedQueue
from .sequence import Sequence

PLACES_PER_RESERVED = 64  # one of so many places is reserved


def has_place(seq: Sequence, running: OrderedQueue, num_places: int, *, is_shared: bool) -> bool:
    """Return whether a batch of `num_places` has one for `seq`.

    Where tenants share the engine, the last places are for those that hold less than an even share. So a tenant that
    floods it does not keep another one waiting for the end of an answer.
    """
    num_free = num_places - len(running)
    if num_free > num_places // PLACES_PER_RESERVED or not is_shared:
        return num_free > 0
    held = Counter(other.request.tenant for other in running)
    num_tenants = max(2, len(held.keys() | {seq.request.tenant}))  # another one was here and may come again
    return num_free > 0 and held[seq.request.tenant] * num_tenants < num_places
