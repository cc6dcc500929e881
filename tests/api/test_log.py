"""The log of a server: one line for each answer, as text and as JSON; none for probes."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import httpx
import pytest

from neuronserve import COMMAND
from tests.api.serving import PATIENCE_S, Server, running_server, write_checkpoint
from tests.terminal import terminal

DONE = {"model": "fake", "prompt": "hello", "max_tokens": 4, "n": 2, "seed": 1}


def test_an_answer_is_a_line_with_id_duration_and_tokens(tmp_path: Path) -> None:
    with running_server(write_checkpoint(tmp_path / "m")) as server:
        headers = {"X-Request-Id": "mine-1"}
        assert httpx.post(f"{server.url}/v1/completions", json=DONE, headers=headers).status_code == 200
        with httpx.stream("POST", f"{server.url}/v1/completions", json={**DONE, "stream": True}) as answer:
            answer.read()
        assert httpx.post(f"{server.url}/v1/completions", json={"prompt": 1.5}).status_code == 400
        assert httpx.get(f"{server.url}/no/such%0Apath").status_code == 404
        for path in ("/health", "/health/ready?a=b", "/metrics"):
            assert httpx.get(f"{server.url}{path}").status_code == 200
        server.signal(signal.SIGTERM)
        lines = [line for line in server.last_words().splitlines() if re.search("/(v1|no|health|metrics)", line)]
    when, client = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO ", r"127\.0\.0\.1:\d+ "
    spent = r"in \d+ ms, 5( \(\d+ cached\))? \+ 8 tokens, first after \d+ ms, id "
    assert len(lines) == 4, lines
    assert re.fullmatch(f"{when}{client}POST /v1/completions 200 {spent}mine-1", lines[0])
    assert re.fullmatch(f"{when}{client}POST /v1/completions 200 {spent}[0-9a-f]{{32}}", lines[1])
    assert re.fullmatch(rf"{when}{client}POST /v1/completions 400 in \d+ ms, id [0-9a-f]{{32}}", lines[2])
    assert re.fullmatch(rf"{when}{client}GET /no/such\\npath 404 in \d+ ms, id [0-9a-f]{{32}}", lines[3])


def test_json_lines_have_the_same_as_fields(tmp_path: Path) -> None:
    with running_server(write_checkpoint(tmp_path / "m"), "--log-format", "json") as server:
        assert httpx.post(f"{server.url}/v1/completions", json=DONE).status_code == 200
        server.signal(signal.SIGTERM)
        lines = [json.loads(line) for line in server.last_words().splitlines()]
    (answer,) = [line for line in lines if line["logger"] == "neuronserve.access"]
    assert (answer["level"], answer["path"], answer["status"], answer["method"]) == (
        "info",
        "/v1/completions",
        200,
        "POST",
    )
    assert (answer["prompt_tokens"], answer["output_tokens"]) == (5, 8)
    assert 0 < answer["ttft_s"] <= answer["seconds"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", answer["time"])


@pytest.mark.slow
def test_answers_can_be_left_out(tmp_path: Path) -> None:
    with running_server(write_checkpoint(tmp_path / "m"), "--disable-access-log") as server:
        assert httpx.post(f"{server.url}/v1/completions", json=DONE).status_code == 200
        server.signal(signal.SIGTERM)
        assert "/v1/completions" not in server.last_words()


@pytest.mark.slow
def test_debug_tells_the_settings_and_what_a_requests_time_went_into(tmp_path: Path) -> None:
    flags = ("--log-level", "debug", "--max-num-seqs", "7", "--api-key", "s3cret")
    with running_server(write_checkpoint(tmp_path / "m"), *flags) as server:
        headers = {"Authorization": "Bearer s3cret", "X-Request-Id": "mine-1"}
        assert httpx.post(f"{server.url}/v1/completions", json=DONE, headers=headers).status_code == 200
        server.signal(signal.SIGTERM)
        words = server.log + server.last_words()
    assert "DEBUG setting max_num_seqs: 7" in words
    assert "DEBUG setting api_key: ***" in words
    assert "s3cret" not in words
    phases = r"queue [\d.]+ ms, prefill [\d.]+ ms, decode [\d.]+ ms; 5 \(\d+ cached\) \+ 4 tokens; 0 preemptions"
    assert len(re.findall(rf"DEBUG request mine-1, sequence \S+ on engine 0: {phases}", words)) == 2


@pytest.mark.slow
def test_a_terminal_gets_a_bar_of_what_is_done_and_few_lines(kernel_cache: str) -> None:
    with terminal([*COMMAND, "serve", "--port", "0", "--kernel-cache-dir", kernel_cache]) as screen:
        bars = screen.expect("ready: http://127.0.0.1:")
        screen.expect("talk to it: neuronserve chat --url http://127.0.0.1:")
        screen.expect("/v1/chat/completions -H 'Content-Type: application/json' -d ")
        screen.process.send_signal(signal.SIGTERM)
        assert "Traceback" not in screen.rest()
        assert screen.process.wait(PATIENCE_S) == 0
    assert re.search(r"loading +\S+ +\d/6 +0:\d\d:\d\d layer", bars)
    assert "loading layer" not in bars  # a line for each
    assert "{" not in bars  # the inventory is for programs
    assert len(re.findall(" INFO ", bars)) < 12


START = """
import logging
from neuronserve.server.api.start_screen import start_screen
from neuronserve.server.settings.logs import log_to_stderr
log_to_stderr("info")
with start_screen() as report:
    for line in LINES:
        report(line)
"""


def test_each_engine_has_a_bar_for_each_series() -> None:
    lines = ["engine 0: loading layer 1/2", "engine 1: compiling matmul (3/7)", "engine 0: kernels ready in 2.0 s"]
    with terminal([sys.executable, "-c", START.replace("LINES", repr(lines))]) as screen:
        shown = screen.rest()
        assert screen.process.wait(PATIENCE_S) == 0
    assert re.search(r"engine 0 loading +\S+ +2/2 ", shown)  # that engine is at something else now
    assert re.search(r"engine 1 compiling +\S+ +2/7 +0:\d\d:\d\d matmul", shown)  # two are done
    assert "INFO engine 0: kernels ready in 2.0 s\n" in shown


def test_elsewhere_each_step_is_a_line(real_server: Server) -> None:
    assert re.search(r"INFO loading layer 1/6\n", real_server.log)
    assert "\x1b" not in real_server.log
    assert "talk to it" not in real_server.log
