"""/v1/files and /v1/batches through OpenAI's client: lives of batches, and a full disk."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.api.serving import Server, running_server, until
from tests.api.test_responses import client_of

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture
def fake(server: Server) -> Iterator[openai.OpenAI]:
    with client_of(server) as made:
        yield made


def body_of(path: str, text: str, max_tokens: int) -> dict[str, Any]:
    """A greedy request of that many tokens, in the shape of an endpoint."""
    shared = {"model": "fake", "temperature": 0, "ignore_eos": True}
    if path == CHAT:
        return shared | {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}
    if path == "/v1/responses":
        return shared | {"input": text, "max_output_tokens": max_tokens}
    if path == "/v1/embeddings":
        return {"model": "fake", "input": text}
    return shared | {"prompt": text, "max_tokens": max_tokens}


def line_of(name: str, path: str = CHAT, max_tokens: int = 4, **more: Any) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": path, "body": body_of(path, name, max_tokens) | more}


def upload(client: openai.OpenAI, lines: Sequence[Any]) -> Any:
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return client.files.create(file=("in.jsonl", content), purpose="batch")


def create(client: openai.OpenAI, lines: Sequence[Any], path: Any = CHAT, window: Any = "24h", **more: Any) -> Any:
    file = upload(client, lines)
    return client.batches.create(input_file_id=file.id, endpoint=path, completion_window=window, **more)


def ended(client: openai.OpenAI, batch_id: str) -> Any:
    until(lambda: client.batches.retrieve(batch_id).status in ENDED)
    return client.batches.retrieve(batch_id)


def results(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    """Lines of an output or error file by custom_id, none of which is there twice."""
    if file_id is None:
        return {}
    lines = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    assert len({line["custom_id"] for line in lines}) == len({line["id"] for line in lines}) == len(lines)
    return {line["custom_id"]: line for line in lines}


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses"])
def test_a_batch_answers_as_its_endpoint_does(fake: openai.OpenAI, http: httpx.Client, path: str) -> None:
    lines = [line_of(f"line {i}", path) for i in range(12)] + [line_of("bad", path, temperature=9)]
    batch = create(fake, lines, path, metadata={"a": "b"})
    assert (batch.status, batch.metadata) == ("validating", {"a": "b"})
    batch = ended(fake, batch.id)
    assert (batch.status, batch.request_counts.to_dict()) == ("completed", {"total": 13, "completed": 12, "failed": 1})
    answers, errors = results(fake, batch.output_file_id), results(fake, batch.error_file_id)
    assert [*answers] == [line["custom_id"] for line in lines[:-1]]
    for line in lines[:3]:
        answer, alone = answers[line["custom_id"]], http.post(path, json=line["body"]).json()
        assert (answer["error"], answer["response"]["status_code"]) == (None, 200)
        assert text_of(answer["response"]["body"]) == text_of(alone)
    assert errors["bad"]["response"]["status_code"] == 400
    assert errors["bad"]["response"]["body"]["error"]["param"] == "temperature"
    charged = [answer["response"]["body"]["usage"]["neuronserve"]["cost_usd"] for answer in answers.values()]
    assert batch.usage.neuronserve["cost_usd"] == pytest.approx(sum(charged))
    assert batch.usage.output_tokens == 48


def text_of(answer: dict[str, Any]) -> Any:
    if "output" in answer:
        return answer["output"][0]["content"]
    return [choice.get("text") or choice["message"]["content"] for choice in answer["choices"]]


def test_files_are_listed_read_and_deleted(fake: openai.OpenAI, http: httpx.Client) -> None:
    files = [upload(fake, [line_of(f"file {i}")]) for i in range(3)]
    assert [each.id for each in fake.files.list(limit=2).data] == [files[2].id, files[1].id]
    assert [each.id for each in fake.files.list(order="asc", after=files[1].id)] == [files[2].id]
    assert fake.files.retrieve(files[0].id) == files[0]
    content = fake.files.content(files[0].id).read()
    assert len(content) == files[0].bytes
    assert json.loads(content) == line_of("file 0")
    assert fake.files.delete(files[0].id).deleted
    for path in ("", "/content"):
        assert http.get(f"/v1/files/{files[0].id}{path}").status_code == 404
    kept: Any = {"anchor": "created_at", "seconds": 3600}
    lasting = fake.files.create(file=("a", b"{}"), purpose="batch", expires_after=kept)
    assert lasting.expires_at == lasting.created_at + 3600


BAD_FORMS: list[tuple[dict[str, Any], int, str | None]] = [
    ({"json": {}}, 415, None),
    ({"files": {"file": ("a", b"a")}}, 400, "purpose"),
    ({"files": {"file": ("a", b"a")}, "data": {"purpose": "vision"}}, 400, "purpose"),
    ({"files": {"other": ("a", b"a")}, "data": {"purpose": "batch"}}, 400, "file"),
    ({"files": {"file": ("a", b"a"), "more": ("b", b"b")}, "data": {"purpose": "batch"}}, 400, None),
    (
        {"files": {"file": ("a", b"a")}, "data": {"purpose": "batch", "expires_after[seconds]": "5"}},
        400,
        "expires_after",
    ),
    ({"content": b"--x\r\nnonsense", "headers": {"content-type": "multipart/form-data; boundary=x"}}, 400, "file"),
    ({"content": b"", "headers": {"content-type": "multipart/form-data"}}, 400, None),
]


@pytest.mark.parametrize(("options", "status", "param"), BAD_FORMS)
def test_a_bad_form_is_named(http: httpx.Client, options: dict[str, Any], status: int, param: str | None) -> None:
    answer = http.post("/v1/files", **options)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text


def test_an_input_with_bad_lines_is_no_batch(fake: openai.OpenAI) -> None:
    good = line_of("good")
    lines: list[Any] = [good, 5, {**good, "custom_id": 5}, {**good, "url": "/v1/completions"}, good]
    lines += [{**good, "method": "GET"}, {**good, "custom_id": ""}, {"custom_id": "x", "url": CHAT}]
    batch = ended(fake, create(fake, lines).id)
    assert (batch.status, batch.output_file_id, batch.request_counts.total) == ("failed", None, 0)
    found = [(error.line, error.code, error.param) for error in batch.errors.data]
    assert found == [
        (2, "invalid_request", None),
        (3, "invalid_request", "custom_id"),
        (4, "invalid_url", "url"),
        (5, "duplicate_custom_id", "custom_id"),
        (6, "invalid_request", "method"),
        (7, "invalid_custom_id", "custom_id"),
        (8, "invalid_request", None),
    ]
    empty = ended(fake, create(fake, []).id)
    assert [error.code for error in empty.errors.data] == ["empty_file"]


def test_batches_are_listed_and_may_not_stream(fake: openai.OpenAI) -> None:
    batches = [create(fake, [line_of("a", stream=True)]) for _ in range(3)]
    assert [each.id for each in fake.batches.list(limit=2).data] == [batches[2].id, batches[1].id]
    assert fake.batches.list(after=batches[2].id).data[0].id == batches[1].id
    batch = ended(fake, batches[0].id)
    (error,) = results(fake, batch.error_file_id).values()
    assert error["response"]["body"]["error"]["param"] == "stream"


@pytest.mark.slow
def test_what_a_batch_ends_with_when_it_is_cancelled_or_expires(checkpoint: Path, tmp_path: Path) -> None:
    options = "--device", "slow:0.02", "--data-dir", str(tmp_path)
    lines = [line_of(f"short {i}", max_tokens=2) for i in range(4)]
    lines += [line_of(f"long {i}", max_tokens=400) for i in range(60)]
    with running_server(checkpoint, *options) as server, client_of(server) as client:
        first, second = create(client, lines), create(client, lines, window="4s")
        with pytest.raises(openai.BadRequestError, match="not done"):
            client.files.delete(first.input_file_id)
        until(lambda: client.batches.retrieve(first.id).request_counts.completed >= 4)  # type: ignore[union-attr]
        client.completions.create(model="fake", prompt="now", max_tokens=4)  # goes before them
        assert client.batches.retrieve(first.id).request_counts.completed == 4  # type: ignore[union-attr]
        assert client.batches.cancel(first.id).status == "cancelling"
        for batch, status, code in (
            (ended(client, first.id), "cancelled", "batch_cancelled"),
            (ended(client, second.id), "expired", "batch_expired"),
        ):
            answers, errors = results(client, batch.output_file_id), results(client, batch.error_file_id)
            assert batch.status == status
            assert answers.keys() | errors.keys() == {line["custom_id"] for line in lines}
            assert not answers.keys() & errors.keys()
            assert {error["error"]["code"] for error in errors.values()} == {code}
            assert batch.request_counts.to_dict() == {"total": 64, "completed": len(answers), "failed": len(errors)}
        assert client.batches.cancel(first.id).status == "cancelled"


@pytest.mark.slow
def test_a_full_disk_stops_batches_and_nothing_else(checkpoint: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    lines = [line_of(f"line {i}", max_tokens=60) for i in range(100)]
    limit = ("prlimit", f"--fsize={200 * 2**10}")  # for any file that the server writes
    with running_server(checkpoint, "--data-dir", str(data), under=limit) as server, client_of(server) as client:
        batch = create(client, lines)
        until(lambda: is_refused(client))
        assert client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "hi"}], max_tokens=4)
        assert client.responses.create(model="fake", input="hi", max_output_tokens=4).output_text
    with running_server(checkpoint, "--data-dir", str(data)) as server, client_of(server) as client:
        batch = ended(client, batch.id)
        assert len(results(client, batch.output_file_id)) == 100


def is_refused(client: openai.OpenAI) -> bool:
    """Whether the server says that it can store nothing more."""
    try:
        upload(client, [line_of("one more")])
    except openai.InternalServerError as error:
        return (error.status_code, error.code) == (507, "storage_full")
    return False


def test_limits_of_files(checkpoint: Path, tmp_path: Path) -> None:
    limits = "--max-file-bytes", "2048", "--max-data-bytes", "3000"
    with running_server(checkpoint, "--data-dir", str(tmp_path), *limits) as server, client_of(server) as client:
        with pytest.raises(openai.APIStatusError) as raised:
            client.files.create(file=("a", b"x" * 3000), purpose="batch")
        assert raised.value.status_code == 413
        client.files.create(file=("a", b"x" * 2000), purpose="batch")
        with pytest.raises(openai.InternalServerError, match="--max-data-bytes"):
            client.files.create(file=("a", b"x" * 2000), purpose="batch")
        assert len(client.files.list().data) == 1
        assert len([*(tmp_path / "files").iterdir()]) == 1
        with (
            closing(sqlite3.connect(tmp_path / "neuronserve.sqlite3", timeout=0.1)) as beside,
            pytest.raises(sqlite3.OperationalError, match="locked"),
        ):
            beside.execute("SELECT * FROM files")
