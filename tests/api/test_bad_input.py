"""Bad input: the right status, the OpenAI error object, the offending field; other clients are not disturbed."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.bad_endpoints import BAD_PATHS, BAD_REQUESTS, RESPONSES
from tests.api.bad_requests import CHAT, HELLO, MESSAGES, NAMED, TEXT
from tests.api.serving import PATIENCE_S, Server

LIMIT = 8 * 2**20


def good_requests() -> list[tuple[str, dict[str, Any]]]:
    """Fifty requests to all that generates: whole and streamed, greedy and drawn, one choice and more."""
    made: list[tuple[str, dict[str, Any]]] = []
    for i in range(10):
        text, drawn = f"bystander {i}", {"temperature": 0.1 * i, "seed": i}
        chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 20 + i, "ignore_eos": True}
        made += [
            (TEXT, {"prompt": text, "max_tokens": 40 + i, "n": 1 + i % 3, "logprobs": i % 4, **drawn}),
            (CHAT, {**chat, **drawn, "stop": ["qz"]}),
            (CHAT, {**chat, "stream": True, "logprobs": True, "top_logprobs": 2, "seed": i}),
            (RESPONSES, {"input": text, "max_output_tokens": 20 + i, "store": False, **drawn}),
            (MESSAGES, {"model": "fake", "messages": chat["messages"], "max_tokens": 20 + i, "temperature": 0}),
        ]
    return made


def generated(http: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    """Generated text, without ids and times."""
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    if body.get("stream"):
        events = [event for event in answer.text.split("\n\n") if event.startswith("data: {")]
        return [choice for event in events for choice in json.loads(event[6:])["choices"]]
    found = answer.json()
    if path == RESPONSES:
        return [item["content"] for item in found["output"]]
    return found["content"] if path == MESSAGES else found["choices"]


def joined(said: Any) -> Any:
    """Chunks of a stream as one, however the tokens were divided among them."""
    if not isinstance(said, list) or not said or "delta" not in said[0]:
        return said
    text = "".join(choice["delta"].get("content", "") for choice in said)
    tokens = [token for choice in said for token in (choice["logprobs"] or {}).get("content", ())]
    return text, tokens, said[-1]["finish_reason"]


@pytest.fixture(scope="module", autouse=True)
def bystander(server: Server) -> Iterator[None]:
    """Another client, whose requests get the same, bit for bit, while these tests run as before them."""
    good = good_requests()
    alone: list[Any] = []
    beside: list[tuple[int, Any]] = []
    is_over = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=30) as client:
            for turn in itertools.count():
                if is_over.wait(0.05) and turn >= len(good):
                    return
                beside.append((turn % len(good), joined(generated(client, *good[turn % len(good)]))))

    with httpx.Client(base_url=server.url, timeout=30) as client:
        alone += [joined(generated(client, *each)) for each in good]
    thread = threading.Thread(target=ask)
    thread.start()
    yield
    is_over.set()
    thread.join(PATIENCE_S)
    assert len({index for index, _ in beside}) == len(good) == 50
    assert all(said == alone[index] for index, said in beside)
    assert httpx.get(server.url + "/health/ready").status_code == 200


@pytest.fixture(scope="module")
def pages(server: Server) -> Any:
    """Pages of each path in /openapi.json."""
    return httpx.get(server.url + "/openapi.json").json()["paths"]


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error object, after checking that it is one and nothing else."""
    body = response.json()
    assert set(body) == {"error"}, body
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in error["message"]
    assert "/server/" not in error["message"]  # no path of the host
    return error


