"""Fields of a `Request` by which the scheduling policy knows whose it is and when it is due."""

from __future__ import annotations

from math import inf
from typing import TypedDict

from ..config import MS, ApiConfig
from ..http.objectives import Objectives
from ..keys.key import NO_SCHEDULING
from ..keys.ring import Caller


class SchedulingFields(TypedDict):
    tenant: str
    session: str
    weight: float
    first_token_by: float
    token_interval_s: float


def scheduling_fields(config: ApiConfig, caller: Caller, asked: Objectives, now: float) -> SchedulingFields:
    """Return the fields of a request that comes now: by its headers, else its key, else the server's settings.

    A fairness id is heeded where nothing is shared by keys, and from operators, such as a gateway in front of clients.
    """
    own = NO_SCHEDULING if caller.key is None else caller.key.scheduling
    ttft_ms = asked.ttft_ms or own.ttft_slo_ms or config.ttft_slo_ms or inf
    tpot_ms = asked.tpot_ms or own.tpot_slo_ms or config.tpot_slo_ms or inf
    fairness_id = asked.fairness_id if caller.key is None or caller.is_admin else ""
    return {
        "tenant": fairness_id or caller.tenant,
        "session": f"{caller.name} {asked.session}" if asked.session else "",
        "weight": own.weight,
        "first_token_by": now + ttft_ms / MS,
        "token_interval_s": tpot_ms / MS,
    }
