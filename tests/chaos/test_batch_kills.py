"""A batch whose server is killed again and again, with kill -9: every line is answered exactly once.

`make chaos` kills the server fifty times; otherwise twice is enough.
"""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.api.serving import Server, running_server, until, write_checkpoint
from tests.api.test_batches import CHAT, ENDED, create, ended, line_of, results, text_of
from tests.api.test_responses import client_of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_kills", "num_lines"), [(2, 120), pytest.param(50, 4000, marks=pytest.mark.chaos, id="chaos")]
)
def test_every_line_is_answered_exactly_once_whenever_the_server_is_killed(
    tmp_path: Path, num_kills: int, num_lines: int
) -> None:
    options = "--device", "slow:0.005", "--data-dir", str(tmp_path / "data")
    chance, lines = random.Random(num_kills), [line_of(f"line {i}", max_tokens=60) for i in range(num_lines)]
    lines[5]["body"]["temperature"] = 9
    checkpoint = write_checkpoint(tmp_path / "model")
    files = tmp_path / "data" / "files"
    batch_id, num_done, num_struck, num_midway = "", 0, 0, 0
    while True:
        with running_server(checkpoint, *options) as server, client_of(server) as client:
            batch_id = batch_id or create(client, lines).id
            counts = client.batches.retrieve(batch_id).request_counts
            assert counts is not None
            assert counts.completed + counts.failed >= num_done  # what was done stays so
            goal = num_done + chance.randrange(max(1, num_lines // (num_kills + 1)))
            if num_struck == num_kills:
                check_answers(server, client, ended(client, batch_id), lines)
                assert {each.id for each in client.files.list()} == {path.name for path in files.iterdir()}
                assert num_midway
                break
            until(partial(is_beyond, client, batch_id, goal))
            time.sleep(chance.random() * 0.05)
            counts = client.batches.retrieve(batch_id).request_counts
            num_done = counts.completed + counts.failed  # type: ignore[union-attr]
            num_midway += num_done < num_lines
            server.process.kill()
            server.wait()
            num_struck += 1


def check_answers(server: Server, client: openai.OpenAI, batch: Any, lines: list[Any]) -> None:
    """Every line once; the sixth is a bad one."""
    answers, errors = results(client, batch.output_file_id), results(client, batch.error_file_id)
    assert [*answers] == [line["custom_id"] for line in lines if line is not lines[5]]
    assert [*errors] == [lines[5]["custom_id"]]
    alone = httpx.post(server.url + CHAT, json=lines[-1]["body"]).json()
    assert text_of(answers[lines[-1]["custom_id"]]["response"]["body"]) == text_of(alone)


def is_beyond(client: openai.OpenAI, batch_id: str, goal: int) -> bool:
    batch = client.batches.retrieve(batch_id)
    counts = batch.request_counts
    assert counts is not None
    return counts.completed + counts.failed >= goal or batch.status in ENDED
