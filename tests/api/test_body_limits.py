"""Limits of bodies: JSON values of each, memory of all under way, and no list or map of the wire without a bound."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.api.http.body_limit import BODIES_EACH, BodyMemory
from neuronserve.server.api.http.json_meter import BYTES_PER_BYTE, MAX_CONTAINERS, MAX_VALUES, JsonMeter, require_small
from neuronserve.server.api.wire.model import MAX_ITEMS
from neuronserve.server.errors import InvalidRequest, Overloaded, RateLimited
from tests.api.serving import PATIENCE_S, TEMPLATE, Server, running_server, write_checkpoint

CHAT, FIRST, SECOND = (
    "/v1/chat/completions",
    {"authorization": "Bearer first-key"},
    {"authorization": "Bearer second-key"},
)
HELLO = [{"role": "user", "content": "hi"}]
MAX_BODY = 2**16
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab",:[]{}\\/\n\u00e9', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('a",\\', max_size=4), inner, max_size=4),
    max_leaves=20,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("limits")
    keys = folder / "keys.yaml"
    keys.write_text("keys:\n  - {name: first, key: first-key}\n  - {name: second, key: second-key}\n")
    options = ("--api-keys-file", str(keys), "--max-body-bytes", str(MAX_BODY))
    with running_server(write_checkpoint(folder / "model"), *options) as running:
        yield running


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    template = TEMPLATE + "{% if tools %}{% endif %}"
    model = write_checkpoint(tmp_path_factory.mktemp("large") / "model")
    with running_server(model, "--chat-template", template) as running:
        yield running


def counted(value: Any) -> tuple[int, int]:
    """Objects and lists of a JSON value, and its commas and colons."""
    if not isinstance(value, dict | list):
        return 0, 0
    inner = [counted(each) for each in (value.values() if isinstance(value, dict) else value)]
    own = max(0, len(value) - 1) + (len(value) if isinstance(value, dict) else 0)
    return 1 + sum(c for c, _ in inner), own + sum(v for _, v in inner)


@given(JSON, st.integers(1, 7), st.booleans())
def test_the_meter_counts_values_however_a_text_is_cut(value: Any, size: int, is_ascii: bool) -> None:
    text, meter = json.dumps(value, ensure_ascii=is_ascii).encode(), JsonMeter()
    for begin in range(0, len(text), size):
        meter.feed(text[begin : begin + size])
    assert (meter.num_containers, meter.num_values) == counted(value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("item", "most", "what"), [("[]", MAX_CONTAINERS, "objects and lists"), ("7", MAX_VALUES, "values")]
)
def test_a_body_with_more_values_than_are_read_is_refused(large: Server, item: str, most: int, what: str) -> None:
    text = json.dumps({"messages": HELLO, "max_tokens": 1})[:-1] + f', "extra": [{",".join([item] * (most + 1))}]}}'
    answer = httpx.post(large.url + CHAT, content=text, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert f"more than {most} {what}" in answer.json()["error"]["message"]


def test_values_within_a_text_are_not_counted(large: Server) -> None:
    text = '[{"a\\":1}],' * 5000
    answer = httpx.post(large.url + "/tokenize", json={"prompt": text[:100_000]}, timeout=PATIENCE_S)
    assert answer.status_code == 200


def test_arguments_of_a_call_are_held_to_the_same_values(large: Server) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": f'{{"a":[{"[]," * 20_000}[]]}}'}}
    messages = [*HELLO, {"role": "assistant", "content": "", "tool_calls": [call]}]
    answer = httpx.post(large.url + "/tokenize", json={"messages": messages})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/messages/count_tokens", "/tokenize"])
def test_a_conversation_has_a_bounded_number_of_messages(large: Server, path: str) -> None:
    body = {"model": "fake", "max_tokens": 1, "messages": HELLO * (MAX_ITEMS + 1)}
    answer = httpx.post(large.url + path, json=body, timeout=PATIENCE_S)
    assert answer.status_code == 400
    assert f"messages: List should have at most {MAX_ITEMS} items" in answer.json()["error"]["message"]


def test_every_list_and_map_of_every_body_is_bounded(large: Server) -> None:
    page = httpx.get(large.url + "/openapi.json").json()
    bodies = [operation.get("requestBody", {}) for path in page["paths"].values() for operation in path.values()]
    found = list(unbounded(bodies, page["components"]["schemas"], set()))
    assert not found, f"no maxItems or maxProperties: {found}"


def unbounded(part: Any, schemas: dict[str, Any], seen: set[str]) -> Iterator[Any]:
    """Lists and maps without a limit in a part of an OpenAPI page, and in what it refers to."""
    if isinstance(part, list):
        for each in part:
            yield from unbounded(each, schemas, seen)
    elif isinstance(part, dict):
        name = str(part.get("$ref", "")).rpartition("/")[2]
        if name and name not in seen:
            seen.add(name)
            yield from ((name, *found) for found in unbounded(schemas[name], schemas, seen))
        is_map = part.get("type") == "object" and "properties" not in part
        if (part.get("type") == "array" and "maxItems" not in part) or (is_map and "maxProperties" not in part):
            yield (part,)
        for each in part.values():
            yield from unbounded(each, schemas, seen)


def test_nesting_is_bounded(large: Server) -> None:
    text = json.dumps({"messages": HELLO, "max_tokens": 1})[:-1] + f', "extra": {"[" * 2000}{"]" * 2000}}}'
    answer = httpx.post(large.url + CHAT, content=text, headers={"content-type": "application/json"})
    assert answer.status_code == 400


def test_memory_of_bodies_is_bounded_for_each_client_and_in_all() -> None:
    memory = BodyMemory(100, 60)
    memory.take("a", 60)
    with pytest.raises(RateLimited):
        memory.take("a", 1)
    memory.take("b", 40)
    with pytest.raises(Overloaded):
        memory.take("b", 1)
    memory.give_back("a", 60)
    memory.take("b", 20)
    assert memory.num_bytes == 60


def test_one_body_is_read_whatever_it_is_estimated_to_take() -> None:
    memory = BodyMemory(100, 60)
    memory.take("a", 200)
    with pytest.raises(Overloaded):
        memory.take("b", 1)


@contextlib.contextmanager
def unfinished(server: Server, headers: dict[str, str]) -> Iterator[socket.socket]:
    """A request whose body has a byte less than it declares."""
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as connection:
        lines = {**headers, "host": "localhost", "content-type": "application/json", "content-length": str(MAX_BODY)}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        connection.sendall(f"POST {CHAT} HTTP/1.1\r\n{head}\r\n".encode() + b" " * (MAX_BODY - 1))
        yield connection


def test_a_key_whose_bodies_take_its_memory_gets_429_and_others_are_served(server: Server) -> None:
    count = BODIES_EACH // BYTES_PER_BYTE
    with contextlib.ExitStack() as stack:
        open_ones = [stack.enter_context(unfinished(server, FIRST)) for _ in range(count)]
        refused = stack.enter_context(unfinished(server, FIRST))
        refused.sendall(b" ")
        answer = http.client.HTTPResponse(refused)
        answer.begin()
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        assert json.loads(answer.read())["error"]["type"] == "bytes_in_flight"
        body = {"messages": HELLO, "max_tokens": 1}
        assert httpx.post(server.url + CHAT, json=body, headers=SECOND).status_code == 200
        assert httpx.post(server.url + CHAT, json=body, headers=FIRST).status_code == 429
        for each in open_ones:
            each.sendall(b" ")
            answer = http.client.HTTPResponse(each)
            answer.begin()
            assert answer.status == 400  # a body of spaces is no JSON
    assert httpx.post(server.url + CHAT, json=body, headers=FIRST).status_code == 200


def test_a_client_that_leaves_gives_its_memory_back(server: Server) -> None:
    for _ in range(3 * BODIES_EACH // BYTES_PER_BYTE):
        with unfinished(server, FIRST):
            pass
    deadline = PATIENCE_S
    body = {"messages": HELLO, "max_tokens": 1}
    with httpx.Client(timeout=deadline) as client:
        statuses = [client.post(server.url + CHAT, json=body, headers=FIRST).status_code for _ in range(50)]
    assert statuses[-1] == 200


def test_a_refused_meter_names_the_field() -> None:
    with pytest.raises(InvalidRequest, match=r"^a\.b: The JSON has more than"):
        require_small("[" * (MAX_CONTAINERS + 1), "a.b")
