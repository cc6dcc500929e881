"""Simulated engines of which the first compute prompts and first tokens, and the others copy their blocks and decode.

The rules are the server's (link/groups.py): short prompts and answers of one token are not divided. Copies are charged
to the step that begins with them.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Literal

from ...server.config.disaggregation import Disaggregation
from ...server.cost.links import HandOver
from ...server.cost.model import CostModel
from ...server.device.groups import instance_group
from ...server.errors import SettingsError
from ...server.kv_cache.hashing import Blob
from .options import SimulationOptions
from .routing import Balancer
from .scheduled_engine import ScheduledEngine

Between = Literal["engines", "instances"]


class EnginePeer:
    """Blocks or states that another engine has on its device. Implements neuronserve.server.kv_cache.stores.Peer."""

    def __init__(self, engine: ScheduledEngine, kind: Literal["blocks", "states"]) -> None:
        self._engine, self._kind = engine, kind
        self.transfers: dict[str, tuple[int, float]] = {}

    def copies(self) -> MutableMapping[bytes, int]:
        cache = self._engine.cache
        pool = cache.pool if self._kind == "blocks" or cache.states is None else cache.states.pool
        return pool.cached

    def load(self, slot: int, blob: Blob, place: int) -> bool:  # noqa: ARG002 - nothing is computed
        return True


class Divided:
    """Implements Balancer. Prompts go to one of the first engines, their requests then to one of the others."""

    def __init__(
        self, prompts: Balancer, decodes: Balancer, engines: Sequence[ScheduledEngine], num_prefill: int
    ) -> None:
        self._prompts, self._decodes, self._engines, self._num_prefill = prompts, decodes, engines, num_prefill

    def open(self, number: int) -> None:
        self._of(number).open(number)

    def close(self, number: int) -> None:
        self._of(number).close(number)

    def choose(self, index: int, now_ns: int) -> int:
        first = self._engines[0]
        is_first = first.is_divided(index) or first.num_output(index) == 1
        return (self._prompts if is_first else self._decodes).choose(index, now_ns)

    def choose_next(self, index: int, now_ns: int) -> int:
        """Return the engine that continues request `index`, which has its first token."""
        return self._decodes.choose(index, now_ns)

    def refused(self, index: int) -> None:
        self._prompts.refused(index)

    def loaded(self, number: int, num_open: int) -> None:
        self._of(number).loaded(number, num_open)

    def take_handed(self, number: int) -> list[int]:
        """Remove and return the requests whose first token engine `number` has made, and which others continue."""
        handed, self._engines[number].handed = self._engines[number].handed, []
        return handed

    def _of(self, number: int) -> Balancer:
        return self._prompts if number < self._num_prefill else self._decodes


def divide(engines: Sequence[ScheduledEngine], options: SimulationOptions, model: CostModel) -> int:
    """Give the engines of all instances their parts; return the number of those that compute prompts.

    Raises DeviceError for instances without a link.
    """
    divided = options.disaggregate
    assert divided is not None
    is_near = between(options, divided) == "engines"
    num_prefill = divided.num_prefill * (1 if is_near else options.data_parallel_size)
    group = None if is_near else instance_group(options.device, divided.total)
    price = HandOver.of(model, options.footprint.kv_block, group)
    for number, engine in enumerate(engines):
        engine.hands_over = number < num_prefill
        if not engine.hands_over:
            engine.copies = price
            engine.peers = tuple(tuple(EnginePeer(each, kind) for each in engines[:num_prefill]) for kind in KINDS)
    return num_prefill


KINDS: tuple[Literal["blocks", "states"], ...] = ("blocks", "states")


def between(options: SimulationOptions, divided: Disaggregation) -> Between:
    """Return what is divided. Raises SettingsError for a deployment that cannot be."""
    if not options.autoscaling.is_fixed:
        raise SettingsError(f"disaggregate is {divided}: with autoscale {options.autoscaling.autoscale} it cannot be")
    if not options.enable_prefix_caching:
        raise SettingsError(f"disaggregate is {divided}: it needs enable_prefix_caching")
    if options.replicas == divided.total:
        return "instances"
    if (options.replicas, options.data_parallel_size) != (1, divided.total):
        raise SettingsError(
            f"disaggregate is {divided}: replicas must be {divided.total}, or 1 with data_parallel_size "
            f"{divided.total}; they are {options.replicas} with {options.data_parallel_size}"
        )
    return "engines"
