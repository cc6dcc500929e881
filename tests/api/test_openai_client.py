"""The official client, with strict validation of every answer, against a real server on a real socket."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from neuronserve.server.engine.fake_runner import expected_tokens
from tests.api.serving import VOCAB_SIZE, Server

HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=30, _strict_response_validation=True
    ) as made:
        yield made


def generated(http_client: openai.OpenAI, count: int) -> list[int]:
    """Return the fake model's answer to HELLO, computed without any cache."""
    answer = http_client.chat.completions.create(
        model="fake", messages=HELLO, max_tokens=1, extra_body={"return_token_ids": True}
    )
    prompt: list[int] = answer.prompt_token_ids  # type: ignore[attr-defined]
    return expected_tokens(prompt, count, VOCAB_SIZE)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").owned_by == "neuronserve"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("meta/other")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_chat_gives_the_models_own_tokens_and_counts_them(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="fake",
        messages=HELLO,
        max_completion_tokens=20,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )
    (choice,) = answer.choices
    assert choice.token_ids == generated(client, 20)  # type: ignore[attr-defined]
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    prompt_tokens = len(answer.prompt_token_ids)  # type: ignore[attr-defined]
    counts = (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens)
    assert counts == (prompt_tokens, 20, prompt_tokens + 20)


def test_a_chat_stream_is_the_whole_answer_in_parts(client: openai.OpenAI) -> None:
    options = {"model": "fake", "messages": HELLO, "max_tokens": 40, "extra_body": {"ignore_eos": True}}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert {(chunk.id, chunk.created, chunk.model) for chunk in chunks} == {(chunks[0].id, chunks[0].created, "fake")}
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 40
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_usage_on_every_chunk_when_asked_for(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = client.chat.completions.create(
        model="fake",
        messages=HELLO,
        max_tokens=5,
        stream=True,
        stream_options=options,  # type: ignore[arg-type]
    )
    counts = [chunk.usage.completion_tokens if chunk.usage else None for chunk in stream]
    assert None not in counts
    assert counts == sorted(counts, key=lambda count: count or 0)
    assert counts[-1] == 5


async def test_the_async_client_streams_and_does_not(server: Server) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=30, _strict_response_validation=True
    ) as client:
        whole = await client.chat.completions.create(model="fake", messages=HELLO, max_tokens=9)
        stream = await client.chat.completions.create(model="fake", messages=HELLO, max_tokens=9, stream=True)
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(parts) == whole.choices[0].message.content
        completion = await client.completions.create(model="fake", prompt="hello", max_tokens=4)
        assert completion.choices[0].finish_reason in {"stop", "length"}


def test_completions_take_every_form_of_prompt(client: openai.OpenAI) -> None:
    def ask(prompt: object) -> list[list[int]]:
        answer = client.completions.create(
            model="fake",
            prompt=prompt,
            max_tokens=4,
            extra_body={"return_token_ids": True, "ignore_eos": True},  # type: ignore[arg-type]
        )
        assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
        return [choice.token_ids for choice in answer.choices]  # type: ignore[attr-defined]

    one, other = expected_tokens([5, 6], 4, VOCAB_SIZE), expected_tokens([7], 4, VOCAB_SIZE)
    assert ask([5, 6]) == [one]
    assert ask([[5, 6], [7]]) == [one, other]
    text, longer = ask(["ab", "abc"])
    assert ask("ab") == [text]
    assert ask("abc") == [longer]


