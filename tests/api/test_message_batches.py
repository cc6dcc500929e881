"""Anthropic's batches by its own client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.api.serving import Server, running_server, until

HI: Any = [{"role": "user", "content": "hi"}]


def client_of(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def fake(server: Server) -> Iterator[anthropic.Anthropic]:
    with client_of(server) as made:
        yield made


def requests(*texts: str, **params: Any) -> Any:
    return [
        {
            "custom_id": f"r-{text}",
            "params": {"model": "fake", "max_tokens": 4, "messages": [{"role": "user", "content": text}], **params},
        }
        for text in texts
    ]


def ended(client: anthropic.Anthropic, batch_id: str) -> Any:
    until(lambda: client.messages.batches.retrieve(batch_id).processing_status == "ended")
    return client.messages.batches.retrieve(batch_id)


def test_a_batch_has_what_the_endpoint_answers(fake: anthropic.Anthropic, server: Server) -> None:
    bad = requests("bad", temperature=9)
    batch = fake.messages.batches.create(requests=requests("a", "b", temperature=0) + bad)
    assert (batch.type, batch.processing_status, batch.request_counts.processing) == ("message_batch", "in_progress", 3)
    done = ended(fake, batch.id)
    counts = done.request_counts
    assert (counts.succeeded, counts.errored, counts.processing, counts.canceled) == (2, 1, 0, 0)
    assert done.ended_at is not None
    assert done.results_url.startswith(server.url)
    found = {each.custom_id: each.result for each in fake.messages.batches.results(batch.id)}
    assert sorted(found) == ["r-a", "r-b", "r-bad"]
    message: Any = [{"role": "user", "content": "a"}]
    same = fake.messages.create(model="fake", max_tokens=4, messages=message, extra_body={"temperature": 0})
    made = found["r-a"]
    assert made.type == "succeeded"
    assert made.message.content == same.content
    assert made.message.usage.output_tokens == same.usage.output_tokens
    refused = found["r-bad"]
    assert refused.type == "errored"
    assert refused.error.error.type == "invalid_request_error"
    assert "temperature" in refused.error.error.message


def test_batches_are_listed_and_deleted(fake: anthropic.Anthropic, server: Server) -> None:
    ids = [fake.messages.batches.create(requests=requests("a")).id for _ in range(3)]
    for batch_id in ids:
        ended(fake, batch_id)
    newest = [each.id for each in fake.messages.batches.list(limit=2).data]
    assert newest == ids[:0:-1]
    assert [each.id for each in fake.messages.batches.list(limit=1, after_id=ids[2]).data] == [ids[1]]
    assert [each.id for each in fake.messages.batches.list(limit=1, before_id=ids[0]).data] == [ids[1]]
    assert set(ids) <= {each.id for each in fake.messages.batches.list(limit=1)}  # page by page
    fake.messages.batches.delete(ids[0])
    for call in (fake.messages.batches.retrieve, fake.messages.batches.delete, fake.messages.batches.cancel):
        with pytest.raises(anthropic.NotFoundError):
            call(ids[0])
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any") as other:
        assert other.batches.retrieve(ids[1]).endpoint == "/v1/messages"


@pytest.mark.slow
def test_what_a_cancelled_batch_has_left_is_canceled(checkpoint: Path, hold: Path, tmp_path: Path) -> None:
    options = ("--device", f"hold:{hold}", "--data-dir", str(tmp_path / "data"), "--max-num-seqs", "1")
    with running_server(checkpoint, *options) as held, client_of(held) as client:
        batch = client.messages.batches.create(requests=requests("abc", "b", "d", max_tokens=50, temperature=0))
        with pytest.raises(anthropic.AnthropicError, match="results_url"):  # none ends before the hold
            client.messages.batches.results(batch.id)
        assert client.messages.batches.cancel(batch.id).processing_status == "canceling"
        done = ended(client, batch.id)
        hold.unlink()
        assert (done.request_counts.canceled, done.request_counts.errored) == (3, 0)
        assert done.cancel_initiated_at is not None
        assert {each.result.type for each in client.messages.batches.results(batch.id)} == {"canceled"}


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"requests": []}, "requests"),
        ({"requests": requests("a", "a")}, "requests[1].custom_id"),
        ({"requests": [{"custom_id": "a b", "params": {}}]}, "requests[0].custom_id"),
        ({"requests": [{"custom_id": "a"}]}, "requests[0].params"),
    ],
    ids=str,
)
def test_a_bad_batch_is_refused(server: Server, body: Any, named: str) -> None:
    answer = httpx.post(f"{server.url}/v1/messages/batches", json=body)
    assert (answer.status_code, answer.json()["type"]) == (400, "error")
    assert named in answer.json()["error"]["message"]
