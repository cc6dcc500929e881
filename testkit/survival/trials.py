"""What a client is put through: one fault each, as rules that its API key selects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

UNDISTURBED = "undisturbed"


@dataclass(frozen=True, slots=True)
class Trial:
    """A fault of the first request that names a model, unless `times` is None: then of all."""

    name: str
    fault: str
    fields: dict[str, Any] = field(default_factory=dict)
    times: int | None = 1
    may_fail: bool = False  # ending with an error is all that can be asked of a client

    @property
    def api_key(self) -> str:
        """The key by which the server knows the trial."""
        return f"survive-{self.name}"

    @property
    def rule(self) -> dict[str, Any]:
        """The rule as in a file of --inject-faults. Listing models, which clients do at their start, is no trial."""
        match = {"api_key": self.api_key, "model": "*"}
        times = {} if self.times is None else {"times": self.times}
        return {"fault": self.fault, "name": self.name, "match": match, **times, **self.fields}


TRIALS = (
    Trial("rate-limit", "rate_limit", {"retry_after": 1}),
    Trial("server-error", "server_error"),
    Trial("unavailable", "unavailable"),
    Trial("reset", "reset"),
    Trial("slow-first-token", "slow", {"first_token": 3.0}),
    Trial("slow-tokens", "slow", {"token": 0.1}),
    Trial("truncated-json", "truncated_json"),
    Trial("cut-end", "cut", {"how": "end", "after_tokens": 1}),
    Trial("cut-close", "cut", {"how": "close", "after_tokens": 2}),
    Trial("cut-reset", "cut", {"how": "reset", "after_tokens": 2}),
    Trial("malformed-chunk", "malformed_chunk", {"after_tokens": 2}),
    Trial("error-event", "error_event", {"after_tokens": 2}),
    Trial("outage", "unavailable", times=None, may_fail=True),
)
NAMES = tuple(trial.name for trial in TRIALS)


def rules(trials: Sequence[Trial]) -> str:
    """The file of all rules; JSON, which is YAML."""
    return json.dumps({"rules": [trial.rule for trial in trials]}, indent=1)