@pytest.mark.parametrize(("path", "body", "status", "param"), BAD_REQUESTS, ids=lambda value: json.dumps(value)[:80])
def test_a_bad_request_is_named(
    http: httpx.Client, pages: dict[str, Any], path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    response = http.post(path, json=body)
    error = error_of(response)
    assert (response.status_code, error["param"], error["type"]) == (status, param, "invalid_request_error")
    if "post" in pages.get(path, {}):
        assert str(status) in pages[path]["post"]["responses"]


@pytest.mark.parametrize(("method", "path", "status", "param"), BAD_PATHS)
def test_a_bad_path_or_parameter_is_named(http: httpx.Client, method: str, path: str, status: int, param: str) -> None:
    response = http.request(method, path)
    assert (response.status_code, error_of(response)["param"]) == (status, param)


def test_the_table_has_what_every_endpoint_may_be_sent(pages: dict[str, Any]) -> None:
    taking_bodies = {path for path in pages for kind in pages[path].values() if "requestBody" in kind}
    forms = {"/v1/files", "/v1/messages/count_tokens", MESSAGES}  # in `test_batches.py`, and NAMED
    forms.add("/v1/messages/batches")  # in `test_message_batches.py`
    forms |= {f"/api/{name}" for name in ("chat", "generate", "embed", "embeddings", "show")}  # in `test_ollama.py`
    forms |= {"/v1/audio/transcriptions", "/v1/audio/translations"}  # in `test_audio.py`
    assert taking_bodies - forms <= {bad.path for bad in BAD_REQUESTS}
    assert len(BAD_REQUESTS) + len(NAMED) + len(BAD_PATHS) >= 400


@pytest.mark.parametrize(("body", "param"), NAMED, ids=lambda value: json.dumps(value)[:80])
def test_a_bad_message_is_named_in_anthropics_shape(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    answer = http.post(MESSAGES, json={"model": "fake", "max_tokens": 8, "messages": HELLO} | body)
    assert (answer.status_code, answer.json()["type"]) == (400, "error")
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert answer.json()["error"]["message"].split(":")[0].split(" ")[0] == param


def test_more_sequences_than_the_queue_takes_are_refused_at_once(http: httpx.Client) -> None:
    response = http.post(TEXT, json={"prompt": ["a"] * 2000, "n": 128, "max_tokens": 1})
    assert (response.status_code, error_of(response)["code"]) == (429, "queue_full")


def test_streams_get_plain_errors_too(http: httpx.Client) -> None:
    response = http.post(CHAT, json={"messages": HELLO, "stream": True, "temperature": 9})
    assert response.status_code == 400
    assert error_of(response)["param"] == "temperature"


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_an_unknown_model_is_404(http: httpx.Client, path: str) -> None:
    response = http.post(path, json={"model": "gpt-9", "messages": HELLO, "prompt": "a"})
    assert response.status_code == 404
    assert (error_of(response)["param"], error_of(response)["code"]) == ("model", "model_not_found")


def post_raw(http: httpx.Client, content: bytes, path: str = CHAT) -> httpx.Response:
    return http.post(path, content=content, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[1]",
        b'"text"',
        b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
        b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}',
        rb'{"messages": [{"role": "user", "content": "\ud800"}]}',
        b'{"a":' * 50_000,
        b"[" * 100_000,
        b'{"max_tokens": ' + b"9" * 5000 + b"}",
        b"\x00\x01\x02",
        b"{} trailing",
    ],
    ids=lambda content: repr(content[:50]),
)
def test_a_body_that_is_not_a_json_object_is_400(http: httpx.Client, content: bytes) -> None:
    response = post_raw(http, content)
    assert response.status_code == 400
    error_of(response)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400, "-" + "9" * 400 + ".5"])
def test_numbers_that_are_none_are_refused_by_field(http: httpx.Client, number: str) -> None:
    body = f'{{"messages": [{{"role": "user", "content": "hi"}}], "max_tokens": 1, "temperature": {number}}}'
    response = post_raw(http, body.encode())
    assert (response.status_code, error_of(response)["param"]) == (400, "temperature")


def test_only_json_is_read(http: httpx.Client) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = http.post(CHAT, content=b"{}", headers={"Content-Type": kind})
        assert response.status_code == 415
        error_of(response)


def test_unknown_paths_and_methods_have_error_objects_too(http: httpx.Client) -> None:
    response = http.get("/v1/nothing")
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert http.get(CHAT).status_code == 405


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions/render", f"{CHAT}/render"),  # of clients whose base URL lacks the /v1
        ("/v1/v1/chat/completions", CHAT),  # and of those that add one
        ("/v1//chat/completions", CHAT),
        ("/openai/deployments/fake/chat/completions", CHAT),
        ("/v1/threads/thread_1/messages", None),
        ("/v1/vector_stores/1/files", None),
        ("/xcompletions", None),
    ],
)
def test_who_asks_beside_an_endpoint_is_told_its_path(http: httpx.Client, path: str, meant: str | None) -> None:
    response = http.post(path, json={})
    assert response.status_code == 404
    message = response.json()["error"]["message"]
    assert message.startswith(f"Not Found: POST {path}")
    assert (f". The path is {meant}." in message) == (meant is not None)
    assert ("The path is" in message) == (meant is not None)


