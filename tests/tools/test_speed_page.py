"""The plots of docs/internals/compare.md are those of benchmarks/results (tests/test_doc_tables holds the tables)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.picture import drawn
from benchmarks.published import Line, published
from benchmarks.records import BenchmarkError
from tools.speed_page import PICTURES, pictures

SVG = "{http://www.w3.org/2000/svg}"


def test_each_level_has_the_plot_of_its_results() -> None:
    expected = pictures()
    assert set(PICTURES.glob("speed-*.svg")) == set(expected)
    for path, picture in expected.items():
        assert path.read_text() == picture, "python -m tools.speed_page"


def stored(folder: Path, **changes: Any) -> Path:
    """Store a comparison of time to first token and its formats' quality; returns the folder."""
    record = {
        "date": "2026-11-28T03:00:00Z",
        "host": "Linux x86_64, 2 cores, Some CPU",
        "checkpoint": "model-0123456789abcdef",
        "quantization": "int8-groups",
        "isa": "avx2",
        "contenders": {"llama.cpp, http": {"weights": "llama 1B Q8_0"}},
        "cases": [{"case": "http 8", "kind": "http", "ratios": [RATIO]}],
    }
    (folder / "one.json").write_text(json.dumps({**record, **changes}))
    rows = [("neuronserve", "int8-groups", 0.0049), ("neuronserve", "int8", 0.0054), ("llama.cpp", "Q8_0", 0.0047)]
    named = [{"model": "m", "engine": e, "weights": w, "kl": kl, "top1": 0.9, "perplexity": 9} for e, w, kl in rows]
    (folder / "quality.json").write_text(json.dumps({"rows": named}))
    return folder


RATIO: dict[str, Any] = {
    "peer": "llama.cpp",
    "metric": "median_ttft_ms",
    "more_is_better": False,
    "median": 0.5,
    "low": 0.4,
    "high": 0.8,
    "coverage": 0.9375,
    "ours": 50.0,
    "theirs": 100.0,
}


def test_a_shorter_time_is_a_ratio_above_one(tmp_path: Path) -> None:
    (line,) = published(stored(tmp_path))
    assert (line.times, line.interval) == (2.0, (1.25, 2.5))
    assert line.compared == ("model int8-groups", "http 8", "llama.cpp Q8_0")
    assert (line.host, line.date, line.kl) == ("Some CPU", "2026-11-28", (0.0049, 0.0047))


def test_only_a_format_near_the_peers_is_of_equal_quality(tmp_path: Path) -> None:
    assert published(stored(tmp_path))[0].is_equal_quality
    assert not published(stored(tmp_path, quantization="int8"))[0].is_equal_quality
    assert not published(stored(tmp_path, contenders={}))[0].is_equal_quality  # not measured


def test_the_plot_fills_the_dots_at_equal_quality(tmp_path: Path) -> None:
    (equal,) = published(stored(tmp_path))
    rows: list[Line] = [equal, replace(equal, kl=None), replace(equal, interval=None, times=40.0)]
    picture = ElementTree.fromstring(drawn(rows))
    fills = [each.get("fill") == each.get("stroke") for each in picture.iter(f"{SVG}circle")]
    assert fills == [True, False, True]
    assert len([each for each in picture.iter(f"{SVG}path") if each.get("stroke-width")]) == 2  # intervals
    assert float([*picture.iter(f"{SVG}circle")][2].get("cx", "0")) <= float(picture.get("width", "0"))


def test_a_file_of_another_form_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match=r"one.json .*isa"):
        published(stored(tmp_path, isa="sse9"))
