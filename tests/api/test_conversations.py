"""Conversations, references to items and compaction, by OpenAI's client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.api.serving import Server, running_server
from tests.api.test_responses import RESPONSES, ask, client_of


@pytest.fixture
def fake(server: Server) -> Iterator[openai.OpenAI]:
    with client_of(server) as made:
        yield made


def message(text: str) -> Any:
    return {"type": "message", "role": "user", "content": text}


def texts(items: Any) -> list[str]:
    return [item.content[0].text for item in items]


def test_a_conversation_is_kept_changed_and_forgotten(fake: openai.OpenAI) -> None:
    made = fake.conversations.create(metadata={"a": "b"}, items=[message("one"), message("two")])
    assert fake.conversations.retrieve(made.id) == made
    assert fake.conversations.update(made.id, metadata={"c": "d"}).metadata == {"c": "d"}
    assert texts(fake.conversations.items.list(made.id, order="asc", limit=1)) == ["one", "two"]
    (added,) = fake.conversations.items.create(made.id, items=[message("three")]).data
    assert added.id is not None
    listed = list(fake.conversations.items.list(made.id))
    assert texts(listed) == ["three", "two", "one"]
    assert len({item.id for item in listed}) == 3
    assert fake.conversations.items.retrieve(added.id, conversation_id=made.id) == added
    fake.conversations.items.delete(added.id, conversation_id=made.id)
    assert texts(fake.conversations.items.list(made.id)) == ["two", "one"]
    (again,) = fake.conversations.items.create(made.id, items=[message("four")]).data
    assert again.id != added.id
    for call in (fake.conversations.items.retrieve, fake.conversations.items.delete):
        with pytest.raises(openai.NotFoundError):
            call(added.id, conversation_id=made.id)
    assert fake.conversations.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        fake.conversations.retrieve(made.id)
    with pytest.raises(openai.NotFoundError) as missing:
        ask(fake, conversation=made.id)
    assert missing.value.param == "conversation"


def test_responses_go_on_with_a_conversation_and_add_to_it(fake: openai.OpenAI) -> None:
    made = fake.conversations.create(items=[message("one")])
    first = ask(fake, "two", conversation=made.id)
    assert first.conversation.id == made.id
    second = ask(fake, "three", conversation={"id": made.id}, stream=True)
    last = list(second)[-1].response
    same: Any = [
        *({"role": "user", "content": text} for text in ("one", "two")),
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "three"},
    ]
    assert last.output_text == ask(fake, same).output_text
    found = list(fake.conversations.items.list(made.id, order="asc"))
    assert texts(found) == ["one", "two", first.output_text, "three", last.output_text]
    with pytest.raises(openai.BadRequestError, match="exclude each other"):
        ask(fake, "four", conversation=made.id, previous_response_id=first.id)


@pytest.mark.slow
def test_conversations_survive_the_server_and_are_their_owners(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text("keys:\n- {name: a, key: secret-a}\n- {name: b, key: secret-b}\n")
    options = ("--data-dir", str(tmp_path / "data"), "--api-keys-file", str(tmp_path / "keys.yaml"))
    with running_server(checkpoint, *options) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret-a", max_retries=0)
        made = client.conversations.create(items=[message("one")])
        item = next(iter(client.conversations.items.list(made.id)))
        stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret-b", max_retries=0)
        for call in (
            lambda: stranger.conversations.retrieve(made.id),
            lambda: stranger.conversations.update(made.id, metadata={}),
            lambda: stranger.conversations.delete(made.id),
            lambda: stranger.conversations.items.list(made.id),
            lambda: ask(stranger, "a", conversation=made.id),
            lambda: ask(stranger, [{"type": "item_reference", "id": item.id}]),
        ):
            with pytest.raises(openai.NotFoundError):
                call()
    with running_server(checkpoint, *options) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret-a", max_retries=0)
        assert client.conversations.retrieve(made.id) == made


@pytest.mark.slow
def test_conversations_are_bounded_as_responses_are(checkpoint: Path) -> None:
    with running_server(checkpoint, "--max-stored-responses", "2") as server, client_of(server) as client:
        ids = [client.conversations.create().id for _ in range(2)]
        client.conversations.items.create(ids[0], items=[message("used")])
        client.conversations.create()
        assert client.conversations.retrieve(ids[0]).id == ids[0]
        with pytest.raises(openai.NotFoundError):
            client.conversations.retrieve(ids[1])


def test_an_item_that_is_referred_to_is_as_if_it_were_there(fake: openai.OpenAI) -> None:
    first = ask(fake, "one")
    (reply,) = first.output
    (question,) = fake.responses.input_items.list(first.id).data
    references: Any = [{"type": "item_reference", "id": each.id} for each in (question, reply)]
    by_hand: Any = [message("one"), {"role": "assistant", "content": first.output_text}, message("two")]
    referring = ask(fake, [*references, message("two")])
    assert referring.output_text == ask(fake, by_hand).output_text
    assert [item.id for item in fake.responses.input_items.list(referring.id, order="asc").data][:2] == [
        question.id,
        reply.id,
    ]
    fake.responses.delete(first.id)
    for bad in (*references, {"type": "item_reference", "id": "msg_of_the_client"}):
        with pytest.raises(openai.NotFoundError) as missing:
            ask(fake, [message("a"), bad])
        assert missing.value.param == "input[1].id"
    unstored = ask(fake, "one", store=False)
    with pytest.raises(openai.NotFoundError):
        ask(fake, [{"type": "item_reference", "id": unstored.output[0].id}])


def test_the_tokens_of_an_input_are_counted(fake: openai.OpenAI) -> None:
    first = ask(fake, "one")
    for fields in ({"instructions": "Be brief."}, {"previous_response_id": first.id}):
        counted = fake.responses.input_tokens.count(model="fake", input="two", **fields)  # type: ignore[arg-type]
        assert counted.input_tokens == ask(fake, "two", **fields).usage.input_tokens
    with pytest.raises(openai.BadRequestError) as refused:
        fake.responses.input_tokens.count(model="fake")
    assert refused.value.param == "input"


def test_a_conversation_in_short_is_gone_on_with(server: Server, fake: openai.OpenAI) -> None:
    first = ask(fake, "one")
    body = {"model": "fake", "previous_response_id": first.id, "input": [message("two")]}
    answer = httpx.post(f"{server.url}{RESPONSES}/compact", json=body).json()
    assert answer["object"] == "response.compaction"
    *users, compaction = answer["output"]
    assert [item["content"][0]["text"] for item in users] == ["one", "two"]
    assert (compaction["type"], bool(compaction["encrypted_content"])) == ("compaction", True)
    assert answer["usage"]["output_tokens"] > 0
    after = ask(fake, [*answer["output"], message("three")])
    assert after.usage.input_tokens > ask(fake, [*users, message("three")]).usage.input_tokens
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any") as client:  # its own type has no users' messages
        assert client.responses.compact(model="fake", input="one").output[-1].type == "compaction"


def test_fields_that_openai_does_not_have_as_null_are_left_out(http: httpx.Client) -> None:
    answer = http.post(RESPONSES, json={"input": "a", "max_output_tokens": 2, "user": None, "background": True}).json()
    assert not {"user", "usage", "conversation"} & set(answer)
    whole = http.post(RESPONSES, json={"input": "a", "max_output_tokens": 2}).json()
    assert whole["output"][0]["content"][0]["logprobs"] == []
    for summary in ("auto", "concise", "detailed", None):
        body = {"input": "a", "max_output_tokens": 2, "reasoning": {"summary": summary}}
        assert http.post(RESPONSES, json=body).status_code == 200
