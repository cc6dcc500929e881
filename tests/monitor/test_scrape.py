"""Reading metrics: sums, windows over a restart, percentiles of a histogram, memory by either name."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from neuronserve.server.monitor.neuron_top import frame
from neuronserve.server.monitor.scrape import Endpoint, Scrape, Window, histogram_percentiles
from neuronserve.server.monitor.server_state import ServerState


def scrape(time: float, **counters: float) -> Scrape:
    return Scrape(time, "ready", {name: [({"engine": "0"}, value)] for name, value in counters.items()})


def histogram(time: float, counts: dict[str, float]) -> Scrape:
    return Scrape(time, "ready", {"h_bucket": [({"le": le}, count) for le, count in counts.items()]})


def test_a_window_is_what_happened_in_it() -> None:
    window = Window(scrape(10.0, a=5.0), scrape(12.0, a=9.0))
    assert (window.increase("a"), window.rate("a"), window.rate("b")) == (4, 2, 0)
    assert Window(scrape(10.0, a=5.0), scrape(12.0, a=3.0)).increase("a") == 3  # the server began anew


def test_percentiles_are_linear_in_a_bucket_and_of_the_window_alone() -> None:
    before = histogram(0, {"0.1": 50, "0.2": 50, "+Inf": 50})
    after = histogram(1, {"0.1": 50, "0.2": 150, "+Inf": 150})
    found = histogram_percentiles(Window(before, after), "h")
    assert found is not None
    assert found["p50"] == pytest.approx(0.15)
    assert (found["p0"], found["p100"]) == (pytest.approx(0.1), pytest.approx(0.2))
    assert histogram_percentiles(Window(after, after), "h") is None
    assert histogram_percentiles(Window(before, after), "nothing") is None


def test_what_lies_above_the_last_bound_counts_as_that_bound() -> None:
    none, some = ({"0.1": 0.0, "+Inf": 0.0}, {"0.1": 1.0, "+Inf": 4.0})
    found = histogram_percentiles(Window(histogram(0, none), histogram(1, some)), "h")
    assert found is not None
    assert found["p99"] == 0.1


MEMORY = [
    ({"core": "11", "engine": "0", "use": "weights"}, 2.0 * 2**30),
    ({"core": "11", "engine": "0", "use": "kv"}, 1.0 * 2**30),
    ({"core": "2", "engine": "1", "use": "weights"}, 3.0 * 2**30),
]
INFO = [({"device": "inf2.48xlarge", "model_name": "m", "version": "1"}, 1.0)]


@pytest.mark.parametrize("name", ["neuronserve:hbm_bytes", "neuronserve:device_memory_bytes"])
def test_cores_are_read_by_index_from_whichever_engine_has_them(name: str) -> None:
    state = ServerState.of(Scrape(0, "ready", {"neuronserve:engine_info": INFO, name: MEMORY}))
    assert [(core.core_id, core.name, core.chip, core.engine) for core in state.cores] == [
        (2, "ND 1:NC 0", 1, "1"),
        (11, "ND 5:NC 1", 5, "0"),
    ]
    assert state.cores[1].used_bytes == 3 * 2**30


def test_a_frame_shows_what_a_server_that_prices_its_steps_says() -> None:
    counters = {
        "neuronserve:device_seconds_total": [({"kind": "decode"}, 1.0), ({"kind": "idle"}, 5.0)],
        "neuronserve:cost_usd_total": [({"kind": "decode"}, 0.25), ({"kind": "idle"}, 0.75)],
        "neuronserve:instance_cost_usd_total": [({"engine": "0"}, 2.0)],
        "vllm:prompt_tokens_total": [({}, 300.0)],
        "vllm:generation_tokens_total": [({}, 700.0)],
    }
    samples = {"neuronserve:engine_info": INFO, "neuronserve:device_memory_bytes": MEMORY}
    console = Console(width=110, record=True, file=StringIO())
    console.print(frame("http://x", Window(Scrape(0, "ready", samples), Scrape(10, "ready", samples | counters))))
    text = " ".join(console.export_text().split())
    assert "modelled device time 0.10 s/s" in text
    assert "modelled cost since start $1.000000" in text
    assert "instance cost of an hour $720.0000 per million tokens $2,000.0000" in text
    assert "modelled per million tokens $250.0000" in text
    assert "limited by this host for 70% of the time" in text  # two engines for 10 s: 14 of 20 s are neither


def test_heads_of_columns_are_whole_on_80_columns() -> None:
    uses = {"weights": 1.0, "kv": 2.0, "code": 3.0, "scratchpad": 4.0, "runtime": 5.0, "collectives": 6.0}
    memory = [({"core": "0", "engine": "0", "use": use}, 2.0**30 * gib) for use, gib in uses.items()]
    samples = {"neuronserve:engine_info": INFO, "neuronserve:device_memory_bytes": memory}
    console = Console(width=80, record=True, file=StringIO())
    window = Window(Scrape(0, "ready", samples), Scrape(2, "ready", samples))
    console.print(frame("http://x", window, 50, 80))
    text = console.export_text()
    assert "…" not in text
    heads, row = (line.split("┃") for line in text.splitlines() if "weights" in line), text.splitlines()[-2]
    (names,) = ([name.strip() for name in line] for line in heads)
    assert names[-2] == "other"
    shown = [float(cell.split()[0]) for cell in row.split("│")[6:-1]]
    assert sum(shown) == sum(uses.values())


@pytest.mark.parametrize(("width", "height"), [(80, 20), (80, 50), (120, 30)])
def test_a_part_of_many_cores_fits_the_terminal(width: int, height: int) -> None:
    labels = [{"core": str(i), "engine": "0", "use": "weights"} for i in range(24)]
    samples = {"neuronserve:engine_info": INFO, "neuronserve:device_memory_bytes": [(each, 2.0**30) for each in labels]}
    console = Console(width=width, record=True, file=StringIO())
    console.print(frame("http://x", Window(Scrape(0, "ready", samples), Scrape(2, "ready", samples)), height))
    lines = console.export_text().splitlines()
    assert len(lines) <= height
    text = "\n".join(lines)
    assert "requests running" in text
    assert all(f"{core}: 0%" in text or f"NC {core % 2}" in text for core in range(24))


@pytest.mark.parametrize(
    ("url", "is_local"),
    [
        ("http://127.0.0.1:1", True),
        ("http://localhost:1", True),
        ("http://[::1]:1", True),
        ("http://10.0.0.1:1", False),
    ],
)
def test_only_processes_of_this_host_are_looked_up(url: str, is_local: bool) -> None:
    assert Endpoint(url).is_local is is_local
