"""The worst inputs of one client that are known: each makes much work, or takes much memory, for few bytes.

`tests/chaos/test_worst_inputs.py` sends each by one key and measures what a second key notices.
`python -m tests.chaos.worst_inputs URL KEY NAME SECONDS` is the client that sends them, in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

BODY_BYTES = 8 * 2**20 - 4096  # just below what a server reads by default
HELLO = [{"role": "user", "content": "hi"}]
CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
LOOP = (
    "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}"
)
Make = Callable[[int], bytes]  # the body with that number


@dataclass(frozen=True)
class WorstInput:
    """Requests of one kind, `width` of them at a time."""

    name: str
    path: str
    make: Make
    width: int = 8
    content_type: str = "application/json"


def repeated(head: str, item: str, tail: str, num_bytes: int = BODY_BYTES) -> Make:
    """A body that has `item` as often as it has room, each with a comma behind it but the last."""
    count = (num_bytes - len(head) - len(tail)) // (len(item) + 1)
    return lambda _: (head + ",".join([item] * count) + tail).encode()


def with_text(path: str, text: str, **fields: Any) -> Make:
    """A generation request of one text."""
    given: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
    given = {COMPLETIONS: {"prompt": text}, RESPONSES: {"input": text}}.get(path, given)
    return lambda _: json.dumps({**given, "max_tokens": 1, **fields}, ensure_ascii=False).encode()


def numbered(make: Callable[[int], dict[str, Any]]) -> Make:
    return lambda number: json.dumps(make(number)).encode()


def nested_schema(number: int, depth: int = 12) -> dict[str, Any]:
    """A schema whose grammar takes long to compile, and is not in any cache."""
    schema: dict[str, Any] = {"type": "string", "pattern": f"^(a|b{number})*c{{1,40}}$"}
    for level in range(depth):
        fields = {f"f{level}_{i}_{number}": schema for i in range(2)}
        schema = {"type": "object", "properties": fields, "required": list(fields)}
    return schema


def with_schema(number: int) -> dict[str, Any]:
    schema = {"name": "s", "schema": nested_schema(number, 8)}
    return {"messages": HELLO, "max_tokens": 1, "response_format": {"type": "json_schema", "json_schema": schema}}


def looping(number: int) -> dict[str, Any]:
    return {"messages": HELLO, "max_tokens": 1, "chat_template": f"{LOOP}{number}"}


HEAD = '{"model":"fake","max_tokens":1,"messages":['
MESSAGE = '{"role":"user","content":"hello"}'
OPEN_CHAT = HEAD + MESSAGE + '],"extra":'

WORST_INPUTS: tuple[WorstInput, ...] = (
    WorstInput("messages of a chat", CHAT, repeated(HEAD, MESSAGE, "]}"), width=40),
    WorstInput("messages of Anthropic's", MESSAGES, repeated(HEAD, MESSAGE, "]}")),
    WorstInput("messages to be counted", MESSAGES + "/count_tokens", repeated(HEAD, MESSAGE, "]}")),
    WorstInput("messages to be tokenized", "/tokenize", repeated('{"messages":[', MESSAGE, "]}")),
    WorstInput("messages to be rendered", CHAT + "/render", repeated(HEAD, MESSAGE, "]}")),
    WorstInput("messages of a model container", "/invocations", repeated(HEAD, MESSAGE, "]}")),
    WorstInput("items", RESPONSES, repeated('{"input":[', MESSAGE, "]}")),
    WorstInput(
        "parts of a message",
        CHAT,
        repeated('{"max_tokens":1,"messages":[{"role":"user","content":[', '{"type":"text","text":"a"}', "]}]}"),
    ),
    WorstInput(
        "parts of an item",
        RESPONSES,
        repeated('{"input":[{"role":"user","content":[', '{"type":"input_text","text":"a"}', "]}]}"),
    ),
    WorstInput(
        "blocks of a message",
        MESSAGES,
        repeated('{"model":"fake","max_tokens":1,"messages":[{"role":"user","content":[', '{"type":"text"}', "]}]}"),
    ),
    WorstInput(
        "calls of a message",
        CHAT,
        repeated(
            '{"messages":[{"role":"assistant","content":"","tool_calls":[',
            '{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}',
            "]}]}",
        ),
    ),
    WorstInput(
        "arguments of a call",
        CHAT,
        repeated(
            '{"messages":[{"role":"assistant","content":"","tool_calls":[{"id":"a","type":"function",'
            '"function":{"name":"f","arguments":"{\\"a\\":[',
            "[]",
            ']}"}}]}]}',
        ),
    ),
    WorstInput("an unknown field of lists", CHAT, repeated(OPEN_CHAT + "[", "[]", "]}")),
    WorstInput("an unknown field of numbers", CHAT, repeated(OPEN_CHAT + "[", "7", "]}")),
    WorstInput("an unknown field of floats", CHAT, repeated(OPEN_CHAT + "[", "1e-7", "]}")),
    WorstInput("an unknown field of texts", CHAT, repeated(OPEN_CHAT + "[", '"a"', "]}")),
    WorstInput("keys of a field", CHAT, lambda _: _keys(HEAD + MESSAGE + '],"chat_template_kwargs":{')),
    WorstInput("keys of the metadata", RESPONSES, lambda _: _keys('{"input":"hi","metadata":{')),
    WorstInput("keys of the body", CHAT, lambda _: _keys(HEAD + MESSAGE + "],", "}")),
    WorstInput("keys of the bias", CHAT, lambda _: _keys(HEAD + MESSAGE + '],"logit_bias":{')),
    WorstInput("depth", CHAT, lambda _: (OPEN_CHAT + "[" * (BODY_BYTES - 200)).encode()),
    WorstInput(
        "lists within lists",
        CHAT,
        repeated(OPEN_CHAT + "[", "[" * 100 + "]" * 100, "]}"),
    ),
    WorstInput("a prompt of one digit", COMPLETIONS, with_text(COMPLETIONS, "1" * 520_000), width=64),
    WorstInput("a chat of one digit", CHAT, with_text(CHAT, "1" * 520_000), width=64),
    WorstInput("a chat of one letter", CHAT, with_text(CHAT, "a" * 520_000), width=64),
    WorstInput("a chat of spaces", CHAT, with_text(CHAT, " " * 520_000), width=64),
    WorstInput("a chat of mixed text", CHAT, with_text(CHAT, "a1 ,bé\n語" * 60_000), width=64),
    WorstInput("a chat of the largest body", CHAT, with_text(CHAT, "a" * (BODY_BYTES - 200))),
    WorstInput("a chat of wide characters", CHAT, with_text(CHAT, "a" * (BODY_BYTES - 200) + "\U0001f600")),
    WorstInput(
        "a chat of escapes",
        CHAT,
        lambda _: (HEAD + '{"role":"user","content":"' + "\\u0041" * (BODY_BYTES // 6 - 40) + '"}]}').encode(),
    ),
    WorstInput("a text to tokenize", "/tokenize", with_text(COMPLETIONS, "1" * 520_000), width=16),
    WorstInput(
        "long words",
        COMPLETIONS,
        numbered(lambda n: {"prompt": [f"{n}" + "ab" * 2000] * 1000, "max_tokens": 1}),
    ),
    WorstInput("ids of a prompt", COMPLETIONS, repeated('{"max_tokens":1,"prompt":[', "7", "]}")),
    WorstInput("lists of ids", COMPLETIONS, repeated('{"max_tokens":1,"prompt":[', "[7]", "]}")),
    WorstInput("prompts", COMPLETIONS, repeated('{"max_tokens":1,"prompt":[', '"a"', "]}")),
    WorstInput("ids to text", "/detokenize", repeated('{"tokens":[', "7", "]}", 2_000_000)),
    WorstInput("texts to embed", "/v1/embeddings", repeated('{"input":[', '"a"', "]}")),
    WorstInput("long texts to embed", "/v1/embeddings", repeated('{"input":[', '"' + "a1" * 20_000 + '"', "]}")),
    WorstInput("documents", "/v1/rerank", repeated('{"query":"a","documents":[', '"a"', "]}")),
    WorstInput("texts to score", "/v1/score", repeated('{"text_1":"a","text_2":[', '"a"', "]}")),
    WorstInput("nested schemas", CHAT, numbered(with_schema)),
    WorstInput("looping templates", CHAT, numbered(looping), width=8),
    WorstInput(
        "tools",
        CHAT,
        repeated(
            HEAD + MESSAGE + '],"tools":[',
            '{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}',
            "]}",
        ),
    ),
    WorstInput(
        "properties of a tool",
        CHAT,
        lambda _: _keys(
            HEAD + MESSAGE + '],"tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":{'
            '"type":"object","properties":{',
            "}}}}]}",
            '{"type":"string"}',
        ),
    ),
)


def _keys(head: str, tail: str = "}}", value: str = "0") -> bytes:
    """A body with as many keys as it has room for."""
    count = (BODY_BYTES - len(head) - len(tail)) // (len(value) + 11)
    return (head + ",".join(f'"k{i:06}":{value}' for i in range(count)) + tail).encode()


async def _send(host: str, port: int, head: bytes, body: bytes) -> int:
    """Status of the answer; 0 when there is none."""
    reader, writer = await asyncio.open_connection(host, port, limit=2**20)
    try:
        writer.write(head + b"content-length: %d\r\n\r\n" % len(body))
        writer.write(body)
        line = await reader.readline()
        while await reader.read(2**16):
            pass
        return int(line.split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    finally:
        writer.close()


async def attack(url: str, key: str, worst: WorstInput, seconds: float) -> Counter[int]:
    """Send the input from `width` connections at a time, for so many seconds; how many had each status."""
    parts, statuses = urlsplit(url), Counter[int]()
    head = (
        f"POST {worst.path} HTTP/1.1\r\nhost: {parts.netloc}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: {worst.content_type}\r\nconnection: close\r\n"
    ).encode()
    bodies = [worst.make(i) for i in range(min(8, worst.width))]
    end = time.monotonic() + seconds

    async def send(number: int) -> None:
        while time.monotonic() < end:
            statuses[await _send(parts.hostname or "", parts.port or 80, head, bodies[number % len(bodies)])] += 1

    await asyncio.gather(*(send(number) for number in range(worst.width)))
    return statuses


def main() -> None:
    url, key, name, seconds = sys.argv[1:]
    worst = next(each for each in WORST_INPUTS if each.name == name)
    print(json.dumps(asyncio.run(attack(url, key, worst, float(seconds)))))


if __name__ == "__main__":
    main()
