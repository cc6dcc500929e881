"""Keys of a file over real sockets: scopes, limits as OpenAI's client reads them, usage, owners, reloads."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.api.serving import Server, running_server, until, write_checkpoint

FILE = """
keys:
  - {name: ops, key: ops-key, scopes: [admin]}
  - {name: prometheus, key: prometheus-key, scopes: [metrics]}
  - {name: team-a, key: a-key}
  - {name: team-b, key: b-key}
  - {name: few, key: few-key, limits: {requests_per_minute: 1}}
  - {name: some, key: some-key, limits: {tokens_per_minute: 60}}
  - {name: short, key: short-key, limits: {tokens_per_minute: 10}}
  - {name: behind-False, key: behind-False-key, limits: {tokens_per_minute: 10}}
  - {name: behind-True, key: behind-True-key, limits: {tokens_per_minute: 10}}
  - {name: one, key: one-key, limits: {max_concurrent: 1}}
"""
BODY = {"prompt": "abcdef", "max_tokens": 4, "ignore_eos": True}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture(scope="module")
def keyed(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = write_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    data = str(tmp_path_factory.mktemp("data"))
    with running_server(
        model, "--api-keys-file", str(file), "--data-dir", data, "--public-paths", "/api/tags"
    ) as running:
        yield running


def ask(server: Server, method: str, path: str, key: str | None = None, **options: object) -> httpx.Response:
    headers = {} if key is None else {"Authorization": f"Bearer {key}-key"}
    return httpx.request(method, server.url + path, headers=headers, timeout=60, **options)  # type: ignore[arg-type]


def usage(server: Server, key: str, name: str | None = None) -> dict[str, object]:
    rows = {row["api_key"]: row for row in ask(server, "GET", "/v1/usage", key).json()["data"]}
    return dict(rows[name or key])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "opened_by"),
    [
        ("GET", "/metrics", {"ops", "prometheus"}),
        ("GET", "/console/choices", {"ops", "prometheus"}),
        ("GET", "/inventory", {"ops", "prometheus", "a"}),
        ("GET", "/server_info", {"ops", "prometheus", "a"}),
        ("GET", "/v1/models", {"ops", "prometheus", "a"}),
        ("GET", "/api/tags", {None, "ops", "prometheus", "a"}),
        ("GET", "/v1/usage", {"ops", "prometheus", "a"}),
        ("POST", "/tokenize", {"ops", "a"}),
        ("POST", "/v1/completions", {"ops", "a"}),
        ("POST", "/reset_prefix_cache", {"ops"}),
        ("POST", "/admin/abort-request", {"ops"}),
        ("GET", "/docs", {None, "ops", "prometheus", "a"}),
        ("GET", "/docs/start.js", {None, "ops", "prometheus", "a"}),
        ("GET", "/openapi.json", {None, "ops", "prometheus", "a"}),
        ("GET", "/health/ready", {None, "ops", "prometheus", "a"}),
    ],
)
def test_each_path_opens_for_its_scopes(keyed: Server, method: str, path: str, opened_by: set[str | None]) -> None:
    bodies = {"/tokenize": {"prompt": "a"}, "/v1/completions": BODY, "/admin/abort-request": {"request_id": "x"}}
    options = {"json": bodies[path]} if path in bodies else {}
    for key in (None, "ops", "prometheus", "a"):
        answer = ask(keyed, method, path, key, **options)
        if key in opened_by:
            assert answer.status_code == 200, (key, answer.text)
        else:
            code = "invalid_api_key" if key is None else "insufficient_permissions"
            assert (answer.status_code, answer.json()["error"]["code"]) == (401 if key is None else 403, code)


def test_the_tokenizers_page_needs_its_flag(keyed: Server) -> None:
    answer = ask(keyed, "GET", "/tokenizer_info", "a")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert "--enable-tokenizer-info-endpoint" in answer.json()["error"]["message"]


def test_openais_client_reads_what_is_left_and_when_to_come_back(keyed: Server) -> None:
    with openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="few-key", max_retries=0, timeout=60) as client:
        raw = client.completions.with_raw_response.create(model="fake", prompt="abcdef", max_tokens=4)
        found = {name: raw.headers[f"x-ratelimit-{name}"] for name in ("limit-requests", "remaining-requests")}
        assert found == {"limit-requests": "1", "remaining-requests": "0"}
        assert re.fullmatch(r"[\d.ms]+", raw.headers["x-ratelimit-reset-requests"])
        assert "x-ratelimit-limit-tokens" not in raw.headers
        assert client.models.list().data  # only what is generated is counted
        with pytest.raises(openai.RateLimitError) as refused:
            client.completions.create(model="fake", prompt="abcdef", max_tokens=4)
    assert (refused.value.code, refused.value.type, refused.value.param) == ("rate_limit_exceeded", "requests", None)
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60
    assert refused.value.response.headers["x-ratelimit-remaining-requests"] == "0"
    assert usage(keyed, "few")["rate_limited"] == 1


def test_the_head_of_a_stream_says_what_its_prompt_has_left(keyed: Server) -> None:
    with openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="some-key", max_retries=0, timeout=60) as client:
        stream = client.completions.with_raw_response.create(model="fake", prompt="x" * 40, max_tokens=4, stream=True)
        assert stream.headers["x-ratelimit-limit-tokens"] == "60"
        assert 0 <= int(stream.headers["x-ratelimit-remaining-tokens"]) < 60
        assert len(list(stream.parse())) >= 1


def test_tokens_per_minute_count_prompts_and_what_is_generated(keyed: Server) -> None:
    first = ask(keyed, "POST", "/v1/completions", "short", json={**BODY, "max_tokens": 30})
    assert first.status_code == 200
    second = ask(keyed, "POST", "/v1/completions", "short", json=BODY)
    assert (second.status_code, second.json()["error"]["type"]) == (429, "tokens")
    assert second.headers["x-ratelimit-remaining-tokens"] == "0"
    assert int(second.headers["retry-after"]) > 60  # the debt of 26 tokens at 10 a minute comes first
    anthropic = ask(keyed, "POST", "/v1/messages", "short", json={"max_tokens": 1, "messages": [], "model": "fake"})
    assert anthropic.json()["type"] == "error"


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_response_in_the_background_over_the_limit_is_refused_before_it_is_queued(
    keyed: Server, is_stream: bool
) -> None:
    """Clients try again after 429, and not after a response that has failed."""
    key = f"behind-{is_stream}"
    with openai.OpenAI(base_url=f"{keyed.url}/v1", api_key=f"{key}-key", max_retries=0, timeout=60) as client:
        asked = {"model": "fake", "input": "abcdef", "max_output_tokens": 40, "background": True}
        first = client.responses.create(**asked)
        until(lambda: client.responses.retrieve(first.id).status in {"completed", "incomplete"})
        num_before = usage(keyed, key)["requests"]
        with pytest.raises(openai.RateLimitError) as refused:
            client.responses.create(**asked, stream=is_stream)
    assert (refused.value.code, refused.value.type) == ("rate_limit_exceeded", "tokens")
    assert int(refused.value.response.headers["retry-after"]) >= 1
    assert (usage(keyed, key)["requests"], usage(keyed, key)["rate_limited"]) == (num_before, 1)


@pytest.mark.slow
def test_a_key_has_as_many_requests_at_once_as_it_may(file: Path, tmp_path: Path) -> None:
    with running_server(write_checkpoint(tmp_path), "--device", "slow:0.05", "--api-keys-file", str(file)) as server:
        long = {**BODY, "max_tokens": 400, "stream": True}
        key = {"Authorization": "Bearer one-key"}
        with httpx.stream("POST", server.url + "/v1/completions", json=long, headers=key, timeout=60) as running:
            lines = running.iter_lines()
            next(lines)
            refused = ask(server, "POST", "/v1/completions", "one", json=BODY)
            assert (refused.status_code, refused.json()["error"]["type"]) == (429, "concurrent_requests")
            assert ask(server, "POST", "/v1/completions", "a", json=BODY).status_code == 200
        until(lambda: ask(server, "POST", "/v1/completions", "one", json=BODY).status_code == 200)


def test_usage_is_what_answers_said_in_the_page_and_in_metrics(keyed: Server) -> None:
    before = usage(keyed, "a", "team-a")
    headers = {"Authorization": "Bearer a-key", "X-Neuronserve-Usage": "true"}
    told = []
    for body in (BODY, {**BODY, "n": 2}, {**BODY, "prompt": ["abc", "abcd"]}):
        answer = httpx.post(keyed.url + "/v1/completions", json=body, headers=headers, timeout=60)
        told.append(answer.json()["usage"])
    after = usage(keyed, "a", "team-a")
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert after[name] - before[name] == sum(each[name] for each in told)  # type: ignore[operator]
    assert after["requests"] - before["requests"] == len(told)  # type: ignore[operator]
    seconds = sum(each["neuronserve"]["device_seconds"] for each in told)
    assert after["device_seconds"] - before["device_seconds"] == pytest.approx(seconds, rel=1e-6)  # type: ignore[operator]
    assert after["cost_usd"] > before["cost_usd"]  # type: ignore[operator]
    metrics = ask(keyed, "GET", "/metrics", "prometheus").text
    line = 'neuronserve:api_key_completion_tokens_total{api_key="team-a",model_name="fake"} '
    assert (
        float(next(row for row in metrics.splitlines() if row.startswith(line)).removeprefix(line))
        == (after["completion_tokens"])
    )
    assert "a-key" not in metrics


def test_a_key_sees_its_own_usage_and_operators_all(keyed: Server) -> None:
    names = [row["api_key"] for row in ask(keyed, "GET", "/v1/usage", "b").json()["data"]]
    assert names == ["team-b"]
    names = [row["api_key"] for row in ask(keyed, "GET", "/v1/usage", "ops").json()["data"]]
    assert {"ops", "team-a", "team-b", "few"} <= set(names)


def test_stored_responses_are_those_of_their_key(keyed: Server) -> None:
    made = ask(keyed, "POST", "/v1/responses", "a", json={"input": "hello", "max_output_tokens": 16})
    path = f"/v1/responses/{made.json()['id']}"
    assert ask(keyed, "GET", path, "a").status_code == ask(keyed, "GET", path, "ops").status_code == 200
    for method, suffix in (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")):
        assert ask(keyed, method, path + suffix, "b").status_code == 404
    follow = {"input": "and?", "previous_response_id": made.json()["id"], "max_output_tokens": 16}
    refused = ask(keyed, "POST", "/v1/responses", "b", json=follow)
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "previous_response_not_found")
    assert ask(keyed, "POST", "/v1/responses", "a", json=follow).status_code == 200
    assert ask(keyed, "DELETE", path, "a").status_code == 200


def test_batches_and_files_are_those_of_their_key_which_they_count_on(keyed: Server) -> None:
    lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": BODY} for i in range(3)]
    data = "\n".join(map(json.dumps, lines)).encode()
    upload = {"files": {"file": ("in.jsonl", io.BytesIO(data))}, "data": {"purpose": "batch"}}
    file_id = ask(keyed, "POST", "/v1/files", "a", **upload).json()["id"]
    asked = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    refused = ask(keyed, "POST", "/v1/batches", "b", json=asked)
    assert (refused.status_code, refused.json()["error"]["param"]) == (404, "input_file_id")
    before = usage(keyed, "a", "team-a")
    batch_id = ask(keyed, "POST", "/v1/batches", "a", json=asked).json()["id"]
    path = f"/v1/batches/{batch_id}"
    until(lambda: ask(keyed, "GET", path, "a").json()["status"] == "completed")
    output_id = ask(keyed, "GET", path, "a").json()["output_file_id"]
    for key, code in {"a": 200, "b": 404, "ops": 200}.items():
        for each in (path, f"/v1/files/{file_id}", f"/v1/files/{output_id}", f"/v1/files/{output_id}/content"):
            assert ask(keyed, "GET", each, key).status_code == code
    assert ask(keyed, "POST", path + "/cancel", "b").status_code == 404
    assert ask(keyed, "DELETE", f"/v1/files/{file_id}", "b").status_code == 404
    assert ask(keyed, "GET", "/v1/files", "b").json()["data"] == []
    assert ask(keyed, "GET", "/v1/batches", "b").json()["data"] == []
    assert [each["id"] for each in ask(keyed, "GET", "/v1/batches", "a").json()["data"]] == [batch_id]
    after = usage(keyed, "a", "team-a")
    assert after["requests"] - before["requests"] == 3  # type: ignore[operator]
    assert after["completion_tokens"] - before["completion_tokens"] == 12  # type: ignore[operator]


def test_keys_come_and_go_while_streams_run(keyed: Server, file: Path) -> None:
    body = {**BODY, "max_tokens": 400, "stream": True}
    headers = {"Authorization": "Bearer b-key"}
    with httpx.stream("POST", keyed.url + "/v1/completions", json=body, headers=headers, timeout=60) as running:
        lines = running.iter_lines()
        next(lines)
        file.write_text(FILE.replace("b-key", "new-b-key"))
        until(lambda: ask(keyed, "GET", "/v1/models", "new-b").status_code == 200)
        assert ask(keyed, "GET", "/v1/models", "b").status_code == 401
        file.write_text(FILE.replace("name: team-a", "nmae: team-a"))
        assert list(lines)[-2] == "data: [DONE]"
    assert ask(keyed, "GET", "/v1/models", "new-b").status_code == 200
    file.write_text(FILE)
    until(lambda: ask(keyed, "GET", "/v1/models", "b").status_code == 200)
    assert keyed.process.poll() is None
