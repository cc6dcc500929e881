"""Turns of contenders: one at a time, in turning order, and none that fails disturbs the others."""

from __future__ import annotations

import pytest

from benchmarks.interleave import WARM_UP_SEED, Interleaved, Limits, turned
from benchmarks.records import METRICS, BenchmarkError, Case, Figures


class Scripted:
    """Gives `value` for every metric; fails from measurement `fails_at` on."""

    def __init__(self, name: str, value: float, journal: list[str], fails_at: int | None = None) -> None:
        self.name, self._value, self._journal, self._fails_at = name, value, journal, fails_at
        self.is_running, self.seeds = False, list[int]()

    def start(self) -> None:
        self.is_running = True

    def measure(self, case: Case, seed: int) -> Figures:
        assert self.is_running
        self.seeds.append(seed)
        self._journal.append(self.name)
        if self._fails_at is not None and len(self.seeds) > self._fails_at:
            raise BenchmarkError(f"{self.name} broke")
        return {metric.name: self._value for metric in METRICS[case.kind]}

    def pause(self) -> None:
        self.is_running = False
        self._journal.append("pause")

    def resume(self) -> None:
        self.is_running = True

    def stop(self) -> None:
        self.is_running = False

    def about(self) -> dict[str, str]:
        return {}


def measured(journal: list[str]) -> list[str]:
    return [entry for entry in journal if entry != "pause"]


def test_each_round_has_everyone_once_and_begins_with_another() -> None:
    journal: list[str] = []
    sides = [Scripted(name, value, journal) for name, value in (("a", 6.0), ("b", 3.0), ("c", 2.0))]
    result = Interleaved(sides, Limits(3), lambda _: None).measure(Case("decode"))
    assert measured(journal) == [*"abc", *"abc", *"bca", *"cab"]  # the first three are the warm-up
    assert journal[1::2] == ["pause"] * 12
    assert sides[0].seeds == [WARM_UP_SEED, 0, 1, 2]
    assert [len(rounds) for rounds in result.rounds.values()] == [3, 3, 3]
    assert result.ratio("decode_tokens_per_s", "a", "c").median == 3.0


def test_who_fails_is_left_out_with_the_reason() -> None:
    journal: list[str] = []
    sides = [Scripted("a", 1.0, journal), Scripted("b", 1.0, journal, fails_at=2), Scripted("c", 0.0, journal)]
    result = Interleaved(sides, Limits(4), lambda _: None).measure(Case("prefill"))
    assert list(result.rounds) == ["a"]
    assert len(result.rounds["a"]) == 4
    reasons = {skipped.name: skipped.reason for skipped in result.skipped}
    assert reasons == {"b": "b broke", "c": "c gave 0.0 as prefill_tokens_per_s"}
    assert measured(journal).count("b") == 3


def test_no_round_begins_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 5.0, 20.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    result = Interleaved([Scripted("a", 1.0, [])], Limits(9, max_seconds=10.0), lambda _: None).measure(Case("decode"))
    assert len(result.rounds["a"]) == 2


def test_nobody_is_no_error() -> None:
    assert turned([], 3) == []
    assert Interleaved([], Limits(2), lambda _: None).measure(Case("decode")).rounds == {}
