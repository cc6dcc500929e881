"""Instructor: answers with types, in each of its modes, whole, partial and as a list."""

from __future__ import annotations

from collections.abc import Iterable

import instructor
import openai
import pydantic
import pytest

WHO = [{"role": "user", "content": "Ada is 36 years old."}]
MODES = (
    instructor.Mode.TOOLS,
    instructor.Mode.TOOLS_STRICT,
    instructor.Mode.JSON_SCHEMA,
    instructor.Mode.RESPONSES_TOOLS,
)


class Person(pydantic.BaseModel):
    """A person."""

    model_config = pydantic.ConfigDict(extra="forbid")

    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=150)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_an_answer_has_its_type(mode: instructor.Mode) -> None:
    client = instructor.from_openai(openai.OpenAI(max_retries=0), mode=mode)
    options = {} if mode == instructor.Mode.RESPONSES_TOOLS else {"max_tokens": 200, "temperature": 0}
    made = client.chat.completions.create(model="fake", messages=WHO, response_model=Person, max_retries=0, **options)
    assert isinstance(made, Person)


def test_an_answer_comes_in_parts() -> None:
    client = instructor.from_openai(openai.OpenAI(max_retries=0), mode=instructor.Mode.JSON_SCHEMA)
    parts = [*client.chat.completions.create_partial(model="fake", messages=WHO, response_model=Person, max_tokens=200)]
    assert len(parts) > 1
    assert Person.model_validate(parts[-1].model_dump())


def test_a_list_comes_one_by_one() -> None:
    client = instructor.from_openai(openai.OpenAI(max_retries=0), mode=instructor.Mode.TOOLS)
    found = client.chat.completions.create(
        model="fake", messages=WHO, response_model=Iterable[Person], max_tokens=400, temperature=0, max_retries=0
    )
    assert all(isinstance(each, Person) for each in found)


async def test_the_async_form() -> None:
    client = instructor.from_openai(openai.AsyncOpenAI(max_retries=0), mode=instructor.Mode.TOOLS)
    made, completion = await client.chat.completions.create_with_completion(
        model="fake", messages=WHO, response_model=Person, max_tokens=200, temperature=0, max_retries=0
    )
    assert isinstance(made, Person)
    assert completion.usage.completion_tokens > 0
