"""Digests of prompts: equal beginnings of conversations have equal digests, and nothing else has."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.route.prompt import CHUNK_BYTES, prompt_of

texts = st.text(min_size=CHUNK_BYTES, max_size=4 * CHUNK_BYTES)


def body(*contents: str, **others: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": each} for each in contents], **others}).encode()


@given(texts, texts)
def test_a_longer_conversation_begins_with_the_digests_of_the_shorter_one(first: str, second: str) -> None:
    one, two = prompt_of(body(first, stream=True)), prompt_of(body(first, second, temperature=0))
    whole = (len(body(first)) - len(body())) // CHUNK_BYTES
    assert two.digests[: len(one.digests)] == one.digests
    assert len(one.digests) in (whole, whole + 1)
    assert two.num_tokens > one.num_tokens


@pytest.mark.parametrize("field", ["model", "cache_salt", "tools", "system", "instructions"])
def test_what_stands_before_the_messages_or_keeps_them_apart_changes_all_digests(field: str) -> None:
    one, two = (prompt_of(body("x" * 2000, **{field: value})).digests for value in ("a" * 600, "b" * 600))
    assert one
    assert not set(one) & set(two)


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"a', b"\xff\xfe", b"--form\r\n"])
def test_a_body_that_is_no_object_has_a_size_alone(content: bytes) -> None:
    prompt = prompt_of(content)
    assert prompt.digests == []
    assert prompt.num_tokens == 1 + len(content) // 4


@pytest.mark.parametrize(
    ("extra", "expected"),
    [({}, False), ({"conversation": None}, False), ({"previous_response_id": "resp_1"}, True)],
)
def test_references_to_stored_things_are_seen(extra: dict[str, Any], expected: bool) -> None:
    assert prompt_of(body("x", **extra)).is_continued is expected
