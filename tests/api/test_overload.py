"""More requests than a server can serve: some are refused at the door, politely, and the others do not notice."""

from __future__ import annotations

import json
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.api.serving import Server, running_server, until
from tests.depth import thorough

TEXT = "/v1/completions"
LONG = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True}
SHORT = {"prompt": "abcdefgh", "max_tokens": 20, "ignore_eos": True}


def rejections(server: Server, limit: str) -> float:
    page = httpx.get(server.url + "/metrics").text
    found = re.search(rf'^vllm:admission_rejections_total{{.*reason="{limit}"}} (.*)$', page, re.MULTILINE)
    assert found is not None
    return float(found[1])


@pytest.mark.parametrize(
    ("limit", "argv"),
    [
        ("max_queue_delay", ("--max-queue-delay", "0.000001")),
        thorough("ttft_slo_ms", ("--ttft-slo-ms", "0.001")),
    ],
)
def test_who_would_wait_too_long_is_told_when_to_come_back(
    checkpoint: Path, hold: Path, limit: str, argv: tuple[str, ...]
) -> None:
    """Any wait exceeds these limits; a request with nothing ahead of it is admitted all the same."""
    with running_server(checkpoint, "--device", f"hold:{hold}", "--max-num-seqs", "1", *argv) as server:
        with httpx.stream("POST", server.url + TEXT, json=LONG) as running:
            assert running.status_code == 200
            lines = running.iter_lines()  # which ends the request when it is let go
            next(lines)
            refused = httpx.post(server.url + TEXT, json=SHORT)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
            assert refused.json()["error"]["type"] == "rate_limit_error"
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert httpx.post(server.url + TEXT, json={**SHORT, "stream": True}).status_code == 429
            assert httpx.post(server.url + TEXT, json={"prompt": 1.5}).status_code == 400  # it need not come back
            assert rejections(server, limit) == 2
            assert 'neuronserve:predicted_queue_delay_seconds{engine="0"' in httpx.get(server.url + "/metrics").text
            hold.unlink()
        until(lambda: httpx.post(server.url + TEXT, json=SHORT).status_code == 200)


def test_under_three_times_its_load_a_server_answers_or_refuses_and_nothing_else(checkpoint: Path) -> None:
    """Two places of about 0.2 s each, and always at least eight waiting clients."""
    argv = ("--device", "slow:0.01", "--max-num-seqs", "2", "--max-queue-delay", "0.3")
    with running_server(checkpoint, *argv) as server, httpx.Client(base_url=server.url, timeout=120) as client:

        def ask(_: int) -> tuple[httpx.Response, str]:
            answer = client.post(TEXT, json={**SHORT, "seed": 1})
            return answer, json.loads(answer.text)["choices"][0]["text"] if answer.status_code == 200 else ""

        alone = [ask(0)[1] for _ in range(4)]  # from which it learns how long such requests take
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, range(80)))
        refused = [answer for answer, _ in answers if answer.status_code == 429]
        assert {answer.status_code for answer, _ in answers} == {200, 429}
        assert {text for answer, text in answers if answer.status_code == 200} == set(alone)
        assert {answer.json()["error"]["code"] for answer in refused} == {"overloaded"}
        assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in refused)
        assert rejections(server, "max_queue_delay") == len(refused)
        until(lambda: client.post(TEXT, json=SHORT).status_code == 200)


@pytest.mark.slow
def test_a_key_is_refused_for_its_own_queue_and_not_for_anothers(checkpoint: Path, tmp_path: Path) -> None:
    """One place, busy for six seconds, and sequences that are assumed to be long: some would wait past the limit."""
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys:\n  - {name: many, key: many-key}\n  - {name: few, key: few-key}\n")
    argv = ("--device", "slow:0.2", "--max-num-seqs", "1", "--max-queue-delay", "30")
    of_keys = ("--api-keys-file", str(keys), "--public-paths", "/metrics")
    with running_server(checkpoint, *argv, *of_keys) as server, ThreadPoolExecutor(11) as pool:

        def ask(key: str, max_tokens: int) -> httpx.Response:
            body = {**SHORT, "max_tokens": max_tokens}
            return httpx.post(server.url + TEXT, json=body, headers={"Authorization": f"Bearer {key}-key"})

        running = pool.submit(ask, "many", 30)
        until(lambda: num_generated(server) > 5)
        many = [pool.submit(ask, "many", 1) for _ in range(9)]
        until(lambda: any(each.done() for each in many))
        assert not running.done()
        assert ask("many", 1).status_code == 429
        assert ask("few", 1).status_code == 200
        assert {each.result().status_code for each in many} == {200, 429}
        assert running.result().status_code == 200


def num_generated(server: Server) -> float:
    page = httpx.get(server.url + "/metrics").text
    found = re.search(r"^vllm:generation_tokens_total\{.*\} (.*)$", page, re.MULTILINE)
    return 0.0 if found is None else float(found[1])


def test_a_server_past_its_memory_takes_nothing_new_and_says_why(checkpoint: Path) -> None:
    with running_server(checkpoint, "--host-memory-gib", "0.01") as server:
        until(lambda: httpx.post(server.url + TEXT, json=SHORT).status_code == 429)
        refused = httpx.post(server.url + TEXT, json=SHORT)
        assert (refused.json()["error"]["code"], refused.headers["retry-after"]) == ("host_memory", "5")
        assert httpx.get(server.url + "/health/ready").status_code == 200
        assert rejections(server, "host_memory_gib") >= 2
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert " WARNING " in (words := server.log + server.last_words())
        assert "of the host's memory are left; new requests are refused" in words
