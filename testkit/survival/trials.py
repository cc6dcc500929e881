"""Trials of a client: one fault each, as rules that its API key selects."""

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
    may_fail: bool = False  # a client may end with an error

    @property
    def api_key(self) -> str:
        """The key that selects the trial's rule."""
        return f"survive-{self.name}"

    @property
    def rule(self) -> dict[str, Any]:
        """The rule of a file for --inject-faults. It does not match the list of models, which clients request first."""
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
    """Return the file of all rules, as JSON, which is valid YAML."""
    return json.dumps({"rules": [trial.rule for trial in trials]}, indent=1)