def test_a_body_may_begin_with_a_byte_order_mark(http: httpx.Client) -> None:
    """Programs on Windows write UTF-8 with a byte order mark."""
    body = json.dumps({"prompt": "hello", "max_tokens": 3, "temperature": 0}).encode()
    marked = http.post(TEXT, content=b"\xef\xbb\xbf" + body, headers={"Content-Type": "application/json"})
    plain = http.post(TEXT, content=body, headers={"Content-Type": "application/json"})
    assert marked.status_code == 200
    assert marked.json()["choices"] == plain.json()["choices"]


@pytest.mark.parametrize("path", ["/v1/files", "/v1/files/a", "/v1/responses/a", "/v1/batches", "/v1/models", CHAT])
def test_a_wrong_method_is_told_all_that_there_are(http: httpx.Client, pages: dict[str, Any], path: str) -> None:
    shown = re.sub("/(files|response)(s?)/a", r"/\1\2/{\1_id}", path).replace("files_id", "file_id")
    answer = http.request("PATCH", path)
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == {method.upper() for method in pages[shown]}


def body_of_size(size: int) -> bytes:
    start = b'{"messages": [{"role": "user", "content": "hi"}], "temperature": 9, "user": "'
    return start + b"x" * (size - len(start) - 2) + b'"}'


def test_a_body_at_the_limit_is_read_and_one_byte_more_is_not(http: httpx.Client) -> None:
    assert post_raw(http, body_of_size(LIMIT)).status_code == 400  # read: the temperature is what is wrong
    response = post_raw(http, body_of_size(LIMIT + 1))
    assert response.status_code == 413
    assert str(LIMIT) in error_of(response)["message"]


def test_a_chunked_body_is_counted_as_it_comes(http: httpx.Client) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(9):
            yield b" " * 2**20

    response = http.post(CHAT, content=parts(), headers={"Content-Type": "application/json"})
    assert response.status_code == 413
    error_of(response)


def exchange(server: Server, data: bytes, timeout_s: float = 10) -> bytes:
    """Send raw bytes, read until the server closes or has answered."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=timeout_s) as connection:
        sent = 0
        answer = b""
        try:
            while sent < len(data):
                sent += connection.send(data[sent : sent + 65536])
            while part := connection.recv(65536):
                answer += part
        except ConnectionError:
            pass
        return answer


def test_a_huge_declared_body_is_refused_before_it_is_sent(server: Server) -> None:
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {2**40}\r\n\r\n"
    )
    answer = exchange(server, head.encode())
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Big: " + b"x" * 70_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X-Many: y\r\n" * 10_000 + b"\r\n",
        b"GET /health?" + b"q" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["one header", "many headers", "request line"],
)
def test_oversized_headers_are_431(server: Server, head: bytes) -> None:
    answer = exchange(server, head)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"].startswith("Request line and headers")


def test_a_header_without_an_end_is_cut_off(server: Server) -> None:
    """40 MiB of one header: the server answers after 64 KiB and reads no more."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Big: ")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 40 * 2**20:
                sent += connection.send(b"x" * 65536)
        assert sent < 10 * 2**20  # what the kernel had buffered


def test_headers_below_the_limit_pass_also_on_a_kept_connection(server: Server) -> None:
    one = b"GET /version HTTP/1.1\r\nHost: localhost\r\nX-Pad: " + b"x" * 50_000 + b"\r\n\r\n"
    last = b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert exchange(server, one * 3 + last).count(b"HTTP/1.1 200 ") == 4


def test_bytes_that_are_not_http_are_400(server: Server) -> None:
    assert exchange(server, b"\x16\x03\x01\x02\x00\x01\r\n\r\n").startswith(b"HTTP/1.1 400 ")
