"""Limits: which requests are good, and limits that are none."""

from __future__ import annotations

from typing import Any

import pytest

from neuronserve.server.errors import SettingsError
from neuronserve.workload.slo import Slo

TIMES = ([100.0, 200.0, 300.0], [0.0, 20.0, 30.0], [100.0, 900.0, 5000.0])  # TTFT, TPOT, E2EL of three requests


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(), [True, True, True]),
        (Slo(ttft_ms=200), [True, True, False]),
        (Slo(tpot_ms=1), [True, False, False]),
        (Slo(e2el_ms=899.9), [True, False, False]),
        (Slo(ttft_ms=250, tpot_ms=19), [True, False, False]),
        (Slo(ttft_ms=99, e2el_ms=1e9), [False, False, False]),
    ],
)
def test_a_good_request_meets_every_limit(slo: Slo, good: list[bool]) -> None:
    assert slo.are_met(*TIMES).tolist() == good
    assert slo.is_set is (slo != Slo())
    assert [bool(slo.are_met(*times)) for times in zip(*TIMES, strict=True)] == good


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ttft_ms": 0.0}, "ttft_ms is 0: it must be above 0"),
        ({"tpot_ms": -1.0}, "tpot_ms is -1"),
        ({"e2el_ms": float("nan")}, "e2el_ms is nan"),
        ({"attainment": 0.0}, "attainment is 0: it must be above 0 and at most 1"),
        ({"attainment": 1.01}, "attainment is 1.01"),
    ],
)
def test_limits_that_nothing_meets_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        Slo(**fields)
