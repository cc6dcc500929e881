"""/v1/responses by OpenAI's own client, which checks every answer and event against its types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pydantic
import pytest

from tests.api.serving import MAX_MODEL_LEN, Server, running_server, until

RESPONSES = "/v1/responses"
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 40}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
UNENDING: Any = {"extra_body": {"ignore_eos": True}}  # a field of chat, passed on
TEXT_EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]
CALL_EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
    "response.completed",
]


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=150)


@pytest.fixture
def fake(server: Server) -> Iterator[openai.OpenAI]:
    """OpenAI's own client of the fake model."""
    with client_of(server) as made:
        yield made


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=120, _strict_response_validation=True
    )


def ask(client: openai.OpenAI, text: Any = "hello", **options: Any) -> Any:
    """A greedy response of a few tokens."""
    return client.responses.create(
        **{"model": "fake", "input": text, "temperature": 0, "max_output_tokens": 16, **options}
    )


def events_of(client: openai.OpenAI, text: Any = "hello", **options: Any) -> list[Any]:
    found = list(ask(client, text, stream=True, **options))
    assert [event.sequence_number for event in found] == list(range(len(found)))
    return found


def in_short(events: list[Any]) -> list[str]:
    """Types in order, runs of deltas as one."""
    types = [event.type for event in events]
    return [kind for i, kind in enumerate(types) if not (kind.endswith(".delta") and types[i - 1] == kind)]


def test_a_response_is_what_chat_says(fake: openai.OpenAI) -> None:
    response = ask(fake, instructions="Be brief.", metadata={"a": "b"}, user="me", **UNENDING)
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    chat = fake.chat.completions.create(model="fake", messages=messages, temperature=0, max_tokens=16, **UNENDING)
    assert response.output_text == chat.choices[0].message.content
    assert response.usage.input_tokens == chat.usage.prompt_tokens  # type: ignore[union-attr]
    assert (response.instructions, response.metadata, response.user) == ("Be brief.", {"a": "b"}, "me")
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[0].status == "incomplete"
    assert response.usage.output_tokens == 16


def test_events_come_in_openais_order_and_add_up(fake: openai.OpenAI) -> None:
    whole, events = ask(fake, **UNENDING), events_of(fake, **UNENDING)
    assert in_short(events) == [*TEXT_EVENTS, "response.incomplete"]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    done = next(event for event in events if event.type == "response.output_text.done")
    assert text == done.text == events[-1].response.output_text == whole.output_text
    assert len({event.item_id for event in events if hasattr(event, "item_id")}) == 1
    assert events[0].response.id == events[-1].response.id
    assert events[0].response.output == []
    assert fake.responses.retrieve(events[-1].response.id) == events[-1].response


def test_a_stream_ends_without_an_event_that_responses_do_not_have(http: httpx.Client) -> None:
    answer = http.post(RESPONSES, json={"input": "a", "stream": True, "max_output_tokens": 2})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "[DONE]" not in answer.text


def test_items_of_every_kind_are_the_conversation(fake: openai.OpenAI) -> None:
    items: Any = [
        {"role": "system", "content": "S"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "U"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "R"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "A"}]},
        {"role": "user", "content": "more"},
    ]
    response = ask(fake, items)
    messages: Any = [{"role": role, "content": text} for role, text in zip("sua", "SUA", strict=True)]
    names = {"s": "system", "u": "user", "a": "assistant"}
    messages = [{**message, "role": names[message["role"]]} for message in messages]
    chat = fake.chat.completions.create(
        model="fake", messages=[*messages, {"role": "user", "content": "more"}], temperature=0, max_tokens=16
    )
    assert response.output_text == chat.choices[0].message.content
    listed = list(fake.responses.input_items.list(response.id, order="asc", limit=2))
    assert [item.type for item in listed] == ["message", "message", "reasoning", "message", "message"]
    assert [item.type for item in fake.responses.input_items.list(response.id, limit=1).data] == ["message"]


