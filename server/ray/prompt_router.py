"""The project's rule of routing for handles of Ray Serve.

A handle has one `PromptRouter` in its process, with a ledger of its own.
"""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from ..route.address import parse
from ..route.prompt import Prompt, new_ledger, prompt_of
from .members import ADDRESS, update


class PromptRouter(RequestRouter):
    """Sends a request to the replica that computes its prompt soonest (`scheduler/router.py`).

    A request's second argument is its body; one without a body counts as a prompt of one token.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        """Begin without replicas."""
        del kwargs
        self._ledger = new_ledger()
        self._numbers: dict[ReplicaID, int] = {}  # of replicas, one each for ever

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Follow the replicas that run now."""
        super().update_replicas(replicas)
        running = {each.replica_id for each in replicas}
        for gone in self._numbers.keys() - running:
            self._ledger.lose(self._numbers[gone])
        for new in running - self._numbers.keys():
            self._numbers[new] = len(self._numbers)
            self._ledger.join(self._numbers[new])
        written = [each.replica_metadata.get(ADDRESS) for each in replicas]
        update(self.app_name, [parse(each, "replica") for each in written if each])

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the chosen replica, then all others, for when it has too many requests."""
        if pending_request is None:
            return [candidate_replicas]
        name, args = pending_request.metadata.internal_request_id, pending_request.args
        prompt = prompt_of(args[1]) if len(args) > 1 and isinstance(args[1], bytes) else Prompt()
        self._ledger.end(name)  # of an earlier try
        numbers = [self._numbers[each.replica_id] for each in candidate_replicas]
        chosen = numbers.index(self._ledger.place_prompt(name, prompt.digests, prompt.num_tokens, among=numbers))
        return [[candidate_replicas[chosen]], candidate_replicas[:chosen] + candidate_replicas[chosen + 1 :]]

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Count the request no more."""
        del replica_id
        self._ledger.end(internal_request_id)
