"""Scheduling policies as data: the order in which waiting sequences are served."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from ..config.formats import SchedulingPolicy
from ..types import Request

# First tokens of requests without an objective are due after this, so that such requests are served too.
NO_OBJECTIVE_S = 30.0
LATE = "late"  # group of sequences that cannot meet their objective any more
LATE_WEIGHT = 1 / 7  # of this group beside the others': one token in eight while both wait

Order = tuple[int, float, str]


@dataclass(frozen=True, slots=True)
class ServicePolicy:
    """Waiting sequences are in groups, and the least served group comes next, with its first sequence in order."""

    heeds_priority: bool  # a better priority passes all others
    by_tenant: bool = False  # each tenant is a group
    by_deadline: bool = False  # in order of the latest start; what is late is a group of its own

    def order(self, request: Request, prompt_token_s: float) -> Order:
        """Sort key of a request among all; `prompt_token_s` are the seconds that its prompt takes a token.

        By deadline this is when its prompt must begin. Requests with earlier ones may pass it until then; from then
        on it is among the late ones, which are served at least by their share.
        """
        priority = request.priority if self.heeds_priority else 0
        return priority, self._time(request, prompt_token_s), request.request_id

    def _time(self, request: Request, prompt_token_s: float) -> float:
        if not self.by_deadline:
            return request.arrival_time
        deadline = request.first_token_by
        if deadline == inf:
            deadline = request.arrival_time + NO_OBJECTIVE_S
        return deadline - len(request.prompt_token_ids) * prompt_token_s

    def group(self, request: Request, order: Order, now: float) -> str:
        """Name of the group of a request that has this order."""
        if self.by_deadline:
            return LATE if order[1] <= now else ""
        return request.tenant if self.by_tenant else ""

    def weight(self, request: Request, group: str) -> float:
        """Share of a request's group, beside the weights of others."""
        if self.by_deadline:
            return LATE_WEIGHT if group == LATE else 1.0
        return request.weight if self.by_tenant else 1.0


SERVICE_POLICIES: dict[SchedulingPolicy, ServicePolicy] = {
    "fcfs": ServicePolicy(heeds_priority=False),
    "priority": ServicePolicy(heeds_priority=True),
    "fair": ServicePolicy(heeds_priority=True, by_tenant=True),
    "slo": ServicePolicy(heeds_priority=False, by_deadline=True),
}
