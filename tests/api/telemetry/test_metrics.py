"""/metrics of real servers: counts equal the work done, and vLLM's names are there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from neuronserve.server.api.config import ApiConfig
from neuronserve.server.api.listener import address, bind
from neuronserve.server.api.server import ApiServer
from neuronserve.server.api.telemetry.families import ALIASES, FAMILIES
from neuronserve.server.link.groups import EngineGroups
from neuronserve.server.link.handle import EngineHandle
from tests.api.serving import PATIENCE_S, Server, run_fake, running_server
from tests.api.telemetry.scraping import Scrape, scrape
from tests.api.test_life import events, until
from tests.link.test_client import config

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
NAMES = Path(__file__).with_name("metric_names.txt")
LONG = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True}
SLOW = ("--device", "slow:0.02", "--max-num-seqs", "2")


def ask(server: Server) -> socket.socket:
    """A client that has asked for a long stream and reads nothing."""
    client = socket.create_connection(("127.0.0.1", server.port))
    body = json.dumps(LONG)
    head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return client


@pytest.fixture(scope="module")
def used(checkpoint: Path) -> Iterator[tuple[Server, list[dict[str, int]]]]:
    """A server after five known sequences in four requests and one fault, and the reported usage of each request."""
    bodies = [
        {"prompt": "a" * 100, "max_tokens": 20, "ignore_eos": True, "n": 2},
        {"prompt": "a" * 100, "max_tokens": 1},
        {"prompt": "b" * 7, "max_tokens": 9, "ignore_eos": True},
    ]
    with running_server(checkpoint, "--allow-fault-header") as server:
        httpx.get(server.url + "/v1/models", headers={"X-Inject-Fault": "server_error"})
        usages = [httpx.post(server.url + TEXT, json=body, timeout=30).json()["usage"] for body in bodies]
        chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "ignore_eos": True}
        usages.append(httpx.post(server.url + CHAT, json=chat, timeout=30).json()["usage"])
        yield server, usages


@pytest.fixture
def seen(used: tuple[Server, list[dict[str, int]]]) -> Scrape:
    return scrape(used[0].url)


def test_token_counters_equal_the_usage_that_was_told(used: tuple[Server, list[dict[str, int]]], seen: Scrape) -> None:
    usages = used[1]
    prompts = sum(usage["prompt_tokens"] for usage in usages) + 100  # a choice of the same prompt counts again
    assert seen.value("vllm:prompt_tokens_total") == prompts
    assert seen.value("vllm:generation_tokens_total") == sum(usage["completion_tokens"] for usage in usages) == 55
    assert seen.value("vllm:prefix_cache_queries_total") == prompts
    cached = seen.value("vllm:prompt_tokens_cached_total")
    assert cached == seen.value("vllm:prefix_cache_hits_total") == 2 * 96  # 3 blocks of 32, for two of three
    assert seen.value("vllm:prompt_tokens_by_source_total", source="local_cache_hit") == cached
    assert seen.value("vllm:prompt_tokens_by_source_total", source="local_compute") == prompts - cached


@pytest.mark.parametrize(
    ("family", "count", "total"),
    [
        ("vllm:request_prompt_tokens", 5, None),
        ("vllm:request_generation_tokens", 5, 55),
        ("vllm:request_prefill_kv_computed_tokens", 5, None),
        ("vllm:request_params_max_tokens", 5, 55),
        ("vllm:request_params_n", 4, 5),
        ("vllm:request_max_num_generation_tokens", 4, 35),
        ("vllm:request_num_preemptions", 5, 0),
        ("vllm:time_to_first_token_seconds", 5, None),
        ("vllm:e2e_request_latency_seconds", 5, None),
        ("vllm:request_queue_time_seconds", 5, None),
        ("vllm:request_prefill_time_seconds", 5, None),
        ("vllm:request_decode_time_seconds", 5, None),
        ("vllm:request_inference_time_seconds", 5, None),
        ("vllm:request_time_per_output_token_seconds", 4, None),  # one has a single token
        ("vllm:inter_token_latency_seconds", 50, None),
        ("vllm:time_per_output_token_seconds", 50, None),
    ],
)
def test_histograms_have_one_observation_for_each(seen: Scrape, family: str, count: int, total: int | None) -> None:
    assert seen.value(f"{family}_count") == count
    assert seen.value(f"{family}_bucket", le="+Inf") == count
    assert seen.value(f"{family}_sum") >= 0
    if total is not None:
        assert seen.value(f"{family}_sum") == total


def test_the_phases_of_a_request_add_up(seen: Scrape) -> None:
    def total(phase: str) -> float:
        return seen.value(f"vllm:{phase}_seconds_sum")

    queue, prefill, decode = (total(f"request_{phase}_time") for phase in ("queue", "prefill", "decode"))
    assert prefill + decode == pytest.approx(total("request_inference_time"))
    assert total("inter_token_latency") == pytest.approx(decode)
    assert 0 < queue + prefill <= total("time_to_first_token") <= total("e2e_request_latency")
    assert queue + prefill + decode <= total("e2e_request_latency")


def test_each_computed_token_is_in_one_step(used: tuple[Server, list[dict[str, int]]], seen: Scrape) -> None:
    computed = seen.value("vllm:prompt_tokens_by_source_total", source="local_compute")
    fed_back = seen.value("vllm:generation_tokens_total") - 5  # a sequence's last token is never computed
    assert seen.value("vllm:iteration_tokens_total_sum") == computed + fed_back
    assert seen.value("neuronserve:engine_step_seconds_count") == seen.value("vllm:iteration_tokens_total_count")


def test_ends_are_counted_by_reason(seen: Scrape) -> None:
    ends = {reason: seen.value("vllm:request_success_total", finished_reason=reason) for reason in ("abort", "error")}
    assert ends == {"abort": 0, "error": 0}
    assert seen.value("vllm:request_success_total") == 5


def test_an_idle_server_runs_and_holds_nothing(seen: Scrape) -> None:
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "gpu_cache_usage_perc"):
        assert seen.value(f"vllm:{name}", model_name="fake", engine="0") == 0
    assert seen.value("neuronserve:kv_cache_blocks", state="free") == 255
    assert seen.value("neuronserve:engine_up") == 1


def test_configuration_and_device_memory_are_told(seen: Scrape) -> None:
    (config,) = seen.metrics["vllm:cache_config_info"].samples
    assert config.value == 1
    assert config.labels == {
        "block_size": "32",
        "num_gpu_blocks": "256",
        "cache_dtype": "bfloat16",
        "enable_prefix_caching": "True",
        "engine": "0",
    }
    assert seen.value("neuronserve:device_memory_bytes", core="1", use="weights") == 600
    assert seen.value("neuronserve:device_memory_bytes", core="0") == 900
    assert seen.value("neuronserve:device_memory_budget_bytes", core="0") == 950
    assert seen.value("neuronserve:device_memory_capacity_bytes", core="1") == 1000
    assert seen.value("neuronserve:engine_info", device="inf2.xlarge", tensor_parallel_size="1") == 1


def test_buckets_are_those_that_dashboards_have_thresholds_for(seen: Scrape) -> None:
    assert {0.25, 0.5, 1, 2.5, 5} <= set(seen.bounds("vllm:time_to_first_token_seconds"))
    assert {0.025, 0.05, 0.1, 0.2} <= set(seen.bounds("vllm:request_time_per_output_token_seconds"))
    assert seen.bounds("vllm:request_prompt_tokens") == [1, 2, 5, 10, 20, 50, 100, 200, 500]  # the context is 512
    assert seen.bounds("vllm:e2e_request_latency_seconds")[-1] == 7680


@pytest.mark.parametrize("line", [line for line in NAMES.read_text().splitlines() if line and line[0] != "#"])
def test_a_name_that_others_read_is_exposed(seen: Scrape, line: str) -> None:
    found = re.fullmatch(r"([a-z0-9_:]+)(?:\{(\w+)\})?", line)
    assert found is not None
    assert seen.has(found[1], found[2])


def test_nothing_is_exposed_that_is_not_in_the_table(seen: Scrape) -> None:
    kinds = {family.name: family.kind for family in FAMILIES}
    kinds |= {old: family.kind for old, family in ALIASES.items()}
    exposed = {name: m.type for name, m in seen.metrics.items() if not name.startswith("process_")}
    assert exposed == kinds
    for family in FAMILIES:
        labels = {label for sample in seen.metrics[family.name].samples for label in sample.labels} - {"le"}
        assert labels == set(family.labels), family.name


def test_scrapers_of_openmetrics_get_it(used: tuple[Server, list[dict[str, int]]]) -> None:
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    response = httpx.get(used[0].url + "/metrics", headers=accept)
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert "vllm:num_requests_running" in {metric.name for metric in parse_openmetrics(response.text)}


def test_running_waiting_and_gone(checkpoint: Path) -> None:
    with running_server(checkpoint, *SLOW) as server, contextlib.ExitStack() as clients:
        for _ in range(3):
            clients.enter_context(ask(server))
        until(lambda: scrape(server.url).value("vllm:num_requests_running") == 2)
        seen = scrape(server.url)
        assert seen.value("vllm:num_requests_waiting") == 1
        assert seen.value("vllm:num_requests_waiting_by_reason", reason="capacity") == 1
        assert seen.value("vllm:kv_cache_usage_perc") == pytest.approx(
            seen.value("neuronserve:kv_cache_blocks", state="used") / 255
        )
        assert seen.value("vllm:kv_cache_usage_perc") > 0
        assert httpx.get(server.url + "/load").json() == {"server_load": 3}
        clients.close()
        until(lambda: scrape(server.url).value("vllm:request_success_total", finished_reason="abort") == 3)
        until(lambda: scrape(server.url).value("vllm:num_requests_running") == 0)
        gone = scrape(server.url)
        assert gone.value("vllm:num_requests_waiting") == 0
        assert gone.value("vllm:e2e_request_latency_seconds_count") == 0  # cut short: its time says nothing
        assert httpx.get(server.url + "/load").json() == {"server_load": 0}


@pytest.mark.slow
def test_preemptions_are_counted_in_all_and_for_each_sequence(checkpoint: Path) -> None:
    options = ("--num-gpu-blocks-override", "9", "--block-size", "16", "--no-enable-prefix-caching")
    with running_server(checkpoint, *options) as server:
        body = {"prompt": ["a" * 20, "b" * 20], "max_tokens": 90, "ignore_eos": True}
        assert httpx.post(server.url + TEXT, json=body, timeout=60).status_code == 200
        seen = scrape(server.url)
    preemptions = seen.value("vllm:num_preemptions_total")
    assert preemptions >= 1
    assert seen.value("vllm:request_num_preemptions_sum") == preemptions
    assert seen.value("vllm:request_num_preemptions_count") == 2
    assert seen.value("vllm:prefix_cache_queries_total") == 40  # a sequence that comes back is not counted again


@pytest.mark.slow
def test_a_stop_string_ends_with_stop_and_a_full_queue_is_a_rejection(checkpoint: Path) -> None:
    with running_server(checkpoint, "--max-num-queued-reqs", "2") as server:
        text = httpx.post(server.url + TEXT, json={**LONG, "stream": False, "max_tokens": 40}).json()["choices"][0]
        stop = next(char for char in text["text"] if char != "\ufffd")
        body = {**LONG, "stream": False, "max_tokens": 40, "stop": stop}
        assert httpx.post(server.url + TEXT, json=body).json()["choices"][0]["finish_reason"] == "stop"
        assert httpx.post(server.url + TEXT, json={**LONG, "n": 3}).status_code == 429
        seen = scrape(server.url)
        assert seen.value("vllm:request_success_total", finished_reason="stop") == 1
        assert seen.value("vllm:request_success_total", finished_reason="length") == 1
        name, reason = "vllm:admission_rejections_total", "max_num_queued_reqs"
        (rejection,) = (s for s in seen.samples if s.name == name and s.labels["reason"] == reason)
        assert rejection.labels == {"model_name": "fake", "reason": "max_num_queued_reqs"}
        assert rejection.value == 1


@pytest.mark.slow
def test_after_its_engines_death_a_server_tells_the_end_and_no_stale_load(checkpoint: Path) -> None:
    with running_server(checkpoint, *SLOW, "--max-engine-restarts", "0") as server:
        with httpx.stream("POST", server.url + TEXT, json={**LONG, "n": 2}, timeout=60) as response:
            lines = events(response)
            next(lines)
            assert scrape(server.url).value("vllm:kv_cache_usage_perc") > 0
            os.kill(server.engine_pid, signal.SIGKILL)
            list(lines)
        seen = scrape(server.url)
        assert seen.value("neuronserve:engine_up") == 0
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert seen.value(f"vllm:{name}") == 0
        assert seen.value("vllm:request_success_total", finished_reason="error") == 2


@pytest.mark.slow
def test_http_answers_are_counted_by_route_method_and_class(checkpoint: Path) -> None:
    with running_server(checkpoint, "--api-key", "k", "--public-paths", "/metrics") as server:
        key = {"Authorization": "Bearer k"}
        with httpx.Client(base_url=server.url, headers=key) as http:
            for path in ("/v1/models/fake", "/v1/models/other", "/made/up", "/health", "/load", "/version"):
                http.get(path)
            http.get(TEXT)
            http.post(TEXT, json={"prompt": "a", "max_tokens": 1})
        httpx.post(server.url + TEXT, json={"prompt": "a"})
        seen = scrape(server.url)
    counted = {
        (s.labels["handler"], s.labels["method"], s.labels["status"]): s.value
        for s in seen.samples
        if s.name == "http_requests_total"
    }
    assert counted == {
        ("/v1/models/{model_id:path}", "GET", "2xx"): 1,
        ("/v1/models/{model_id:path}", "GET", "4xx"): 1,
        ("none", "GET", "4xx"): 1,
        (TEXT, "GET", "4xx"): 1,
        (TEXT, "POST", "2xx"): 1,
        (TEXT, "POST", "4xx"): 1,
    }
    assert seen.value("http_request_duration_seconds_count", handler=TEXT, method="POST") == 2
    assert seen.value("http_request_duration_highr_seconds_count") == 6


@pytest.mark.slow
def test_resetting_the_prefix_cache_asks_for_the_key_and_forgets(checkpoint: Path) -> None:
    with running_server(checkpoint, "--api-key", "k") as server:
        assert httpx.post(server.url + "/reset_prefix_cache").status_code == 401
        with httpx.Client(base_url=server.url, headers={"Authorization": "Bearer k"}) as http:
            cached = []
            for is_reset in (False, False, True):
                if is_reset:
                    assert http.post("/reset_prefix_cache").json() == {"success": True}
                usage = http.post(TEXT, json={"prompt": "c" * 70, "max_tokens": 1}).json()["usage"]
                cached.append(usage["prompt_tokens_details"]["cached_tokens"])
            assert cached == [0, 64, 0]
            assert http.get("/reset_prefix_cache").status_code == 405


async def test_a_server_that_still_loads_can_be_scraped(checkpoint: Path) -> None:
    listener = bind("127.0.0.1", 0)
    engines = EngineGroups([EngineHandle(config("hang"), run_fake)])
    api = ApiServer(ApiConfig(("fake",), checkpoint, checkpoint), engines, listener)
    running = asyncio.create_task(api.run())
    async with httpx.AsyncClient(base_url=address(listener), timeout=30) as http:
        assert (await http.post(TEXT, json={"prompt": "a"})).status_code == 503
        assert (await http.post("/reset_prefix_cache")).status_code == 503
        seen = Scrape((await http.get("/metrics")).text)
    assert seen.value("http_requests_total", handler=TEXT, status="5xx") == 1
    assert seen.value("process_open_fds") > 0
    assert [name for name in seen.metrics if name.startswith("vllm:")] == ["vllm:admission_rejections"]  # connections
    api.shutdown()
    await asyncio.wait_for(running, PATIENCE_S)
