"""Lengths follow the server's model: no scenario fails because its requests are longer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.loadtests import cli
from neuronserve.loadtests.datasets.dataset import make_dataset, total_len
from neuronserve.loadtests.errors import SpecError
from neuronserve.loadtests.fit import DRAWN, fit_lengths, longest_drawn
from neuronserve.loadtests.local_server import mock_command, running
from neuronserve.loadtests.scenario import built_in_names
from neuronserve.loadtests.specs import DatasetSpec
from neuronserve.loadtests.vocabulary import Vocabulary

LEN = st.integers(1, 5000)


@given(st.sampled_from(sorted(DRAWN)), LEN, LEN, st.integers(0, 5000), st.floats(0, 0.9), st.integers(1, 6), LEN)
def test_what_is_drawn_fits(
    name: str, input_len: int, output_len: int, prefix_len: int, ratio: float, turns: int, most: int
) -> None:
    lengths = {"random_input_len": input_len, "random_output_len": output_len, "random_range_ratio": ratio}
    spec = DatasetSpec(dataset_name=name, prefix_len=prefix_len, num_turns=turns, num_prompts=turns, **lengths)  # type: ignore[arg-type]
    try:
        fitted, note = fit_lengths(spec, most)
    except SpecError:
        assert most < longest_drawn(spec)
        return
    assert (note is None) == (longest_drawn(spec) <= most) == (fitted == spec)
    assert max(map(total_len, make_dataset(fitted, Vocabulary(), 0).sessions)) <= most


def test_a_model_without_room_is_refused() -> None:
    with pytest.raises(SpecError, match="max_model_len is 7: 4 turns have no room in it"):
        fit_lengths(DatasetSpec(dataset_name="multi-turn"), 7)


@pytest.mark.parametrize(("given_len", "expected"), [(None, 2048), (1000, 1000), (9000, 2048)])
def test_what_was_recorded_is_left_out_and_not_changed(given_len: int | None, expected: int) -> None:
    spec = DatasetSpec(dataset_name="sharegpt", max_total_len=given_len)
    fitted, note = fit_lengths(spec, 2048)
    assert fitted.max_total_len == expected
    assert (note is None) == (expected == given_len)


@pytest.fixture(scope="module")
def small_model_url() -> Iterator[str]:
    with running(mock_command(ttft_ms=1, itl_ms=0.1, max_model_len=2048)) as url:
        yield url


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(built_in_names()) - {"mlperf-server", "overload"}))
def test_built_in_scenarios_fit_a_model_of_2048_tokens(small_model_url: str, name: str, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    flags = f"--base-url {small_model_url} --scenario {name} --num-prompts 12 --num-warmups 3 --max-lag-ms 1e5"
    flags += " --think-time-s 0.01"
    assert cli.main([*flags.split(), "--request-rate", "200", "--disable-progress", "--json", str(out)]) == 0
    result = json.loads(out.read_text())
    left_out = result["benchmark_record"]["num_left_out_as_too_long"]
    assert result["failed"] == 0
    assert 0 < result["completed"] == 12 - left_out


@pytest.mark.parametrize(
    ("flag", "reason"),
    [("--request-rate 3", "--start-rate is the first one"), ("--num-prompts 9", "at least --min-prompts")],
)
def test_a_sweep_refuses_what_it_decides_itself(flag: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", *flag.split(), "--goodput", "ttft:2000"]) == 2
    error = capsys.readouterr().err
    assert flag.split(maxsplit=1)[0] in error
    assert reason in error


def test_help_shows_the_flags_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    printed = capsys.readouterr().out
    assert "sweep" in printed
    assert "--random-input-len" in printed
