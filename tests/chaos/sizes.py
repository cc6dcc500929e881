"""A grammar of sizes: requests of every operation of /openapi.json with unusual counts, depths and lengths.

A body begins as one that is answered. Then one or two of its places are inflated: a list or a map repeats an item, a
text repeats a piece, or a value is put into itself. Sizes are spread over orders of magnitude, up to what is read. The
same seed makes the same requests. `python -m tests.chaos.sizes URL KEY SEED` sends eight kinds of them at a time.
"""

from __future__ import annotations

import asyncio
import copy
import json
import sys
from collections import Counter
from random import Random
from typing import Any

import httpx

from tests.chaos.near_valid import ENDS_OR_RECORDS, VALID
from tests.chaos.worst_inputs import BODY_BYTES, WorstInput, attack

NUM_KINDS, SECONDS = 8, 3.0  # that are sent at a time, and for how long
PIECES = ("1", "a", " ", "ab ", "\n", "é", "語", "\U0001f600", "\\", '"', "<|im_end|>", "a1 ,", "{{", "\x00")
ITEMS: tuple[Any, ...] = (0, 7, -1.5e-7, "a", "", None, True, [], {}, [[]], {"a": []}, {"type": "text", "text": "a"})
FIELDS: dict[str, dict[str, Any]] = {  # fields that are answered too, beside those of VALID
    "/v1/chat/completions": {
        "stop": ["a"],
        "logit_bias": {"5": 1},
        "chat_template_kwargs": {"a": 1},
        "metadata": {"a": "b"},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}},
    },
    "/v1/completions": {"stop": ["a"], "logit_bias": {"5": 1}, "suffix": "a", "guided_choice": ["a", "b"]},
    "/v1/responses": {"instructions": "a", "metadata": {"a": "b"}, "tools": []},
    "/v1/messages": {"system": [{"type": "text", "text": "a"}], "stop_sequences": ["a"], "tools": []},
}


class Sizes:
    """Makes requests of the operations of a server's OpenAPI page that have a body."""

    def __init__(self, page: dict[str, Any], seed: int) -> None:
        self._chance = Random(seed)
        self._paths = [path for path in VALID if path in page["paths"] and path not in ENDS_OR_RECORDS]

    def next(self) -> WorstInput:
        """The next kind of request."""
        chance = self._chance
        path = chance.choice(self._paths)
        body = copy.deepcopy(VALID[path])
        for name, value in FIELDS.get(path, {}).items():
            if chance.random() < 0.3:
                body[name] = copy.deepcopy(value)
        for _ in range(chance.choice((1, 1, 2))):
            place, key = self._place(body)
            place[key] = self._inflated(place[key])
        content = json.dumps(body, ensure_ascii=chance.random() < 0.3).encode("utf-8", "surrogatepass")
        content = content if len(content) <= BODY_BYTES else content[: BODY_BYTES - 1] + b"}"
        return WorstInput(f"{path} of {len(content)} bytes: {content[:60]!r}", path, lambda _: content)

    def _place(self, body: dict[str, Any]) -> tuple[Any, Any]:
        """A container within the body, and the key of one of its values; or a new field."""
        chance, place = self._chance, body
        if chance.random() < 0.15:
            body["extra"] = copy.deepcopy(chance.choice(ITEMS))
            return body, "extra"
        while True:
            key = chance.choice(list(place) if isinstance(place, dict) else list(range(len(place))))
            inner = place[key]
            is_large = isinstance(inner, dict | list) and len(inner) > 16  # its items may be one object
            if not isinstance(inner, dict | list) or not inner or is_large or chance.random() < 0.4:
                return place, key
            place = inner

    def _size(self, most: int) -> int:
        """A size of any order of magnitude."""
        return int(most ** self._chance.uniform(0.2, 1.0))

    def _inflated(self, value: Any) -> Any:
        chance = self._chance
        match chance.randrange(4):
            case 0:
                piece = chance.choice(PIECES)
                return piece * (self._size(BODY_BYTES) // len(piece.encode()) + 1)
            case 1:
                item = copy.deepcopy(chance.choice((value, *ITEMS)))
                return [item] * self._size(BODY_BYTES // (len(json.dumps(item)) + 2))
            case 2:
                item = copy.deepcopy(chance.choice((value, *ITEMS)))
                count = self._size(BODY_BYTES // (len(json.dumps(item)) + 12))
                return {f"k{i}": item for i in range(count)}
            case _:
                for _ in range(self._size(150)):
                    value = [value] if chance.random() < 0.5 else {"a": value}
                return [value] * self._size(max(1, min(2000, BODY_BYTES // (len(json.dumps(value)) + 2))))


async def several(url: str, key: str, seed: int) -> Counter[int]:
    """Send several kinds at a time; how many requests had each status."""
    page = httpx.get(url + "/openapi.json", headers={"authorization": f"Bearer {key}"}).json()
    sizes, found = Sizes(page, seed), Counter[int]()
    kinds = [sizes.next() for _ in range(NUM_KINDS)]
    for each in await asyncio.gather(*(attack(url, key, kind, SECONDS) for kind in kinds)):
        found += each
    return found


def main() -> None:
    url, key, seed = sys.argv[1:]
    print(json.dumps(asyncio.run(several(url, key, int(seed)))))


if __name__ == "__main__":
    main()
