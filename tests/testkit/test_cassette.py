"""Cassettes: recorded answers are replayed, secrets are masked, and a miss names the nearest recording."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.testing import replaying, running
from neuronserve.testkit.cassette.cassette import (
    Cassette,
    CassetteError,
    difference,
    masked,
    read,
    recorded_request,
    recording,
)
from tests.api.serving import Server as Upstream
from tests.api.serving import environment, run_command, running_server, until

KEY = "sk-s3cret-of-a-person"
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def upstream(checkpoint: Path) -> Iterator[Upstream]:
    with running_server(checkpoint, "--api-key", KEY, "--device", "slow:0.002", "--allow-fault-header") as server:
        yield server


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)


@contextlib.contextmanager
def recorder(upstream: str, cassette: Path, *flags: str) -> Iterator[str]:
    """Yield the address of a recording proxy."""
    argv = [sys.executable, "-m", "neuronserve", "record", "--upstream", upstream, str(cassette), "--port", "0", *flags]
    with running(argv) as ready:
        yield ready["url"]


def converse(url: str, key: str) -> list[Any]:
    """Return a client's answers: a whole one, a stream, a refusal, models."""
    question: Any = {"model": "fake", "messages": [{"role": "user", "content": "abc"}], "max_tokens": 8, "seed": 1}
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        whole = client.chat.completions.create(**question)
        stream = list(client.chat.completions.create(**question, stream=True))
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**{**question, "max_tokens": -1})
        listed = [model.id for model in client.models.list()]
    return [whole.model_dump(), [chunk.model_dump() for chunk in stream], refused.value.body, listed]


