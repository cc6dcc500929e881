"""The command that says what the journal and the heartbeat cost: it measures both and prints shares."""

from __future__ import annotations

import re
import sys

import pytest

from tools import recovery_cost


def test_both_parts_are_measured_and_given_as_shares(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recovery_cost, "ROUNDS", 1)
    monkeypatch.setattr(recovery_cost, "TURNS", 20)
    monkeypatch.setattr(sys, "argv", ["recovery_cost", "--tokens-per-s", "1000", "--seqs", "4"])
    recovery_cost.main()
    journal, heartbeat = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"journal: -?[\d.]+ us a token, -?[\d.]+% of a core at 1000 tokens/s", journal)
    assert re.fullmatch(r"heartbeat: -?[\d.]+ us a step, -?[\d.]+% of a step at that rate", heartbeat)
