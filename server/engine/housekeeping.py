"""What an engine does between two steps for observers and for its host; the loop knows nothing of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from neuronserve.server.host.memory import GIB
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.link.messages import Housekeeping, Input, Order

log = logging.getLogger("neuronserve.engine")


class Inputs(Protocol):
    """Where all that the API sends comes from."""

    def drain(self, timeout_s: float) -> list[Input]:
        """All that has come, oldest first; waits up to `timeout_s` seconds for the first."""


class Forgetful(Protocol):
    """A cache of what can be made again."""

    def forget(self) -> None:
        """Drop what nobody waits for."""


class HousekeepingInputs:
    """Inputs without the commands of housekeeping, which are done before the others are carried out."""

    def __init__(self, inputs: Inputs, work: Mapping[type[Housekeeping], Callable[[], None]]) -> None:
        self._inputs, self._work = inputs, work

    def drain(self, timeout_s: float) -> list[Order]:
        """As of `inputs`; may return nothing before `timeout_s` has passed."""
        orders: list[Order] = []
        for command in self._inputs.drain(timeout_s):
            if isinstance(command, Housekeeping):
                self._work[type(command)]()
            else:
                orders.append(command)
        return orders


def release_memory(
    cache: KVCacheManager | None, give_back: Callable[[Sequence[int]], int] | None, grammars: Forgetful | None
) -> None:
    """Forget cached prefixes and grammars, and return the pages of all free blocks to the host."""
    if cache is not None:
        cache.reset_prefix_cache()
        if give_back is not None:
            num_bytes = give_back(list(cache.pool.free_blocks()))
            log.info("%.2f GiB of free blocks are the host's again", num_bytes / GIB)
    if grammars is not None:
        grammars.forget()
