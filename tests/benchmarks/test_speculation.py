"""`python -m benchmarks.speculation` from the outside: a line for each workload, with both rates and their ratio."""

from __future__ import annotations

import re
import sys

import pytest

from benchmarks import speculation
from neuronserve.server.settings.model import DEFAULT_MODEL

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(
    "options", [(), ("--draft-model", str(DEFAULT_MODEL)), ("--draft-model", str(DEFAULT_MODEL), "--synthetic", "3")]
)
def test_the_table_has_both_rates(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pytestconfig: pytest.Config,
    options: tuple[str, ...],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(pytestconfig.cache.mkdir("kernels")))
    monkeypatch.setattr(sys, "argv", ["speculation", "--rounds", "1", "--only", "verbatim", *options])
    monkeypatch.setattr(speculation, "LEAST_S", 0.0)
    speculation.main()
    _, line = capsys.readouterr().out.splitlines()
    found = re.fullmatch(r"verbatim, batch 1 +([\d.]+) +([\d.]+) +([\d.]+) +(\d+)/(\d+)", line)
    assert found is not None
    plain, drafted, ratio, accepted, verified = map(float, found.groups())
    assert ratio == pytest.approx(drafted / plain, abs=0.01)
    assert 0 < accepted <= verified
