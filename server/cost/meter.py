"""Device time of each open request: whole nanoseconds of the modelled accelerator, added step by step.

Conservation: the shares of a step add up to the step, so charges of requests equal the time of steps to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..types import Charge, StepPlan, TokenEvent
from .pricer import StepCharge, prefill_ids


class Meter:
    """Accounts of one engine's open requests. A request has one from its first step until its end is read."""

    def __init__(self) -> None:
        self._device_ns: dict[str, int] = {}
        self._extrapolated: set[str] = set()

    @property
    def num_accounts(self) -> int:
        return len(self._device_ns)

    def add(self, plan: StepPlan, charge: StepCharge) -> None:
        """Charge every request of `plan` its share of the step."""
        used, ids = self._device_ns, (*prefill_ids(plan), *(seq.request_id for seq in plan.decode))
        for request_id, share_ns in zip(ids, charge.shares_ns, strict=True):
            used[request_id] = used.get(request_id, 0) + share_ns
        self._extrapolated |= charge.extrapolated_ids(plan)

    def read(self, events: Iterable[TokenEvent]) -> list[Charge]:
        """Return the charge so far of each event's request, and close the accounts of requests that end."""
        return [self._close(event) if event.finish_reason else self._of(event.request_id) for event in events]

    def _of(self, request_id: str) -> Charge:
        return Charge(self._device_ns.get(request_id, 0), request_id in self._extrapolated)

    def _close(self, event: TokenEvent) -> Charge:
        charge = self._of(event.request_id)
        self._device_ns.pop(event.request_id, None)
        self._extrapolated.discard(event.request_id)
        return charge
