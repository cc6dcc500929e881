"""Structured output: records of one schema from sentences. The server forces each token to fit the schema.

OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python examples/json_extraction.py
"""

from __future__ import annotations

from openai import OpenAI
from pydantic import BaseModel

TEXTS = (
    "Marek is 42 years old and lives in Prague. Marek is a pilot.",
    "Nora is 31 years old and lives in Oslo. Nora is a baker.",
)


class Person(BaseModel):
    name: str
    age: int
    city: str


def extract(client: OpenAI, model: str, text: str) -> Person:
    """Return the person in a sentence. Raises ValueError if the answer was cut off."""
    question = f"Extract name, age, city as JSON: {text}"
    chat = client.chat.completions.parse(
        model=model,
        messages=[{"role": "user", "content": question}],
        response_format=Person,
        temperature=0,
        max_tokens=80,
    )
    if (person := chat.choices[0].message.parsed) is None:
        raise ValueError(f"no record in {chat.choices[0].message.content!r}")
    return person


def main() -> None:
    client = OpenAI()  # address and key are in OPENAI_BASE_URL and OPENAI_API_KEY
    model = client.models.list().data[0].id
    for text in TEXTS:
        print(extract(client, model, text).model_dump_json())


if __name__ == "__main__":
    main()
