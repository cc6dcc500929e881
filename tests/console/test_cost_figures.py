"""Figures of the Cost page beside /metrics and `bench serve`, for the same window of one server: within one percent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.serving import Server, run_command, running_server, write_checkpoint
from tests.console.browsing import IN_BROWSER, Page, go

LENGTHS = ("--dataset-name", "random", "--random-input-len", "60", "--random-output-len", "40")
LOAD = (*LENGTHS, "--num-prompts", "40", "--max-concurrency", "8", "--num-warmups", "0", "--max-lag-ms", "60000")


def counters(server: Server) -> dict[str, float]:
    """Sums of the counters of /metrics that the page shows in other words."""
    text = httpx.get(f"{server.url}/metrics").text

    def total(name: str, labels: str = "") -> float:
        return sum(float(value) for value in re.findall(rf"^{name}_total{{.*{labels}.*}} (\S+)$", text, re.MULTILINE))

    return {
        "usd": total("neuronserve:instance_cost_usd"),
        "idle_s": total("neuronserve:device_seconds", 'kind="idle"'),
        "busy_s": total("neuronserve:device_seconds", 'kind="(?:prefill|decode)"'),
        "tokens": total("vllm:prompt_tokens") + total("vllm:generation_tokens"),
    }


def shown(server: Server) -> dict[str, float]:
    """What the page has of the time since the start."""
    with httpx.stream("GET", f"{server.url}/console/events") as answer:
        records = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))
        hour: dict[str, float] = next(each["cost"]["hour"] for each in records if each["type"] == "live")
    return hour | {"tokens": hour["prompt_tokens"] + hour["cached_tokens"] + hour["output_tokens"]}


def checked(server: Server) -> dict[str, float]:
    """Return what the page has, of which the counters grow past each figure while it is read."""
    before, found, after = counters(server), shown(server), counters(server)
    for name in ("usd", "idle_s"):
        assert before[name] * 0.99 <= found[name] <= after[name] * 1.01, name
    for name in ("busy_s", "tokens"):
        assert found[name] == pytest.approx(before[name], rel=1e-6), name
    return found


def bench(server: Server, file: Path) -> dict[str, Any]:
    run = run_command(
        *("run", "--base-url", server.url, *LOAD, "--json", str(file)),
        program="neuronserve.loadtests",
    )
    assert run.returncode == 0, run.stderr
    result: dict[str, Any] = json.loads(file.read_text())
    return result


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--device", "slow:0.02"), id="saturated by this host"),
        pytest.param(("--device", "inf2.xlarge", "--pace", "device"), id="paced"),
    ],
)
def test_console_metrics_and_bench_agree(options: tuple[str, ...], tmp_path: Path) -> None:
    with running_server(write_checkpoint(tmp_path / "model"), *options) as server:
        idle = checked(server)
        assert idle["idle_s"] == pytest.approx(idle["seconds"], rel=0.01)
        found = bench(server, tmp_path / "result.json")
        loaded = checked(server)
    window = {name: loaded[name] - idle[name] for name in ("usd", "seconds", "busy_usd", "tokens")}
    num_tokens = found["total_input_tokens"] + found["total_output_tokens"]
    assert window["tokens"] == num_tokens
    usd = window["usd"] * found["duration"] / window["seconds"]  # of the run, without what was before and after it
    assert 1e6 * usd / num_tokens == pytest.approx(found["cost_per_million_total_tokens_usd"], rel=0.01)
    modelled = found["modelled_cost_per_million_total_tokens_usd"]
    assert 1e6 * window["busy_usd"] / num_tokens == pytest.approx(modelled, rel=0.01)
    assert loaded["modelled_usd_per_million_tokens"] == pytest.approx(modelled, rel=0.01)
    is_limited = "limited by this host" in str(loaded["remark"])
    assert is_limited == options[1].startswith("slow")


@IN_BROWSER[0]
@IN_BROWSER[1]
def test_the_page_shows_what_the_metrics_have(page: Page, echo: Server) -> None:
    body = {"messages": [{"role": "user", "content": "of ships"}], "max_tokens": 8}
    assert httpx.post(f"{echo.url}/v1/chat/completions", json=body).status_code == 200
    go(page, echo, "cost")
    before = counters(echo)
    page.wait_for_timeout(1500)  # a new record
    text = page.locator(".tile", has_text=re.compile(r"^\S+per million tokens")).last.locator(".value").inner_text()
    after = counters(echo)
    each = float(text.replace("$", "").replace(",", ""))
    assert 0.99 * before["usd"] <= each * after["tokens"] / 1e6 <= 1.01 * after["usd"]