def test_a_response_follows_another_with_all_that_came_before(fake: openai.OpenAI) -> None:
    first = ask(fake, "one", instructions="not carried over")
    second = ask(fake, "two", previous_response_id=first.id)
    third = ask(fake, "three", previous_response_id=second.id)
    same: Any = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": second.output_text},
        {"role": "user", "content": "three"},
    ]
    assert third.output_text == ask(fake, same).output_text
    assert third.previous_response_id == second.id
    assert [item.content[0].text for item in fake.responses.input_items.list(third.id)] == ["three"]  # type: ignore[union-attr]


def test_what_is_not_stored_is_not_there(fake: openai.OpenAI) -> None:
    response = ask(fake, store=False)
    for call in (
        fake.responses.retrieve,
        fake.responses.delete,
        fake.responses.cancel,
        fake.responses.input_items.list,
    ):
        with pytest.raises(openai.NotFoundError):
            call(response.id)
    with pytest.raises(openai.NotFoundError) as raised:
        ask(fake, previous_response_id=response.id)
    assert (raised.value.param, raised.value.code) == ("previous_response_id", "previous_response_not_found")


def test_a_deleted_response_is_gone(fake: openai.OpenAI) -> None:
    response = ask(fake)
    fake.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        fake.responses.retrieve(response.id)


def test_truncation_drops_the_oldest_messages_only_when_it_may(fake: openai.OpenAI) -> None:
    items: Any = [{"role": "system", "content": "S"}]
    items += [{"role": role, "content": f"{i} " + "x" * 90} for i in range(4) for role in ("user", "assistant")]
    items += [{"role": "user", "content": "last"}]
    with pytest.raises(openai.BadRequestError) as raised:
        ask(fake, items)
    assert (raised.value.param, raised.value.code) == ("input", "context_length_exceeded")
    response = ask(fake, items, truncation="auto")
    assert response.usage.input_tokens < MAX_MODEL_LEN
    assert response.truncation == "auto"
    fits = next(ask(fake, [items[0], *items[n:]]) for n in range(1, 9) if sum(map(len, map(str, items[n:]))) < 600)
    assert response.usage.input_tokens >= fits.usage.input_tokens