def test_completion_max_tokens_is_sixteen_by_default(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake", prompt="ab", extra_body={"ignore_eos": True})
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


def test_echo_repeats_the_prompt(client: openai.OpenAI) -> None:
    plain = client.completions.create(model="fake", prompt="héllo", max_tokens=4)
    echoed = client.completions.create(model="fake", prompt="héllo", max_tokens=4, echo=True)
    assert echoed.choices[0].text == "héllo" + plain.choices[0].text


def test_n_choices_of_each_prompt_in_order(server: Server) -> None:
    # Text completion chunks carry "finish_reason": null until the last, as OpenAI's own do; its client's types know
    # no null there, so that only this stream is read without strict validation.
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=30) as client:
        options = {"model": "fake", "prompt": ["ab", "cd"], "max_tokens": 6, "n": 3, "extra_body": {"ignore_eos": True}}
        whole = client.completions.create(**options)
        texts = dict.fromkeys(range(6), "")
        finishes: dict[int, str] = {}
        for chunk in client.completions.create(**options, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                if choice.finish_reason:
                    finishes[choice.index] = choice.finish_reason
    assert [choice.index for choice in whole.choices] == list(range(6))
    assert list(texts.values()) == [choice.text for choice in whole.choices]
    assert finishes == dict.fromkeys(range(6), "length")
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (4, 36)


def test_chat_logprobs_have_text_bytes_and_alternatives(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="fake", messages=HELLO, max_tokens=6, logprobs=True, top_logprobs=3, extra_body={"ignore_eos": True}
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 6
    for entry in logprobs.content:
        assert entry.logprob == pytest.approx(-0.6931471805599453)
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token
        assert entry.bytes is not None
        assert bytes(entry.bytes).decode(errors="replace") == entry.token


def test_streamed_logprobs_are_those_of_the_whole_answer(client: openai.OpenAI) -> None:
    options = {
        "model": "fake",
        "messages": HELLO,
        "max_tokens": 8,
        "logprobs": True,
        "top_logprobs": 2,
        "extra_body": {"ignore_eos": True},
    }
    whole = client.chat.completions.create(**options).choices[0].logprobs
    parts = [chunk.choices[0].logprobs for chunk in client.chat.completions.create(**options, stream=True)]
    assert whole is not None
    joined = [entry for part in parts if part is not None for entry in part.content or []]
    assert joined == whole.content


def test_completion_logprobs_have_the_sampled_token_and_offsets(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake", prompt="Once upon a", max_tokens=5, logprobs=2, temperature=0)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.text_offset is not None
    assert logprobs.top_logprobs is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs or []) == 5
    for offset, token in zip(logprobs.text_offset, logprobs.tokens, strict=True):
        assert token.startswith("bytes:") or answer.choices[0].text[offset:].startswith(token)
    assert all(token in top for token, top in zip(logprobs.tokens, logprobs.top_logprobs, strict=True))


def printable_stop(client: openai.OpenAI) -> tuple[str, str]:
    """A text of the fake model, and a string of three characters inside it."""
    for seed in range(50):
        options = {"model": "fake", "prompt": f"seed {seed}", "max_tokens": 60, "extra_body": {"ignore_eos": True}}
        text = client.completions.create(**options).choices[0].text
        for at in range(5, len(text) - 3):
            if text[at : at + 3].isprintable() and "\ufffd" not in text[at : at + 3]:
                return f"seed {seed}", text[at : at + 3]
    raise AssertionError("no printable run found")


def test_stop_strings_cut_the_text_and_say_so(client: openai.OpenAI) -> None:
    prompt, stop = printable_stop(client)
    options = {"model": "fake", "prompt": prompt, "max_tokens": 60}
    whole = client.completions.create(**options, extra_body={"ignore_eos": True})
    cut = client.completions.create(**options, stop=["never seen", stop], extra_body={"ignore_eos": True})
    kept = client.completions.create(
        **options, stop=stop, extra_body={"ignore_eos": True, "include_stop_str_in_output": True}
    )
    before, _, _ = whole.choices[0].text.partition(stop)
    assert cut.choices[0].text == before
    assert kept.choices[0].text == before + stop
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].stop_reason == stop  # type: ignore[attr-defined]
    assert cut.usage is not None
    assert cut.usage.completion_tokens < 60


def test_stop_token_ids_end_the_answer_and_are_named(client: openai.OpenAI) -> None:
    tokens = generated(client, 12)
    position = next(i for i in range(3, 12) if tokens[i] not in tokens[:i])
    answer = client.chat.completions.create(
        model="fake",
        messages=HELLO,
        max_tokens=12,
        extra_body={"stop_token_ids": [tokens[position]], "return_token_ids": True, "ignore_eos": True},
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert choice.stop_reason == tokens[position]  # type: ignore[attr-defined]
    assert choice.token_ids == tokens[: position + 1]  # type: ignore[attr-defined]


def test_a_repeated_prompt_is_counted_as_cached(client: openai.OpenAI) -> None:
    options = {"model": "fake", "prompt": list(range(200)), "max_tokens": 1}
    client.completions.create(**options)
    again = client.completions.create(**options)
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == 192  # six whole blocks of 32
    salted = client.completions.create(**options, extra_body={"cache_salt": "mine"})
    assert salted.usage is not None
    assert salted.usage.prompt_tokens_details is not None
    assert salted.usage.prompt_tokens_details.cached_tokens == 0


def test_fields_that_change_nothing_are_accepted(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="fake",
        messages=[{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        max_tokens=2,
        user="me",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        modalities=["text"],
        seed=-5,
        n=2,
        temperature=0,
        extra_body={"best_of": 1, "some_future_field": {"deep": [1]}},
    )
    assert len(answer.choices) == 2
