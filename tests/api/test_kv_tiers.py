"""Prompts whose KV has left the device come back from the tiers of a running server, also after a restart."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.api.serving import Server, running_server
from tests.api.telemetry.scraping import scrape

PROMPTS = ["".join(chr(97 + (i * step) % 26) for i in range(300)) for step in (1, 3, 5, 7)]


def answers(server: Server) -> list[tuple[str, int]]:
    """Text and cached tokens of each prompt; together they need more blocks than the device has."""
    bodies = [{"prompt": prompt, "max_tokens": 8, "ignore_eos": True} for prompt in PROMPTS]
    replies = [httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json() for body in bodies]
    return [
        (reply["choices"][0]["text"], (reply["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0))
        for reply in replies
    ]


def test_prompts_come_back_from_memory_and_after_a_restart_from_the_disk(checkpoint: Path, tmp_path: Path) -> None:
    options = ["--device", "slow:0.02", "--num-gpu-blocks-override", "24", "--kv-offloading-dir", str(tmp_path)]
    with running_server(checkpoint, *options, "--kv-offloading-size", "0.1") as server:
        first = answers(server)
        again = answers(server)
        seen = scrape(server.url)
        assert [text for text, _ in again] == [text for text, _ in first]
        hits = seen.value("vllm:external_prefix_cache_hits_total")
        assert hits == 4 * 288  # 9 blocks of 32 each
        assert seen.value("vllm:external_prefix_cache_queries_total") >= hits
        assert seen.value("vllm:kv_offload_total_bytes_total", transfer_type="CPU_to_GPU") == hits * 8
        assert seen.value("vllm:kv_offload_total_time_total", transfer_type="GPU_to_CPU") > 0
        assert 0 < seen.value("vllm:kv_offload_cpu_cache_usage_perc") < 1
    with running_server(checkpoint, *options) as server:
        assert answers(server) == first
        answers(server)  # by now each has left the device
    with running_server(checkpoint, *options) as server:
        assert [text for text, _ in answers(server)] == [text for text, _ in first]
        assert scrape(server.url).value("vllm:kv_offload_total_bytes_total", transfer_type="STORAGE_to_GPU") > 0