def test_log_probabilities_are_included_when_asked_for(fake: openai.OpenAI) -> None:
    include: Any = ["message.output_text.logprobs"]
    response = ask(fake, include=include, top_logprobs=2, max_output_tokens=4)
    (part,) = response.output[0].content
    assert [len(entry.top_logprobs) for entry in part.logprobs] == [2] * 4
    events = events_of(fake, include=include, top_logprobs=2, max_output_tokens=4)
    streamed = [entry for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert [entry.logprob for entry in streamed] == [entry.logprob for entry in part.logprobs]
    assert ask(fake).output[0].content[0].logprobs == []


def ended(client: openai.OpenAI, response_id: str) -> Any:
    """The response once it is no longer under way."""
    until(lambda: client.responses.retrieve(response_id).status not in ("queued", "in_progress"))
    return client.responses.retrieve(response_id)


def test_a_response_in_the_background_is_generated_though_nobody_waits(fake: openai.OpenAI) -> None:
    queued = ask(fake, background=True, **UNENDING)
    assert queued.status == "queued"
    assert ended(fake, queued.id).output_text == ask(fake, **UNENDING).output_text
    assert fake.responses.cancel(queued.id).status == "incomplete"  # too late
    with pytest.raises(openai.BadRequestError, match="cannot be streamed"):
        fake.responses.retrieve(queued.id, stream=True)
    with pytest.raises(openai.BadRequestError, match="background"):
        fake.responses.cancel(ask(fake).id)


def test_a_stream_in_the_background_can_be_left_and_taken_up_again(fake: openai.OpenAI) -> None:
    with ask(fake, background=True, stream=True) as stream:
        first = next(iter(stream))
    whole = list(fake.responses.retrieve(first.response.id, stream=True))
    assert [event.sequence_number for event in whole] == list(range(len(whole)))
    assert in_short(whole)[:3] == ["response.created", "response.queued", "response.in_progress"]
    rest = list(fake.responses.retrieve(first.response.id, stream=True, starting_after=3))
    assert rest == whole[4:]


@pytest.mark.slow
def test_a_response_that_is_cancelled_or_interrupted_says_so(checkpoint: Path, hold: Path, tmp_path: Path) -> None:
    options = "--device", f"hold:{hold}", "--data-dir", str(tmp_path / "data")
    with running_server(checkpoint, *options) as server, client_of(server) as client:
        kept = ask(client, "a", max_output_tokens=1)
        cancelled = ask(client, background=True, max_output_tokens=100)
        until(lambda: client.responses.retrieve(cancelled.id).status == "in_progress")
        assert client.responses.cancel(cancelled.id).status == "cancelled"
        assert client.responses.cancel(cancelled.id).status == "cancelled"
        left = ask(client, background=True, max_output_tokens=100)
        server.process.kill()
        server.wait()
    hold.unlink()
    with running_server(checkpoint, *options) as server, client_of(server) as client:
        assert client.responses.retrieve(cancelled.id).status == "cancelled"
        failed = client.responses.retrieve(left.id)
        assert (failed.status, failed.error.code) == ("failed", "server_error")  # type: ignore[union-attr]
        assert client.responses.retrieve(kept.id) == kept
        with pytest.raises(openai.BadRequestError, match="nothing can follow"):
            ask(client, previous_response_id=left.id)


@pytest.mark.slow
def test_responses_that_were_not_used_for_longest_go_first(checkpoint: Path) -> None:
    with running_server(checkpoint, "--max-stored-responses", "3") as server, client_of(server) as client:
        ids = [ask(client, max_output_tokens=1).id for _ in range(3)]
        client.responses.retrieve(ids[0])
        ids.append(ask(client, max_output_tokens=1).id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(ids[1])
        assert [client.responses.retrieve(each).id for each in (ids[0], ids[2], ids[3])] == [ids[0], ids[2], ids[3]]
        with pytest.raises(openai.BadRequestError, match="--data-dir"):
            client.files.list()
        with pytest.raises(openai.BadRequestError, match="--data-dir"):
            client.batches.list()


def test_calls_and_their_results(client: openai.OpenAI) -> None:
    question = "What is the weather in Oslo?"
    options: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "required", "max_output_tokens": 100}
    response = ask(client, question, **options)
    (call,) = response.output
    assert (call.type, call.name, response.status) == ("function_call", "get_weather", "completed")
    assert isinstance(json.loads(call.arguments)["city"], str)
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    after = ask(client, [result], previous_response_id=response.id, tools=[WEATHER])
    by_hand: Any = [{"role": "user", "content": question}, call.model_dump(exclude_none=True), result]
    assert after.output_text == ask(client, by_hand, tools=[WEATHER]).output_text
    events = events_of(client, question, **options)
    assert in_short(events) == CALL_EVENTS
    deltas = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    assert deltas == events[-1].response.output[0].arguments == call.arguments
    done = next(event for event in events if event.type == "response.function_call_arguments.done")
    assert done.to_dict()["name"] == "get_weather"
    named = ask(client, question, **(options | {"tool_choice": {"type": "function", "name": "get_weather"}}))
    assert named.output[0].name == "get_weather"
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}
    assert ask(client, question, **(options | {"tool_choice": allowed})).output[0].name == "get_weather"


def test_the_clients_helpers_work(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(model="fake", input="Who are you?", text_format=Person, temperature=0)
    assert isinstance(parsed.output_parsed, Person)
    with client.responses.stream(
        model="fake", input="Who are you?", text_format=Person, temperature=0, instructions="Answer in JSON."
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert isinstance(final.output_parsed, Person)
