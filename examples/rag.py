"""Retrieval: embed passages, find the one nearest to a question, and let the model use it.

OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python examples/rag.py "Who lost a key?"
"""

from __future__ import annotations

import sys

from openai import OpenAI

PASSAGES = (
    "Nora is a baker. One day Nora lost a key and looked for it everywhere. In the end it was in the garden.",
    "Marek is a pilot. One day Marek lost a hammer and looked for it everywhere. In the end it was in the valley.",
    "Lena is a doctor. One day Lena lost a coat and looked for it everywhere. In the end it was under the bridge.",
)


def embed(client: OpenAI, model: str, texts: list[str]) -> list[list[float]]:
    """Return one vector of unit length for each text."""
    return [item.embedding for item in client.embeddings.create(model=model, input=texts).data]


def nearest(question: list[float], passages: list[list[float]]) -> int:
    """Return the index of the passage with the largest cosine."""
    scores = [sum(a * b for a, b in zip(question, passage, strict=True)) for passage in passages]
    return scores.index(max(scores))


def main(question: str) -> None:
    client = OpenAI()  # address and key are in OPENAI_BASE_URL and OPENAI_API_KEY
    model = client.models.list().data[0].id
    vectors = embed(client, model, list(PASSAGES))
    passage = PASSAGES[nearest(embed(client, model, [question])[0], vectors)]
    prompt = f"Summarize in one sentence: {passage}"  # a task for the shipped model; give a larger one the question too
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": prompt}], temperature=0, max_tokens=60
    )
    print(f"passage: {passage}")
    print(f"answer: {answer.choices[0].message.content}")


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "Who lost a key?")
