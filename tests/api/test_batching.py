"""`--batching neuron` from outside: the same answers, other steps, and its shapes in the inventory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.api.serving import Server, run_command, running_server

BODIES = [{"prompt": chr(97 + i) * (5 + 30 * i), "max_tokens": 20, "ignore_eos": True} for i in range(6)]


def answers(server: Server) -> list[str]:
    def ask(body: dict[str, object]) -> str:
        answer = httpx.post(server.url + "/v1/completions", json=body, timeout=60).raise_for_status()
        text: str = answer.json()["choices"][0]["text"]
        return text

    with ThreadPoolExecutor(len(BODIES)) as pool:
        return list(pool.map(ask, BODIES))


@pytest.mark.slow
def test_it_gives_the_answers_of_continuous_batching(checkpoint: Path) -> None:
    given = []
    for batching in ("continuous", "neuron"):
        with running_server(checkpoint, "--batching", batching, "--max-num-seqs", "4") as server:
            given.append(answers(server))
            assert httpx.get(server.url + "/inventory").json()["compiled"]["batching"] == batching
    assert given[0] == given[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--batching", "wave"), "--batching: must be 'continuous', 'neuron', 'tgi' or 'static', not 'wave'"),
        (("--stack", "wave"), "--stack: must be "),
        (("--context-encoding-buckets", "128,x"), "--context-encoding-buckets: "),
        (("--token-generation-buckets", "128,1.5"), "--token-generation-buckets: "),
        (("--pace", "fast"), "--pace: must be 'host' or 'device', not 'fast'"),
        (("--price-basis", "capacity_block"), "no capacity_block price of inf2.xlarge in us-east-1 is known: give one"),
        (("--usd-per-hour", "-1"), "--usd-per-hour: must be greater than or equal to 0, not '-1'"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(checkpoint: Path, flags: tuple[str, ...], complaint: str) -> None:
    ended = run_command("serve", str(checkpoint), "--port", "0", *flags)
    assert ended.returncode == 2
    assert complaint in ended.stderr
    assert ended.stderr.count("\n") == 1
