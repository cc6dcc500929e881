"""A grammar of requests that are almost right: of every operation of /openapi.json, with a few things wrong.

A body begins as one that is answered, gets some of the fields that its schema knows, and then a mistake or two: another
type, a limit passed, a key lost or twice, text that ends early. The same seed makes the same requests.
"""

from __future__ import annotations

import copy
import json
import string
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import quote

HELLO = [{"role": "user", "content": "hi"}]
ENDS_OR_RECORDS = ("/admin/restart-engine", "/start_profile", "/stop_profile")  # what no client is to do meanwhile
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "fake", "messages": HELLO, "max_tokens": 4},
    "/v1/completions": {"model": "fake", "prompt": "hi", "max_tokens": 4},
    "/v1/responses": {"model": "fake", "input": "hi", "max_output_tokens": 4},
    "/v1/messages": {"model": "fake", "messages": HELLO, "max_tokens": 4},
    "/v1/messages/count_tokens": {"model": "fake", "messages": HELLO},
    "/invocations": {"inputs": "hi", "parameters": {"max_new_tokens": 4}},
    "/v1/embeddings": {"input": "hi"},
    "/pooling": {"input": "hi"},
    "/classify": {"input": "hi"},
    "/score": {"text_1": "hi", "text_2": "ho"},
    "/v1/score": {"text_1": "hi", "text_2": "ho"},
    "/rerank": {"query": "hi", "documents": ["ho", "ha"]},
    "/v1/rerank": {"query": "hi", "documents": ["ho", "ha"]},
    "/v2/rerank": {"query": "hi", "documents": ["ho", "ha"]},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [5, 6]},
    "/admin/abort-request": {"request_ids": ["none"]},
    "/v1/load_lora_adapter": {"lora_name": "a", "lora_path": "b"},
    "/v1/unload_lora_adapter": {"lora_name": "a"},
    "/v1/batches": {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h"},
}
GENERATING = tuple(VALID)[:6]
ODD_TEXT = (
    "",
    " ",
    "\x00",
    "\ud83d",
    "\u202e",
    "a" * 5000,
    "../../etc/passwd",
    "%s%n",
    "null",
    "{",
    "<|eos|>",
    "٣",
)
ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 2**31, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e308, 5e-324),
    *([], {}, [[]], [None], {"": {}}, [{"type": "text"}], {"type": "function"}, [HELLO], list(range(300))),
    *ODD_TEXT,
)
HEADERS = ("content-type", "x-request-id", "x-data-parallel-rank", "accept", "authorization", "x-api-key")
ODD_HEADERS = (
    "text/plain",
    "multipart/form-data",
    "-1",
    "a b",
    "x" * 200,
    "Bearer",
    "*/*;q=2",
    "application/jsonlines",
)
IDS = ("resp_1", "file-1", "batch_1", "fake")
FORM = "multipart/form-data"
ODD_JSON = (b"", b"{", b"[" * 5000, b"\xff\xfe{}", b"NaN", b'{"a":1,"a":2}', b"\xef\xbb\xbf{}", b"1e999", b'"\\ud800"')


@dataclass(frozen=True)
class NearValid:
    """One request."""

    method: str
    path: str  # with its query
    headers: dict[str, str]
    content: bytes

    @property
    def as_curl(self) -> str:
        """How to send it again."""
        headers = " ".join(f"-H {name}:{value}" for name, value in self.headers.items())
        return f"{self.method} {self.path[:300]} {headers} {self.content[:2000]!r}"


