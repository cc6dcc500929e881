"""Simulated engines of which the first compute prompts, and the others copy their blocks and decode.

The rules are the server's (link/groups.py): short prompts and answers of one token are not divided.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from ...server.cost.links import HandOver
from ...server.cost.model import CostModel
from ...server.device.groups import instance_group
from ...server.errors import SettingsError
from ...server.kv_cache.hashing import Blob
from .options import SimulationOptions
from .routing import Balancer
from .scheduled_engine import ScheduledEngine


class EnginePeer:
    """Blocks or states on another engine's device. Implements neuronserve.server.kv_cache.stores.Peer."""

    def __init__(self, engine: ScheduledEngine, has_states: bool) -> None:
        self._engine, self._has_states = engine, has_states
        self.transfers: dict[str, tuple[int, float]] = {}

    def copies(self) -> MutableMapping[bytes, int]:
        cache = self._engine.cache
        return cache.states.pool.cached if self._has_states and cache.states is not None else cache.pool.cached

    def load(self, slot: int, blob: Blob, place: int) -> bool:  # noqa: ARG002 - nothing is computed
        return True


class Divided:
    """Implements Balancer. Prompts go to one of the first engines, their requests then to one of the others."""

    def __init__(self, prompts: Balancer, decodes: Balancer, engines: Sequence[ScheduledEngine]) -> None:
        self._prompts, self.decodes, self._engines = prompts, decodes, engines

    def open(self, number: int) -> None:
        self._of(number).open(number)

    def close(self, number: int) -> None:
        self._of(number).close(number)

    def choose(self, index: int, now_ns: int) -> int:
        is_first = self._engines[0].is_divided(index) or self._engines[0].num_output(index) == 1
        return (self._prompts if is_first else self.decodes).choose(index, now_ns)

    def refused(self, index: int) -> None:
        self._prompts.refused(index)

    def loaded(self, number: int, num_open: int) -> None:
        self._of(number).loaded(number, num_open)

    def take_handed(self, number: int) -> list[int]:
        """Remove and return the requests whose first token engine `number` has made, for one of `decodes`."""
        handed, self._engines[number].handed = self._engines[number].handed, []
        return handed

    def _of(self, number: int) -> Balancer:
        return self._prompts if self._engines[number].hands_over else self.decodes


def divide(engines: Sequence[ScheduledEngine], options: SimulationOptions, model: CostModel) -> None:
    """Give the engines their parts. Raises SettingsError if they cannot be divided, DeviceError without a link."""
    divided, dp = options.disaggregate, options.data_parallel_size
    assert divided is not None
    if not options.autoscaling.is_fixed or not options.enable_prefix_caching:
        raise SettingsError(f"disaggregate is {divided}: it needs enable_prefix_caching, and autoscale fixed")
    if options.replicas not in {1, divided.total} or (options.replicas == 1 and dp != divided.total):
        raise SettingsError(
            f"disaggregate is {divided}: replicas must be {divided.total}, or 1 with data_parallel_size "
            f"{divided.total}; they are {options.replicas} with {dp}"
        )
    group = None if options.replicas == 1 else instance_group(options.device, divided.total)
    first = divided.num_prefill * (1 if group is None else dp)
    for engine in engines[:first]:
        engine.hands_over = True
    for engine in engines[first:]:
        engine.copies = HandOver.of(model, options.footprint.kv_block, group)
        engine.peers = tuple(tuple(EnginePeer(each, kind) for each in engines[:first]) for kind in (False, True))
