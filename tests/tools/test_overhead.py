"""The command that says what the server does beside answering: it measures every part and prints shares of a core."""

from __future__ import annotations

import re
import sys

import pytest

from tools import overhead


@pytest.mark.parametrize("names", [[], ["keys"], ["journal", "heartbeat"]], ids=lambda names: " ".join(names) or "all")
def test_each_part_is_measured_and_given_as_a_share(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], names: list[str]
) -> None:
    monkeypatch.setattr(overhead, "ROUNDS", 1)
    monkeypatch.setattr(overhead, "TURNS", 20)
    monkeypatch.setattr(sys, "argv", ["overhead", *names, "--tokens-per-s", "1000", "--seqs", "4"])
    overhead.main()
    rates = {"token": "1000", "step": "250", "request": "10"}
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(names or overhead.FEATURES)
    for line, name in zip(lines, names or overhead.FEATURES, strict=True):
        unit = overhead.FEATURES[name].unit
        shown = rf"{name}: -?[\d.]+ us a {unit}, -?[\d.]+% of a core at {rates[unit]} {unit}s/s"
        assert re.fullmatch(shown, line), line