class Grammar:
    """Makes requests of the operations of a server's OpenAPI page."""

    def __init__(self, page: dict[str, Any], seed: int) -> None:
        self._chance, self._schemas = Random(seed), page["components"]["schemas"]
        self._operations = [
            (path, method, operation)
            for path, operations in page["paths"].items()
            for method, operation in operations.items()
            if path not in ENDS_OR_RECORDS
        ]
        self._weights = [8 if path in GENERATING else 2 if path in VALID else 1 for path, *_ in self._operations]

    def next(self) -> NearValid:
        """The next request."""
        chance = self._chance
        path, method, operation = chance.choices(self._operations, self._weights)[0]
        schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
        headers = {"content-type": "application/json"} if schema is not None else {}
        if self._happens(0.05):
            headers[chance.choice(HEADERS)] = chance.choice(ODD_HEADERS)
        content = b"" if schema is None else self._content(path, schema)
        if path == "/v1/files" and method == "post":
            headers, content = self._form()
        method = chance.choice(("get", "put", "patch", "delete", "post")) if self._happens(0.02) else method
        return NearValid(method.upper(), self._filled(path) + self._query(), headers, content)

    def _odd(self) -> Any:
        """A value of its own, since more mistakes may be made in it."""
        return copy.deepcopy(self._chance.choice(ODD))

    def _happens(self, probability: float) -> bool:
        return self._chance.random() < probability

    def _filled(self, path: str) -> str:
        parts = (
            quote(
                self._chance.choice((*ODD_TEXT, "resp_1", "file-1", "batch_1", "fake")) or "-",
                safe="",
                errors="replace",
            )
            if part.startswith("{")
            else part
            for part in path.split("/")
        )
        return "/".join(parts)

    def _query(self) -> str:
        if not self._happens(0.1):
            return ""
        names = ("limit", "after", "order", "stream", "starting_after", "include", "purpose", "model")
        return f"?{self._chance.choice(names)}={quote(str(self._chance.choice(ODD))[:200], errors='replace')}"

    def _content(self, path: str, schema: dict[str, Any]) -> bytes:
        chance = self._chance
        body: Any = json.loads(json.dumps(VALID.get(path, {})))
        fields = list(self._resolved(schema).get("properties", {}).items())
        for name, of_field in chance.sample(fields, min(len(fields), chance.choice((0, 0, 1, 2, 3)))):
            body[name] = self._value(of_field)
        for _ in range(chance.choice((0, 1, 1, 2))):
            body = self._mistaken(body)
        text = json.dumps(body, ensure_ascii=self._happens(0.5)).encode("utf-8", "surrogatepass")
        if self._happens(0.03):
            return chance.choice((*ODD_JSON, text[: chance.randrange(len(text))], text + text, b"[" + text + b"]"))
        return text

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in schema:
            schema = self._schemas[schema["$ref"].rpartition("/")[2]]
        return schema

    def _value(self, schema: dict[str, Any], depth: int = 0) -> Any:
        """A value that a schema describes, more or less."""
        chance, schema = self._chance, self._resolved(schema)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._value(chance.choice(schema[key]), depth + 1)
        if "enum" in schema or "const" in schema:
            return chance.choice(schema.get("enum") or [schema["const"]])
        low, high = schema.get("minimum", 0), schema.get("maximum", 3)
        simple = {
            "integer": (low, high, 1, 2),
            "number": (low, high, 0.3, 1),
            "boolean": (True, False),
            "string": ("", "a", "".join(chance.choices(string.printable, k=40))),
        }
        kind = schema.get("type", "")
        if kind in {"object", "array"} and depth < 6:
            return self._nested(schema, depth + 1)
        return chance.choice(simple[kind]) if kind in simple else self._odd()

    def _nested(self, schema: dict[str, Any], depth: int) -> Any:
        if schema["type"] == "array":
            return [self._value(schema.get("items", {}), depth) for _ in range(self._chance.choice((0, 1, 1, 3)))]
        fields, needed = schema.get("properties", {}).items(), set(schema.get("required", ()))
        return {name: self._value(of, depth) for name, of in fields if name in needed or self._happens(0.3)}

    def _mistaken(self, value: Any) -> Any:
        """The value with one mistake somewhere in it."""
        chance = self._chance
        inside = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
        if not inside or self._happens(0.15):
            return self._odd()
        key = chance.choice(inside[:50])
        match chance.randrange(6):
            case 0:
                del value[key]
            case 1 if isinstance(value, dict):
                value[chance.choice(("stream", "n", "logprobs", "stop", "tools", "extra", ""))] = self._odd()
            case 2:
                value[key] = [value[key]]
            case 3:
                value[key] = json.dumps(value[key])
            case _:
                value[key] = self._mistaken(value[key])
        return value

    def _form(self) -> tuple[dict[str, str], bytes]:
        """An upload, which may end anywhere."""
        chance, parts = self._chance, b""
        fields: Sequence[tuple[str, bytes]] = (
            ('name="purpose"', chance.choice((b"batch", b"user_data", b"", b"\xff"))),
            (f'name="file"; filename="{chance.choice(("a.jsonl", "", "../a", "a" * 300))}"', chance.choice(ODD_JSON)),
        )
        for name, content in chance.sample(fields, chance.choice((1, 2, 2, 2))):
            parts += b"--x\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n" % (name.encode(), content)
        whole = parts + b"--x--\r\n"
        kind = chance.choice((*(f"{FORM}; boundary=x",) * 4, FORM, f"{FORM}; boundary=y"))
        return {"content-type": kind}, whole[: chance.randrange(len(whole))] if self._happens(0.2) else whole
