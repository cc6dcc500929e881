"""`python -m benchmarks.structured` from the outside: the table has the rates and the times of both sides."""

from __future__ import annotations

import sys

import pytest

from benchmarks import structured

pytestmark = pytest.mark.thorough


def test_the_table_has_rates_and_processor_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(pytestconfig.cache.mkdir("kernels")))
    monkeypatch.setattr(sys, "argv", ["structured", "--batch-size", "2", "--rounds", "1"])
    monkeypatch.setattr(structured, "OUTPUT_LEN", 8)
    structured.main()
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["constrained", "free", "ratio"]
    for line, name in zip(lines, ("decode tokens/s", "processor s, a run"), strict=True):
        assert line.startswith(name)
        bound, free, ratio = map(float, line[len("processor s, a run") :].split()[:3])
        assert ratio == pytest.approx(bound / free, rel=1e-2)
