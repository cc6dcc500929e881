"""Turns that wait for the next one: no first or last token, no sequence alone, and only while steps are short."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.link.messages import Tokens
from neuronserve.server.link.send_pace import MAX_WAIT_S, SendPace
from neuronserve.server.types import FinishReason, StepReport, TokenEvent


@dataclass
class Turns:
    """Turns of an engine with equal steps."""

    num_seqs: int
    step_s: float

    def __post_init__(self) -> None:
        self._pace, self._numbers, self.now = SendPace(), count(1), 0.0

    def waits(
        self, index: int = 5, end: FinishReason | None = None, num_waiting: int = 0, num_prefill: int = 0
    ) -> bool:
        """Whether the next turn waits, if its first event and report are these."""
        number = next(self._numbers)
        now = self.now = 1.0 + number * self.step_s
        events = [
            TokenEvent(f"r{i}", 7, index if i == 0 else 9, now, end if i == 0 else None) for i in range(self.num_seqs)
        ]
        report = StepReport(
            number, now, now, self.num_seqs, num_waiting, num_prefill, self.num_seqs, (), (), 9, 9, 0, 0, self.step_s
        )
        return self._pace.waits(Tokens(events, report))


@pytest.mark.parametrize(
    ("num_seqs", "step_s", "waiting"),
    [(1, 0.0001, 0), (2, 0.001, 0), (8, 0.001, 4), (8, 0.0015, 0), (64, 0.006, 3), (64, 0.017, 0), (256, 0.015, 1)],
)
def test_turns_wait_while_steps_are_short_beside_the_tokens(num_seqs: int, step_s: float, waiting: int) -> None:
    turns = Turns(num_seqs, step_s)
    expected = [False, *([True] * waiting + [False]) * 3]
    assert [turns.waits() for _ in expected] == expected


@pytest.mark.parametrize(
    "given", [{"index": 0}, {"end": "stop"}, {"end": "abort"}, {"num_waiting": 1}, {"num_prefill": 8}]
)
def test_first_and_last_tokens_and_turns_beside_prompts_go_at_once(given: dict[str, int]) -> None:
    turns = Turns(32, 0.0001)
    assert [turns.waits(), turns.waits()] == [False, True]
    assert not turns.waits(**given)  # type: ignore[arg-type]
    assert turns.waits()


@given(st.integers(1, 512), st.floats(1e-5, 0.1))
def test_no_turn_waits_longer_than_the_limit(num_seqs: int, step_s: float) -> None:
    turns, sent_s = Turns(num_seqs, step_s), 0.0
    for _ in range(60):
        if turns.waits():
            assert turns.now - sent_s < MAX_WAIT_S
        else:
            sent_s = turns.now
