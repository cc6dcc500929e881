"""Lengths from a file of Vidur's form: drawn in pairs, the same for a seed, refused with the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronserve.planner.settings.simulate import SimulateSettings
from neuronserve.server.errors import SettingsError
from neuronserve.server.settings.sources import load_settings
from neuronserve.workload.arrivals import Arrivals
from neuronserve.workload.lengths import LengthRange, read_lengths
from neuronserve.workload.synthetic import SyntheticWorkload

HEADER = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n"
ROWS = "74,918,992,0.08\n290,905,1195,0.32\n5,7,12,0.71\n"
NO_LENGTH = LengthRange(1, 1)


def written(folder: Path, text: str) -> Path:
    path = folder / "chat.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_pairs_stay_together_and_more_begin_with_the_same(tmp_path: Path) -> None:
    table = read_lengths(written(tmp_path, HEADER + ROWS))
    few, more = (SyntheticWorkload(n, Arrivals(2.0), NO_LENGTH, NO_LENGTH, lengths=table).generate() for n in (50, 80))
    pairs = list(zip(more.input_len.tolist(), more.output_len.tolist(), strict=True))
    assert set(pairs) == {(74, 918), (290, 905), (5, 7)}
    assert few.input_len.tolist() == [a for a, _ in pairs[:50]]
    assert "chat.csv" in more.name
    other = SyntheticWorkload(80, Arrivals(9.0), NO_LENGTH, NO_LENGTH, seed=1, lengths=table).generate()
    assert other.input_len.tolist() != more.input_len.tolist()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "chat.csv:1: the header has no column 'num_prefill_tokens'"),
        ("input,output\n1,2\n", "chat.csv:1: the header"),
        (HEADER, "holds no request"),
        (HEADER + "74,918\n", "chat.csv:2: 2 cells where the header has 4 columns"),
        (HEADER + ROWS + "1,0,1,1\n", "chat.csv:5: num_decode_tokens is 0: it must be a whole number of 1 to"),
        (HEADER + "x,1,1,1\n", "chat.csv:2: invalid literal"),
    ],
)
def test_a_file_that_is_none_is_refused_with_the_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        read_lengths(written(tmp_path, text))


def test_the_flag_takes_the_place_of_the_ranges_and_not_of_a_trace(tmp_path: Path) -> None:
    path = str(written(tmp_path, HEADER + ROWS))
    settings = load_settings(SimulateSettings, ["llama-1b", "--lengths", path, "--max-model-len", "900"])
    load = settings.options.workload
    assert len(load) == 1000
    assert load.num_cut == sum(load.output_len > 800) > 0
    with pytest.raises(SettingsError, match="--trace has lengths of its own"):
        load_settings(SimulateSettings, ["llama-1b", "--lengths", path, "--trace", path])