@pytest.fixture(scope="module")
def recorded(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A cassette, and what the client got while it was recorded."""
    file = tmp_path_factory.mktemp("cassette") / "talk.jsonl"
    with recorder(upstream.url, file) as url:
        return file, converse(url, KEY)


def test_a_replay_is_what_was_recorded_without_the_endpoint(recorded: tuple[Path, list[Any]]) -> None:
    file, expected = recorded
    with replaying(file, ["--timings"]) as server:
        assert server.model == "fake"
        assert converse(server.url, "another key") == expected


def test_no_secret_is_in_the_file(recorded: tuple[Path, list[Any]]) -> None:
    text = recorded[0].read_text()
    assert KEY not in text
    assert "authorization" not in text.lower()
    assert [each.request.path for each in read(recorded[0])] == ["/v1/chat/completions"] * 3 + ["/v1/models"]


def test_streams_keep_their_chunks_and_times(recorded: tuple[Path, list[Any]]) -> None:
    stream = read(recorded[0])[1]
    times = [seconds for seconds, _ in stream.pieces()]
    assert len(times) > 1
    assert times == sorted(times)
    assert b"".join(piece for _, piece in stream.pieces()) == stream.data
    assert stream.data.endswith(b"[DONE]\n\n")


def test_a_miss_says_what_is_nearest(recorded: tuple[Path, list[Any]]) -> None:
    with replaying(recorded[0]) as server:  # at once
        body = {"model": "fake", "messages": [{"role": "user", "content": "abd"}], "max_tokens": 8, "seed": 1}
        missed = httpx.post(f"{server.base_url}/chat/completions", json=body)
        assert (missed.status_code, missed.json()["error"]["code"]) == (404, "not_recorded")
        assert "recording 1, in which messages[0].content is 'abc', not 'abd'" in missed.json()["error"]["message"]
        elsewhere = httpx.get(f"{server.base_url}/files").json()["error"]["message"]
        assert "GET /v1/models, POST /v1/chat/completions" in elsewhere
        assert httpx.get(f"{server.url}/health").status_code == 200


@pytest.mark.thorough
def test_a_replay_takes_faults(recorded: tuple[Path, list[Any]]) -> None:
    with replaying(recorded[0], ["--allow-fault-header"]) as server:
        refused = httpx.get(f"{server.base_url}/models", headers={"X-Inject-Fault": "rate_limit; retry_after=9"})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "9")
        assert httpx.get(f"{server.base_url}/models").status_code == 200


@pytest.mark.thorough
def test_recording_adds_to_a_file_only_when_asked(upstream: Upstream, tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    for flags in ((), ("--append",)):
        with recorder(f"{upstream.url}/v1/", file, *flags) as url:
            assert httpx.get(f"{url}/v1/models", headers={"x-api-key": KEY}).status_code == 200
    assert len(read(file)) == 2
    ran = run_command("record", "--upstream", upstream.url, str(file), "--port", "0")
    assert (ran.returncode, "exists: --append adds to it" in ran.stderr) == (2, True)


@pytest.mark.thorough
def test_only_whole_answers_are_recorded_also_when_their_client_has_gone(tmp_path: Path, upstream: Upstream) -> None:
    file, body = tmp_path / "talk.jsonl", {"model": "fake", "prompt": "abc", "max_tokens": 64, "stream": True}
    with recorder(upstream.url, file) as url:
        headers = {"Authorization": f"Bearer {KEY}"}
        cut = {**headers, "X-Inject-Fault": "cut; after_tokens=2"}
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(f"{url}/v1/completions", json=body, headers=cut)
        with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=headers) as stream:
            next(stream.iter_raw())
        until(lambda: len(file.read_text().splitlines()) == 2)
    (whole,) = read(file)
    assert whole.data.endswith(b"[DONE]\n\n")


@pytest.mark.thorough
def test_an_endpoint_that_is_not_there_is_a_502_and_not_recorded(tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    with recorder("http://127.0.0.1:9", file) as url:
        failed = httpx.get(f"{url}/v1/models")
        assert (failed.status_code, failed.json()["error"]["code"]) == (502, "upstream_failed")
    assert read(file) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1"),
        ("{}", "line 1"),
        ('{"neuronserve_cassette": 9, "upstream": ""}', "version 9; this reads 1"),
        ('{"neuronserve_cassette": 1, "upstream": ""}\n{"status": 1}', "line 2"),
    ],
)
def test_a_file_that_is_no_cassette_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "talk.jsonl"
    file.write_text(text)
    with pytest.raises(CassetteError, match=words):
        read(file)


@pytest.mark.thorough
def test_an_address_with_a_key_in_it_is_no_upstream() -> None:
    ran = run_command("record", "--upstream", "https://user:pw@example.com", "x.jsonl")
    assert (ran.returncode, "must look like https://HOST:PORT" in ran.stderr) == (2, True)


@given(st.dictionaries(st.text(max_size=4), JSON_VALUES, max_size=4))
def test_the_order_of_keys_is_no_difference(body: dict[str, Any]) -> None:
    turned = dict(reversed(body.items()))
    one, other = (recorded_request("POST", "/v1/x", json.dumps(each).encode(), {}) for each in (body, turned))
    assert one.canonical == other.canonical
    cassette = Cassette([recording(one, 200, {}, b"answer", [(0.1, 6)])])
    assert cassette.take(other) is not None


@given(JSON_VALUES, JSON_VALUES)
def test_a_difference_is_named_for_any_two_values(one: Any, other: Any) -> None:
    assert isinstance(difference(one, other), str)


@given(st.binary(max_size=40), st.integers(0, 40))
def test_secrets_are_masked_in_place(data: bytes, place: int) -> None:
    text = data[:place] + KEY.encode() + data[place:]
    hidden = masked(text, {"authorization": f"Bearer {KEY}", "x-api-key": "none"})
    assert KEY.encode() not in hidden
    assert len(hidden) == len(text)
    kept = recording(recorded_request("GET", "/", b"", {}), 200, {"set-cookie": KEY}, hidden, [(0.0, len(hidden))])
    assert (kept.data, kept.headers) == (hidden, {})


def test_what_was_asked_twice_is_answered_in_order_and_then_as_last() -> None:
    request = recorded_request("GET", "/v1/x", b"", {})
    cassette = Cassette([recording(request, 200, {}, text, [(0.0, 1)]) for text in (b"a", b"b")])
    given = [cassette.take(request) for _ in range(3)]
    assert [each.body for each in given if each] == ["a", "b", "b"]
    assert cassette.take(recorded_request("GET", "/v1/y", b"", {})) is None
